package ingress

import (
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/herdshield/shield/k8s/model"
	"github.com/herdshield/shield/k8s/policy"
	"github.com/herdshield/shield/k8s/testbed/must"
	"github.com/herdshield/shield/limiter"
)

const hour = time.Hour

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

// An observed limit rejects no request; an enforced one beside it does.
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

// waitFor waits until something is so, for real: it is about sockets.
func waitFor(t *testing.T, what string, is func() bool) {
	t.Helper()
	for range 1500 { // a request of a disconnected client has 10 s
		if is() {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
	t.Fatalf("waited in vain for %s", what)
}

// A client that repeats a rejected request is rejected at the door, until the cluster changes:
// the next request goes where the new objects send it.
func TestDoor(t *testing.T) {
	p := newPod(t, "red", start)
	limited := origin("web", policy.Ingress{Zones: hourly(1)})
	free := origin("free", policy.Ingress{})
	b := backend(service("one", policy.Service{}), p)
	rule := func(o *model.Origin, path string) model.Rule {
		return model.Rule{Host: "a", Path: path, Target: model.Target{Origin: o, Backend: b}}
	}
	for _, c := range []struct {
		name          string
		before, after []model.Rule
	}{
		{"the path is another Ingress's", []model.Rule{rule(limited, "/")}, []model.Rule{rule(limited, "/"), rule(free, "/a")}},
		{"the Ingress is gone", []model.Rule{rule(limited, "/"), rule(limited, "/a")}, []model.Rule{rule(free, "/")}},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newWorld(t, &model.Model{Rules: c.before})
			w.apply(&model.Model{Rules: c.before}) // newWorld's comes before the app is there
			conn, in := w.dial()
			ask := func() int {
				_, _ = io.WriteString(conn, "GET /a HTTP/1.1\r\nHost: a\r\n\r\n")
				resp := must.Get(http.ReadResponse(in, nil))(t)
				_, _ = io.Copy(io.Discard, resp.Body)
				return resp.StatusCode
			}
			for i := range 20 {
				if got := ask(); (got == 200) != (i == 0) {
					t.Errorf("request %d is answered %d", i+1, got)
				}
			}
			if n := w.metrics()["caddy_shield_fast_rejects_total"]; n < 10 {
				t.Errorf("%v of 19 rejections were made at the door", n)
			}
			w.apply(&model.Model{Rules: c.after})
			if got := ask(); got != 200 {
				t.Errorf("after the change the same request is answered %d", got)
			}
		})
	}
}
