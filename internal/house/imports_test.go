// Package house has the tests of the repository as a whole: which package may import which, which
// files may read a clock, and whether the pages name what there is. What a user gets is tested elsewhere.
package house

import (
	"cmp"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

const module = "github.com/herdshield/shield"

// rules say what each folder may import, besides the standard library. Arrows
// point one way: what decides knows nothing of what serves. Folders inherit from
// the nearest one above that is listed.
var rules = map[string]struct {
	own     []string // folders of this repository, and those in them
	foreign []string // how the paths of other modules begin; "": all
	kube    bool     // Kubernetes' modules
	clock   []string // the only files that may read a clock or draw random numbers; nil: all may
	why     string
}{
	"limiter":             {foreign: []string{"github.com/dchest/siphash"}, clock: []string{}, why: "buckets know neither HTTP nor Caddy nor clocks"},
	"loadshed":            {clock: []string{}, why: "the gate knows neither HTTP nor Caddy nor clocks"},
	"dialect":             {foreign: []string{"github.com/coder/websocket", "golang.org/x/net/http/httpguts"}, clock: []string{}, why: "a request proves what its client understands, whoever is rejected"},
	"meter":               {foreign: []string{"github.com/klauspost/compress"}, clock: []string{}, why: "a response says what it has cost, whoever pays"},
	"pushback":            {own: []string{"dialect"}, clock: []string{}, why: "answers know neither Caddy nor clocks"},
	"share":               {own: []string{"limiter", "loadshed", "pushback", "share"}, clock: []string{}, why: "what replicas tell each other is a function of what they know and when"},
	"share/virtual":       {own: []string{"share"}, foreign: []string{"github.com/alicebob/gopher-json", "github.com/yuin/gopher-lua"}, clock: []string{}, why: "it runs the script of share, at instants that it is told"},
	"share/redis":         {own: []string{"share"}, foreign: []string{"github.com/gomodule/redigo"}, why: "it carries what share decides"},
	".":                   {own: []string{"dialect", "limiter", "loadshed", "meter", "pushback", "share"}, clock: []string{"clock.go", "handler.go", "exchange.go", "watchdog.go"}, why: "the Guard composes the three, and knows no Caddy; its shell knows the time"},
	"shieldgrpc":          {own: []string{".", "limiter", "loadshed"}, foreign: all, why: "the interceptor knows the Guard, and HTTP no more than the Guard does"},
	"shieldprom":          {own: []string{".", "internal/metrics"}, foreign: []string{"github.com/prometheus/client_golang"}, why: "the collector knows the Guard, and no Caddy"},
	"caddymodule":         {own: []string{".", "dialect", "limiter", "loadshed", "meter", "pushback", "share", "chart", "oncall", "internal/metrics", "caddymodule"}, foreign: all, why: "the handler knows the Guard, and no simulator"},
	"chart":               {clock: []string{}, why: "charts do not know what they are about"},
	"oncall":              {own: []string{".", "loadshed", "pushback", "share", "chart"}, clock: []string{}, why: "it is told what a Guard counts, and when"},
	"loadtest":            {own: []string{".", "limiter", "loadshed", "pushback", "share", "chart", "oncall", "loadtest"}, foreign: all, why: "load tests drive the Guard as any program would"},
	"loadtest/lab":        {own: []string{".", "limiter", "loadshed", "pushback", "caddymodule", "chart", "internal/configfile", "loadtest", "site"}, foreign: all, why: "it is no part of the program"},
	"site":                {own: []string{".", "limiter", "loadtest", "site"}, clock: []string{}, why: "the playground plays the Guard in virtual time, in a browser"},
	"internal/metrics":    {own: []string{".", "loadshed", "pushback"}, foreign: []string{"github.com/prometheus/client_golang"}, why: "the collectors of caddymodule and shieldprom show it"},
	"internal/configfile": {own: []string{".", "caddymodule"}, foreign: all, why: "what a config file says has nothing to do with what runs"},
	"internal/fakellm":    {why: "a backend knows nothing of what is before it"},
	"packaging":           {clock: []string{}, why: "the same input makes the same image"},
	"cmd":                 {own: []string{".", "chart", "limiter", "loadshed", "pushback", "share", "caddymodule", "internal/configfile", "internal/fakellm", "oncall", "loadtest"}, foreign: all, why: "commands wire everything"},

	"caddymodule/adminapi": {own: []string{".", "pushback", "share", "oncall"}, clock: []string{}, why: "what the admin endpoint says knows no Caddy"},
	"caddymodule/operate":  {own: []string{".", "oncall", "caddymodule/adminapi", "caddymodule/commands"}, foreign: all, why: "the endpoint knows what it says, not what runs"},
	"caddymodule/commands": {own: []string{"oncall", "caddymodule/adminapi"}, foreign: all, why: "commands know what the admin endpoint says, not what runs"},

	"caddymodule/store": {own: []string{"share", "internal/metrics"}, foreign: all, why: "it knows connections and links, and no shields"},

	"caddymodule/door": {own: []string{".", "dialect", "limiter", "pushback"}, foreign: all, why: "it asks what decides, and does not know the handler"},

	"k8s/model":     {own: []string{"k8s/policy"}, clock: []string{}, why: "a Model is plain structs"},
	"k8s/policy":    {own: []string{".", "dialect", "limiter", "loadshed", "caddymodule/clientkey"}, clock: []string{}, why: "policies know neither Kubernetes nor clocks"},
	"k8s/route":     {own: []string{"k8s/model"}, clock: []string{}, why: "the table knows neither Kubernetes nor clocks"},
	"k8s/endpoint":  {own: []string{"k8s/model"}, clock: []string{}, why: "the choice of an endpoint is told now and random numbers"},
	"k8s/translate": {own: []string{"k8s/model", "k8s/policy", "k8s/route"}, kube: true, clock: []string{"k8s/translate/translate.go"}, why: "it knows Kubernetes' types, and no traffic"},
	"k8s/cluster":   {own: []string{"k8s/model", "k8s/translate"}, foreign: all, kube: true, why: "it watches and writes; what objects mean is no business of it"},
	"k8s/ingress":   {own: []string{".", "limiter", "loadshed", "pushback", "caddymodule", "k8s"}, foreign: all, kube: true, why: "only its controller knows Kubernetes, and nothing in it the programs"},
	"k8s/migrate":   {own: []string{"k8s/model", "k8s/policy", "k8s/translate", "k8s/cluster"}, foreign: all, kube: true, why: "it prints what translate says, and knows no traffic"},
	"k8s/cmd":       {own: []string{"k8s/ingress", "k8s/migrate", "k8s/policy"}, foreign: all, why: "flags know the static config only"},
	"k8s/deploy":    {own: []string{"k8s/deploy"}, foreign: all, why: "manifests"},
	"k8s/testbed":   {own: []string{"k8s/testbed"}, why: "it starts programs"},
	"k8s/livetest":  {why: "it has tests only"},
	"k8s/nodetest":  {own: []string{"loadtest/clients", "pushback"}, why: "a load generator knows clients, not shield-ingress"},
}

var all = []string{""}

// wired are the only files of k8s/ingress that may know Kubernetes' types: the controller
// and what it tells.
var wired = []string{"k8s/ingress/app.go", "k8s/ingress/controller.go", "k8s/ingress/metrics.go"}

// within reports whether a package is one of the folders, or in one.
func within(pkg string, folders []string) bool {
	return slices.ContainsFunc(folders, func(f string) bool { return pkg == f || f != "." && strings.HasPrefix(pkg, f+"/") })
}

// All paths are those of the repository.
func TestMain(m *testing.M) {
	if err := os.Chdir("../.."); err != nil {
		panic(err)
	}
	m.Run()
}

func TestArrowsPointOneWay(t *testing.T) {
	for _, file := range files(t) {
		rule := rules[file.folder]
		for _, spec := range file.Imports {
			name, err := strconv.Unquote(spec.Path.Value)
			if err != nil {
				t.Fatal(err)
			}
			own, isOwn := strings.CutPrefix(name, module)
			domain, _, _ := strings.Cut(name, "/")
			ok := true
			switch {
			case isOwn:
				ok = within(cmp.Or(strings.TrimPrefix(own, "/"), "."), rule.own)
			case domain == "k8s.io":
				ok = rule.kube && (file.folder != "k8s/ingress" || slices.Contains(wired, file.path))
			case strings.Contains(domain, "."):
				ok = slices.ContainsFunc(rule.foreign, func(prefix string) bool { return strings.HasPrefix(name, prefix) })
			case strings.HasPrefix(name, "math/rand"), name == "net/http" && (file.folder == "limiter" || file.folder == "loadshed"):
				ok = rule.clock == nil
			}
			if !ok {
				t.Errorf("%s imports %s: %s", file.path, name, rule.why)
			}
		}
	}
}

// Decisions take now as an argument, so that simulations, tests and the
// server run the same code.
func TestNoClockInTheCore(t *testing.T) {
	for _, file := range files(t) {
		rule := rules[file.folder]
		if rule.clock == nil || slices.Contains(rule.clock, file.path) {
			continue
		}
		for _, use := range file.clocks() {
			t.Errorf("%s uses %s: %s", file.path, use, rule.why)
		}
	}
}

// A goFile is a Go file of this repository.
type goFile struct {
	path   string // with slashes
	folder string // the one in rules: two elements of path, or the first; "." for files of the root
	*ast.File

	set *token.FileSet
}

// files returns the Go files of this module and of k8s, without tests.
func files(t *testing.T) (files []goFile) {
	t.Helper()
	set, seen := token.NewFileSet(), map[string]bool{}
	err := filepath.WalkDir(".", func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		path = filepath.ToSlash(path)
		if d.IsDir() {
			nested, _ := filepath.Glob(filepath.Join(path, "go.mod"))
			if path != "." && (path != "k8s" && path != "loadtest/lab" && len(nested) > 0 || strings.HasPrefix(d.Name(), ".")) {
				return filepath.SkipDir
			}
			return nil
		}
		if !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") || path == "k8s/testbed/wrapper.go" { // run alone
			return nil
		}
		file, err := parser.ParseFile(set, path, nil, 0)
		if err != nil {
			return err
		}
		parts := strings.Split(filepath.ToSlash(filepath.Dir(path)), "/")
		folder := parts[0]
		if two := strings.Join(parts[:min(2, len(parts))], "/"); folder == "k8s" || rules[two].why != "" {
			folder = two
		}
		if _, ok := rules[folder]; !ok {
			t.Errorf("%s is in a folder without a rule", path)
		}
		seen[folder] = true
		files = append(files, goFile{path, folder, file, set})
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	for folder := range rules {
		if !seen[folder] {
			t.Errorf("no files in %s: the rule is out of date", folder)
		}
	}
	return files
}

// clocks are the functions of package time that read or wait for a clock.
var clocks = []string{"Now", "Since", "Until", "Sleep", "After", "AfterFunc", "NewTimer", "NewTicker", "Tick"}

// clocks returns the uses of a clock, as "time.Now", and in the root as "Now".
func (f goFile) clocks() (uses []string) {
	ast.Inspect(f.File, func(n ast.Node) bool {
		if call, ok := n.(*ast.CallExpr); ok && f.folder == "." {
			if name, ok := call.Fun.(*ast.Ident); ok && name.Name == "Now" {
				uses = append(uses, name.Name)
			}
		}
		if sel, ok := n.(*ast.SelectorExpr); ok {
			pkg, ok := sel.X.(*ast.Ident)
			if name := sel.Sel.Name; ok && (pkg.Name == "time" && slices.Contains(clocks, name) || pkg.Name == "shield" && name == "Now") {
				uses = append(uses, pkg.Name+"."+name)
			}
		}
		return true
	})
	return uses
}
