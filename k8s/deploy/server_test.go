package deploy

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/herdshield/shield/k8s/policy"
	"github.com/herdshield/shield/k8s/testbed/controlplane"
	"github.com/herdshield/shield/k8s/testbed/must"
)

// A server is a real API server.
type server struct {
	url    string
	client *http.Client
}

func startServer(t *testing.T) *server {
	t.Helper()
	// Not t.TempDir(): what is killed may still write there when it is removed.
	dir := must.Get(os.MkdirTemp("", "shield-deploy-"))(t)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	plane, err := controlplane.Start(t.Context(), dir)
	if errors.Is(err, controlplane.ErrMissing) {
		missing(t, "%v", err)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(plane.Stop)
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(plane.CA)
	return &server{plane.URL, &http.Client{Timeout: 20 * time.Second, Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots}}}}
}

// plurals are the names of kinds in paths.
var plurals = map[string]string{
	"Namespace": "namespaces", "ServiceAccount": "serviceaccounts", "ClusterRole": "clusterroles", "ClusterRoleBinding": "clusterrolebindings",
	"Role": "roles", "RoleBinding": "rolebindings", "IngressClass": "ingressclasses", "Ingress": "ingresses", "Deployment": "deployments", "DaemonSet": "daemonsets", "Service": "services",
	"PodDisruptionBudget": "poddisruptionbudgets", "HorizontalPodAutoscaler": "horizontalpodautoscalers", "NetworkPolicy": "networkpolicies",
	"ConfigMap": "configmaps", "ServiceMonitor": "servicemonitors", "PrometheusRule": "prometheusrules", "CustomResourceDefinition": "customresourcedefinitions",
	"ValidatingAdmissionPolicy": "validatingadmissionpolicies", "ValidatingAdmissionPolicyBinding": "validatingadmissionpolicybindings",
}

// create creates an object, or with dryRun checks it only, and returns the answer: its
// status, its warnings, and the message of an error. Unknown fields are errors.
func (s *server) create(t *testing.T, o object, dryRun bool) (status int, warnings []string, message string) {
	t.Helper()
	plural := plurals[text(o, "kind")]
	if plural == "" {
		t.Fatalf("what is the plural of %s?", text(o, "kind"))
	}
	path := "/apis/" + text(o, "apiVersion")
	if text(o, "apiVersion") == "v1" {
		path = "/api/v1"
	}
	if ns := text(o, "metadata", "namespace"); ns != "" {
		path += "/namespaces/" + ns
	}
	query := "?fieldValidation=Strict"
	if dryRun {
		query += "&dryRun=All"
	}
	b := must.Get(json.Marshal(o))(t)
	r := must.Get(http.NewRequestWithContext(t.Context(), http.MethodPost, s.url+path+"/"+plural+query, bytes.NewReader(b)))(t)
	r.Header.Set("Authorization", "Bearer "+controlplane.AdminToken)
	r.Header.Set("Content-Type", "application/json")
	answer := must.Get(s.client.Do(r))(t)
	defer answer.Body.Close()
	body := must.Get(io.ReadAll(answer.Body))(t)
	var reply object
	if answer.StatusCode >= 400 {
		if err := json.Unmarshal(body, &reply); err != nil {
			t.Fatalf("status is %s: %s", answer.Status, body)
		}
	}
	return answer.StatusCode, answer.Header.Values("Warning"), text(reply, "message")
}

// mustCreate creates an object, without warnings.
func (s *server) mustCreate(t *testing.T, o object) {
	t.Helper()
	status, warnings, message := s.create(t, o, false)
	if status != http.StatusCreated || len(warnings) > 0 {
		t.Errorf("%s: status is %d, warnings %q: %s", id(o), status, warnings, message)
	}
}

// TestServer creates everything that is shipped in a real API server: strictly, with
// admission, Pod Security, and the CEL of the policies.
func TestServer(t *testing.T) {
	s := startServer(t)
	operator := module(t, "github.com/prometheus-operator/prometheus-operator@v0.85.0")
	for _, crd := range []string{"servicemonitors", "prometheusrules"} {
		objects := must.Get(parse([]byte(read(t, operator+"/example/prometheus-operator-crd/monitoring.coreos.com_"+crd+".yaml"))))(t)
		s.mustCreate(t, objects[0])
	}
	everything := kustomize(t, "overlays/everything")
	for _, o := range append(ofKind(everything, "Namespace"), ofKind(kustomize(t, "standalone/deployment"), "Namespace")...) {
		s.mustCreate(t, o) // a dry run needs them, too
	}
	// The checks must be able to fail: Pod Security warns, and unknown fields are errors.
	lax := ofKind(kustomize(t, "base"), "Deployment")[0]
	delete(get(lax, "spec", "template", "spec", "containers", 0).(object), "securityContext")
	if _, warnings, _ := s.create(t, lax, true); len(warnings) == 0 {
		t.Error("a container without a securityContext: no warning")
	}
	lax["spec"].(object)["replica"] = 2
	if status, _, _ := s.create(t, lax, true); status != http.StatusBadRequest {
		t.Errorf("a field that is not known: status is %d; want 400", status)
	}

	each(t, func(t *testing.T, objects []object) {
		for _, o := range objects {
			if text(o, "kind") == "Namespace" {
				continue
			}
			status, warnings, message := s.create(t, o, true)
			// A CustomResourceDefinition is served some time after it has been created.
			for wait := 0; status == http.StatusNotFound && wait < 100; wait++ {
				time.Sleep(100 * time.Millisecond)
				status, warnings, message = s.create(t, o, true)
			}
			if status != http.StatusCreated || len(warnings) > 0 {
				t.Errorf("%s: status is %d, warnings %q: %s", id(o), status, warnings, message)
			}
		}
	})

	// Pod Security warns of ports of the node. Nothing else may.
	for name, objects := range onNodes(t) {
		for _, o := range objects {
			if text(o, "kind") == "Namespace" {
				continue
			}
			spec, _ := o["spec"].(object)
			delete(spec, "ipFamilies") // this cluster has IPv4 only
			status, warnings, message := s.create(t, o, true)
			warnings = slices.DeleteFunc(warnings, func(w string) bool { return strings.Contains(w, "would violate PodSecurity") })
			if status != http.StatusCreated || len(warnings) > 0 {
				t.Errorf("%s: %s: status is %d, warnings %q: %s", name, id(o), status, warnings, message)
			}
		}
	}

	t.Run("admission", func(t *testing.T) {
		for _, o := range everything {
			if strings.HasPrefix(text(o, "kind"), "ValidatingAdmission") {
				s.mustCreate(t, o)
			}
		}
		// Policies, too, take some time to apply.
		for _, kind := range []string{"Ingress", "Service"} {
			for wait := 0; ; wait++ {
				if status, _, _ := s.create(t, annotated(kind, "nonsense", "1"), true); status != http.StatusCreated {
					break
				}
				if wait == 300 {
					t.Fatalf("the policy for a %s does not apply after 30 s", kind)
				}
				time.Sleep(100 * time.Millisecond)
			}
		}
		for _, c := range annotations {
			o := annotated(c.kind, c.name, c.value)
			status, _, message := s.create(t, o, true)
			full := policy.Prefix + c.name
			switch {
			case c.ok && status != http.StatusCreated:
				t.Errorf("%s %s=%q: status is %d: %s; want it created", c.kind, c.name, c.value, status, message)
			case !c.ok && (status != http.StatusUnprocessableEntity || !strings.Contains(message, full)):
				t.Errorf("%s %s=%q: status is %d: %s; want 422 that names the annotation", c.kind, c.name, c.value, status, message)
			}
		}
	})
}

// annotated returns an object with one annotation of shield's, and the one that it needs.
func annotated(kind, name, value string) object {
	with := object{}
	for _, a := range onKind[kind]() {
		if a.Name == name && a.Needs[0] != "" {
			with[policy.Prefix+a.Needs[0]] = a.Needs[1]
		}
	}
	with[policy.Prefix+name] = value
	o := object{"kind": kind, "apiVersion": "networking.k8s.io/v1", "metadata": object{"name": "x", "namespace": "default", "annotations": with}}
	if kind == "Service" {
		o["apiVersion"], o["spec"] = "v1", object{"ports": []any{object{"port": 80}}}
		return o
	}
	o["spec"] = object{"defaultBackend": object{"service": object{"name": "x", "port": object{"number": 80}}}}
	return o
}

// onKind are the annotations of a kind of objects.
var onKind = map[string]func() []policy.Annotation{"Ingress": policy.OnIngress, "Service": policy.OnService}

// annotations are values that the policies and shield must both accept or reject.
var annotations = []struct {
	kind, name, value string
	ok                bool
}{
	{"Ingress", "rate", "50/s", true},
	{"Ingress", "rate", "0.5/s", true},
	{"Ingress", "rate", "100/m", true},
	{"Ingress", "rate", "3/h", true},
	{"Ingress", "rate", "off", true},
	{"Ingress", "rate", "0/s", false},
	{"Ingress", "rate", "0.0/s", false},
	{"Ingress", "rate", "-1/s", false},
	{"Ingress", "rate", "50", false},
	{"Ingress", "rate", "50/d", false},
	{"Ingress", "rate", "", false},
	{"Ingress", "burst", "100", true},
	{"Ingress", "burst", "0", false},
	{"Ingress", "burst", "many", false},
	{"Ingress", "burst", "9999999999", false},
	{"Ingress", "key", "{http.request.header.X-Api-Key}", true},
	{"Ingress", "key", "{http.vars.client_ip} {http.request.host}", true},
	{"Ingress", "key", "{env.SECRET}", false},
	{"Ingress", "key", "{http.request.host", false},
	{"Ingress", "key", "", false},
	{"Ingress", "concurrency", "10", true},
	{"Ingress", "concurrency", "off", true},
	{"Ingress", "concurrency", "1000000", true},
	{"Ingress", "concurrency", "1000001", false},
	{"Ingress", "concurrency", "adaptive", false},
	{"Ingress", "concurrency", "1.5", false},
	{"Ingress", "class", "critical", true},
	{"Ingress", "class", "sheddable", true},
	{"Ingress", "class", "Critical", false},
	{"Ingress", "allow-cidrs", "10.0.0.0/8, 192.0.2.1,2001:db8::/32", true},
	{"Ingress", "allow-cidrs", "10.0.0.0/33", false},
	{"Ingress", "allow-cidrs", "localhost", false},
	{"Ingress", "retry-after-max", "1s", true},
	{"Ingress", "retry-after-max", "59s", true},
	{"Ingress", "retry-after-max", "60s", false},
	{"Ingress", "retry-after-max", "0s", false},
	{"Ingress", "retry-after-max", "20", false},
	{"Ingress", "mode", "observe", true},
	{"Ingress", "mode", "shadow", false},
	{"Ingress", "ssl-redirect", "false", true},
	{"Ingress", "ssl-redirect", "force", true},
	{"Ingress", "ssl-redirect", "no", false},
	{"Ingress", "ignore-nginx", "auth-url, nginx.ingress.kubernetes.io/satisfy", true},
	{"Ingress", "ignore-nginx", "auth-url;satisfy", false},
	{"Ingress", "ignore-nginx", "*", false},
	{"Ingress", "ignore-nginx", "", false},
	{"Ingress", "allowlist-source-range", "10.0.0.0/8, 192.0.2.1", true},
	{"Ingress", "allowlist-source-range", "office", false},
	{"Ingress", "denylist-source-range", "2001:db8::/32", true},
	{"Ingress", "denylist-source-range", "", false},
	{"Ingress", "rewrite-target", "/v2/$1", true},
	{"Ingress", "rewrite-target", "/a b", false},
	{"Ingress", "rewrite-target", "/a?b=c", false},
	{"Ingress", "rewrite-prefix", "/v2", true},
	{"Ingress", "rewrite-prefix", "v2", false},
	{"Ingress", "use-regex", "true", true},
	{"Ingress", "use-regex", "1", false},
	{"Ingress", "body-size", "8m", true},
	{"Ingress", "body-size", "0", true},
	{"Ingress", "body-size", "off", true},
	{"Ingress", "body-size", "8 MB", false},
	{"Ingress", "response-timeout", "1m30s", true},
	{"Ingress", "response-timeout", "0s", true},
	{"Ingress", "response-timeout", "60", false},
	{"Ingress", "response-timeout", "25h", false},
	{"Ingress", "backend-timeout", "off", true},
	{"Ingress", "backend-timeout", "-1s", false},
	{"Ingress", "request-timeout", "1.5h", true},
	{"Ingress", "request-timeout", "none", false},
	{"Ingress", "permanent-redirect", "https://example.com/a?b=c", true},
	{"Ingress", "permanent-redirect", "https://example.com:8443$request_uri", true},
	{"Ingress", "permanent-redirect", "https://[2001:db8::1]/", true},
	{"Ingress", "permanent-redirect", "//example.com/", false},
	{"Ingress", "permanent-redirect", "javascript:alert(1)", false},
	{"Ingress", "permanent-redirect", "https://example.com/\r\nSet-Cookie: a=b", false},
	{"Ingress", "permanent-redirect", "https://$host/", false},
	{"Ingress", "temporal-redirect", "http://example.com", true},
	{"Ingress", "temporal-redirect", "/new", false},
	{"Ingress", "permanent-redirect-code", "308", true},
	{"Ingress", "permanent-redirect-code", "200", false},
	{"Ingress", "app-root", "/app?a=b", true},
	{"Ingress", "app-root", "//evil.example", false},
	{"Ingress", "app-root", "/", false},
	{"Ingress", "from-to-www-redirect", "true", true},
	{"Ingress", "from-to-www-redirect", "yes", false},
	{"Ingress", "hsts", "max-age=0", true},
	{"Ingress", "hsts", "max-age=63072000; includeSubDomains; preload", true},
	{"Ingress", "hsts", "off", true},
	{"Ingress", "hsts", "includeSubDomains", false},
	{"Ingress", "hsts", "max-age=1; x\r\ny", false},
	{"Ingress", "enable-cors", "true", true},
	{"Ingress", "cors-allow-origin", "*", true},
	{"Ingress", "cors-allow-origin", "https://a.test:8443, capacitor://localhost", true},
	{"Ingress", "cors-allow-origin", "https://*.b.test,https://c.test", true},
	{"Ingress", "cors-allow-origin", "https://a.*.test", false},
	{"Ingress", "cors-allow-origin", "http://localhost:3000,https://a.test,", true},
	{"Ingress", "cors-allow-origin", "a.test", false},
	{"Ingress", "cors-allow-methods", "GET, POST", true},
	{"Ingress", "cors-allow-methods", "GET;POST", false},
	{"Ingress", "cors-allow-headers", "*", true},
	{"Ingress", "cors-allow-headers", "X-A\r\nB: c", false},
	{"Ingress", "cors-allow-credentials", "false", true},
	{"Ingress", "cors-expose-headers", "X-Id", true},
	{"Ingress", "cors-max-age", "600", true},
	{"Ingress", "cors-max-age", "10m", false},
	{"Ingress", "response-headers", "X-Frame-Options: DENY\nX-Powered-By:\n", true},
	{"Ingress", "response-headers", "X-Frame-Options: DENY\r\nX: y", false},
	{"Ingress", "response-headers", "X Y: z", false},
	{"Ingress", "upstream-vhost", "app.internal:8080", true},
	{"Ingress", "upstream-vhost", "a b", false},
	{"Ingress", "x-forwarded-prefix", "/app", true},
	{"Ingress", "x-forwarded-prefix", "true", false},
	{"Ingress", "default-backend", "sorry-page", true},
	{"Ingress", "default-backend", "other/sorry", false},
	{"Ingress", "auth-url", "http://auth.auth.svc.cluster.local:4180/verify?a=b", true},
	{"Ingress", "auth-url", "https://$host/oauth2/auth", true},
	{"Ingress", "auth-url", "$scheme://$host/auth?u=$escaped_request_uri", true},
	{"Ingress", "auth-url", "https://a.$host/", false},
	{"Ingress", "auth-url", "https://a/$remote_addr", false},
	{"Ingress", "auth-url", "file:///etc/passwd", false},
	{"Ingress", "auth-url", "https://a@b/", false},
	{"Ingress", "auth-signin", "https://$host/oauth2/start?rd=$escaped_request_uri", true},
	{"Ingress", "auth-signin", "https://a.test/oauth2/start?rd=$scheme://$http_host$escaped_request_uri", true},
	{"Ingress", "auth-signin", "/login", false},
	{"Ingress", "auth-response-headers", "X-User, X-Email", true},
	{"Ingress", "auth-response-headers", "X-User: a", false},
	{"Ingress", "capacity", "5/s", false}, // on a Service
	{"Ingress", "rates", "5/s", false},
	{"Service", "capacity", "500/s", true},
	{"Service", "capacity", "0/s", false},
	{"Service", "capacity", "off", false},
	{"Service", "burst", "50", true},
	{"Service", "concurrency", "64", true},
	{"Service", "concurrency", "adaptive", true},
	{"Service", "concurrency", "off", false},
	{"Service", "endpoint-concurrency", "20", true},
	{"Service", "endpoint-concurrency", "adaptive", false},
	{"Service", "queue", "64", true},
	{"Service", "queue", "off", true},
	{"Service", "queue", "10000", true},
	{"Service", "queue", "10001", false},
	{"Service", "queue-timeout", "50ms", true},
	{"Service", "queue-timeout", "1m", true},
	{"Service", "queue-timeout", "1.5s", true},
	{"Service", "queue-timeout", "61s", false},
	{"Service", "queue-timeout", "0s", false},
	{"Service", "queue-timeout", "50", false},
	{"Service", "retry-after-max", "20s", true},
	{"Service", "mode", "enforce", true},
	{"Service", "backend-protocol", "GRPC", true},
	{"Service", "backend-protocol", "h2c", true},
	{"Service", "backend-protocol", "FCGI", false},
	{"Service", "rate", "5/s", false}, // on an Ingress
	{"Service", "queue-size", "5", false},
}

// TestPolicies checks that shield takes and refuses what the policies do, and that each
// annotation has a row: TestServer asks the API server the same.
func TestPolicies(t *testing.T) {
	var seen []string
	for _, c := range annotations {
		with := map[string]string{}
		for k, v := range annotated(c.kind, c.name, c.value)["metadata"].(object)["annotations"].(object) {
			with[k] = fmt.Sprint(v)
		}
		var errs []error
		if c.kind == "Ingress" {
			_, err := policy.ParseIngress(with, policy.Ingress{})
			_, err2 := policy.SSLRedirect(with, false, policy.RedirectTLS)
			_, err3 := policy.ParseFilters(with, false, nil)
			_, err4 := policy.Heeded(with)
			errs = []error{err, err2, err3, err4}
		} else {
			_, err := policy.ParseService(with)
			_, err2 := policy.BackendProtocol(with, "")
			errs = []error{err, err2}
		}
		if err := errors.Join(errs...); (err == nil) != c.ok {
			t.Errorf("%s %s=%q: error is %v; want success %v", c.kind, c.name, c.value, err, c.ok)
		}
		if c.ok {
			seen = append(seen, c.kind+" "+c.name)
		}
	}
	for kind, list := range onKind {
		for _, a := range list() {
			if !slices.Contains(seen, kind+" "+a.Name) {
				t.Errorf("%s %s has no row that is right", kind, a.Name)
			}
		}
	}
}
