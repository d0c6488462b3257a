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
		objects := must.Get(parse([]byte(must.Read(t, operator+"/example/prometheus-operator-crd/monitoring.coreos.com_"+crd+".yaml"))))(t)
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
		eachAnnotation(func(kind, name, value string, ok bool) {
			status, _, message := s.create(t, annotated(kind, name, value), true)
			switch {
			case ok && status != http.StatusCreated:
				t.Errorf("%s %s=%q: status is %d: %s; want it created", kind, name, value, status, message)
			case !ok && (status != http.StatusUnprocessableEntity || !strings.Contains(message, policy.Prefix+name)):
				t.Errorf("%s %s=%q: status is %d: %s; want 422 that names the annotation", kind, name, value, status, message)
			}
		})
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

// eachAnnotation calls f with each of them.
func eachAnnotation(f func(kind, name, value string, ok bool)) {
	for _, a := range annotations {
		for i, value := range slices.Concat(a.accept, a.deny) {
			f(a.kind, a.name, value, i < len(a.accept))
		}
	}
}

// TestPolicies checks that shield takes and refuses what the policies do, and that each
// annotation has a row: TestServer asks the API server the same.
func TestPolicies(t *testing.T) {
	var seen []string
	eachAnnotation(func(kind, name, value string, ok bool) {
		with := map[string]string{}
		for k, v := range annotated(kind, name, value)["metadata"].(object)["annotations"].(object) {
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
