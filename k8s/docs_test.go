package k8s_test

import (
	"bytes"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"github.com/herdshield/shield/k8s/policy"
	"github.com/herdshield/shield/k8s/testbed/controlplane"
	"github.com/herdshield/shield/k8s/testbed/must"
	"github.com/herdshield/shield/k8s/translate"
)

// The pages, in the order in which they are read.
const (
	page          = "../docs/kubernetes.md"
	filtersPage   = "../docs/kubernetes-filters.md"
	routingPage   = "../docs/kubernetes-routing.md"
	operatingPage = "../docs/kubernetes-operating.md"
	referencePage = "../docs/kubernetes-reference.md"
	migrationPage = "../docs/kubernetes-migration.md"
)

var pages = []string{page, filtersPage, routingPage, operatingPage, referencePage, migrationPage}

// readPages returns all pages as one text.
func readPages(t *testing.T) string {
	t.Helper()
	var all strings.Builder
	for _, path := range pages {
		all.WriteString(must.Read(t, path))
	}
	return all.String()
}

// No page is long, and all are listed here.
func TestPages(t *testing.T) {
	found, _ := filepath.Glob("../docs/kubernetes*.md")
	if want := slices.Sorted(slices.Values(pages)); !slices.Equal(found, want) {
		t.Errorf("the pages are %v; want %v", found, want)
	}
	for _, path := range pages {
		if n := strings.Count(must.Read(t, path), "\n"); n > 300 {
			t.Errorf("%s has %d lines; want at most 300", path, n)
		}
	}
}

// fences returns the blocks of code in a language.
func fences(text, language string) (blocks []string) {
	for _, m := range regexp.MustCompile("(?ms)^```"+language+"\n(.*?)^```").FindAllStringSubmatch(text, -1) {
		blocks = append(blocks, m[1])
	}
	return blocks
}

// A row of a table, by the names of its columns.
type row map[string]string

// table returns the first table under a heading.
func table(t *testing.T, text, heading string) []row {
	t.Helper()
	_, text, ok := strings.Cut(text, "\n"+heading+"\n")
	if !ok {
		t.Fatalf("there is no heading %q", heading)
	}
	var columns []string
	var rows []row
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		if !strings.HasPrefix(line, "|") {
			if columns != nil {
				break
			}
			continue
		}
		cells := strings.Split(strings.Trim(line, "|"), "|")
		for i := range cells {
			cells[i] = strings.TrimSpace(cells[i])
		}
		switch {
		case columns == nil:
			columns = cells
		case len(cells) != len(columns):
			t.Fatalf("%s: %q has %d cells; want %d", heading, line, len(cells), len(columns))
		case !strings.HasPrefix(cells[0], "---"):
			r := row{}
			for i, c := range columns {
				r[c] = cells[i]
			}
			rows = append(rows, r)
		}
	}
	if len(rows) == 0 {
		t.Fatalf("there is no table under %q", heading)
	}
	return rows
}

var spans = regexp.MustCompile("`([^`]+)`")

// code returns what is in backticks.
func code(cell string) (list []string) {
	for _, m := range spans.FindAllStringSubmatch(cell, -1) {
		list = append(list, m[1])
	}
	return list
}

// named reports names that are missing in a column of a table, that do not exist, or that
// are duplicates.
func named(t *testing.T, rows []row, column string, want []string) {
	t.Helper()
	var got []string
	for _, r := range rows {
		got = append(got, code(r[column])...)
	}
	slices.Sort(got)
	want = slices.Sorted(slices.Values(want))
	for _, name := range got {
		if !slices.Contains(want, name) {
			t.Errorf("the table has %s, which does not exist", name)
		}
	}
	for _, name := range want {
		if !slices.Contains(got, name) {
			t.Errorf("the table has no %s", name)
		}
	}
	if d := slices.Compact(slices.Clone(got)); len(d) != len(got) {
		t.Errorf("the table has duplicates: %v", got)
	}
}

// The ranges of the annotations, as both tables have them, are true.
func TestAnnotations(t *testing.T) {
	for _, kind := range []struct {
		name  string
		list  []policy.Annotation
		parse func(map[string]string) error
	}{
		{"Ingress", policy.OnIngress(), func(a map[string]string) error {
			_, err := policy.ParseIngress(a, policy.Ingress{})
			_, redirect := policy.SSLRedirect(a, false, policy.RedirectTLS)
			_, filters := policy.ParseFilters(a, false, nil)
			_, ignored := policy.Heeded(a)
			return errors.Join(err, redirect, filters, ignored)
		}},
		{"Service", policy.OnService(), func(a map[string]string) error {
			_, err := policy.ParseService(a)
			_, protocol := policy.BackendProtocol(a, "")
			return errors.Join(err, protocol)
		}},
	} {
		t.Run(kind.name, func(t *testing.T) {
			for _, r := range kind.list {
				name := r.Name
				try := func(value string, want bool) {
					t.Helper()
					a := map[string]string{policy.Prefix + name: value}
					if need := r.Needs; need[0] != "" {
						a[policy.Prefix+need[0]] = need[1]
					}
					if err := kind.parse(a); (err == nil) != want {
						t.Errorf("%s: %q: error is %v, and the page says %q", name, value, err, r.Range)
					}
				}
				try("", false)
				try("non sense!", false)
				for _, value := range code(r.Range) {
					try(value, true)
				}
				if m := regexp.MustCompile(`\b(\d+) to (\d+)\b`).FindStringSubmatch(r.Range); m != nil {
					low, _ := strconv.Atoi(m[1])
					high, _ := strconv.Atoi(m[2])
					try(m[1], true)
					try(m[2], true)
					try(strconv.Itoa(low-1), false)
					try(strconv.Itoa(high+1), false)
				}
				if m := regexp.MustCompile("`(\\d+)s` to `(\\d+)s`").FindStringSubmatch(r.Range); m != nil {
					low, _ := strconv.Atoi(m[1])
					high, _ := strconv.Atoi(m[2])
					try(fmt.Sprintf("%ds", low-1), false)
					try(fmt.Sprintf("%ds", high+1), false)
					try("1500ms", false)
				}
				if m := regexp.MustCompile("^up to `(.+)`$").FindStringSubmatch(r.Range); m != nil {
					most := must.Get(time.ParseDuration(m[1]))(t)
					try((most + 1).String(), false)
					try("0s", false)
				}
				if strings.HasPrefix(r.Range, "at least 1;") {
					try("1", true)
					try("0", false)
					try(strconv.Itoa(500*31*86400+1), false) // of 500/s, and of less
				}
				if m := regexp.MustCompile(`at most (\d+) bytes`).FindStringSubmatch(r.Range); m != nil {
					n, _ := strconv.Atoi(m[1])
					key := func(n int) string {
						return "{http.request.header." + strings.Repeat("x", n-len("{http.request.header.}")) + "}"
					}
					try(key(n), true)
					try(key(n+1), false)
				}
			}
		})
	}
}

// The table of ingress-nginx's annotations has those that are read: with something
// that is no number, or no address, each is an error or changes what is parsed.
func TestNginxAnnotations(t *testing.T) {
	for _, r := range table(t, must.Read(t, migrationPage), "## Annotations that are read") {
		for _, name := range code(r["`nginx.ingress.kubernetes.io/`"]) {
			a := map[string]string{policy.NginxPrefix + "limit-rps": "10", policy.NginxPrefix + name: "0"}
			if name == "limit-rps" || name == "limit-rpm" || name == "limit-connections" {
				a[policy.NginxPrefix+name] = "x"
			}
			if _, _, err := policy.ParseNginx(a, policy.Ingress{}); err == nil {
				t.Errorf("%s is not read", name)
			}
		}
	}
	p, found, err := policy.ParseNginx(map[string]string{policy.NginxPrefix + "limit-rps": "10"}, policy.Ingress{})
	if err != nil || !found || p.Zones[0].Limit.Burst != 51 || p.Status != 503 {
		t.Errorf("limit-rps: 10 is %+v, %v; the page says a burst of 51, and 503", p, err)
	}
}

// All reasons of Events are in their table.
func TestReasons(t *testing.T) {
	reasons := map[string]bool{}
	inIngress, _ := filepath.Glob("ingress/*.go")
	inTranslate, _ := filepath.Glob("translate/*.go")
	for _, path := range slices.DeleteFunc(slices.Concat(inIngress, inTranslate), isTest) {
		file := must.Get(parser.ParseFile(token.NewFileSet(), path, nil, 0))(t)
		ast.Inspect(file, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.ValueSpec: // ReasonX = "X"
				for i, name := range n.Names {
					if strings.HasPrefix(name.Name, "Reason") && i < len(n.Values) {
						reasons[literal(n.Values[i])] = true
					}
				}
			case *ast.KeyValueExpr: // model.Problem{Reason: "X"}
				if key, ok := n.Key.(*ast.Ident); ok && key.Name == "Reason" && literal(n.Value) != "" {
					reasons[literal(n.Value)] = true
				}
			}
			return true
		})
	}
	if len(reasons) < 15 {
		t.Fatalf("there are only %d reasons", len(reasons))
	}
	named(t, table(t, must.Read(t, referencePage), "## Status and Events"), "reason", slices.Collect(maps.Keys(reasons)))
}

func isTest(path string) bool { return strings.HasSuffix(path, "_test.go") }

// literal returns a string literal, or "".
func literal(e ast.Expr) string {
	if l, ok := e.(*ast.BasicLit); ok && l.Kind == token.STRING {
		s, _ := strconv.Unquote(l.Value)
		return s
	}
	return ""
}

// All metrics of the controller are in their table, with their labels.
func TestMetrics(t *testing.T) {
	file := must.Get(parser.ParseFile(token.NewFileSet(), "ingress/metrics.go", nil, 0))(t)
	labels := map[string][]string{}
	ast.Inspect(file, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.CallExpr: // desc(name, help, labels...)
			if f, ok := n.Fun.(*ast.Ident); ok && f.Name == "desc" && literal(n.Args[0]) != "" {
				name := "shield_ingress_" + literal(n.Args[0])
				labels[name] = nil
				for _, l := range n.Args[2:] {
					labels[name] = append(labels[name], literal(l))
				}
			}
		case *ast.KeyValueExpr: // HistogramOpts{Name: ...}
			if key, ok := n.Key.(*ast.Ident); ok && key.Name == "Name" && strings.HasPrefix(literal(n.Value), "shield_ingress_") {
				labels[literal(n.Value)] = nil
			}
		}
		return true
	})
	if len(labels) < 10 {
		t.Fatalf("there are only %d metrics", len(labels))
	}
	rows := table(t, must.Read(t, referencePage), "## Metrics")
	named(t, rows, "metric", slices.Collect(maps.Keys(labels)))
	for _, r := range rows {
		if name := code(r["metric"])[0]; !slices.Equal(code(r["labels"]), labels[name]) {
			t.Errorf("%s: labels are %v; want %v", name, code(r["labels"]), labels[name])
		}
	}
}

// All flags are in their table, with their defaults.
func TestFlags(t *testing.T) {
	program := filepath.Join(t.TempDir(), "shield-ingress")
	if out, err := exec.Command("go", "build", "-o", program, "./cmd/shield-ingress").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	help := must.Get(exec.Command(program, "--help").Output())(t)
	defaults := map[string]string{}
	var flags []string
	starts := regexp.MustCompile(`(?m)^ +--([a-z0-9-]+)`).FindAllSubmatchIndex(help, -1)
	for i, at := range starts {
		end := len(help)
		if i+1 < len(starts) {
			end = starts[i+1][0]
		}
		name := "--" + string(help[at[2]:at[3]])
		flags = append(flags, name)
		about := strings.Join(strings.Fields(string(help[at[3]:end])), " ") // it is wrapped
		if m := regexp.MustCompile(`\(default "?([^:")]+)"?\)`).FindStringSubmatch(about); m != nil {
			defaults[name] = m[1]
		}
	}
	slices.Sort(flags)
	rows := table(t, must.Read(t, referencePage), "## Flags")
	var got []string
	for _, r := range rows {
		name := code(r["flag"])[0]
		got = append(got, name)
		if want := defaults[name]; want != "" && strings.Trim(r["default"], "`") != want {
			t.Errorf("%s: default is %q; want %q", name, r["default"], want)
		}
	}
	if slices.Sort(got); !slices.Equal(got, flags) {
		t.Errorf("the table has\n%v; want\n%v", got, flags)
	}
	if len(defaults) < 8 {
		t.Errorf("--help has defaults for %v only", defaults)
	}
}

// strict reads a document as a strict API server does.
func strict[T any](t *testing.T, document string) *T {
	t.Helper()
	into := new(T)
	if err := yaml.UnmarshalStrict([]byte(document), into); err != nil {
		t.Errorf("%v\n%s", err, document)
	}
	return into
}

// A strict API server would accept the YAML on the pages, and shield finds no problems in it.
func TestYAML(t *testing.T) {
	blocks := fences(readPages(t), "yaml")
	if len(blocks) < 3 {
		t.Fatalf("there are only %d blocks of YAML", len(blocks))
	}
	var objects translate.Objects
	for _, block := range blocks {
		for document := range strings.SplitSeq(block, "\n---\n") {
			var kind metav1.TypeMeta
			if err := yaml.Unmarshal([]byte(document), &kind); err != nil {
				t.Fatalf("%v\n%s", err, document)
			}
			switch kind.APIVersion + " " + kind.Kind {
			case "networking.k8s.io/v1 Ingress":
				objects.Ingresses = append(objects.Ingresses, strict[networkingv1.Ingress](t, document))
			case "networking.k8s.io/v1 IngressClass":
				objects.Classes = append(objects.Classes, strict[networkingv1.IngressClass](t, document))
			case "v1 Service":
				objects.Services = append(objects.Services, strict[corev1.Service](t, document))
			case "v1 ConfigMap":
				objects.ConfigMaps = append(objects.ConfigMaps, strict[corev1.ConfigMap](t, document))
			case "apps/v1 Deployment":
				strict[appsv1.Deployment](t, document)
			default:
				t.Errorf("what is %+v?\n%s", kind, document)
			}
		}
	}
	if len(objects.Classes) == 0 || len(objects.Ingresses) == 0 || len(objects.Services) == 0 {
		t.Fatal("there is no Ingress with its class and its Service")
	}
	m := translate.New(translate.Options{}).Translate(objects)
	for _, p := range m.Problems {
		t.Errorf("%s %s: %s: %s", p.Object.Kind, p.Object, p.Reason, p.Message)
	}
	if len(m.Mine) != len(objects.Ingresses) {
		t.Errorf("%d of %d Ingresses are shield's", len(m.Mine), len(objects.Ingresses))
	}
}

// Links within the pages, and to files, lead somewhere.
func TestLinks(t *testing.T) {
	for _, path := range append(slices.Clone(pages), "README.md", "deploy/README.md") {
		text := must.Read(t, path)
		anchors := map[string][]string{}
		for _, m := range regexp.MustCompile(`\]\(([^)]+)\)`).FindAllStringSubmatch(text, -1) {
			target, anchor, _ := strings.Cut(m[1], "#")
			if strings.Contains(target, "://") {
				continue
			}
			file := path
			if target != "" {
				file = filepath.Join(filepath.Dir(path), target)
			}
			if anchor == "" {
				if _, err := os.Stat(file); err != nil {
					t.Errorf("%s: %v", path, err)
				}
				continue
			}
			if anchors[file] == nil {
				for _, h := range regexp.MustCompile(`(?m)^#+ (.*)$`).FindAllStringSubmatch(must.Read(t, file), -1) {
					slug := regexp.MustCompile(`[^a-z0-9 -]`).ReplaceAllString(strings.ToLower(h[1]), "")
					anchors[file] = append(anchors[file], strings.ReplaceAll(slug, " ", "-"))
				}
			}
			if !slices.Contains(anchors[file], anchor) {
				t.Errorf("%s: %s has no heading %s", path, file, anchor)
			}
		}
	}
}

// elsewhere are the commands of the pages that TestCommands does not run, and who or what
// runs them. nodetest/run has them unchanged, or with its variables.
var elsewhere = map[string]string{
	"kind create cluster --config k8s/deploy/overlays/kind/cluster.yaml":       "a reader; TestKind in deploy looks at the file",
	"curl -i --resolve shop.example.com:80:127.0.0.1 http://shop.example.com/": "a reader",
	"packaging/images shield-ingress":                                          "TestImages in deploy, with another program",
	"kind load image-archive dist/images/shield-ingress.tar":                   "a reader; nodetest/run imports an image of that name",
	"kubectl -n shield-ingress rollout status deployment/shield-ingress":       "nodetest/run",
	"kubectl -n shield-ingress logs deployment/shield-ingress":                 "nodetest/run",
	"kubectl -n shield-ingress port-forward deployment/shield-ingress 10254":   "a reader",
	"curl -s http://localhost:10254/readyz":                                    "a reader; as the probes of nodetest/run",
	"curl -s http://localhost:10254/metrics":                                   "nodetest/run, at the pod's address",
}

// TestCommands runs the pages' kubectl and helm commands in order against real API servers, one for the
// manifests and one for the chart. There are no nodes: commands that need pods run elsewhere.
func TestCommands(t *testing.T) {
	var kubectl, helm []string
	for _, block := range fences(readPages(t), "sh") {
		for line := range strings.Lines(block) {
			line, _, _ = strings.Cut(line, "  #")
			line = strings.TrimSpace(line)
			switch {
			case line == "" || strings.HasPrefix(line, "#") || elsewhere[line] != "":
			case strings.HasPrefix(line, "kubectl "):
				kubectl = append(kubectl, line)
			case strings.HasPrefix(line, "helm "):
				helm = append(helm, line)
			default:
				t.Errorf("nothing runs %q", line)
			}
		}
	}
	for line := range elsewhere {
		if !strings.Contains(readPages(t), "\n"+line) {
			t.Errorf("no page has %q any more", line)
		}
	}
	if len(kubectl) < 5 || len(helm) < 2 {
		t.Fatalf("the pages have %d commands of kubectl and %d of helm; want more", len(kubectl), len(helm))
	}

	t.Run("kubectl", func(t *testing.T) {
		run := startServer(t)
		prepare := func(line string) {
			if out, err := run(line); err != nil {
				t.Fatalf("%s: %v\n%s", line, err, out)
			}
		}
		prepare("kubectl create namespace shop")
		prepare("kubectl -n shop create service clusterip app --tcp=80:8080")
		for _, line := range kubectl {
			if strings.Contains(line, "get lease ") { // which shield would have made
				prepare(`kubectl -n shield-ingress create -f - <<< '{apiVersion: coordination.k8s.io/v1, kind: Lease, metadata: {name: shield-ingress}}'`)
			}
			out, err := run(line)
			if strings.Contains(line, "auth can-i") { // says no by its exit code, too
				if strings.TrimSpace(out) != "no" || err == nil {
					t.Errorf("%s: says %q", line, out)
				}
				continue
			}
			if err != nil {
				t.Errorf("%s: %v\n%s", line, err, out)
			}
		}
		for _, o := range []struct{ what, want string }{
			{"-n shop get ingress shop -o jsonpath={.spec.ingressClassName}{.spec.rules[0].http.paths[0]}", `shield{"backend":{"service":{"name":"app","port":{"number":80}}},"path":"/","pathType":"Prefix"}`},
			{"-n shop get service app -o jsonpath={.metadata.annotations}", `{"shield.herdshield.io/endpoint-concurrency":"20"}`},
			{"-n shield-ingress get deployment shield-ingress -o jsonpath={.spec.template.spec.containers[0].image}", "ghcr.io/herdshield/shield-ingress:v0.1.0"},
		} {
			if got, err := run("kubectl " + o.what); err != nil || got != o.want {
				t.Errorf("%s: %v, %q; want %q", o.what, err, got, o.want)
			}
		}
	})
	t.Run("helm", func(t *testing.T) {
		run := startServer(t)
		for _, line := range helm {
			if out, err := run(line); err != nil {
				t.Errorf("%s: %v\n%s", line, err, out)
			}
		}
		out, err := run("kubectl -n shield-ingress get deployment shield-ingress -o jsonpath={.spec.template.spec.containers[0]['image','args','env']}")
		for _, want := range []string{
			"registry.example.com/shield-ingress:v0.1.0", "--nginx-annotations", "--replicas=shared", "--store=redis://redis.shop:6379",
			`"name":"SHIELD_STORE_PASSWORD","valueFrom":{"secretKeyRef":{"key":"password","name":"shield-store"`,
		} {
			if err != nil || !strings.Contains(out, want) {
				t.Errorf("%v: the Deployment has no %s: %s", err, want, out)
			}
		}
	})
}

// startServer starts an API server, and returns a function that runs a command of the pages
// with it, from the root of the repository.
func startServer(t *testing.T) func(line string) (string, error) {
	t.Helper()
	missing := func(err error) {
		t.Helper()
		if os.Getenv("SHIELD_K8S_REQUIRED") == "1" {
			t.Fatal(err)
		}
		t.Skip(err)
	}
	folder, err := controlplane.Programs()
	if err != nil {
		missing(err)
	}
	path := folder + string(os.PathListSeparator) + os.Getenv("PATH")
	t.Setenv("PATH", path)
	for _, name := range []string{"kubectl", "helm"} {
		if _, err := exec.LookPath(name); err != nil {
			missing(fmt.Errorf("%w: run k8s/testbed/build node tools", err))
		}
	}
	dir := must.Get(os.MkdirTemp("", "shield-docs-"))(t) // not t.TempDir: what is killed may still write there
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	plane := must.Get(controlplane.Start(t.Context(), dir))(t)
	t.Cleanup(plane.Stop)
	kubeconfig := filepath.Join(dir, "kubeconfig")
	must.Do(t, os.WriteFile(kubeconfig, plane.Kubeconfig(plane.URL, controlplane.AdminToken), 0o600))
	return func(line string) (string, error) {
		cmd := exec.CommandContext(t.Context(), "bash", "-c", line)
		if strings.HasPrefix(line, "kubectl ") && strings.Contains(line, "jsonpath") { // not for a shell
			cmd = exec.CommandContext(t.Context(), "kubectl", strings.Fields(line)[1:]...)
		}
		cmd.Dir = ".."
		cmd.Env = append(os.Environ(), "KUBECONFIG="+kubeconfig, "HOME="+dir, "HELM_CACHE_HOME="+dir+"/helm", "HELM_CONFIG_HOME="+dir+"/helm", "HELM_DATA_HOME="+dir+"/helm")
		var stdout, stderr bytes.Buffer
		cmd.Stdout, cmd.Stderr = &stdout, &stderr
		err := cmd.Run()
		if err != nil {
			err = fmt.Errorf("%w: %s", err, stderr.Bytes())
		}
		return stdout.String(), err
	}
}
