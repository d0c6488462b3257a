package livetest

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"net"
	"net/http"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/herdshield/shield/k8s/testbed/must"
)

const annotation = "shield.herdshield.io/"

// shop returns the control plane with the class and the namespace of shield itself, and a namespace
// for one test, whose name begins with the given. Its Ingresses are deleted at the end: the leaders
// of other tests would have their status to write, at the limited rate of such writes.
func shop(t testing.TB, name string) (s *Server, namespace string) {
	t.Helper()
	s = live(t)
	for _, o := range []Object{class("shield"), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "shield-ingress"}}} {
		if err := s.Do(http.MethodPost, s.path(t, o), "application/json", encode(t, o), nil); err != nil && !apierrors.IsAlreadyExists(err) {
			t.Fatal(err)
		}
	}
	namespace = s.Namespace(t, name)
	t.Cleanup(func() {
		if err := s.Do(http.MethodDelete, s.path(t, webIngress(namespace, "", "")), "", nil, nil); err != nil {
			t.Error(err)
		}
	})
	return s, namespace
}

// An Ingress is served, refused, changed and gone, as its objects say; its status and Events say so.
func TestIngress(t *testing.T) {
	s, ns := shop(t, "shop")
	s.Serve(t, service(ns, "web", annotation+"capacity", "1/h", annotation+"burst", "5"), "red", nil)
	s.Serve(t, service(ns, "api"), "blue", nil)
	i := webIngress(ns, "shop", "shop.example.com", "/", "web", "/api", "api")
	i.Annotations = pairs([]string{annotation + "rate", "1/h", annotation + "burst", "2"})
	s.Create(t, i)

	p := begin(t, s.AdminKubeconfig(t), "one", "--publish-address", "192.0.2.10")
	p.Expect("200 red", "shop.example.com", "/x", "one path")
	p.Expect("200 blue", "shop.example.com", "/api/x", "the other")
	p.Expect("429", "shop.example.com", "/api/x", "over the quota")
	p.Expect("404", "other.example.com", "/", "another host")
	eventually(t, 5*time.Second, "the address in the status", func() bool {
		s.Get(t, i)
		return len(i.Status.LoadBalancer.Ingress) == 1 && i.Status.LoadBalancer.Ingress[0].IP == "192.0.2.10"
	})

	// A policy that cannot be is told, and the last good one stays.
	s.Patch(t, i, "", "metadata: {annotations: {"+annotation+"rate: fast}}")
	eventually(t, 5*time.Second, "an Event about the policy", func() bool {
		return slices.ContainsFunc(s.Events(t, ns), func(e corev1.Event) bool {
			return e.InvolvedObject.Name == "shop" && e.Type == corev1.EventTypeWarning && strings.Contains(e.Message, "fast")
		})
	})
	p.Expect("429", "shop.example.com", "/api/x", "with a bad policy, as before")

	// Without a client limit the Service's budget counts, 5 of which 1 is used.
	s.Patch(t, i, "", "metadata: {annotations: {"+annotation+"rate: null, "+annotation+"burst: null}}")
	p.Serves("shop.example.com", "/api/x", 200, 5*time.Second)
	statuses := map[int]int{}
	for range 6 {
		status, _ := p.Get("shop.example.com", "/")
		statuses[status]++
	}
	if statuses[200] != 4 || statuses[503] != 2 {
		t.Errorf("statuses %v; want 4 of 200 and 2 of 503", statuses)
	}

	s.Delete(t, i)
	if took := p.Serves("shop.example.com", "/api/x", 404, 5*time.Second); took > onThisMachine(time.Second) {
		t.Errorf("it took %v for a deleted Ingress to be gone", took)
	}

	// An Ingress that is no longer ours loses the address.
	i = webIngress(ns, "again", "again.example.com", "/", "api")
	s.Create(t, i)
	eventually(t, 5*time.Second, "the address in the status", func() bool { s.Get(t, i); return len(i.Status.LoadBalancer.Ingress) == 1 })
	s.Patch(t, i, "", "spec: {ingressClassName: other}")
	eventually(t, 5*time.Second, "no address in the status", func() bool { s.Get(t, i); return len(i.Status.LoadBalancer.Ingress) == 0 })
	p.Serves("again.example.com", "/", 404, time.Second)
}

// The status has the addresses of the Service that publishes it, as they are now; and
// Ingresses without a class are ours while ours is the default one.
func TestPublishServiceAndDefaultClass(t *testing.T) {
	s, ns := shop(t, "publish")
	s.Serve(t, service(ns, "web"), "red", nil)
	front := service(ns, "front")
	front.Spec.ExternalIPs = []string{"192.0.2.20"}
	s.Create(t, front)
	i := webIngress(ns, "web", "publish.example.com", "/", "web")
	s.Create(t, i)
	p := begin(t, s.AdminKubeconfig(t), "one", "--publish-service", ns+"/front")
	is := func(want ...string) func() bool {
		return func() bool {
			s.Get(t, i)
			var got []string
			for _, a := range i.Status.LoadBalancer.Ingress {
				got = append(got, a.IP)
			}
			return slices.Equal(got, want)
		}
	}
	eventually(t, 5*time.Second, "the address of the Service", is("192.0.2.20"))
	s.Patch(t, front, "", "spec: {externalIPs: [192.0.2.21, 192.0.2.22]}")
	eventually(t, 5*time.Second, "both addresses", func() bool { return is("192.0.2.21", "192.0.2.22")() || is("192.0.2.22", "192.0.2.21")() })
	// An Ingress that is no longer ours loses them. Later addresses of another controller stay.
	s.Patch(t, i, "", "spec: {ingressClassName: other}")
	eventually(t, 5*time.Second, "no address in the status", is())
	s.Patch(t, i, "status", "status: {loadBalancer: {ingress: [{ip: 198.51.100.1}]}}")
	s.Patch(t, front, "", "spec: {externalIPs: [192.0.2.23]}")
	s.Create(t, webIngress(ns, "after", "after.example.com", "/", "web"))
	p.Serves("after.example.com", "/", 200, 5*time.Second)
	after := webIngress(ns, "after", "", "/", "web")
	eventually(t, 5*time.Second, "the address of another Ingress", func() bool { s.Get(t, after); return len(after.Status.LoadBalancer.Ingress) == 1 })
	if !is("198.51.100.1")() {
		t.Errorf("the status that another controller has written is %v", i.Status.LoadBalancer.Ingress)
	}

	none := webIngress(ns, "none", "none.publish.example.com", "/", "web")
	none.Spec.IngressClassName = nil
	s.Create(t, none)
	s.Create(t, webIngress(ns, "marker", "marker.publish.example.com", "/", "web"))
	p.Serves("marker.publish.example.com", "/", 200, 5*time.Second)
	p.Expect("404", "none.publish.example.com", "/", "without a class")
	shield := class("shield")
	s.Patch(t, shield, "", `metadata: {annotations: {ingressclass.kubernetes.io/is-default-class: "true"}}`)
	t.Cleanup(func() {
		s.Patch(t, shield, "", "metadata: {annotations: {ingressclass.kubernetes.io/is-default-class: null}}")
	})
	p.Serves("none.publish.example.com", "/", 200, 5*time.Second)
	s.Patch(t, shield, "", `metadata: {annotations: {ingressclass.kubernetes.io/is-default-class: "false"}}`)
	p.Serves("none.publish.example.com", "/", 404, 5*time.Second)
}

// A websocket lives on after SIGTERM until it ends, or until the grace period has; then the process ends.
func TestWebsocketOutlivesSIGTERM(t *testing.T) {
	s, ns := shop(t, "websocket")
	s.Serve(t, service(ns, "web"), "echo", func(w http.ResponseWriter, r *http.Request) {
		conn, rw, err := http.NewResponseController(w).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		defer conn.Close()
		fmt.Fprint(rw, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n")
		_ = rw.Flush()
		_, _ = io.Copy(conn, rw)
	})
	s.Create(t, webIngress(ns, "web", "websocket.example.com", "/", "web"))
	for _, ends := range []bool{true, false} {
		p := begin(t, s.AdminKubeconfig(t), "one", "--grace-period", "2s")
		conn := must.Get(net.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", p.HTTP)))(t)
		defer conn.Close()
		_ = conn.SetDeadline(time.Now().Add(20 * time.Second))
		fmt.Fprint(conn, "GET / HTTP/1.1\r\nHost: websocket.example.com\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n")
		reader := bufio.NewReader(conn)
		resp, err := http.ReadResponse(reader, nil)
		if err != nil || resp.StatusCode != 101 {
			t.Fatalf("%v, %v", resp, err)
		}
		must.Do(t, p.cmd.Process.Signal(syscall.SIGTERM))
		began := time.Now()
		lives := func() bool {
			fmt.Fprint(conn, "hello\n")
			line, _ := reader.ReadString('\n')
			return line == "hello\n"
		}
		for time.Since(began) < time.Second {
			if !lives() {
				t.Fatalf("it has ended %v after SIGTERM", time.Since(began))
			}
			time.Sleep(50 * time.Millisecond)
		}
		if ends {
			_ = conn.Close()
		} else {
			for lives() && time.Since(began) < 10*time.Second {
				time.Sleep(50 * time.Millisecond)
			}
		}
		<-p.ended
		took := time.Since(began)
		t.Logf("the websocket ends on its own %v: the process has ended after %v", ends, took)
		if least := 1900 * time.Millisecond; ends && took > onThisMachine(least) || !ends && took < least || took > onThisMachine(6*time.Second) {
			t.Errorf("the websocket ends on its own %v: the process has ended after %v", ends, took)
		}
	}
}

// A Secret that changes is what the next handshake gets, without a reload.
func TestSecretRotation(t *testing.T) {
	s, ns := shop(t, "tls")
	p := begin(t, s.AdminKubeconfig(t), "one")
	if names := p.Certificate("unknown.example.com"); slices.Contains(names, "unknown.example.com") {
		t.Errorf("an unknown name got %v: a certificate was issued for it", names)
	}
	secret := &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "cert"}, Type: corev1.SecretTypeTLS, Data: certificate(t, "first", "secure.example.com"),
	}
	s.Create(t, secret)
	i := webIngress(ns, "secure", "secure.example.com", "/", "missing")
	i.Spec.TLS = []networkingv1.IngressTLS{{Hosts: []string{"secure.example.com"}, SecretName: "cert"}}
	s.Create(t, i)
	is := func(name string) func() bool {
		return func() bool { return p.Certificate("secure.example.com")[0] == name }
	}
	eventually(t, 5*time.Second, "the certificate", is("first"))
	for n := range 3 {
		name := fmt.Sprint("rotated", n)
		secret.Data = certificate(t, name, "secure.example.com")
		s.Update(t, secret)
		took := eventually(t, 5*time.Second, "the new certificate", is(name))
		t.Logf("a new certificate was served after %v", took)
		if took > onThisMachine(time.Second) {
			t.Errorf("a new certificate was served after %v; want 1 s", took)
		}
	}
	p.Expect("308", "secure.example.com", "/", "over plain HTTP")
	// A broken Secret does not end TLS.
	s.Patch(t, secret, "", `data: {tls.crt: "AAAA", tls.key: "AAAA"}`)
	eventually(t, 5*time.Second, "an Event about the Secret", func() bool {
		return slices.ContainsFunc(s.Events(t, ns), func(e corev1.Event) bool { return strings.Contains(e.Message, "cert") })
	})
	if names := p.Certificate("secure.example.com"); len(names) == 0 || names[0] == "rotated2" {
		t.Errorf("got %v, want the default certificate", names)
	}
}

// certificate returns the data of a Secret.
func certificate(t testing.TB, common string, names ...string) map[string][]byte {
	t.Helper()
	return must.SecretData(t, must.Certificate(t, common, time.Now().Add(time.Hour), names...))
}

// Every odd object that the API server takes leaves everything else as it is.
func TestOddObjects(t *testing.T) {
	s, ns := shop(t, "odd")
	p := begin(t, s.AdminKubeconfig(t), "one")
	red := s.Serve(t, service(ns, "web"), "red", nil)
	s.Create(t, webIngress(ns, "good", "good.example.com", "/", "web"))
	p.Serves("good.example.com", "/", 200, 5*time.Second)
	odd := map[string]string{
		"no rules":                 `spec: {ingressClassName: shield, defaultBackend: {service: {name: web, port: {number: 80}}}}`,
		"rule without http":        `spec: {ingressClassName: shield, rules: [{host: nohttp.example.com}]}`,
		"no host":                  `spec: {ingressClassName: shield, rules: [{http: {paths: [{path: /nohost, pathType: Prefix, backend: {service: {name: web, port: {name: http}}}}]}}]}`,
		"resource backend":         `spec: {ingressClassName: shield, rules: [{host: r.example.com, http: {paths: [{path: /, pathType: Prefix, backend: {resource: {kind: Bucket, name: b}}}]}}]}`,
		"resource default":         `spec: {ingressClassName: shield, defaultBackend: {resource: {apiGroup: a.example.com, kind: Bucket, name: b}}}`,
		"service that is not":      `spec: {ingressClassName: shield, rules: [{host: none.example.com, http: {paths: [{path: /, pathType: Prefix, backend: {service: {name: missing, port: {number: 80}}}}]}}]}`,
		"port that is not":         `spec: {ingressClassName: shield, rules: [{host: port.example.com, http: {paths: [{path: /, pathType: Prefix, backend: {service: {name: web, port: {name: ftp}}}}]}}]}`,
		"port number that is not":  `spec: {ingressClassName: shield, rules: [{host: number.example.com, http: {paths: [{path: /, pathType: Prefix, backend: {service: {name: web, port: {number: 81}}}}]}}]}`,
		"implementation specific":  `spec: {ingressClassName: shield, rules: [{host: impl.example.com, http: {paths: [{path: "/a", pathType: ImplementationSpecific, backend: {service: {name: web, port: {number: 80}}}}]}}]}`,
		"empty path":               `spec: {ingressClassName: shield, rules: [{host: nopath.example.com, http: {paths: [{pathType: ImplementationSpecific, backend: {service: {name: web, port: {number: 80}}}}]}}]}`,
		"the same path twice":      `spec: {ingressClassName: shield, rules: [{host: twice.example.com, http: {paths: [{path: /, pathType: Prefix, backend: {service: {name: web, port: {number: 80}}}}, {path: /, pathType: Prefix, backend: {service: {name: missing, port: {number: 80}}}}]}}]}`,
		"tls without anything":     `spec: {ingressClassName: shield, tls: [{}], rules: [{host: tls.example.com}]}`,
		"tls without secret":       `spec: {ingressClassName: shield, tls: [{hosts: [a.example.com]}], defaultBackend: {service: {name: web, port: {number: 80}}}}`,
		"tls secret that is not":   `spec: {ingressClassName: shield, tls: [{hosts: [b.example.com], secretName: missing}], defaultBackend: {service: {name: web, port: {number: 80}}}}`,
		"tls wildcard":             `spec: {ingressClassName: shield, tls: [{hosts: ["*.example.org"], secretName: missing}], rules: [{host: "*.example.org"}]}`,
		"class that is not":        `spec: {ingressClassName: missing, defaultBackend: {service: {name: web, port: {number: 80}}}}`,
		"a host of another":        `spec: {ingressClassName: shield, rules: [{host: good.example.com, http: {paths: [{path: /, pathType: Prefix, backend: {service: {name: missing, port: {number: 80}}}}]}}]}`,
		"annotations of all kinds": `{metadata: {annotations: {shield.herdshield.io/rate: "", shield.herdshield.io/nonsense: "1", shield.herdshield.io/capacity: "1/s", nginx.ingress.kubernetes.io/limit-rps: "-1"}}, spec: {ingressClassName: shield, rules: [{host: ann.example.com, http: {paths: [{path: /, pathType: Prefix, backend: {service: {name: web, port: {number: 80}}}}]}}]}}`,
	}
	// Of several default backends for all hosts the first one serves.
	order := append([]string{"no rules"}, slices.DeleteFunc(slices.Sorted(maps.Keys(odd)), func(what string) bool { return what == "no rules" })...)
	for n, what := range order {
		body := odd[what]
		meta := "apiVersion: networking.k8s.io/v1\nkind: Ingress\n"
		document := meta + mergeMeta(body, ns, fmt.Sprintf("odd-%02d", n))
		if err := s.apply(document, false); err != nil {
			t.Errorf("%s: the API server does not take it, so it need not be tested: %v", what, err)
		}
	}
	for what, o := range map[string]Object{
		"no ports":      &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "noports"}, Spec: corev1.ServiceSpec{ClusterIP: "None"}},
		"external name": &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "external"}, Spec: corev1.ServiceSpec{Type: corev1.ServiceTypeExternalName, ExternalName: "example.com"}},
		"headless": &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "headless"}, Spec: corev1.ServiceSpec{
			ClusterIP: "None", PublishNotReadyAddresses: true, Ports: []corev1.ServicePort{{Port: 80, TargetPort: intstr.FromInt32(8080), AppProtocol: new("example.com/odd")}},
		}},
		"slice of names":   &discoveryv1.EndpointSlice{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "fqdn", Labels: map[string]string{discoveryv1.LabelServiceName: "web"}}, AddressType: discoveryv1.AddressTypeFQDN, Endpoints: []discoveryv1.Endpoint{{Addresses: []string{"example.com"}}}},
		"slice of nothing": &discoveryv1.EndpointSlice{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "nothing", Labels: map[string]string{discoveryv1.LabelServiceName: "web"}}, AddressType: discoveryv1.AddressTypeIPv6},
		"slice without conditions": &discoveryv1.EndpointSlice{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "bare", Labels: map[string]string{discoveryv1.LabelServiceName: "web"}}, AddressType: discoveryv1.AddressTypeIPv4,
			Ports: []discoveryv1.EndpointPort{{Name: new("http"), Port: new(int32(8080))}, {Name: new("other")}}, Endpoints: []discoveryv1.Endpoint{{Addresses: []string{red.Address}}}},
		"slice without Service": &discoveryv1.EndpointSlice{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "orphan"}, AddressType: discoveryv1.AddressTypeIPv4},
		"class parameters": &networkingv1.IngressClass{ObjectMeta: metav1.ObjectMeta{Name: "odd"}, Spec: networkingv1.IngressClassSpec{
			Controller: "herdshield.io/ingress", Parameters: &networkingv1.IngressClassParametersReference{Kind: "ConfigMap", Name: "missing", Scope: new("Namespace"), Namespace: new("nowhere")},
		}},
		"class of another": &networkingv1.IngressClass{ObjectMeta: metav1.ObjectMeta{Name: "other"}, Spec: networkingv1.IngressClassSpec{Controller: "example.com/other"}},
	} {
		_ = what
		s.Create(t, o)
		if o.GetNamespace() == "" {
			t.Cleanup(func() { s.Delete(t, o) })
		}
	}
	s.Create(t, webIngress(ns, "last", "last.example.com", "/", "web", "/h", "headless", "/e", "external", "/n", "noports"))
	p.Serves("last.example.com", "/n", 503, 5*time.Second) // it comes after all the others
	large(t, s, p, ns)
	for _, tt := range []struct {
		host, path string
		status     int
	}{
		{"good.example.com", "/", 200}, {"ann.example.com", "/", 200}, {"impl.example.com", "/a/b", 200}, {"nopath.example.com", "/x", 200},
		{"twice.example.com", "/", 200}, {"anything", "/nohost", 200}, {"nohttp.example.com", "/", 200}, {"none.example.com", "/", 503},
		{"port.example.com", "/", 503}, {"number.example.com", "/", 503}, {"r.example.com", "/", 503},
		{"last.example.com", "/h", 503}, {"last.example.com", "/e", 503}, {"last.example.com", "/n", 503},
	} {
		p.Expect(strconv.Itoa(tt.status), tt.host, tt.path, "%s%s", tt.host, tt.path)
	}
	if n := p.Metric(`shield_ingress_objects{kind="Ingress"}`); n < 15 {
		t.Errorf("%v Ingresses are served; want nearly all", n)
	}
}

// large creates objects as large as the API server takes them: everything else must be
// seen as soon as before, and measured.
func large(t *testing.T, s *Server, p *Process, ns string) {
	t.Helper()
	deep := webIngress(ns, "deep", "deep.example.com", strings.Repeat("/a", 500_000), "web", "/shallow", "web")
	many := webIngress(ns, "many", "many.example.com")
	one := webIngress(ns, "one", "", "/", "web").Spec.Rules[0].HTTP.Paths[0]
	for n := range 5000 {
		one.Path = fmt.Sprint("/", n)
		many.Spec.Rules[0].HTTP.Paths = append(many.Spec.Rules[0].HTTP.Paths, one)
	}
	escaped := webIngress(ns, "escaped", "escaped.example.com", "/a%20b", "web", "/%2e%2e/x", "web", "/ö", "web", "/a b", "web", "/"+strings.Repeat("%25", 10_000), "web", "/fine", "web")
	escaped.Spec.Rules[0].HTTP.Paths[0].PathType = new(networkingv1.PathTypeExact)
	for n, i := range []*networkingv1.Ingress{deep, many, escaped} {
		s.Create(t, i)
		other := webIngress(ns, fmt.Sprint("beside-", n), fmt.Sprintf("beside-%d.example.com", n), "/", "web")
		s.Create(t, other)
		p.Serves(other.Spec.Rules[0].Host, "/", 200, 2*time.Second)
	}
	// Long names that differ only beyond the length of a label.
	long := webIngress(ns, "long", "long.example.com")
	for n := range 8 {
		name := strings.Repeat("a", 62) + fmt.Sprint(n)
		s.Create(t, service(ns, name, annotation+"capacity", "1000/s", annotation+"endpoint-concurrency", "50"))
		long.Spec.Rules[0].HTTP.Paths = append(long.Spec.Rules[0].HTTP.Paths, webIngress(ns, "", "", fmt.Sprint("/", n), name).Spec.Rules[0].HTTP.Paths...)
		i := webIngress(ns, strings.Repeat("b.", 120)+fmt.Sprint(n), fmt.Sprintf("long-%d.example.com", n), "/", "web")
		i.Annotations = pairs([]string{annotation + "rate", "1000/s"})
		s.Create(t, i)
	}
	s.Create(t, long)
	p.Serves("long.example.com", "/7", 503, 2*time.Second)
	p.Serves("long-7.example.com", "/", 200, 2*time.Second)
	for path, want := range map[string]int{"many.example.com/4999": 200, "escaped.example.com/fine": 200, "deep.example.com/shallow": 200, "good.example.com/": 200} {
		host, rest, _ := strings.Cut(path, "/")
		p.Expect(strconv.Itoa(want), host, "/"+rest, "%s", path)
	}
	if status := p.probe("/metrics"); status != 200 {
		t.Errorf("metrics: got %d", status)
	}
	for _, i := range []Object{deep, many} {
		s.Delete(t, i)
	}
}

// mergeMeta gives a document its name.
func mergeMeta(body, namespace, name string) string {
	metadata := fmt.Sprintf("namespace: %s, name: %s", namespace, name)
	if rest, ok := strings.CutPrefix(body, "{metadata: {"); ok {
		rest, _ = strings.CutSuffix(rest, "}")
		annotations, spec, _ := strings.Cut(rest, "}, spec: ")
		return "metadata: {" + metadata + ", " + annotations + "}\nspec: " + spec + "\n"
	}
	return "metadata: {" + metadata + "}\n" + body + "\n"
}

// While the API server is away, everything goes on; what has changed meanwhile is seen when it is back.
func TestAPIServerAway(t *testing.T) {
	s, ns := shop(t, "away")
	s.Serve(t, service(ns, "web"), "red", nil)
	s.Create(t, webIngress(ns, "away", "away.example.com", "/", "web"))
	p := begin(t, s.AdminKubeconfig(t), "one")
	s.Restart(t, func() {
		for range 20 {
			p.Expect("200", "away.example.com", "/", "without an API server")
			time.Sleep(50 * time.Millisecond)
		}
		if p.probe("/readyz") != 200 || p.probe("/livez") != 200 {
			t.Error("not ready, or not alive, without an API server")
		}
	})
	s.Create(t, webIngress(ns, "back", "back.example.com", "/", "web"))
	took := p.Serves("back.example.com", "/", 200, 60*time.Second)
	t.Logf("what was created after the API server's restart was served after %v", took)
}

// The shipped ServiceAccount has all permissions that it needs, and no others.
func TestRBAC(t *testing.T) {
	s := live(t)
	s.Apply(t, manifests(t), false)
	ns := s.Namespace(t, "rbac")
	s.Serve(t, service(ns, "web"), "red", nil)
	i := webIngress(ns, "rbac", "rbac.example.com", "/", "web")
	i.Annotations = pairs([]string{annotation + "rate", "fast"}) // for an Event
	s.Create(t, i)
	kubeconfig := s.Kubeconfig(t, s.URL, s.Token(t, "shield-ingress", "shield-ingress"))
	before := s.forbidden(t)
	p := begin(t, kubeconfig, "one", "--publish-address", "192.0.2.10", "--default-certificate", ns+"/none")
	p.Serves("rbac.example.com", "/", 200, 5*time.Second)
	eventually(t, 5*time.Second, "the address in the status", func() bool { s.Get(t, i); return len(i.Status.LoadBalancer.Ingress) == 1 })
	eventually(t, 5*time.Second, "an Event", func() bool { return len(s.Events(t, ns)) > 0 })
	p.End(syscall.SIGTERM)
	if after := s.forbidden(t); after != before {
		t.Errorf("%v requests were forbidden", after-before)
	}

	// That account can neither write a Secret nor read a ConfigMap of another namespace.
	config := s.Token(t, "shield-ingress", "shield-ingress")
	anonymous := &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, DisableKeepAlives: true}
	for _, tt := range []struct{ method, path, body string }{
		{http.MethodPost, "/api/v1/namespaces/" + ns + "/secrets", `{"metadata":{"name":"x"}}`},
		{http.MethodPut, "/api/v1/namespaces/" + ns + "/secrets/x", `{"metadata":{"name":"x"}}`},
		{http.MethodPatch, "/api/v1/namespaces/shield-ingress/secrets/x", `{}`},
		{http.MethodDelete, "/api/v1/namespaces/shield-ingress/secrets/x", ``},
		{http.MethodGet, "/api/v1/namespaces/" + ns + "/configmaps", ``},
		{http.MethodGet, "/api/v1/nodes", ``},
		{http.MethodGet, "/api/v1/pods", ``},
		{http.MethodPut, "/apis/networking.k8s.io/v1/namespaces/" + ns + "/ingresses/rbac", `{}`},
	} {
		r := must.Get(http.NewRequest(tt.method, s.URL+tt.path, strings.NewReader(tt.body)))(t)
		r.Header.Set("Authorization", "Bearer "+config)
		r.Header.Set("Content-Type", map[bool]string{true: "application/merge-patch+json", false: "application/json"}[tt.method == http.MethodPatch])
		resp := must.Get(anonymous.RoundTrip(r))(t)
		_ = resp.Body.Close()
		if resp.StatusCode != http.StatusForbidden {
			t.Errorf("%s %s: got %d, want 403", tt.method, tt.path, resp.StatusCode)
		}
	}
}

// manifests returns what is shipped.
func manifests(t testing.TB) string {
	t.Helper()
	out := must.Get(exec.Command("../deploy/render", "base").Output())(t)
	return string(out)
}

// forbidden returns how many requests the API server has refused with 403 so far.
func (s *Server) forbidden(t testing.TB) (n float64) {
	t.Helper()
	r := must.Get(http.NewRequest(http.MethodGet, s.URL+"/metrics", nil))(t)
	resp := must.Get(s.client.Do(r))(t)
	defer resp.Body.Close()
	b := must.Get(io.ReadAll(resp.Body))(t)
	for line := range bytes.Lines(b) {
		if bytes.HasPrefix(line, []byte("apiserver_request_total{")) && bytes.Contains(line, []byte(`code="403"`)) {
			var v float64
			must.Get(fmt.Sscan(string(line[bytes.LastIndexByte(line, ' ')+1:]), &v))(t)
			n += v
		}
	}
	return n
}

// A cluster with a thousand Ingresses costs little, and a change of one of them less
// than 50 ms; so it does when all of its Services are limited, and half of its Ingresses.
func TestScale(t *testing.T) {
	s, ns := shop(t, "scale")
	const ingresses, endpoints = 1000, 10
	t.Cleanup(func() { // or the programs of other tests would read them
		for _, o := range []Object{service(ns, ""), slice(ns, "")} {
			if err := s.Do(http.MethodDelete, s.path(t, o), "", nil, nil); err != nil {
				t.Error(err)
			}
		}
	})
	red := pod(t, "red", nil)
	name := func(n int) string { return fmt.Sprintf("web-%04d", n) }
	parallel(16, ingresses, func(n int) {
		s.Create(t, service(ns, name(n)))
		addresses := []string{red.Address}
		for e := 1; e < endpoints; e++ {
			addresses = append(addresses, fmt.Sprintf("10.244.%d.%d", 100+n%100, 10*(n/100)+e))
		}
		s.Create(t, slice(ns, name(n), addresses...))
		s.Create(t, webIngress(ns, name(n), name(n)+".scale.example.com", "/", name(n), "/a", name(n), "/b/c", name(n), "/d", name(n)))
	})
	p := begin(t, s.AdminKubeconfig(t), "one")
	p.Serves(name(999)+".scale.example.com", "/a/b", 200, 10*time.Second)

	measure := func(what string, megabytes float64) {
		t.Helper()
		rebuild, elapsed := math.Inf(1), 0.0
		for round := 0; round < 3 && rebuild > 0.050; round++ {
			ran, waited := p.Scheduled()
			sum, count := p.Metric("shield_ingress_rebuild_seconds_sum"), p.Metric("shield_ingress_rebuild_seconds_count")
			for n := range 10 {
				i := webIngress(ns, fmt.Sprintf("more-%s-%d-%d", what, round, n), fmt.Sprintf("more-%s-%d-%d.example.com", what, round, n), "/", name(0))
				s.Create(t, i)
				p.Serves(i.Spec.Rules[0].Host, "/", 200, 5*time.Second)
			}
			elapsed = (p.Metric("shield_ingress_rebuild_seconds_sum") - sum) / (p.Metric("shield_ingress_rebuild_seconds_count") - count)
			ranNow, waitedNow := p.Scheduled()
			ran, waited = ranNow-ran, waitedNow-waited
			rebuild = min(rebuild, elapsed*ran/(ran+waited)) // other programs may have the machine for the rest
		}
		memory := p.Memory()
		t.Logf("%d Ingresses x 4 paths, %d endpoints, %s: rebuild %.1f ms, %.1f with what it waited for a processor, %.0f MB resident", ingresses, ingresses*endpoints, what, 1e3*rebuild, 1e3*elapsed, memory)
		if raceEnabled {
			return // another program, several times as slow and large
		}
		if rebuild > 0.050 {
			t.Errorf("%s: a rebuild takes %.1f ms; want at most 50", what, 1e3*rebuild)
		}
		if memory > megabytes {
			t.Errorf("%s: %.0f MB are resident; want at most %.0f", what, memory, megabytes)
		}
	}
	measure("unlimited", 150)
	parallel(16, ingresses, func(n int) {
		s.Patch(t, webIngress(ns, name(n), ""), "", "metadata: {annotations: {"+annotation+"use-regex: 'true', "+annotation+"rewrite-target: /v2/$1, "+annotation+"response-timeout: 30s}}")
	})
	measure("rewritten", 200)
	parallel(16, ingresses, func(n int) {
		s.Patch(t, service(ns, name(n)), "", "metadata: {annotations: {"+annotation+"capacity: 100/s}}")
		if n%2 == 0 {
			s.Patch(t, webIngress(ns, name(n), ""), "", "metadata: {annotations: {"+annotation+"rate: 50/s}}")
		}
	})
	measure("limited", 256) // what the shipped Deployment requests
}

// parallel calls f with 0 to n-1, by so many goroutines.
func parallel(goroutines, n int, f func(int)) {
	var next atomic.Int64
	var wg sync.WaitGroup
	for range goroutines {
		wg.Go(func() {
			for {
				i := int(next.Add(1)) - 1
				if i >= n {
					return
				}
				f(i)
			}
		})
	}
	wg.Wait()
}

// Fifty changes per second, of everything that can change, cost no request: not even
// those that cannot be repeated, on connections that are kept.
func TestChurn(t *testing.T) {
	s, ns := shop(t, "churn")
	var all []*Pod
	for n := range 4 {
		all = append(all, pod(t, fmt.Sprint("pod", n), nil))
	}
	web := service(ns, "web", annotation+"capacity", "100000/s")
	s.Create(t, web)
	endpoints := slice(ns, "web", all[0].Address, all[1].Address, all[2].Address)
	s.Create(t, endpoints)
	i := webIngress(ns, "web", "churn.example.com", "/", "web")
	s.Create(t, i)
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "cert"}, Type: corev1.SecretTypeTLS, Data: certificate(t, "first", "churn.example.org")}
	s.Create(t, secret)
	p := begin(t, s.AdminKubeconfig(t), "one")

	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	var wg sync.WaitGroup
	var requests, dials atomic.Int64
	failures := make(chan string, 1000)
	for range 16 {
		transport := &http.Transport{MaxIdleConnsPerHost: 1, DialContext: (&net.Dialer{}).DialContext}
		dial := transport.DialContext
		transport.DialContext = func(ctx context.Context, network, address string) (net.Conn, error) {
			dials.Add(1)
			return dial(ctx, network, address)
		}
		client := &http.Client{Transport: transport}
		wg.Go(func() {
			for ctx.Err() == nil {
				// A body that cannot be read again: nothing may be sent twice.
				r, err := http.NewRequest(http.MethodPost, fmt.Sprintf("http://127.0.0.1:%d/", p.HTTP), io.MultiReader(strings.NewReader("body")))
				if err != nil {
					panic(err)
				}
				r.Host = "churn.example.com"
				resp, err := client.Do(r)
				requests.Add(1)
				if err != nil {
					failures <- err.Error()
					continue
				}
				_, err = io.Copy(io.Discard, resp.Body)
				if err = errors.Join(err, resp.Body.Close()); err != nil || resp.StatusCode != 200 {
					failures <- fmt.Sprint(resp.StatusCode, " ", err)
				}
			}
		})
	}
	const changes = 500
	tick := time.NewTicker(time.Second / 50)
	defer tick.Stop()
	began := time.Now()
	for n := range changes {
		<-tick.C
		switch n % 5 {
		case 0:
			endpoints.Endpoints = slice(ns, "web", all[n%4].Address, all[(n+1)%4].Address).Endpoints
			s.Update(t, endpoints)
		case 1:
			s.Patch(t, i, "", fmt.Sprintf("metadata: {annotations: {%srate: %d/s}}", annotation, 100000+n))
		case 2:
			s.Patch(t, web, "", fmt.Sprintf("metadata: {annotations: {%scapacity: %d/s}}", annotation, 100000+n))
		case 3:
			s.Create(t, webIngress(ns, fmt.Sprint("more-", n), fmt.Sprintf("more-%d.example.com", n), "/", "web"))
		case 4:
			secret.Data = certificate(t, fmt.Sprint("rotated", n), "churn.example.org")
			s.Update(t, secret)
		}
	}
	took := time.Since(began)
	time.Sleep(200 * time.Millisecond) // for the last of them to be made, under load
	stop()
	wg.Wait()
	close(failures)
	n := 0
	for f := range failures {
		if n++; n < 5 {
			t.Error(f)
		}
	}
	generation := p.Metric("shield_ingress_snapshot_generation")
	t.Logf("%d changes in %.1f s (%.0f/s), %v snapshots: %d requests on %d connections, %d errors", changes, took.Seconds(), changes/took.Seconds(), generation, requests.Load(), dials.Load(), n)
	if n > 0 {
		t.Errorf("%d of %d requests failed", n, requests.Load())
	}
	if dials.Load() > 16 {
		t.Errorf("%d connections were dialled for 16 clients", dials.Load())
	}
	if generation < 50 {
		t.Errorf("only %v snapshots were made", generation)
	}
}

// Two replicas divide a limit: together they let through what it says.
func TestDivided(t *testing.T) {
	s, ns := shop(t, "divided")
	s.Serve(t, service(ns, "web", annotation+"capacity", "1/h", annotation+"burst", "11"), "red", nil)
	s.Create(t, webIngress(ns, "web", "divided.example.com", "/", "web"))
	s.Replicas(t, ns, "one", "two")
	admitted := 0
	for _, name := range []string{"one", "two"} {
		p := begin(t, s.AdminKubeconfig(t), name, "--service", ns+"/own")
		if share := p.Metric("shield_ingress_share_ratio"); share != 0.5 {
			t.Errorf("%s has %v of the limits; want half", name, share)
		}
		for range 20 {
			if status, _ := p.Get("divided.example.com", "/"); status == 200 {
				admitted++
			}
		}
	}
	if admitted != 11 {
		t.Errorf("%d were admitted by both; want 11", admitted)
	}
}

// On SIGTERM it is not ready at once, serves on for its delay, ends, and has given up
// the lead; the last replica takes its addresses along.
func TestShutdown(t *testing.T) {
	s, ns := shop(t, "shutdown")
	s.Serve(t, service(ns, "web"), "red", nil)
	i := webIngress(ns, "web", "shutdown.example.com", "/", "web")
	s.Create(t, i)
	s.Replicas(t, ns, "one")
	p := begin(t, s.AdminKubeconfig(t), "one", "--service", ns+"/own", "--publish-address", "192.0.2.11", "--shutdown-delay", "1s")
	eventually(t, 20*time.Second, "the address in the status", func() bool { s.Get(t, i); return len(i.Status.LoadBalancer.Ingress) == 1 })
	must.Do(t, p.cmd.Process.Signal(syscall.SIGTERM))
	took := eventually(t, time.Second, "not ready", func() bool { return p.probe("/readyz") == http.StatusServiceUnavailable })
	p.Expect("200", "shutdown.example.com", "/", "%v after SIGTERM", took)
	<-p.ended
	if code := p.cmd.ProcessState.ExitCode(); code != 0 {
		t.Errorf("exit code %d, want 0", code)
	}
	asked := time.Now()
	s.Get(t, i)
	switch took := time.Since(asked); {
	case len(i.Status.LoadBalancer.Ingress) == 0:
	case took > 200*time.Millisecond: // it asks several times, and has two seconds in all
		t.Skipf("the API server takes %v to answer; the last replica may not have had the time to remove the status", took)
	default:
		t.Errorf("the status still has %v, where no replica serves", i.Status.LoadBalancer.Ingress)
	}
}

// A replica that has more statuses to write than there is time gives up the lead all the same.
func TestShutdownWithManyIngresses(t *testing.T) {
	s, ns := shop(t, "many")
	const ingresses = 300
	parallel(16, ingresses, func(n int) {
		s.Create(t, webIngress(ns, fmt.Sprint("web-", n), fmt.Sprintf("many-%d.example.com", n), "/", "web"))
	})
	s.Replicas(t, ns, "one")
	p := begin(t, s.AdminKubeconfig(t), "one", "--service", ns+"/own", "--publish-address", "192.0.2.12")
	last := webIngress(ns, fmt.Sprint("web-", ingresses-1), "", "", "")
	eventually(t, 30*time.Second, "the address in the status", func() bool { s.Get(t, last); return len(last.Status.LoadBalancer.Ingress) == 1 })
	p.End(syscall.SIGTERM)
	if logs := p.logs.String(); !strings.Contains(logs, "may still have this controller's addresses") || !strings.Contains(logs, "has resigned as the leader") {
		t.Errorf("it has not given up the lead after it ran out of time:\n%s", logs)
	}
}
