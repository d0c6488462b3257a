package ingress

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/herdshield/shield"
	"github.com/herdshield/shield/caddymodule"
	"github.com/herdshield/shield/k8s/model"
	"github.com/herdshield/shield/k8s/policy"
	"github.com/herdshield/shield/limiter"
)

// Every request that the shields admit is served while endpoints and limits come and go, and
// while the rest of the cluster slows down changes.
func TestChangesRejectNoRequest(t *testing.T) {
	const each, changes = 10, 16
	pods := newPods(t, 3, 2*time.Millisecond)
	noQueue := policy.Service{EndpointConcurrency: each, Queue: policy.QueueOff}
	limited := policy.Service{EndpointConcurrency: each, Queue: 1000, QueueTimeout: 30 * time.Second}
	o := origin("web", policy.Ingress{})
	models := func(is policy.Service, pods ...*pod) *model.Model {
		m := all(o, backend(service("web", is), pods...))
		for i := range 150 {
			other := service(fmt.Sprint("other-", i), policy.Service{EndpointConcurrency: i%7 + 1})
			m.Rules = append(m.Rules, model.Rule{Host: fmt.Sprint("other-", i), Path: "/", Target: model.Target{Origin: o, Backend: backend(other, pods...)}})
		}
		return m
	}
	for _, tt := range []struct {
		what string
		a, b *model.Model
	}{
		{"three endpoints and one", models(limited, pods...), models(limited, pods[2])},
		{"three endpoints and one, without a queue", models(noQueue, pods...), models(noQueue, pods[2])},
		{"limited and unlimited", models(limited, pods...), models(policy.Service{}, pods...)},
	} {
		t.Run(tt.what, func(t *testing.T) {
			w := newWorld(t, tt.a)
			ctx, stop := context.WithCancel(t.Context())
			var wg sync.WaitGroup
			var served atomic.Int64
			for c := range 40 {
				wg.Go(func() {
					transport := new(http.Transport)
					defer transport.CloseIdleConnections()
					for n := 0; ctx.Err() == nil; n++ {
						resp, err := transport.RoundTrip(request(t, w.base+fmt.Sprint("/", c, "-", n)))
						if err != nil {
							t.Error(err)
							return
						}
						_ = resp.Body.Close()
						if resp.StatusCode == 200 {
							served.Add(1)
						}
					}
				})
			}
			for i := range changes {
				time.Sleep(10 * time.Millisecond) // for real: the clients are busy
				w.apply([]*model.Model{tt.b, tt.a}[i%2])
			}
			stop()
			wg.Wait()
			if n := w.controller.requests[unserved].Load(); n > 0 && !strings.Contains(tt.what, "without") || n > changes { // of which each may meet one
				t.Errorf("%d requests were let in and then not served, of %d", n, served.Load())
			}
			for _, p := range pods {
				if most := p.most.Load(); tt.what == "three endpoints and one" && most > each {
					t.Errorf("%s has had %d in flight; want at most %d", p.name, most, each)
				}
			}
		})
	}
}

func request(t *testing.T, url string) *http.Request {
	r, err := http.NewRequest(http.MethodGet, url, nil)
	if err != nil {
		t.Error(err)
	}
	return r
}

// Where one of two endpoints cannot be reached the other one is asked, for a POST as well. Once the dead one is left alone
// the requests over the other's limit wait for it in turn: none is told that there is no endpoint.
func TestEjectedEndpointIsMadeUpFor(t *testing.T) {
	pods := newPods(t, 2, 0)
	alive, dead := pods[0], pods[1]
	dead.Close()
	s := service("web", policy.Service{EndpointConcurrency: 3, Queue: 1000, QueueTimeout: 20 * time.Second})
	w := newWorld(t, all(origin("web", policy.Ingress{}), backend(s, alive, dead)))
	set := w.controller.snapshot.Load().backends[0].endpoints
	waitFor(t, "the dead one to be ejected", func() bool {
		if resp, body := w.send(http.MethodPost, "x", "/", strings.NewReader("body")); resp.StatusCode != 200 {
			t.Errorf("got %d %q, want 200 of the other pod", resp.StatusCode, body)
		}
		stats := set.Stats(shield.Now())
		return stats[0].Ejected || stats[1].Ejected
	})
	var wg sync.WaitGroup
	for range 6 { // the shields have room for all of them
		wg.Go(func() {
			if resp, body := w.get("x", "/hold"); resp.StatusCode != 200 {
				t.Errorf("got %d %q, want 200", resp.StatusCode, body)
			}
		})
	}
	waitFor(t, "all of them", func() bool { return alive.inside.Load() == 3 && set.Waiting() })
	close(alive.hold)
	wg.Wait()
	if most := alive.most.Load(); most != 3 {
		t.Errorf("the other one has had %d in flight; want 3", most)
	}
	if n := w.controller.requests[unserved].Load(); n > 0 {
		t.Errorf("%d were told that there is no endpoint", n)
	}
}

// Ports of a Service that lead to the same ports of its pods have their permits in
// common; so has a port that gets another name.
func TestPortsSharePermits(t *testing.T) {
	const each = 2
	p := newPod(t, "red", start)
	s := service("web", policy.Service{EndpointConcurrency: each, Queue: policy.QueueOff})
	o := origin("web", policy.Ingress{})
	models := func(ports ...string) *model.Model {
		m := &model.Model{}
		for _, port := range ports {
			b := backend(s, p)
			b.Port = port
			m.Rules = append(m.Rules, model.Rule{Host: port, Path: "/", Target: model.Target{Origin: o, Backend: b}})
		}
		return m
	}
	w := newWorld(t, models("http", "grpc"))
	for key, is := range w.controller.live.shields {
		if is.is.permits != each {
			t.Errorf("%v: the shields let in %d, for %d permits", key, is.is.permits, each)
		}
	}
	var wg sync.WaitGroup
	for range each {
		wg.Go(func() {
			if resp, body := w.get("http", "/hold"); resp.StatusCode != 200 {
				t.Errorf("got %d %q, want 200", resp.StatusCode, body)
			}
		})
	}
	waitFor(t, "all permits to be taken", func() bool { return p.inside.Load() == each })
	w.expect(503, "grpc", "/", "the other port")
	for _, ports := range [][]string{{"web"}, {"8080", "web"}} { // another name, and a new port that comes before it
		w.apply(models(ports...))
		for _, b := range w.controller.snapshot.Load().backends {
			if n := b.endpoints.Stats(shield.Now())[0].InFlight; n != each {
				t.Errorf("of %q, port %s knows of %d in flight; want %d", ports, b.Port, n, each)
			}
		}
		w.expect(503, "web", "/", "the port by another name")
	}
	w.apply(&model.Model{})
	w.now += 2 * forgetAfter
	w.apply(&model.Model{})
	w.apply(models("web"))
	w.expect(503, "web", "/", "the Service back again")
	close(p.hold)
	wg.Wait()
	waitFor(t, "room", func() bool { resp, _ := w.get("web", "/"); return resp.StatusCode == 200 })
	if most := p.most.Load(); most > each {
		t.Errorf("the pod has had %d in flight; want at most %d", most, each)
	}
}

// Replicas that share few permits at few endpoints have one each if there are enough, and never more at
// an endpoint than it may have in flight. If there are not enough, they say so.
func TestPermitsOfReplicas(t *testing.T) {
	for _, tt := range []struct{ replicas, endpoints, limit int }{
		{1, 3, 2}, {2, 1, 1}, {2, 2, 1}, {2, 3, 1}, {3, 3, 1}, {3, 6, 1}, {4, 3, 2}, {4, 8, 1}, {5, 2, 3}, {2, 5, 4}, {3, 4, 7}, {7, 100, 1},
	} {
		for seed := range 100 {
			rng := rand.New(rand.NewPCG(uint64(seed), 1))
			m := &model.Model{}
			for r := range tt.replicas {
				m.Replicas = append(m.Replicas, fmt.Sprint("pod-", r))
			}
			b := &model.Backend{Service: service("web", policy.Service{EndpointConcurrency: tt.limit}), Port: "http"}
			for i := range tt.endpoints {
				b.Endpoints = append(b.Endpoints, model.Endpoint{Addr: netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, byte(rng.IntN(256)), byte(i)}), 8080)})
			}
			m.Rules = all(origin("web", policy.Ingress{}), b).Rules
			permits, problems := map[string]int{}, 0
			for r, pod := range m.Replicas {
				l := newLive()
				var d policy.Division
				d.See(0, r, tt.replicas)
				s := l.apply(time.Second, m, &d, pod)
				problems += len(l.problems)
				room := 0
				for _, e := range s.backends[0].endpoints.Stats(0) {
					permits[e.Addr] += e.Cap
					room += e.Cap
				}
				if room == 0 {
					t.Fatalf("%+v: replica %d has no permit", tt, r)
				}
			}
			enough := tt.limit*len(permits) >= tt.replicas
			if enough == (problems > 0) {
				t.Errorf("%+v: %d problems", tt, problems)
			}
			sum := 0
			for addr, n := range permits {
				sum += n
				if enough && n > tt.limit {
					t.Errorf("%+v: %d permits at %s", tt, n, addr)
				}
			}
			if enough && sum != tt.limit*len(permits) {
				t.Errorf("%+v: %d permits in all; want %d", tt, sum, tt.limit*len(permits))
			}
		}
	}
}

// With a store replicas share whole limits, but for permits of endpoints and of clients.
func TestSharedLimits(t *testing.T) {
	var d policy.Division
	d.See(0, 0, 2)
	d.See(2*policy.Settle, 0, 2)
	zones := []policy.Zone{{Name: "rate", Limit: limiter.Config{Rate: 10, Burst: 40}}}
	capacity := limiter.Config{Rate: 100, Burst: 50}
	secret := &caddymodule.Sharing{Secret: []byte("correct horse battery")}
	for _, c := range []struct {
		name    string
		sharing *caddymodule.Sharing
		clients policy.Ingress
		backend policy.Service
		want    string // what is shared: the zone and the Service's; the rates of both, what may be in flight, and of each client
	}{
		{"divided", nil, policy.Ingress{Zones: zones, PerClient: 4}, policy.Service{Capacity: capacity, Concurrency: 8}, "false false 5 50 4 2"},
		{"shared", secret, policy.Ingress{Zones: zones, PerClient: 4}, policy.Service{Capacity: capacity, Concurrency: 8}, "true true 10 100 8 2"},
		{"shared, but for endpoints", secret, policy.Ingress{Zones: zones}, policy.Service{Capacity: capacity, EndpointConcurrency: 4}, "true false 10 50 6 0"},
		{"shared, but local", secret, policy.Ingress{Zones: zones, Local: true}, policy.Service{Capacity: capacity}, "false true 10 100 0 0"},
	} {
		b := builder{live: newLive(), now: 3 * policy.Settle, division: &d, replicas: []string{"a", "b"}}
		b.sharing = c.sharing
		p := protection{origin: b.ofClients(c.clients), service: b.ofBackend(c.backend), permits: 6, maxKeys: minKeys, sharing: b.known()}
		got := p.config()
		if is := fmt.Sprint(got.Zones[0].Shared, got.Shared, got.Zones[0].Limit.Rate, got.Capacity.Rate, got.Concurrency, got.PerClient); is != c.want {
			t.Errorf("%s: %s, want %s", c.name, is, c.want)
		}
		if c.sharing != nil && (got.Replicas != 2 || string(got.Secret) != "correct horse battery") {
			t.Errorf("%s: %d replicas, secret %q", c.name, got.Replicas, got.Secret)
		}
		if _, err := shield.New(got, nil); err != nil {
			t.Errorf("%s: %v", c.name, err)
		}
	}
}
