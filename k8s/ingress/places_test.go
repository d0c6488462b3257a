package ingress

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"testing"
	"time"

	"github.com/herdshield/shield"
	"github.com/herdshield/shield/caddymodule"
	"github.com/herdshield/shield/k8s/model"
	"github.com/herdshield/shield/k8s/policy"
	"github.com/herdshield/shield/limiter"
)

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
