package accesslog

import (
	"math"
	"testing"
	"time"

	"github.com/herdshield/shield/loadtest/clients"
)

const s = time.Second

// Known populations are found again.
func TestKnownPopulations(t *testing.T) {
	exact, ignore, never := clients.Exact{}, clients.Ignore{}, clients.GiveUp{}
	millis := clients.Client{On: clients.Failures, Obeys: clients.Failures, Reads: clients.Milliseconds, Own: ignore}
	for _, c := range []struct {
		name string
		town town
		want clients.Population // weights are shares
	}{
		{"60 exact, 30 full jitter, 10 never", town{
			population: clients.Population{{Weight: 0.6, Policy: exact}, {Weight: 0.3, Policy: ignore}, {Weight: 0.1, Policy: never}}, told: some,
		}, clients.Population{{Weight: 0.6, Policy: exact}, {Weight: 0.3, Policy: ignore}, {Weight: 0.1, Policy: never}}},
		{"all exact", town{population: clients.All(exact), told: some}, clients.All(exact)},
		{"milliseconds", town{
			population: clients.Population{{Weight: 0.5, Policy: exact}, {Weight: 0.5, Policy: millis}}, told: some,
		}, clients.All(exact)},
		{"fixed and hammer", town{
			population: clients.Population{{Weight: 0.5, Policy: clients.Fixed{Gap: 20 * s}}, {Weight: 0.5, Policy: clients.Hammer{Gap: 700 * time.Millisecond}}}, told: some,
		}, clients.All(ignore)},
		{"told nothing", town{
			population: clients.All(clients.Exponential{Base: s / 2, Factor: 1.5, Cap: time.Minute, Jitter: 0.5}), told: nothing,
		}, clients.All(ignore)},
		{"exact, 3 attempts", town{
			population: clients.Population{{Weight: 0.7, Policy: clients.MaxAttempts{N: 3, Policy: exact}}, {Weight: 0.3, Policy: clients.Fixed{Gap: 20 * s}}}, told: some,
		}, clients.Population{{Weight: 0.7, Policy: exact}, {Weight: 0.3, Policy: ignore}}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			c.town.n, c.town.over, c.town.rejects, c.town.most = 3000, 30*time.Minute, 0.65, 12
			e := tallied(c.town.events(1))
			found := map[clients.Policy]float64{}
			for _, b := range e.Returns {
				found[b.Policy] = float64(b.Clients) / float64(e.Judged)
			}
			for _, want := range c.want {
				if math.Abs(found[want.Policy]-want.Weight) > 0.04 {
					t.Errorf("%v of %.2f is not found in %+v", want.Policy, want.Weight, e.Returns)
				}
			}
		})
	}
}

// honor is the share of the judged clients that obey Retry-After.
func honor(e *Estimate) float64 {
	for _, b := range e.Returns {
		if b.Policy == (clients.Exact{}) {
			return float64(b.Clients) / float64(e.Judged)
		}
	}
	return 0
}

// Late clients obey, too.
func TestLate(t *testing.T) {
	w := town{population: clients.All(clients.Late{By: 0.4}), told: some, n: 2000, over: time.Hour, rejects: 0.8, most: 12}
	e := tallied(w.events(3))
	if share := honor(e); share < 0.97 {
		t.Errorf("%.3f honor what they are told, want all: %+v", share, e.Returns)
	}
}

// A retry has the client, method, host and path of the rejection, and does not cross a break
// in the log.
func TestRetries(t *testing.T) {
	for _, c := range []struct {
		name  string
		then  event
		retry bool
	}{
		{"the same", event{at: 5 * s, client: 1, path: "/a?x=2", status: 200}, true},
		{"another path", event{at: 5 * s, client: 1, path: "/b", status: 200}, false},
		{"another client", event{at: 5 * s, client: 2, path: "/a", status: 200}, false},
		{"came before the rejection", event{at: s / 2, took: 3900 * time.Millisecond, client: 1, path: "/a", status: 200}, false},
		{"too late", event{at: 130 * s, client: 1, path: "/a", status: 200}, false},
		{"after an hour", event{at: 2 * time.Hour, client: 1, path: "/a", status: 200}, false},
	} {
		e := tallied([]event{{took: 900 * time.Millisecond, client: 1, path: "/a?x=1", status: 502}, c.then})
		if (e.Retries == 1) != c.retry || e.Retries > 1 {
			t.Errorf("%s: %d retries", c.name, e.Retries)
		}
	}
}
