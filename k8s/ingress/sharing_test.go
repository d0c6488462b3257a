package ingress

import (
	"testing"

	"github.com/herdshield/shield"
	"github.com/herdshield/shield/caddymodule"
	"github.com/herdshield/shield/k8s/policy"
	"github.com/herdshield/shield/limiter"
)

// With a store replicas share whole limits, but for permits of endpoints and of clients.
func TestSharedLimits(t *testing.T) {
	var d policy.Division
	d.See(0, 0, 2)
	d.See(2*policy.Settle, 0, 2)
	zones := []policy.Zone{{Name: "rate", Limit: limiter.Config{Rate: 10, Burst: 40}}}
	for _, c := range []struct {
		name          string
		sharing       *caddymodule.Sharing
		clients       policy.Ingress
		backend       policy.Service
		zone, shares  bool
		rate          float64
		zoneRate      float64
		inFlight, per int
	}{
		{"divided", nil, policy.Ingress{Zones: zones, PerClient: 4}, policy.Service{Capacity: limiter.Config{Rate: 100, Burst: 50}, Concurrency: 8}, false, false, 50, 5, 4, 2},
		{"shared", &caddymodule.Sharing{Secret: []byte("correct horse battery")}, policy.Ingress{Zones: zones, PerClient: 4}, policy.Service{Capacity: limiter.Config{Rate: 100, Burst: 50}, Concurrency: 8}, true, true, 100, 10, 8, 2},
		{"shared, but for endpoints", &caddymodule.Sharing{Secret: []byte("correct horse battery")}, policy.Ingress{Zones: zones}, policy.Service{Capacity: limiter.Config{Rate: 100, Burst: 50}, EndpointConcurrency: 4}, true, false, 50, 10, 6, 0},
		{"shared, but local", &caddymodule.Sharing{Secret: []byte("correct horse battery")}, policy.Ingress{Zones: zones, Local: true}, policy.Service{Capacity: limiter.Config{Rate: 100, Burst: 50}}, false, true, 100, 10, 0, 0},
	} {
		b := builder{live: newLive(), now: 3 * policy.Settle, division: &d, replicas: []string{"a", "b"}}
		b.sharing = c.sharing
		p := protection{origin: b.ofClients(c.clients), service: b.ofBackend(c.backend), permits: 6, maxKeys: minKeys, sharing: b.known()}
		got := p.config()
		if got.Shared != c.shares || got.Zones[0].Shared != c.zone || got.Capacity.Rate != c.rate || got.Zones[0].Limit.Rate != c.zoneRate ||
			got.Concurrency != c.inFlight || got.PerClient != c.per {
			t.Errorf("%s: %+v", c.name, got)
		}
		if c.sharing != nil && (got.Replicas != 2 || string(got.Secret) != "correct horse battery") {
			t.Errorf("%s: %d replicas, secret %q", c.name, got.Replicas, got.Secret)
		}
		if _, err := shield.New(got, nil); err != nil {
			t.Errorf("%s: %v", c.name, err)
		}
	}
}
