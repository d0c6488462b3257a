package ingress

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/herdshield/shield/k8s/model"
	"github.com/herdshield/shield/k8s/policy"
	"github.com/herdshield/shield/k8s/testbed/must"
	"github.com/herdshield/shield/limiter"
)

const hour = time.Hour

func TestRouting(t *testing.T) {
	red, blue := newPod(t, "red", start), newPod(t, "blue", start)
	web, api := origin("web", policy.Ingress{}), origin("api", policy.Ingress{})
	web.TLSHosts = []string{"secure.example.com", "*.wild.example.com"}
	m := &model.Model{
		Rules: []model.Rule{
			{Host: "a.example.com", Path: "/", Target: model.Target{Origin: web, Backend: backend(service("red", policy.Service{}), red)}},
			{Host: "a.example.com", Path: "/blue", Target: model.Target{Origin: api, Backend: backend(service("blue", policy.Service{}), blue)}},
			{Host: "a.example.com", Path: "/none", Target: model.Target{Origin: api}},
			{Host: "a.example.com", Path: "/empty", Target: model.Target{Origin: api, Backend: backend(service("empty", policy.Service{}))}},
			{Host: "secure.example.com", Path: "/", Target: model.Target{Origin: web, Backend: backend(service("red", policy.Service{}), red)}},
			{Host: "secure.example.com", Path: "/.well-known/acme-challenge/x", Target: model.Target{Origin: web, Backend: backend(service("blue", policy.Service{}), blue)}},
			{Host: "*.wild.example.com", Path: "/", Target: model.Target{Origin: web, Backend: backend(service("red", policy.Service{}), red)}},
		},
	}
	w := newWorld(t, m)
	for _, tt := range []struct {
		host, path string
		status     int
		body       string
	}{
		{"a.example.com", "/", 200, "red HTTP/1.1 /"}, {"A.Example.COM:8080", "/x", 200, "red HTTP/1.1 /x"},
		{"a.example.com", "/blue/1", 200, "blue HTTP/1.1 /blue/1"}, {"a.example.com", "/blues", 200, "red HTTP/1.1 /blues"},
		{"a.example.com", "/none", 503, ""}, {"a.example.com", "/empty", 503, ""}, {"b.example.com", "/", 404, ""},
		{"a.example.com", "/x/%2e%2e/blue", 400, ""}, {"a.example.com", "/x/..%2fblue", 400, ""}, {"secure.example.com", "/x?y=1", 308, ""},
		{"secure.example.com", "/.well-known/acme-challenge/x", 200, "blue HTTP/1.1 /.well-known/acme-challenge/x"},
		{"secure.example.com", "/.well-known/acme-challenge/y", 200, "red HTTP/1.1 /.well-known/acme-challenge/y"},
		{"secure.example.com", "/.well-known/acme-challenges", 308, ""}, {"one.wild.example.com", "/", 308, ""},
	} {
		resp, body := w.get(tt.host, tt.path)
		if resp.StatusCode != tt.status || tt.body != "" && body != tt.body {
			t.Errorf("%s%s: got %d %q, want %d %q", tt.host, tt.path, resp.StatusCode, body, tt.status, tt.body)
		}
		if seconds, _ := strconv.Atoi(resp.Header.Get("Retry-After")); tt.status == 503 && (seconds < 1 || seconds > 10) {
			t.Errorf("%s%s: Retry-After is %q; want 1 to 10 seconds", tt.host, tt.path, resp.Header.Get("Retry-After"))
		}
		if location := resp.Header.Get("Location"); tt.status == 308 && location != "https://"+tt.host+tt.path {
			t.Errorf("%s%s: redirected to %q", tt.host, tt.path, location)
		}
	}
}

func TestProtocols(t *testing.T) {
	h2c := newPod(t, "h2c", func(s *httptest.Server) {
		s.Config.Protocols = new(http.Protocols)
		s.Config.Protocols.SetUnencryptedHTTP2(true)
		s.Start()
	})
	tls := newPod(t, "tls", func(s *httptest.Server) { s.EnableHTTP2 = true; s.StartTLS() })
	for _, tt := range []struct {
		pod      *pod
		protocol model.Protocol
		want     string
	}{{h2c, model.H2C, "h2c HTTP/2.0 /"}, {tls, model.HTTPS, "tls HTTP/2.0 /"}} {
		b := backend(service(tt.pod.name, policy.Service{}), tt.pod)
		b.Protocol = tt.protocol
		w := newWorld(t, all(origin("web", policy.Ingress{}), b))
		if resp, body := w.get("x", "/"); resp.StatusCode != 200 || body != tt.want {
			t.Errorf("got %d %q, want 200 %q", resp.StatusCode, body, tt.want)
		}
	}
}

// A client has one quota for all paths of the Ingress, and others for other Ingresses. A
// change of the policy resets no count.
func TestClientLimit(t *testing.T) {
	p := newPod(t, "red", start)
	one, two := service("one", policy.Service{}), service("two", policy.Service{})
	limit := func(burst int) policy.Ingress { return policy.Ingress{Zones: hourly(burst)} }
	models := func(burst int) *model.Model {
		web := origin("web", limit(burst))
		return &model.Model{Rules: []model.Rule{
			{Host: "a", Path: "/", Target: model.Target{Origin: web, Backend: backend(one, p)}},
			{Host: "a", Path: "/two", Target: model.Target{Origin: web, Backend: backend(two, p)}},
			{Host: "b", Path: "/", Target: model.Target{Origin: origin("other", limit(1)), Backend: backend(one, p)}},
		}}
	}
	w := newWorld(t, models(2))
	expect := func(host, path string, want int) { t.Helper(); w.expect(want, host, path, "%s%s", host, path) }
	expect("a", "/", 200)
	expect("a", "/two", 200)
	expect("a", "/", 429)
	expect("a", "/two", 429)
	expect("b", "/", 200)
	expect("b", "/", 429)
	w.apply(models(3))
	expect("a", "/", 200)
	expect("a", "/two", 429)
	resp, _ := w.get("a", "/")
	if policy := resp.Header.Get("Ratelimit-Policy"); !strings.HasPrefix(policy, `"rate";q=3`) {
		t.Errorf("RateLimit-Policy is %q", policy)
	}
}

// The budget of a Service is shared by all ways to it, and survives the Ingresses.
func TestServiceCapacity(t *testing.T) {
	p := newPod(t, "red", start)
	s := service("web", policy.Service{Capacity: limiter.Config{Rate: 1, Per: hour, Burst: 2}})
	rule := func(name string) model.Rule {
		return model.Rule{Host: name, Path: "/", Target: model.Target{Origin: origin(name, policy.Ingress{}), Backend: backend(s, p)}}
	}
	w := newWorld(t, &model.Model{Rules: []model.Rule{rule("a"), rule("b")}})
	for i, want := range []int{200, 200, 503} {
		if resp, _ := w.get([]string{"a", "b", "a"}[i], "/"); resp.StatusCode != want {
			t.Errorf("request %d: got %d, want %d", i+1, resp.StatusCode, want)
		}
	}
	w.apply(&model.Model{Rules: []model.Rule{rule("c")}})
	w.expect(503, "c", "/", "through another Ingress")
}

// No endpoint ever has more in flight than it may, while endpoints come and go and more
// is asked for than there is room for; and all that fits is let in.
func TestEndpointConcurrency(t *testing.T) {
	const each = 3
	pods := newPods(t, 3, time.Millisecond)
	s := service("web", policy.Service{EndpointConcurrency: each, Queue: 1000, QueueTimeout: 10 * time.Second})
	o := origin("web", policy.Ingress{})
	w := newWorld(t, all(o, backend(s, pods...)))
	var wg sync.WaitGroup
	ctx, stop := context.WithCancel(t.Context())
	statuses := make([]int, 600)
	var mu sync.Mutex
	for range 40 {
		wg.Go(func() {
			client := &http.Client{Transport: &http.Transport{}}
			for ctx.Err() == nil {
				resp, err := client.Get(w.base + "/")
				if err != nil {
					t.Error(err)
					return
				}
				_ = resp.Body.Close()
				mu.Lock()
				statuses[resp.StatusCode]++
				mu.Unlock()
			}
		})
	}
	for i := range 60 {
		w.apply(all(o, backend(s, pods[i%3:]...)))
		time.Sleep(5 * time.Millisecond) // for real: traffic over sockets goes on meanwhile
	}
	stop()
	wg.Wait()
	for _, p := range pods {
		if most := p.most.Load(); most > each {
			t.Errorf("%s has had %d in flight; want at most %d", p.name, most, each)
		}
	}
	if pods[2].served.Load() == 0 || statuses[200] == 0 || statuses[502] > 0 {
		t.Errorf("statuses %v: 200 %d, 502 %d, 503 %d", pods[2].served.Load(), statuses[200], statuses[502], statuses[503])
	}
	t.Logf("200: %d, 503: %d", statuses[200], statuses[503])
}

// Requests over an endpoint's limit wait in the queue.
func TestEndpointQueue(t *testing.T) {
	p := newPod(t, "red", start)
	s := service("web", policy.Service{EndpointConcurrency: 1, Queue: 1, QueueTimeout: 20 * time.Second})
	w := newWorld(t, all(origin("web", policy.Ingress{}), backend(s, p)))
	var wg sync.WaitGroup
	for range 2 {
		wg.Go(func() {
			// It is refused if the one that is to be refused comes before it.
			waitFor(t, "the answer", func() bool { resp, _ := w.get("x", "/hold"); return resp.StatusCode == 200 })
		})
	}
	waitFor(t, "one request at the pod", func() bool { return p.inside.Load() == 1 })
	// Of three, one is at the pod and one in the queue: the third is refused, now or a moment later.
	waitFor(t, "a refusal", func() bool {
		ctx, cancel := context.WithTimeout(context.Background(), 200*time.Millisecond)
		defer cancel()
		r, _ := http.NewRequestWithContext(ctx, http.MethodGet, w.base+"/", nil)
		resp, err := http.DefaultTransport.RoundTrip(r)
		if err != nil {
			return false
		}
		_ = resp.Body.Close()
		return resp.StatusCode == 503 && resp.Header.Get("Retry-After") != ""
	})
	close(p.hold)
	wg.Wait()
	if p.most.Load() != 1 {
		t.Errorf("%d in flight at the pod; want 1", p.most.Load())
	}
}

// A stream gives back its place at the endpoint as soon as it has begun; so does a
// request whose client has gone.
func TestPlacesAreGivenBack(t *testing.T) {
	p := newPod(t, "red", start)
	s := service("web", policy.Service{EndpointConcurrency: 1, Queue: policy.QueueOff})
	w := newWorld(t, all(origin("web", policy.Ingress{}), backend(s, p)))
	for _, path := range []string{"/events", "/hold"} {
		ctx, cancel := context.WithCancel(context.Background())
		t.Cleanup(cancel) // before the pod is closed, which waits for it
		r := must.Get(http.NewRequestWithContext(ctx, http.MethodGet, w.base+path, nil))(t)
		r.Header.Set("Accept", "text/event-stream")
		before := p.served.Load()
		done := make(chan struct{})
		go func() {
			defer close(done)
			resp, err := http.DefaultTransport.RoundTrip(r)
			if err == nil {
				<-ctx.Done()
				_ = resp.Body.Close()
			}
		}()
		waitFor(t, "the request at the pod", func() bool { return p.served.Load() > before })
		if path == "/hold" {
			w.expect(503, "x", "/", "while one is in flight")
			cancel()
			<-done
		}
		waitFor(t, "room after "+path, func() bool { resp, _ := w.get("x", "/"); return resp.StatusCode == 200 })
		cancel()
		<-done
	}
}

// Where a pod cannot be reached, another one is asked, for a POST as well, and the dead
// one is left alone for a while.
func TestDeadEndpoint(t *testing.T) {
	alive, dead := newPod(t, "alive", start), newPod(t, "dead", start)
	dead.Close()
	b := backend(service("web", policy.Service{}), alive, dead)
	w := newWorld(t, all(origin("web", policy.Ingress{}), b))
	for range 20 {
		if resp, body := w.send(http.MethodPost, "x", "/", strings.NewReader("body")); resp.StatusCode != 200 {
			t.Errorf("got %d %q, want 200 of the other pod", resp.StatusCode, body)
		}
	}
	b = backend(service("web", policy.Service{}), dead)
	w.apply(all(origin("web", policy.Ingress{}), b))
	resp, body := w.get("x", "/")
	if resp.StatusCode != 502 || !strings.Contains(body, "502") {
		t.Errorf("with the dead one alone: got %d %q, want 502", resp.StatusCode, body)
	}
	if server := resp.Header.Get("Server"); server != "" {
		t.Errorf("Server is %q; want none", server)
	}
}

// Before the process ends, clients are asked to go elsewhere.
func TestDraining(t *testing.T) {
	p := newPod(t, "red", start)
	w := newWorld(t, all(origin("web", policy.Ingress{}), backend(service("web", policy.Service{}), p)))
	if err := w.controller.ready(); err != nil {
		t.Errorf("not ready: %v", err)
	}
	w.controller.draining.Store(true)
	if w.controller.ready() == nil {
		t.Error("ready while draining")
	}
	conn, in := w.dial()
	fmt.Fprintf(conn, "GET / HTTP/1.1\r\nHost: x\r\n\r\n")
	resp := must.Get(http.ReadResponse(in, nil))(t)
	if resp.StatusCode != 200 || !resp.Close {
		t.Errorf("got %d, close %v; want an answer, and the connection closed", resp.StatusCode, resp.Close)
	}
}

// A client's limit in flight is for all Services of an Ingress, and is checked before a Service's limits.
func TestPerClientBeforeService(t *testing.T) {
	p := newPod(t, "red", start)
	o := origin("web", policy.Ingress{PerClient: 1, Status: 503, Local: true})
	s := func(name string) *model.Service {
		return service(name, policy.Service{Capacity: limiter.Config{Rate: 1000}})
	}
	m := &model.Model{Rules: []model.Rule{
		{Path: "/", Target: model.Target{Origin: o, Backend: backend(s("one"), p)}},
		{Path: "/two", Target: model.Target{Origin: o, Backend: backend(s("two"), p)}},
	}}
	w := newWorld(t, m)
	done := make(chan struct{})
	go func() { defer close(done); w.get("x", "/hold") }()
	waitFor(t, "the request at the pod", func() bool { return p.inside.Load() == 1 })
	w.expect(503, "x", "/two", "a second one of the client")
	close(p.hold)
	<-done
	w.expect(200, "x", "/two", "after the first")
}

// An observed limit refuses no request; an enforced one beside it does.
func TestObserve(t *testing.T) {
	p := newPod(t, "red", start)
	quota := hourly(1)
	capacity := limiter.Config{Rate: 1, Per: hour, Burst: 2}
	for _, tt := range []struct {
		origin, service bool
		want            [3]int
	}{
		{true, true, [3]int{200, 200, 200}},
		{true, false, [3]int{200, 200, 503}},
		{false, true, [3]int{200, 429, 429}},
	} {
		w := newWorld(t, all(origin("web", policy.Ingress{Zones: quota, Observe: tt.origin}),
			backend(service("web", policy.Service{Capacity: capacity, Observe: tt.service}), p)))
		for i, want := range tt.want {
			w.expect(want, "x", "/", "origin observes %v, service %v: request %d", tt.origin, tt.service, i+1)
		}
	}
}

// Addresses that are allowed are not counted.
func TestAllow(t *testing.T) {
	p := newPod(t, "red", start)
	quota := hourly(1)
	w := newWorld(t, all(origin("web", policy.Ingress{Zones: quota, Allow: []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}}),
		backend(service("web", policy.Service{}), p)))
	for range 3 {
		w.expect(200, "x", "/", "the answer")
	}
}

// Counts of an object are forgotten when it has been gone for forgetAfter, not before.
func TestForget(t *testing.T) {
	p := newPod(t, "red", start)
	o := origin("web", policy.Ingress{Zones: hourly(1)})
	m := all(o, backend(service("web", policy.Service{}), p))
	w := newWorld(t, m)
	w.get("x", "/")
	for _, gone := range []struct {
		for_ time.Duration
		want int
	}{{forgetAfter - time.Second, 429}, {forgetAfter + time.Second, 200}} {
		w.apply(m)
		w.now += gone.for_
		w.apply(&model.Model{})
		w.apply(m)
		w.expect(gone.want, "x", "/", "after %v", gone.for_)
	}
	w.now += 2 * forgetAfter
	w.apply(&model.Model{})
	if l := w.controller.live; len(l.origins)+len(l.services)+len(l.shields) != 0 {
		t.Errorf("%d origins, %d services and %d shields are kept", len(l.origins), len(l.services), len(l.shields))
	}
}

// New shields are made only for changed policies.
func TestShieldsAreKept(t *testing.T) {
	p := newPod(t, "red", start)
	m := func(rate float64) *model.Model {
		return all(origin("web", policy.Ingress{Zones: []policy.Zone{{Name: "rate", Limit: limiter.Config{Rate: rate}}}}), backend(service("web", policy.Service{}), p))
	}
	w := newWorld(t, m(1))
	first := w.controller.snapshot.Load().shields
	w.apply(m(1))
	if again := w.controller.snapshot.Load().shields; len(again) != 1 || again[0] != first[0] {
		t.Error("made anew without a change")
	}
	w.apply(m(2))
	if changed := w.controller.snapshot.Load().shields; len(changed) != 1 || changed[0] == first[0] {
		t.Error("not made anew after a change")
	}
}

func TestLabel(t *testing.T) {
	long := strings.Repeat("n", 63)
	for _, tt := range []struct{ namespace, name, more, want string }{
		{"shop", "web", "/rate", "ingress/shop/web/rate"},
		{long, strings.Repeat("i", 200), "/rate", ""},
	} {
		l := label(model.Ref{Kind: "Ingress", Namespace: tt.namespace, Name: tt.name}, tt.more)
		if tt.want != "" && l != tt.want || len(l) > maxLabel || !strings.HasSuffix(l, tt.more) {
			t.Errorf("label of %s/%s is %q, %d bytes", tt.namespace, tt.name, l, len(l))
		}
	}
	a := label(model.Ref{Kind: "Ingress", Namespace: long, Name: strings.Repeat("i", 200)}, "")
	b := label(model.Ref{Kind: "Ingress", Namespace: long, Name: strings.Repeat("i", 199)}, "")
	if a == b {
		t.Error("two long names have one label")
	}
}

// waitFor waits until something is so, for real: it is about sockets.
func waitFor(t *testing.T, what string, is func() bool) {
	t.Helper()
	for range 1500 { // an orphan has 10 s
		if is() {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
	t.Fatalf("waited in vain for %s", what)
}
