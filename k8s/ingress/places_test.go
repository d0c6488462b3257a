package ingress

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"testing"
	"time"

	"github.com/herdshield/shield/k8s/model"
	"github.com/herdshield/shield/k8s/policy"
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
