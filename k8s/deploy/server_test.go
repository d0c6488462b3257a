package deploy

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/herdshield/shield/k8s/policy"
	"github.com/herdshield/shield/k8s/testbed/must"
)

// startServer starts a real API server. What it returns has kubectl create objects there, strictly, and
// returns its errors and warnings.
func startServer(t *testing.T) (create func(objects []object, flags ...string) string) {
	t.Helper()
	kubeconfig := must.Plane(t)
	return func(objects []object, flags ...string) string {
		var stream, stderr bytes.Buffer
		for _, o := range objects {
			must.Do(t, json.NewEncoder(&stream).Encode(o))
		}
		cmd := exec.CommandContext(t.Context(), tool(t, "kubectl"), append([]string{"--kubeconfig", kubeconfig, "create", "--validate=strict", "-f", "-"}, flags...)...)
		cmd.Env = append(os.Environ(), "HOME="+filepath.Dir(kubeconfig))
		cmd.Stdin, cmd.Stderr = &stream, &stderr
		if err := cmd.Run(); err != nil && stderr.Len() == 0 {
			t.Error(err)
		}
		return stderr.String()
	}
}

const dryRun = "--dry-run=server"

// TestServer creates everything that is shipped in a real API server: strictly, with
// admission, Pod Security, and the CEL of the policies.
func TestServer(t *testing.T) {
	create := startServer(t)
	mustCreate := func(objects ...object) {
		t.Helper()
		if said := create(objects); said != "" {
			t.Error(said)
		}
	}
	operator := module(t, "github.com/prometheus-operator/prometheus-operator@v0.85.0")
	for _, crd := range []string{"servicemonitors", "prometheusrules"} {
		mustCreate(must.Get(parse([]byte(must.Read(t, operator+"/example/prometheus-operator-crd/monitoring.coreos.com_"+crd+".yaml"))))(t)...)
	}
	everything := kustomize(t, "overlays/everything")
	mustCreate(append(ofKind(everything, "Namespace"), ofKind(kustomize(t, "standalone/deployment"), "Namespace")...)...) // a dry run needs them, too
	// Pod Security warns of ports of the node. Nothing else may.
	check := func(t *testing.T, objects []object, onNode bool) {
		objects = slices.DeleteFunc(objects, func(o object) bool { return text(o, "kind") == "Namespace" })
		for _, o := range objects {
			spec, _ := o["spec"].(object)
			delete(spec, "ipFamilies") // this cluster has IPv4 only
		}
		said := create(objects, dryRun)
		// A CustomResourceDefinition is served some time after it has been created.
		for wait := 0; strings.Contains(said, "no matches for kind") && wait < 100; wait++ {
			time.Sleep(100 * time.Millisecond)
			said = create(objects, dryRun)
		}
		for line := range strings.Lines(said) {
			if !onNode || !strings.Contains(line, "would violate PodSecurity") {
				t.Error(line)
			}
		}
	}
	each(t, func(t *testing.T, objects []object) { check(t, objects, false) })
	for name, objects := range onNodes(t) {
		t.Run(name, func(t *testing.T) { check(t, objects, true) })
	}

	t.Run("admission", func(t *testing.T) {
		for _, o := range everything {
			if strings.HasPrefix(text(o, "kind"), "ValidatingAdmission") {
				mustCreate(o)
			}
		}
		// Policies, too, take some time to apply.
		for _, kind := range []string{"Ingress", "Service"} {
			for wait := 0; create([]object{annotated("x", kind, "nonsense", "1")}, dryRun) == ""; wait++ {
				if wait == 300 {
					t.Fatalf("the policy for a %s does not apply after 30 s", kind)
				}
				time.Sleep(100 * time.Millisecond)
			}
		}
		var all []object
		each := func(f func(object, string, string, string, bool)) { // with one name for each
			n := 0
			eachAnnotation(func(kind, name, value string, ok bool) {
				f(annotated(fmt.Sprint("x", n), kind, name, value), fmt.Sprintf("\"x%d\"", n), kind+" "+name+"="+value, policy.Prefix+name, ok)
				n++
			})
		}
		each(func(o object, _, _, _ string, _ bool) { all = append(all, o) })
		said := strings.SplitAfter(create(all, dryRun), "\n")
		each(func(_ object, id, what, annotation string, ok bool) {
			wrong := ""
			if i := slices.IndexFunc(said, func(line string) bool { return strings.Contains(line, id) }); i >= 0 {
				wrong = said[i]
			}
			if ok != (wrong == "") || !ok && !strings.Contains(wrong, annotation) {
				t.Errorf("%s: %q; want it created %v, or an error that names the annotation", what, wrong, ok)
			}
		})
	})
}

// annotated returns an object with one annotation of shield's, and the one that it needs.
func annotated(as, kind, name, value string) object {
	with := object{}
	for _, a := range onKind[kind]() {
		if a.Name == name && a.Needs[0] != "" {
			with[policy.Prefix+a.Needs[0]] = a.Needs[1]
		}
	}
	with[policy.Prefix+name] = value
	o := object{"kind": kind, "apiVersion": "networking.k8s.io/v1", "metadata": object{"name": as, "namespace": "default", "annotations": with}}
	if kind == "Service" {
		o["apiVersion"], o["spec"] = "v1", object{"ports": []any{object{"port": 80}}}
		return o
	}
	o["spec"] = object{"defaultBackend": object{"service": object{"name": "x", "port": object{"number": 80}}}}
	return o
}

var onKind = map[string]func() []policy.Annotation{"Ingress": policy.OnIngress, "Service": policy.OnService}

// annotations are values that the policies and shield must both accept, or reject.
var annotations = []struct {
	kind, name   string
	accept, deny []string
}{
	{"Ingress", "rate", []string{"50/s", "0.5/s", "100/m", "3/h", "off"}, []string{"0/s", "0.0/s", "-1/s", "50", "50/d", ""}},
	{"Ingress", "burst", []string{"100"}, []string{"0", "many", "9999999999"}},
	{"Ingress", "key", []string{"{http.request.header.X-Api-Key}", "{http.vars.client_ip} {http.request.host}"}, []string{"{env.SECRET}", "{http.request.host", ""}},
	{"Ingress", "concurrency", []string{"10", "off", "1000000"}, []string{"1000001", "adaptive", "1.5"}},
	{"Ingress", "class", []string{"critical", "sheddable"}, []string{"Critical"}},
	{"Ingress", "allow-cidrs", []string{"10.0.0.0/8, 192.0.2.1,2001:db8::/32"}, []string{"10.0.0.0/33", "localhost"}},
	{"Ingress", "retry-after-max", []string{"1s", "59s"}, []string{"60s", "0s", "20"}},
	{"Ingress", "mode", []string{"observe"}, []string{"shadow"}},
	{"Ingress", "ssl-redirect", []string{"false", "force"}, []string{"no"}},
	{"Ingress", "ignore-nginx", []string{"auth-url, nginx.ingress.kubernetes.io/satisfy"}, []string{"auth-url;satisfy", "*", ""}},
	{"Ingress", "allowlist-source-range", []string{"10.0.0.0/8, 192.0.2.1"}, []string{"office"}},
	{"Ingress", "denylist-source-range", []string{"2001:db8::/32"}, []string{""}},
	{"Ingress", "rewrite-target", []string{"/v2/$1"}, []string{"/a b", "/a?b=c"}},
	{"Ingress", "rewrite-prefix", []string{"/v2"}, []string{"v2"}},
	{"Ingress", "use-regex", []string{"true"}, []string{"1"}},
	{"Ingress", "body-size", []string{"8m", "0", "off"}, []string{"8 MB"}},
	{"Ingress", "response-timeout", []string{"1m30s", "0s"}, []string{"60", "25h"}},
	{"Ingress", "backend-timeout", []string{"off"}, []string{"-1s"}},
	{"Ingress", "request-timeout", []string{"1.5h"}, []string{"none"}},
	{"Ingress", "permanent-redirect", []string{"https://example.com/a?b=c", "https://example.com:8443$request_uri", "https://[2001:db8::1]/"}, []string{"//example.com/", "javascript:alert(1)", "https://example.com/\r\nSet-Cookie: a=b", "https://$host/"}},
	{"Ingress", "temporal-redirect", []string{"http://example.com"}, []string{"/new"}},
	{"Ingress", "permanent-redirect-code", []string{"308"}, []string{"200"}},
	{"Ingress", "app-root", []string{"/app?a=b"}, []string{"//evil.example", "/"}},
	{"Ingress", "from-to-www-redirect", []string{"true"}, []string{"yes"}},
	{"Ingress", "hsts", []string{"max-age=0", "max-age=63072000; includeSubDomains; preload", "off"}, []string{"includeSubDomains", "max-age=1; x\r\ny"}},
	{"Ingress", "enable-cors", []string{"true"}, nil},
	{"Ingress", "cors-allow-origin", []string{"*", "https://a.test:8443, capacitor://localhost", "https://*.b.test,https://c.test", "http://localhost:3000,https://a.test,"}, []string{"https://a.*.test", "a.test"}},
	{"Ingress", "cors-allow-methods", []string{"GET, POST"}, []string{"GET;POST"}},
	{"Ingress", "cors-allow-headers", []string{"*"}, []string{"X-A\r\nB: c"}},
	{"Ingress", "cors-allow-credentials", []string{"false"}, nil},
	{"Ingress", "cors-expose-headers", []string{"X-Id"}, nil},
	{"Ingress", "cors-max-age", []string{"600"}, []string{"10m"}},
	{"Ingress", "response-headers", []string{"X-Frame-Options: DENY\nX-Powered-By:\n"}, []string{"X-Frame-Options: DENY\r\nX: y", "X Y: z"}},
	{"Ingress", "upstream-vhost", []string{"app.internal:8080"}, []string{"a b"}},
	{"Ingress", "x-forwarded-prefix", []string{"/app"}, []string{"true"}},
	{"Ingress", "default-backend", []string{"sorry-page"}, []string{"other/sorry"}},
	{"Ingress", "auth-url", []string{"http://auth.auth.svc.cluster.local:4180/verify?a=b", "https://$host/oauth2/auth", "$scheme://$host/auth?u=$escaped_request_uri"}, []string{"https://a.$host/", "https://a/$remote_addr", "file:///etc/passwd", "https://a@b/"}},
	{"Ingress", "auth-signin", []string{"https://$host/oauth2/start?rd=$escaped_request_uri", "https://a.test/oauth2/start?rd=$scheme://$http_host$escaped_request_uri"}, []string{"/login"}},
	{"Ingress", "auth-response-headers", []string{"X-User, X-Email"}, []string{"X-User: a"}},
	{"Ingress", "capacity", nil, []string{"5/s"}}, // on a Service
	{"Ingress", "rates", nil, []string{"5/s"}},
	{"Service", "capacity", []string{"500/s"}, []string{"0/s", "off"}},
	{"Service", "burst", []string{"50"}, nil},
	{"Service", "concurrency", []string{"64", "adaptive"}, []string{"off"}},
	{"Service", "endpoint-concurrency", []string{"20"}, []string{"adaptive"}},
	{"Service", "queue", []string{"64", "off", "10000"}, []string{"10001"}},
	{"Service", "queue-timeout", []string{"50ms", "1m", "1.5s"}, []string{"61s", "0s", "50"}},
	{"Service", "retry-after-max", []string{"20s"}, nil},
	{"Service", "mode", []string{"enforce"}, nil},
	{"Service", "backend-protocol", []string{"GRPC", "h2c"}, []string{"FCGI"}},
	{"Service", "rate", nil, []string{"5/s"}}, // on an Ingress
	{"Service", "queue-size", nil, []string{"5"}},
}

func eachAnnotation(f func(kind, name, value string, ok bool)) {
	for _, a := range annotations {
		for i, value := range slices.Concat(a.accept, a.deny) {
			f(a.kind, a.name, value, i < len(a.accept))
		}
	}
}

// TestPolicies checks that shield takes and rejects what the policies do, and that each
// annotation has a row: TestServer asks the API server the same.
func TestPolicies(t *testing.T) {
	var seen []string
	eachAnnotation(func(kind, name, value string, ok bool) {
		with := map[string]string{}
		for k, v := range annotated("x", kind, name, value)["metadata"].(object)["annotations"].(object) {
			with[k] = fmt.Sprint(v)
		}
		_, err := policy.ParseIngress(with, policy.Ingress{})
		_, redirect := policy.SSLRedirect(with, false, policy.RedirectTLS)
		_, filters := policy.ParseFilters(with, false, nil)
		_, ignored := policy.Heeded(with)
		err = errors.Join(err, redirect, filters, ignored)
		if kind == "Service" {
			_, err = policy.ParseService(with)
			_, protocol := policy.BackendProtocol(with, "")
			err = errors.Join(err, protocol)
		}
		if (err == nil) != ok {
			t.Errorf("%s %s=%q: error is %v; want success %v", kind, name, value, err, ok)
		}
		if ok {
			seen = append(seen, kind+" "+name)
		}
	})
	for kind, list := range onKind {
		for _, a := range list() {
			if !slices.Contains(seen, kind+" "+a.Name) {
				t.Errorf("%s %s has no row that is right", kind, a.Name)
			}
		}
	}
}
