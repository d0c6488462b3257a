package migrate

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/herdshield/shield/k8s/policy"
	"github.com/herdshield/shield/k8s/testbed/must"
)

// manifest is an Ingress with annotations, as lines of YAML.
func manifest(name string, annotations ...string) string {
	return "apiVersion: networking.k8s.io/v1\nkind: Ingress\nmetadata:\n  name: " + name + "\n  annotations: {" + strings.Join(annotations, ", ") + `}
spec: {rules: [{host: ` + name + `.example.com, http: {paths: [{path: /, pathType: Prefix, backend: {service: {name: web, port: {number: 80}}}}]}}]}
`
}

const n = policy.NginxPrefix

func look(input string, args ...string) (code int, stdout, stderr string) {
	var out, wrong bytes.Buffer
	code = Main(append(args, "-"), strings.NewReader(input), &out, &wrong)
	return code, out.String(), wrong.String()
}

// The example of docs/kubernetes/migrate-from-ingress-nginx.md is what the command prints.
func TestExampleOfThePage(t *testing.T) {
	_, out, _ := look(manifest("shop", n+"auth-type: basic", n+"server-alias: www.example.com", n+"proxy-buffering: 'on'", n+"limit-rps: '10'"))
	if page := must.Read(t, "../../docs/kubernetes/migrate-from-ingress-nginx.md"); !strings.Contains(page, "```text\n"+out+"```\n") {
		t.Errorf("the page has no\n%s", out)
	}
}

func TestMain(t *testing.T) {
	guarded := manifest("guarded", n+"auth-type: basic", n+"server-alias: a", n+"rewrite-target: /", n+"proxy-buffering: 'on'")
	for _, test := range []struct {
		name, input string
		code        int
		want        []string // in the output or the errors
	}{
		{"plain", manifest("plain"), 0, []string{"default/plain: works as before", "Ingresses: 1; as before: 1, weaker: 0, rejected: 0\n"}},
		{"translated", manifest("a", n+"limit-rps: '5'", n+"ssl-redirect: 'false'", n+"whitelist-source-range: 10.0.0.0/8"), 0,
			[]string{"translated  limit-rps ", "shield.herdshield.io/allowlist-source-range"}},
		{"weaker", manifest("a", n+"server-alias: b"), 1, []string{"default/a: weaker", "write a rule for each host"}},
		{"a wrong value", manifest("a", n+"limit-rps: many"), 1, []string{"PolicyInvalid", "use a whole number"}},
		{"a pattern", strings.Replace(manifest("a"), "path: /,", `path: "/v[0-9]",`, 1), 1, []string{"PathLiteral"}},
		{"a canary", manifest("a", n+"canary: 'true'"), 1, []string{"NginxCanary", "its rules are ignored"}},
		{"rejected", guarded, 2, []string{"default/guarded: rejected", "rejected    auth-type ", "weaker      server-alias ", "ignored     proxy-buffering ", "translated  rewrite-target ",
			"to serve it anyway: shield.herdshield.io/ignore-nginx: \"auth-type\"", "rejected: 1\n"}},
		{"limits of both", manifest("a", n+"limit-rps: '5'", "shield.herdshield.io/rate: 9/s"), 0, []string{"ignored     NginxIgnored "}},
		{"meant, though it is read", manifest("a", n+"limit-rps: many", "shield.herdshield.io/ignore-nginx: limit-rps"), 0, []string{"meant       limit-rps "}},
		{"a guard that is wrong", manifest("a", n+"auth-url: nonsense"), 2, []string{"rejected    PolicyInvalid ", "use a URL"}},
		{"meant", manifest("a", n+"auth-type: basic", "shield.herdshield.io/ignore-nginx: auth-type"), 0, []string{"meant       auth-type "}},
		{"several documents", "# none\n---\n" + manifest("a") + "--- # next\n" + manifest("b") + "---\nkind: ConfigMap\n", 0, []string{"default/a:", "default/b:", "Ingresses: 2;"}},
		{"a list", `{"kind": "List", "apiVersion": "v1", "items": [{"kind": "Ingress", "apiVersion": "networking.k8s.io/v1", "metadata": {"name": "a", "namespace": "shop"}}]}`, 0, []string{"shop/a:"}},
		{"a list of Ingresses", `{"kind": "IngressList", "apiVersion": "networking.k8s.io/v1", "items": [{"metadata": {"name": "a"}}]}`, 0, []string{"default/a:"}},
		{"a default backend", `{"kind": "Ingress", "apiVersion": "networking.k8s.io/v1", "metadata": {"name": "a", "annotations": {"` + n + `auth-url": "nonsense"}}, "spec": {"defaultBackend": {"service": {"name": "web"}}}}`, 2, []string{"default/a: rejected"}},
		{"a template", manifest("a") + "---\nmetadata: {{ .Values.x }\n", 2, []string{"stdin, document 2: ", "default/a:"}},
		{"an old version", strings.Replace(manifest("a"), "io/v1", "io/v1beta1", 1), 2, []string{"use networking.k8s.io/v1"}},
	} {
		code, out, wrong := look(test.input)
		for _, want := range test.want {
			if !strings.Contains(out+wrong, want) {
				t.Errorf("%s: no %q in\n%s%s", test.name, want, out, wrong)
			}
		}
		if code != test.code {
			t.Errorf("%s: exit code %d, want %d\n%s%s", test.name, code, test.code, out, wrong)
		}
	}

	folder := t.TempDir()
	must.Do(t, os.WriteFile(filepath.Join(folder, "a.yml"), []byte(guarded), 0o600))
	_ = os.WriteFile(filepath.Join(folder, "README"), []byte("{{"), 0o600)
	for path, code := range map[string]int{folder: 2, filepath.Join(folder, "a.yml"): 2, filepath.Join(folder, "none"): 2} {
		var out, wrong bytes.Buffer
		if got := Main([]string{path}, nil, &out, &wrong); got != code || strings.HasSuffix(path, "none") != (wrong.Len() > 0) {
			t.Errorf("%s: %d, %s%s", path, got, &out, &wrong)
		}
	}
	if code, out, _ := look(guarded, "--class=nginx"); code != 0 || !strings.HasPrefix(out, "Ingresses: 0;") {
		t.Errorf("of another class: %d, %s", code, out)
	}
	_, out, _ := look(guarded, "--json")
	var is struct {
		Ingresses []Ingress
		Summary   map[Verdict]int
	}
	if err := json.Unmarshal([]byte(out), &is); err != nil || is.Summary[Rejected] != 1 || is.Ingresses[0].Findings[0].What != "auth-type" {
		t.Errorf("%v: %s", err, out)
	}
}
