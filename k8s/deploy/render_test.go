package deploy

import (
	"bytes"
	_ "embed"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	_ "github.com/caddyserver/caddy/v2/modules/standard"
	"sigs.k8s.io/yaml"

	_ "github.com/herdshield/shield/caddymodule"
	"github.com/herdshield/shield/k8s/testbed/controlplane"
	"github.com/herdshield/shield/k8s/testbed/must"
)

type object = map[string]any

// folders are the folders that are shipped and rendered, in addition to the chart.
var folders = []string{"base", "overlays/namespaced", "overlays/everything", "standalone/deployment", "standalone/sidecar"}

// missing skips the test because a tool is missing, or fails it if all are required.
func missing(t *testing.T, format string, args ...any) {
	t.Helper()
	if os.Getenv("SHIELD_K8S_REQUIRED") == "1" {
		t.Fatalf(format, args...)
	}
	t.Skipf(format, args...)
}

func tool(t *testing.T, name string) string {
	t.Helper()
	folder, _ := controlplane.Programs() // also returned if others are not there
	path := filepath.Join(folder, name)
	if _, err := os.Stat(path); err == nil {
		return path
	}
	path, err := exec.LookPath(name)
	if err != nil {
		missing(t, "%s is neither in %s nor in the PATH: run k8s/testbed/build tools", name, folder)
	}
	return path
}

func run(cmd *exec.Cmd) ([]byte, error) {
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return out, fmt.Errorf("%s: %w\n%s%s", cmd, err, out, stderr.Bytes())
	}
	return out, nil
}

func parse(stream []byte) ([]object, error) {
	var all []object
	for part := range strings.SplitSeq("\n"+string(stream), "\n---") {
		var o object
		if err := yaml.UnmarshalStrict([]byte(part), &o); err != nil {
			return nil, fmt.Errorf("%w in\n%s", err, part)
		}
		if o != nil {
			all = append(all, o)
		}
	}
	return all, nil
}

// goTool returns the path of a command of the module tools, which Go links into its cache.
func goTool(t *testing.T, name string) string {
	t.Helper()
	var path []byte
	for range 2 { // the first time, a program that is not there yet is elsewhere
		cmd := exec.Command("go", "run", "-exec", "echo", "./"+name)
		cmd.Dir, cmd.Env = "tools", append(os.Environ(), "GOWORK=off")
		out, err := run(cmd)
		if path = out; err != nil {
			missing(t, "the module deploy/tools cannot be built: %v", err)
		}
	}
	return strings.TrimSpace(string(path))
}

// rendered has the rendered texts by name. Objects are parsed anew, since tests change them.
var rendered = map[string][]byte{}

// objectsOf parses what render returns, and calls it once for each name.
func objectsOf(t *testing.T, name string, render func() ([]byte, error)) []object {
	t.Helper()
	if rendered[name] == nil {
		out := must.Get(render())(t)
		rendered[name] = out
	}
	return must.Get(parse(rendered[name]))(t)
}

func kustomize(t *testing.T, folder string) []object {
	t.Helper()
	return objectsOf(t, folder, func() ([]byte, error) { return run(exec.Command(goTool(t, "kustomize"), folder)) })
}

func helmOutput(t *testing.T, values string) ([]byte, error) {
	t.Helper()
	cmd := exec.Command(tool(t, "helm"), "template", "shield-ingress", "../chart", "--namespace", "shield-ingress", "--kube-version", "1.36.0", "--values", "-")
	cmd.Stdin = strings.NewReader(values)
	return run(cmd)
}

func helm(t *testing.T, values string) []object {
	t.Helper()
	return objectsOf(t, "chart with "+values, func() ([]byte, error) { return helmOutput(t, values) })
}

// allValues are the chart's values that render the same as overlays/everything.
const allValues = `
ingressClass: {parameters: {rate: 50/s, burst: "200", concurrency: "100", retry-after-max: 20s, mode: observe}}
metrics: {serviceMonitor: {enabled: true}, rules: {enabled: true}, dashboards: {enabled: true}}
admissionPolicies: {enabled: true}
`

// each runs a test on all folders, and on the chart.
func each(t *testing.T, test func(t *testing.T, objects []object)) {
	for _, folder := range folders {
		t.Run(folder, func(t *testing.T) { test(t, kustomize(t, folder)) })
	}
	for name, values := range map[string]string{"chart": "", "chart with all": allValues, "chart, namespaced": "controller: {namespaces: [shop]}"} {
		t.Run(name, func(t *testing.T) { test(t, helm(t, values)) })
	}
}

func get(v any, path ...any) any {
	for _, step := range path {
		switch step := step.(type) {
		case string:
			m, _ := v.(object)
			v = m[step]
		case int:
			l, _ := v.([]any)
			if step >= len(l) {
				return nil
			}
			v = l[step]
		}
	}
	return v
}

func text(v any, path ...any) string {
	s, _ := get(v, path...).(string)
	return s
}

func list(v any, path ...any) []any {
	l, _ := get(v, path...).([]any)
	return l
}

func words(v any, path ...any) []string {
	var s []string
	for _, w := range list(v, path...) {
		s = append(s, fmt.Sprint(w))
	}
	return s
}

func id(o object) string {
	return text(o, "kind") + " " + text(o, "metadata", "namespace") + "/" + text(o, "metadata", "name")
}

func ofKind(objects []object, kind string) []object {
	return slices.DeleteFunc(slices.Clone(objects), func(o object) bool { return text(o, "kind") != kind })
}
