package ingress

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/herdshield/shield"
	"github.com/herdshield/shield/k8s/model"
	"github.com/herdshield/shield/k8s/policy"
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
			var served, rejected atomic.Int64
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
						} else {
							rejected.Add(1)
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
			t.Logf("%d served, %d rejected by the shields", served.Load(), rejected.Load())
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
