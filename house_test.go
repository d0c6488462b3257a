package shield

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

const module = "github.com/herdshield/shield"

// house says what each folder may import, besides the standard library. Arrows
// point one way: what decides knows nothing of what serves. Folders inherit from
// the nearest one above that is listed.
var house = map[string]struct {
	own     []string // packages of this module
	foreign bool     // packages of other modules
	but     string   // the one package of another module, if not foreign
	clock   []string // the only files that may read a clock or draw random numbers; nil: all may
	why     string
}{
	"limiter":     {clock: []string{}, why: "buckets know neither HTTP nor Caddy nor clocks"},
	"loadshed":    {clock: []string{}, why: "the gate knows neither HTTP nor Caddy nor clocks"},
	"pushback":    {but: "github.com/axiomhq/hyperloglog", clock: []string{}, why: "answers know neither Caddy nor clocks"},
	".":           {own: []string{"limiter", "loadshed", "pushback"}, clock: []string{"clock.go"}, why: "the Guard composes the three, and knows no Caddy"},
	"shieldgrpc":  {own: []string{".", "limiter", "loadshed"}, foreign: true, why: "the interceptor knows the Guard, and HTTP no more than the Guard does"},
	"caddymodule": {own: []string{".", "limiter", "loadshed", "pushback", "caddymodule"}, foreign: true, why: "the handler knows the Guard, and no simulator"},
	"loadtest":    {own: []string{".", "limiter", "loadshed", "pushback", "loadtest"}, foreign: true, why: "load tests drive the Guard as any program would"},
	"internal":    {own: []string{".", "caddymodule"}, foreign: true, why: "what a config file says has nothing to do with what runs"},
	"cmd":         {own: []string{".", "limiter", "loadshed", "pushback", "caddymodule", "internal", "loadtest"}, foreign: true, why: "commands wire everything"},
}

func TestArrowsPointOneWay(t *testing.T) {
	eachFile(t, func(path, folder string, file *ast.File) {
		rule := house[folder]
		for _, spec := range file.Imports {
			name, err := strconv.Unquote(spec.Path.Value)
			if err != nil {
				t.Fatal(err)
			}
			own, isOwn := strings.CutPrefix(name, module)
			switch {
			case isOwn:
				own = strings.TrimPrefix(own, "/")
				if own == "" {
					own = "."
				}
				if top, _, _ := strings.Cut(own, "/"); !slices.Contains(rule.own, top) {
					t.Errorf("%s imports %s: %s", path, name, rule.why)
				}
			case strings.Contains(strings.Split(name, "/")[0], "."):
				if !rule.foreign && name != rule.but {
					t.Errorf("%s imports %s, want the standard library only: %s", path, name, rule.why)
				}
			case name == "math/rand" || name == "math/rand/v2" || (name == "net/http" && (folder == "limiter" || folder == "loadshed")):
				if rule.clock != nil {
					t.Errorf("%s imports %s: %s", path, name, rule.why)
				}
			}
		}
	})
}

// The root package composes three organs. It knows each by the types that stand for it
// as a whole, and by values that cross; their parts are their own.
var organs = map[string][]string{
	"limiter": {
		"Config", "Key", "Limit", "Bucket", "Table", "Claim", "New",
		"KeyOf", "KeyOfBytes", "KeyOfParts", "MinKeys", "MaxKeys",
	},
	"loadshed": {
		"Concurrency", "ConcurrencyStats", "Plan", "PlanConfig", "NewPlan", "QueueConfig", "AdaptiveConfig", "Class", "Classes",
		"Entrant", "Entered", "ClientFull", "Place", "Verdict", "Change",
		"Outcome", "Served", "Detached", "Aborted", "TimedOut", "Overloaded",
		"Routes", "MaxConcurrency", "NoQueue", "DefaultQueue", "MaxQueue", "MaxQueueTimeout",
	},
	"pushback": {
		"Appointments", "AppointmentStats", "Terms", "Caller", "Visit", "Supply", "Told", "HerdReport",
		"Answers", "NewAnswers", "AnswerConfig", "Policy", "Refusal",
		"Classes", "OnTime", "OtherRequest", "Ambiguous",
		"Retry", "IsGRPC", "ReadsShieldRetry", "TicketOf", "NewTickets",
		"DefaultMaxClients", "MinMaxClients", "MaxMaxClients",
	},
}

func TestTheRootKnowsOrgansAsWholes(t *testing.T) {
	used := map[string]bool{}
	eachFile(t, func(path, folder string, file *ast.File) {
		if folder != "." {
			return
		}
		ast.Inspect(file, func(n ast.Node) bool {
			if sel, ok := n.(*ast.SelectorExpr); ok {
				if pkg, ok := sel.X.(*ast.Ident); ok && organs[pkg.Name] != nil && pkg.Obj == nil {
					used[pkg.Name+"."+sel.Sel.Name] = true
					if !slices.Contains(organs[pkg.Name], sel.Sel.Name) {
						t.Errorf("%s uses %s.%s: what concerns one organ only belongs into its package", path, pkg.Name, sel.Sel.Name)
					}
				}
			}
			return true
		})
	})
	for organ, names := range organs {
		for _, name := range names {
			if !used[organ+"."+name] {
				t.Errorf("%s.%s is not used any more: the list is out of date", organ, name)
			}
		}
	}
}

// maxFields is how many fields a struct of the root package may have that is no
// configuration, and maxLines how long a function may be, in the whole module.
const (
	maxFields = 12
	maxLines  = 60
)

// configuration lists the structs that say what an operator set, or what was counted.
var configuration = []string{"Config", "Zone", "Request", "Decision", "settings", "ShedStats", "BackendStats"}

func TestStructsAndFunctionsAreSmall(t *testing.T) {
	eachFile(t, func(path, folder string, file *ast.File) {
		ast.Inspect(file, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.TypeSpec:
				s, ok := n.Type.(*ast.StructType)
				if !ok || folder != "." || slices.Contains(configuration, n.Name.Name) {
					break
				}
				fields := 0
				for _, f := range s.Fields.List {
					fields += max(1, len(f.Names))
				}
				if fields > maxFields {
					t.Errorf("%s: %s has %d fields, want at most %d", path, n.Name.Name, fields, maxFields)
				}
			case *ast.FuncDecl:
				if n.Body == nil || isTable(n.Body) {
					break
				}
				if slices.Contains(tooLong, n.Name.Name) {
					break
				}
				if lines := files.Position(n.End()).Line - files.Position(n.Pos()).Line + 1; lines > maxLines {
					t.Errorf("%s: %s has %d lines, want at most %d", path, n.Name.Name, lines, maxLines)
				}
			}
			return true
		})
	})
}

// tooLong are functions that are still to be split.
var tooLong = []string{"config", "parse", "run", "plan", "judge", "WriteTable", "estimate", "overTime", "result", "newRun", "play", "newWording"}

// isTable reports whether a function is a list for the most part: one statement that
// takes more than half of it.
func isTable(body *ast.BlockStmt) bool {
	whole := files.Position(body.End()).Line - files.Position(body.Pos()).Line
	for _, s := range body.List {
		list := false
		switch s := s.(type) {
		case *ast.ReturnStmt, *ast.AssignStmt, *ast.DeclStmt, *ast.RangeStmt:
			ast.Inspect(s, func(n ast.Node) bool {
				if c, ok := n.(*ast.CompositeLit); ok {
					list = list || 2*(files.Position(c.End()).Line-files.Position(c.Pos()).Line) > whole
				}
				return !list
			})
		case *ast.SwitchStmt:
			list = 2*(files.Position(s.End()).Line-files.Position(s.Pos()).Line) > whole && len(s.Body.List) > 12
		}
		if list {
			return true
		}
	}
	return false
}

// files knows where everything stands that eachFile has visited.
var files = token.NewFileSet()

// Decisions take now as an argument, so that simulations, tests and the
// server run the same code.
func TestNoClockInTheCore(t *testing.T) {
	clocks := []string{"Now", "Since", "Until", "Sleep", "After", "AfterFunc", "NewTimer", "NewTicker", "Tick"}
	eachFile(t, func(path, folder string, file *ast.File) {
		rule := house[folder]
		if rule.clock == nil || slices.Contains(rule.clock, path) {
			return
		}
		ast.Inspect(file, func(n ast.Node) bool {
			if sel, ok := n.(*ast.SelectorExpr); ok {
				if pkg, ok := sel.X.(*ast.Ident); ok && pkg.Name == "time" && slices.Contains(clocks, sel.Sel.Name) {
					t.Errorf("%s uses time.%s: %s", path, sel.Sel.Name, rule.why)
				}
			}
			return true
		})
	})
}

// eachFile visits the Go files of this module, tests excepted.
func eachFile(t *testing.T, visit func(path, folder string, file *ast.File)) {
	t.Helper()
	visited := map[string]int{}
	err := filepath.WalkDir(".", func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			if nested, _ := filepath.Glob(filepath.Join(path, "go.mod")); path != "." && (len(nested) > 0 || strings.HasPrefix(d.Name(), ".")) {
				return filepath.SkipDir // a module of its own
			}
			return nil
		}
		if !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
			return nil
		}
		folder, _, _ := strings.Cut(filepath.ToSlash(filepath.Dir(path)), "/")
		if _, ok := house[folder]; !ok {
			t.Errorf("%s stands in a folder that has no rule here", path)
		}
		file, err := parser.ParseFile(files, path, nil, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		visited[folder]++
		visit(path, folder, file)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	for folder := range house {
		if visited[folder] == 0 {
			t.Errorf("no files in %s: the rule is out of date", folder)
		}
	}
}
