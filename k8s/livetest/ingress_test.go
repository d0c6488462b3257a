package livetest

import (
	"bufio"
	"bytes"
	"encoding/base64"
	"flag"
	"fmt"
	"io"
	"math"
	"net"
	"net/http"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/herdshield/shield/k8s/migrate"
	"github.com/herdshield/shield/k8s/policy"
	"github.com/herdshield/shield/k8s/testbed/controlplane"
	"github.com/herdshield/shield/k8s/testbed/must"
	"github.com/herdshield/shield/share/redis/testserver"
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

// An Ingress is served, rejected, changed and gone, as its objects say; its status and Events say so.
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

// What flags say reaches the Ingresses: timeouts, ingress-nginx's annotations, and the Service whose
// addresses are published, as they are now.
func TestFlags(t *testing.T) {
	s, ns := shop(t, "flags")
	s.Serve(t, service(ns, "web"), "red", func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/hang" {
			<-r.Context().Done()
		}
	})
	front := service(ns, "front")
	front.Spec.ExternalIPs = []string{"192.0.2.20"}
	s.Create(t, front)
	i, guarded := webIngress(ns, "web", "flags.example.com", "/", "web"), webIngress(ns, "guarded", "guarded.example.com", "/", "web")
	guarded.Annotations = pairs([]string{policy.NginxPrefix + "auth-type", "basic"})
	s.Create(t, i)
	s.Create(t, guarded)
	p := begin(t, s.AdminKubeconfig(t), "one", "--publish-service", ns+"/front", "--nginx-annotations", "--response-timeout", "300ms")
	p.Serves("flags.example.com", "/", 200, 5*time.Second)
	p.Expect("504", "flags.example.com", "/hang", "a backend that does not answer")
	p.Expect("503", "guarded.example.com", "/", "a guard that shield does not have")
	for _, address := range []string{"192.0.2.20", "192.0.2.21"} {
		s.Patch(t, front, "", "spec: {externalIPs: ["+address+"]}")
		eventually(t, 40*time.Second, "the address of the Service", func() bool { // as long as another leader's Lease may last
			s.Get(t, i)
			return len(i.Status.LoadBalancer.Ingress) == 1 && i.Status.LoadBalancer.Ingress[0].IP == address
		})
	}

	// The command says the same of the cluster.
	var stdout, stderr bytes.Buffer
	code := migrate.Main([]string{"--kubeconfig", s.AdminKubeconfig(t), "--namespaces", ns}, nil, &stdout, &stderr)
	if code != 2 || !strings.Contains(stdout.String(), "Ingresses: 2; as before: 1, weaker: 0, rejected: 1\n") {
		t.Errorf("exit code %d: %s%s", code, &stdout, &stderr)
	}
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
	data := certificate(t, "rotated", "secure.example.com")
	s.Patch(t, secret, "", fmt.Sprintf("data: {tls.crt: %s, tls.key: %s}", base64.StdEncoding.EncodeToString(data["tls.crt"]), base64.StdEncoding.EncodeToString(data["tls.key"])))
	if took := eventually(t, 5*time.Second, "the new certificate", is("rotated")); took > onThisMachine(time.Second) {
		t.Errorf("a new certificate was served after %v; want 1 s", took)
	}
	p.Expect("308", "secure.example.com", "/", "over plain HTTP")
	// A broken Secret does not end TLS.
	s.Patch(t, secret, "", `data: {tls.crt: "AAAA", tls.key: "AAAA"}`)
	eventually(t, 5*time.Second, "the default certificate", is("Shield Ingress Controller Fake Certificate"))
}

func certificate(t testing.TB, common string, names ...string) map[string][]byte {
	t.Helper()
	return must.SecretData(t, must.Certificate(t, common, time.Now().Add(time.Hour), names...))
}

// While the API server is away, everything goes on; what has changed meanwhile is seen when it is back.
// So it is where this replica alone was cut off, also when neither the server nor etcd remember what was deleted.
func TestAPIServerAway(t *testing.T) {
	s, ns := shop(t, "away")
	s.Serve(t, service(ns, "web"), "red", nil)
	create := func(name string) *networkingv1.Ingress {
		i := webIngress(ns, name, name+".away.example.com", "/", "web")
		s.Create(t, i)
		return i
	}
	gone := create("gone")
	way := testserver.StartProxy(t, strings.TrimPrefix(s.URL, "https://"))
	p := begin(t, s.Kubeconfig(t, "https://"+way.Addr, controlplane.AdminToken), "one")
	s.Restart(t, func() {
		for range 20 {
			p.Expect("200", "gone.away.example.com", "/", "without an API server")
			time.Sleep(50 * time.Millisecond)
		}
		if p.probe("/readyz") != 200 || p.probe("/livez") != 200 {
			t.Error("not ready, or not alive, without an API server")
		}
	})
	back := create("back")
	p.Serves("back.away.example.com", "/", 200, 60*time.Second)

	way.Cut(true)
	s.Delete(t, gone)
	create("new")
	must.Do(t, s.Compact())
	s.Restart(t, nil) // it remembers more than etcd does
	var told struct{ Object metav1.Status }
	resume := "/apis/networking.k8s.io/v1/ingresses?watch=1&timeoutSeconds=1&resourceVersion=" + back.ResourceVersion
	if err := s.Do(http.MethodGet, resume, "", nil, &told); err != nil || told.Object.Code != http.StatusGone {
		t.Fatalf("who resumes from %s is told %+v, %v; want 410, or this tests nothing", back.ResourceVersion, told.Object, err)
	}
	p.Expect("200", "gone.away.example.com", "/", "what it cannot know")
	p.Expect("404", "new.away.example.com", "/", "what it cannot know")
	// A replica that has never seen the cluster is alive, and not ready.
	blind := launch(t, s.Kubeconfig(t, "https://"+way.Addr, controlplane.AdminToken), "two", "--replicas", "local")
	eventually(t, 20*time.Second, "alive", func() bool { return blind.probe("/livez") == http.StatusOK })
	for path, want := range map[string]int{"/readyz": 503, "/metrics": 200, "/": 404} {
		if got := blind.probe(path); got != want {
			t.Errorf("without a cluster %s is answered %d, want %d", path, got, want)
		}
	}
	way.Cut(false)
	eventually(t, 60*time.Second, "ready", func() bool { return blind.probe("/readyz") == http.StatusOK })
	p.Serves("new.away.example.com", "/", 200, 60*time.Second)
	p.Serves("gone.away.example.com", "/", 404, time.Second)
}

// The shipped ServiceAccount has all permissions that it needs: with Roles for some namespaces, which are
// tried first, and with a ClusterRole. It has no others: see TestRBAC in deploy.
func TestRBAC(t *testing.T) {
	s, everywhere := shop(t, "rbac")
	s.Create(t, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "shop"}})
	for _, tt := range []struct {
		folder, namespace string
		flags             []string
	}{{"overlays/namespaced", "shop", []string{"--namespaces=shop"}}, {"base", everywhere, nil}} {
		apply := exec.Command("bash", "-c", `. ../testbed/node-env; ../deploy/render "$1" | "$bin/kubectl" --kubeconfig "$2" apply --server-side -f -`, "apply", tt.folder, s.AdminKubeconfig(t))
		if out, err := apply.CombinedOutput(); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		s.Serve(t, service(tt.namespace, "web"), "red", nil)
		i := webIngress(tt.namespace, "rbac", tt.namespace+".rbac.example.com", "/", "web")
		i.Annotations = pairs([]string{annotation + "rate", "fast"}) // for an Event
		s.Create(t, i)
		p := begin(t, s.Kubeconfig(t, s.URL, s.Token(t, "shield-ingress", "shield-ingress")), "one",
			append(tt.flags, "--publish-address", "192.0.2.10", "--default-certificate", tt.namespace+"/none")...)
		p.Serves(tt.namespace+".rbac.example.com", "/", 200, 5*time.Second)
		eventually(t, 5*time.Second, "the address in the status", func() bool { s.Get(t, i); return len(i.Status.LoadBalancer.Ingress) == 1 })
		eventually(t, 5*time.Second, "an Event", func() bool { return len(s.Events(t, tt.namespace)) > 0 })
		p.End(syscall.SIGTERM)
		if rejected := must.Get(s.Rejected())(t); len(rejected) > 0 {
			t.Errorf("%s: the API server has rejected %q", tt.folder, rejected)
		}
	}
}

var full = flag.Bool("full", false, "play a thousand Ingresses, not a fifth of them")

// A cluster with a thousand Ingresses costs little, and a change of one of them less than 50 ms, or the part
// of that for fewer; so it does when all of its Services and half of its Ingresses are limited, and paths rewritten.
func TestScale(t *testing.T) {
	s, ns := shop(t, "scale")
	const endpoints = 10
	ingresses := 200
	if *full {
		ingresses = 1000
	}
	most := 50e-6 * float64(ingresses) // seconds
	t.Cleanup(func() {                 // or the programs of other tests would read them
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
	p.Serves(name(ingresses-1)+".scale.example.com", "/a/b", 200, 10*time.Second)

	measure := func(what string, megabytes float64) {
		t.Helper()
		rebuild, elapsed := math.Inf(1), 0.0
		for round := 0; round < 3 && rebuild > most; round++ {
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
		memory := p.Metric("process_resident_memory_bytes") / (1 << 20)
		t.Logf("%d Ingresses x 4 paths, %d endpoints, %s: rebuild %.1f ms, %.1f with what it waited for a processor, %.0f MB resident", ingresses, ingresses*endpoints, what, 1e3*rebuild, 1e3*elapsed, memory)
		if rebuild > most {
			t.Errorf("%s: a rebuild takes %.1f ms; want at most %.1f", what, 1e3*rebuild, 1e3*most)
		}
		if memory > megabytes {
			t.Errorf("%s: %.0f MB are resident; want at most %.0f", what, memory, megabytes)
		}
	}
	measure("unlimited", 150)
	parallel(16, ingresses, func(n int) {
		s.Patch(t, service(ns, name(n)), "", "metadata: {annotations: {"+annotation+"capacity: 100/s}}")
		rate := ""
		if n%2 == 0 {
			rate = annotation + "rate: 50/s, "
		}
		s.Patch(t, webIngress(ns, name(n), ""), "", "metadata: {annotations: {"+rate+annotation+"use-regex: 'true', "+annotation+"rewrite-target: /v2/$1, "+annotation+"response-timeout: 30s}}")
	})
	measure("limited", 256) // what the shipped Deployment requests
}

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
	if status := p.probe("/livez"); status != http.StatusOK {
		t.Errorf("/livez while shutting down is answered %d", status)
	}
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
	if logs := p.logs(); !strings.Contains(logs, "may still have this controller's addresses") || !strings.Contains(logs, "has resigned as the leader") {
		t.Errorf("it has not given up the lead after it ran out of time:\n%s", logs)
	}
}
