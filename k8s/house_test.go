// Package k8s_test checks what no single package can: that the house is in order, and
// that the documentation is true.
package k8s_test

import (
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/herdshield/shield/internal/house"
)

const module = "github.com/herdshield/shield/k8s"

// rules say what each folder may import besides the standard library. Arrows point
// one way: what decides knows neither Kubernetes nor Caddy.
var rules = map[string]struct {
	own   []string // packages of this module
	shell bool     // packages of other modules, shield's own excepted: Caddy, Prometheus
	kube  bool     // Kubernetes' modules
	clock []string // the only files that may read a clock or draw random numbers; nil: all may
	why   string
}{
	"model":     {own: []string{"policy"}, clock: []string{}, why: "a Model is plain structs"},
	"policy":    {clock: []string{}, why: "policies know neither Kubernetes nor clocks"},
	"route":     {own: []string{"model"}, clock: []string{}, why: "the table knows neither Kubernetes nor clocks"},
	"endpoint":  {own: []string{"model"}, clock: []string{}, why: "the choice of an endpoint is told now and random numbers"},
	"translate": {own: []string{"model", "policy", "route"}, kube: true, clock: []string{"translate/translate.go"}, why: "it knows Kubernetes' types, and no traffic"},
	"cluster":   {own: []string{"model", "translate"}, shell: true, kube: true, why: "it watches and writes; what objects mean is no business of it"},
	"ingress":   {own: []string{"cluster", "endpoint", "model", "policy", "route", "translate"}, shell: true, kube: true, why: "only its controller knows Kubernetes, and nothing in it the programs"},
	"cmd":       {own: []string{"ingress"}, shell: true, why: "flags know the static config only"},
	"deploy":    {own: []string{"deploy"}, shell: true, why: "manifests"},
	"testbed":   {own: []string{"testbed"}, why: "it starts programs"},
	"livetest":  {why: "it has tests only"},
	"nodetest":  {why: "a load generator knows clients, not shield-ingress"},
}

// wired are the only files of ingress that may know Kubernetes' types: the controller
// and what it tells.
var wired = []string{"ingress/app.go", "ingress/controller.go", "ingress/metrics.go"}

func TestArrowsPointOneWay(t *testing.T) {
	for _, file := range files(t) {
		path, folder, rule := file.Path, file.Folder, rules[file.Folder]
		for _, spec := range file.Imports {
			name, err := strconv.Unquote(spec.Path.Value)
			if err != nil {
				t.Fatal(err)
			}
			domain, _, _ := strings.Cut(name, "/")
			own, isOwn := strings.CutPrefix(name, module+"/")
			switch {
			case isOwn:
				if top, _, _ := strings.Cut(own, "/"); !slices.Contains(rule.own, top) {
					t.Errorf("%s imports %s: %s", path, name, rule.why)
				}
			case strings.HasPrefix(name, "github.com/herdshield/shield"):
				if strings.HasSuffix(name, "/caddymodule") && !rule.shell {
					t.Errorf("%s imports %s: %s", path, name, rule.why)
				}
			case domain == "k8s.io":
				if !rule.kube || folder == "ingress" && !slices.Contains(wired, path) {
					t.Errorf("%s imports %s: %s; want that in translate, cluster or %v", path, name, rule.why, wired)
				}
			case strings.Contains(domain, "."):
				if !rule.shell {
					t.Errorf("%s imports %s, want the standard library only: %s", path, name, rule.why)
				}
			case strings.HasPrefix(name, "math/rand"):
				if rule.clock != nil {
					t.Errorf("%s imports %s: %s", path, name, rule.why)
				}
			}
		}
	}
}

// Code that decides takes now as an argument, so that tests and the server run the same
// code.
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

func TestFunctionsAreShort(t *testing.T) {
	for _, file := range files(t) {
		for _, wrong := range file.LongFunctions() {
			t.Error(wrong)
		}
	}
}

// The program links only the needed parts of client-go: all of it is 27 MB more.
func TestClientGoIsNarrow(t *testing.T) {
	cmd := exec.Command("go", "list", "-deps", "./cmd/shield-ingress")
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for name := range strings.Lines(string(out)) {
		name = strings.TrimSpace(name)
		if strings.HasPrefix(name, "k8s.io/") {
			n++
		}
		for _, heavy := range []string{"k8s.io/client-go/kubernetes", "k8s.io/client-go/informers", "k8s.io/client-go/tools/leaderelection", "k8s.io/client-go/tools/events", "sigs.k8s.io/controller-runtime"} {
			if name == heavy || strings.HasPrefix(name, heavy+"/") {
				t.Errorf("shield-ingress depends on %s", name)
			}
		}
	}
	if n == 0 || n > 130 { // 110 in 2026
		t.Errorf("shield-ingress depends on %d packages of Kubernetes; want up to 130", n)
	}
}

// files returns the Go files of this module, tests excepted.
func files(t *testing.T) []house.File {
	t.Helper()
	all := house.Files(t, "testbed/wrapper.go") // run by testbed/build, alone
	house.CheckFolders(t, all, rules)
	return all
}
