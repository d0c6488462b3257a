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
	"caddymodule": {own: []string{".", "limiter", "loadshed", "pushback", "caddymodule"}, foreign: true, why: "the handler knows the Guard, and no simulator"},
	"loadtest":    {own: []string{".", "limiter", "loadshed", "pushback", "loadtest"}, foreign: true, why: "load tests drive the Guard as anybody would"},
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

// Whoever decides takes now as an argument, so that simulations, tests and the
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
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
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
