package shield

import (
	"go/ast"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/herdshield/shield/internal/house"
)

const module = "github.com/herdshield/shield"

// rules say what each folder may import, besides the standard library. Arrows
// point one way: what decides knows nothing of what serves. Folders inherit from
// the nearest one above that is listed.
var rules = map[string]struct {
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
	"chart":       {clock: []string{}, why: "charts do not know what they are about"},
	"loadtest":    {own: []string{".", "limiter", "loadshed", "pushback", "chart", "loadtest"}, foreign: true, why: "load tests drive the Guard as any program would"},
	"internal":    {own: []string{".", "caddymodule"}, foreign: true, why: "what a config file says has nothing to do with what runs"},
	"cmd":         {own: []string{".", "limiter", "loadshed", "pushback", "caddymodule", "internal", "loadtest"}, foreign: true, why: "commands wire everything"},
}

func TestArrowsPointOneWay(t *testing.T) {
	for _, file := range files(t) {
		path, folder, rule := file.Path, file.Folder, rules[file.Folder]
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
	}
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
	for _, file := range files(t) {
		if file.Folder != "." {
			continue
		}
		ast.Inspect(file.File, func(n ast.Node) bool {
			if sel, ok := n.(*ast.SelectorExpr); ok {
				if pkg, ok := sel.X.(*ast.Ident); ok && organs[pkg.Name] != nil && pkg.Obj == nil {
					used[pkg.Name+"."+sel.Sel.Name] = true
					if !slices.Contains(organs[pkg.Name], sel.Sel.Name) {
						t.Errorf("%s uses %s.%s: what concerns one organ only belongs into its package", file.Path, pkg.Name, sel.Sel.Name)
					}
				}
			}
			return true
		})
	}
	for organ, names := range organs {
		for _, name := range names {
			if !used[organ+"."+name] {
				t.Errorf("%s.%s is not used any more: the list is out of date", organ, name)
			}
		}
	}
}

// maxFields is how many fields a struct of the root package may have that is no
// configuration.
const maxFields = 12

// configuration lists the structs that say what an operator set, or what was counted.
var configuration = []string{"Config", "Zone", "Request", "Decision", "settings", "ShedStats", "BackendStats"}

func TestStructsAndFunctionsAreSmall(t *testing.T) {
	for _, file := range files(t) {
		for name, wrong := range file.LongFunctions() {
			if !slices.Contains(tooLong, name) {
				t.Error(wrong)
			}
		}
		if file.Folder != "." {
			continue
		}
		ast.Inspect(file.File, func(n ast.Node) bool {
			typ, ok := n.(*ast.TypeSpec)
			if !ok || slices.Contains(configuration, typ.Name.Name) {
				return true
			}
			fields := 0
			if s, ok := typ.Type.(*ast.StructType); ok {
				for _, f := range s.Fields.List {
					fields += max(1, len(f.Names))
				}
			}
			if fields > maxFields {
				t.Errorf("%s: %s has %d fields, want at most %d", file.Path, typ.Name.Name, fields, maxFields)
			}
			return true
		})
	}
}

// tooLong are functions that are still to be split.
var tooLong = []string{"config", "parse", "run", "plan", "judge", "WriteTable", "estimate", "overTime", "result", "newRun", "play", "newWording"}

// Decisions take now as an argument, so that simulations, tests and the
// server run the same code.
func TestNoClockInTheCore(t *testing.T) {
	for _, file := range files(t) {
		rule := rules[file.Folder]
		if rule.clock == nil || slices.Contains(rule.clock, file.Path) {
			continue
		}
		for _, use := range file.Clocks() {
			t.Errorf("%s uses %s: %s", file.Path, use, rule.why)
		}
	}
}

// files returns the Go files of this module, tests excepted.
func files(t *testing.T) []house.File {
	t.Helper()
	all := house.Files(t)
	house.CheckFolders(t, all, rules)
	return all
}
