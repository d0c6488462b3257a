// Package k8s_test checks what no single package can: that the program links no more than
// it needs, and that the documentation is true.
package k8s_test

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"github.com/herdshield/shield/k8s/testbed/controlplane"
	"github.com/herdshield/shield/k8s/testbed/must"
	"github.com/herdshield/shield/k8s/translate"
)

// The pages, in the order in which they are read.
const (
	page          = "../docs/kubernetes/install-and-limit.md"
	filtersPage   = "../docs/kubernetes/filters.md"
	routingPage   = "../docs/kubernetes/routing-and-tls.md"
	operatingPage = "../docs/kubernetes/operate.md"
	referencePage = "../docs/kubernetes/reference.md"
	migrationPage = "../docs/kubernetes/migrate-from-ingress-nginx.md"
)

var pages = []string{page, filtersPage, routingPage, operatingPage, referencePage, migrationPage}

func readPages(t *testing.T) string {
	t.Helper()
	var all strings.Builder
	for _, path := range pages {
		all.WriteString(must.Read(t, path))
	}
	return all.String()
}

func fences(text, language string) (blocks []string) {
	for _, m := range regexp.MustCompile("(?ms)^```"+language+"\n(.*?)^```").FindAllStringSubmatch(text, -1) {
		blocks = append(blocks, m[1])
	}
	return blocks
}

// inTable checks that a pattern finds this in the rows of the first table under a heading of the reference, and no more.
func inTable(t *testing.T, heading, pattern string, want []string) {
	t.Helper()
	_, text, _ := strings.Cut(must.Read(t, referencePage), "\n"+heading+"\n")
	text = regexp.MustCompile("(?m)(?:^\\|.*\n)+").FindString(text)
	var got []string
	for _, m := range regexp.MustCompile("(?m)^\\| "+pattern).FindAllStringSubmatch(text, -1) {
		got = append(got, strings.TrimSpace(strings.Join(m[1:], " ")))
	}
	slices.Sort(got)
	slices.Sort(want)
	if want = slices.Compact(want); !slices.Equal(got, want) || len(want) < 10 {
		t.Errorf("the table has\n%q\nwant\n%q", got, want)
	}
}

// All reasons of Events are in their table.
func TestReasons(t *testing.T) {
	var reasons []string
	for _, folder := range []string{"ingress", "translate"} {
		for _, file := range must.Get(filepath.Glob(folder + "/*.go"))(t) {
			for _, m := range regexp.MustCompile(`\bReason(?:\w* +=|:) +"(\w+)"`).FindAllStringSubmatch(must.Read(t, file), -1) {
				reasons = append(reasons, m[1])
			}
		}
	}
	inTable(t, "## Status and Events", "`(\\w+)` \\|", reasons)
}

// All metrics of the controller are in their table, with their labels.
func TestMetrics(t *testing.T) {
	var metrics []string
	source := must.Read(t, "ingress/metrics.go")
	for _, m := range regexp.MustCompile(`(?s)\bdesc\(("[a-z_]+",.*?)\)`+"\n").FindAllStringSubmatch(source, -1) { // desc(name, help, labels...)
		words := regexp.MustCompile(`"([^"]*)"`).FindAllStringSubmatch(m[1], -1)
		var labels []string
		for _, label := range words[2:] {
			labels = append(labels, "`"+label[1]+"`")
		}
		metrics = append(metrics, strings.TrimSpace("shield_ingress_"+words[0][1]+" "+strings.Join(labels, ", ")))
	}
	for _, m := range regexp.MustCompile(`Name: +"(shield_ingress_[a-z_]+)"`).FindAllStringSubmatch(source, -1) {
		metrics = append(metrics, m[1])
	}
	inTable(t, "## Metrics", "`(\\w+)` \\| \\w+ \\| ([^|]*)\\|", metrics)
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

// annotated returns an Ingress with these annotations and a host of its own.
func annotated(t *testing.T, annotations map[string]string, i int) *networkingv1.Ingress {
	in := strict[networkingv1.Ingress](t, fmt.Sprintf(`{metadata: {namespace: shop, name: page-%d}, spec: {ingressClassName: shield, rules: [{host: page-%[1]d.example.com,
		http: {paths: [{path: /, pathType: Prefix, backend: {service: {name: app, port: {name: http}}}}]}}]}}`, i))
	in.Annotations = annotations
	return in
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
			case " ": // the annotations of an Ingress alone, or values of prometheus-adapter
				if strings.HasPrefix(document, "rules:") {
					continue
				}
				objects.Ingresses = append(objects.Ingresses, annotated(t, *strict[map[string]string](t, document), len(objects.Ingresses)))
			case "networking.k8s.io/v1 Ingress":
				objects.Ingresses = append(objects.Ingresses, strict[networkingv1.Ingress](t, document))
			case "networking.k8s.io/v1 IngressClass":
				objects.Classes = append(objects.Classes, strict[networkingv1.IngressClass](t, document))
			case "v1 Service":
				objects.Services = append(objects.Services, strict[corev1.Service](t, document))
			case "v1 ConfigMap":
				objects.ConfigMaps = append(objects.ConfigMaps, strict[corev1.ConfigMap](t, document))
			case "autoscaling/v2 HorizontalPodAutoscaler":
				metric := strict[autoscalingv2.HorizontalPodAutoscaler](t, document).Spec.Metrics[0].External.Metric.Name
				if !slices.ContainsFunc(blocks, func(b string) bool { return strings.Contains(b, "name: {as: "+metric+"}") }) {
					t.Errorf("no rule of the adapter makes the metric %s", metric)
				}
			case "keda.sh/v1alpha1 ScaledObject": // TestMetrics in deploy reads its query
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

// elsewhere are the commands of the pages that TestCommands does not run, and who or what
// runs them. nodetest/run has them unchanged, or with its variables.
var elsewhere = map[string]string{
	"kind create cluster --config k8s/deploy/overlays/kind/cluster.yaml":                                                                  "a reader; TestValues in deploy looks at the file",
	"curl -i --resolve shop.example.com:80:127.0.0.1 http://shop.example.com/":                                                            "a reader",
	`curl -s -o /dev/null -w '%{http_code}\n' --resolve shop.example.com:80:127.0.0.1 'http://shop.example.com/?[1-50]' | sort | uniq -c`: "a reader",
	"packaging/images shield-ingress":                                                                "TestImages in deploy, with another program",
	"kind load image-archive dist/images/shield-ingress.tar":                                         "a reader; nodetest/run imports an image of that name",
	"docker load -i dist/images/shield-ingress.tar":                                                  "a reader; TestImages in deploy reads the archive",
	"docker tag ghcr.io/herdshield/shield-ingress:v0.1.0 registry.example.com/shield-ingress:v0.1.0": "a reader",
	"docker push registry.example.com/shield-ingress:v0.1.0":                                         "a reader",
	"kubectl -n shield-ingress rollout status deployment/shield-ingress":                             "nodetest/run",
	"kubectl -n shield-ingress logs deployment/shield-ingress":                                       "nodetest/run",
	"kubectl -n shield-ingress port-forward deployment/shield-ingress 10254":                         "a reader",
	"curl -s http://localhost:10254/readyz":                                                          "a reader; as the probes of nodetest/run",
	"curl -s http://localhost:10254/metrics":                                                         "nodetest/run, at the pod's address",
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
			case strings.HasPrefix(line, "kubectl "), line == "sh modes.sh":
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
		t.Parallel()
		run := startServer(t)
		prepare := func(line string) {
			if out, err := run(line); err != nil {
				t.Fatalf("%s: %v\n%s", line, err, out)
			}
		}
		prepare("kubectl create namespace shop")
		prepare("kubectl -n shop create service clusterip app --tcp=80:8080")
		// The commands for an emergency leave what was observed before as it was. Values go into a shell, so only modes may.
		for name, mode := range map[string]string{"watched": "observe", "crafted": `'observe; exit 1'`} {
			prepare("kubectl -n shop create service clusterip " + name + " --tcp=80:8080")
			prepare("kubectl -n shop annotate service " + name + " shield.herdshield.io/mode=" + mode)
		}
		modes := filepath.Join(t.TempDir(), "modes.sh")
		for _, line := range kubectl {
			out, err := run(strings.Replace(line, " modes.sh", " "+modes, 1))
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
			{"-n shop get service watched -o jsonpath={.metadata.annotations}", `{"shield.herdshield.io/mode":"observe"}`},
			{"-n shop get service crafted -o jsonpath={.metadata.annotations}", ``},
			{"-n shield-ingress get deployment shield-ingress -o jsonpath={.spec.template.spec.containers[0].image}", "ghcr.io/herdshield/shield-ingress:v0.1.0"},
		} {
			if got, err := run("kubectl " + o.what); err != nil || got != o.want {
				t.Errorf("%s: %v, %q; want %q", o.what, err, got, o.want)
			}
		}
	})
	t.Run("helm", func(t *testing.T) {
		t.Parallel()
		run := startServer(t)
		for _, line := range helm {
			if out, err := run(line); err != nil {
				t.Errorf("%s: %v\n%s", line, err, out)
			}
		}
		out, err := run("kubectl -n shield-ingress get deployment shield-ingress -o jsonpath={.spec.template.spec.containers[0]['image','args','env']}")
		for _, want := range []string{
			"registry.example.com/shield-ingress:2026-11-30", "--nginx-annotations", "--replicas=shared", "--store=redis://redis.shop:6379",
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
	kubeconfig := must.Plane(t)
	dir := filepath.Dir(kubeconfig)
	folder := must.Get(controlplane.Programs())(t)
	if _, err := os.Stat(filepath.Join(folder, "helm")); err != nil && os.Getenv("SHIELD_K8S_REQUIRED") != "1" {
		t.Skipf("%v: run k8s/testbed/build tools", err)
	}
	return func(line string) (string, error) {
		cmd := exec.CommandContext(t.Context(), "bash", "-c", line)
		if strings.HasPrefix(line, "kubectl ") && strings.Contains(line, "jsonpath") { // not for a shell
			cmd = exec.CommandContext(t.Context(), filepath.Join(folder, "kubectl"), strings.Fields(line)[1:]...)
		}
		cmd.Dir = ".."
		cmd.Env = append(os.Environ(), "PATH="+folder+string(os.PathListSeparator)+os.Getenv("PATH"), "KUBECONFIG="+kubeconfig, "HOME="+dir, "HELM_CACHE_HOME="+dir+"/helm", "HELM_CONFIG_HOME="+dir+"/helm", "HELM_DATA_HOME="+dir+"/helm")
		var stdout, stderr bytes.Buffer
		cmd.Stdout, cmd.Stderr = &stdout, &stderr
		err := cmd.Run()
		if err != nil {
			err = fmt.Errorf("%w: %s", err, stderr.Bytes())
		}
		return stdout.String(), err
	}
}

// The program links only the needed parts of client-go: all of it is 27 MB more.
func TestClientGoIsNarrow(t *testing.T) {
	cmd := exec.Command("go", "list", "-deps", "./cmd/shield-ingress")
	cmd.Stderr = os.Stderr
	out := must.Get(cmd.Output())(t)
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
