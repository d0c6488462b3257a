package accesslog

import (
	"cmp"
	"fmt"
	"math"
	"testing"
	"time"

	"github.com/herdshield/shield/loadtest/clients"
)

const s = time.Second

// Known populations are found again.
func TestKnownPopulations(t *testing.T) {
	millis := clients.Client{On: clients.Failures, Obeys: clients.Failures, Reads: clients.Milliseconds, Own: clients.Ignore{}}
	jitter := clients.Exponential{Base: s / 2, Factor: 2, Cap: 30 * s, Jitter: 1} // as Ignore
	for _, c := range []struct {
		name string
		town town
		want clients.Population // weights are shares
	}{
		{"60 exact, 30 full jitter, 10 never", town{
			population: clients.Population{{Weight: 0.6, Policy: clients.Exact{}}, {Weight: 0.3, Policy: clients.Ignore{}}, {Weight: 0.1, Policy: clients.GiveUp{}}},
			told:       some,
		}, clients.Population{{Weight: 0.6, Policy: clients.Exact{}}, {Weight: 0.3, Policy: jitter}, {Weight: 0.1, Policy: clients.GiveUp{}}}},
		{"all exact", town{population: clients.All(clients.Exact{}), told: some}, clients.All(clients.Exact{})},
		{"milliseconds", town{
			population: clients.Population{{Weight: 0.5, Policy: clients.Exact{}}, {Weight: 0.5, Policy: millis}}, told: some,
		}, clients.All(clients.Exact{})},
		{"fixed and hammer", town{
			population: clients.Population{{Weight: 0.5, Policy: clients.Fixed{Gap: 20 * s}}, {Weight: 0.5, Policy: clients.Hammer{Gap: 700 * time.Millisecond}}}, told: some,
		}, clients.Population{{Weight: 0.5, Policy: clients.Fixed{Gap: 20 * s}}, {Weight: 0.5, Policy: clients.Hammer{Gap: 700 * time.Millisecond}}}},
		{"1.5 ± 50%, told nothing", town{
			population: clients.All(clients.Exponential{Base: s / 2, Factor: 1.5, Cap: time.Minute, Jitter: 0.5}), told: nothing,
		}, clients.All(clients.Exponential{Base: s / 2, Factor: 1.5, Cap: time.Minute, Jitter: 0.5})},
		{"doubling from 1 to 4 s", town{
			population: clients.All(clients.Exponential{Base: s, Factor: 2, Cap: 4 * s}), told: nothing,
		}, clients.All(clients.Exponential{Base: s, Factor: 2, Cap: 4 * s})},
		{"exact, 3 attempts", town{
			population: clients.Population{{Weight: 0.7, Policy: clients.MaxAttempts{N: 3, Policy: clients.Exact{}}}, {Weight: 0.3, Policy: clients.Fixed{Gap: 20 * s}}}, told: some,
		}, clients.Population{{Weight: 0.7, Policy: clients.MaxAttempts{N: 3, Policy: clients.Exact{}}}, {Weight: 0.3, Policy: clients.Fixed{Gap: 20 * s}}}},
		{"waits that are the same are not late", town{
			population: clients.Population{{Weight: 0.75, Policy: clients.Exact{}}, {Weight: 0.25, Policy: clients.Fixed{Gap: 7 * s}}}, told: five, rejects: 1,
		}, clients.Population{{Weight: 0.75, Policy: clients.Exact{}}, {Weight: 0.25, Policy: clients.Fixed{Gap: 7 * s}}}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			c.town.n, c.town.over, c.town.rejects, c.town.most = 3000, 30*time.Minute, cmp.Or(c.town.rejects, 0.65), 12
			e := tallied(c.town.events(1))
			if len(e.Returns) == 0 {
				t.Fatal("nothing is known")
			}
			missing := 1.0
			for _, want := range c.want {
				found := false
				for _, got := range e.Returns {
					share := float64(got.Clients) / float64(e.Judged)
					if alike(got.Policy, want.Policy) && math.Abs(share-want.Weight) <= 0.04 {
						found = true
						missing -= share
					}
				}
				if !found {
					t.Errorf("%v of %.2f is not found in %+v", want.Policy, want.Weight, e.Returns)
				}
			}
			if missing > 0.04 {
				t.Errorf("%.3f of the clients do something else: %+v", missing, e.Returns)
			}
		})
	}
}

// alike reports whether two policies have the same kind, and parameters within a
// tenth: caps within a third, as few get there.
func alike(a, b clients.Policy) bool {
	near := func(a, b, by float64) bool { return math.Abs(a-b) <= by*max(a, b) }
	switch a := a.(type) {
	case clients.Exponential:
		b, ok := b.(clients.Exponential)
		return ok && near(float64(a.Base), float64(b.Base), 0.15) && near(a.Factor, b.Factor, 0.1) && math.Abs(a.Jitter-b.Jitter) < 0.1 && near(float64(a.Cap), float64(b.Cap), 0.35)
	case clients.Fixed:
		b, ok := b.(clients.Fixed)
		return ok && near(float64(a.Gap), float64(b.Gap), 0.1)
	case clients.Hammer:
		b, ok := b.(clients.Hammer)
		return ok && near(float64(a.Gap), float64(b.Gap), 0.1)
	case clients.MaxAttempts:
		b, ok := b.(clients.MaxAttempts)
		return ok && a.N == b.N && alike(a.Policy, b.Policy)
	}
	return fmt.Sprint(a) == fmt.Sprint(b)
}

// honor is the share of the judged clients that obey Retry-After.
func honor(e *Estimate) (share float64) {
	for _, b := range e.Returns {
		policy := b.Policy
		if m, ok := policy.(clients.MaxAttempts); ok {
			policy = m.Policy
		}
		switch policy.(type) {
		case clients.Exact, clients.Late:
			share += float64(b.Clients) / float64(e.Judged)
		}
	}
	return share
}

// Late clients are told from punctual ones if Retry-After is long enough.
func TestLate(t *testing.T) {
	w := town{population: clients.All(clients.Late{By: 0.4}), told: some, n: 2000, over: time.Hour, rejects: 0.8, most: 12}
	e := tallied(w.events(3))
	if share := honor(e); share < 0.97 {
		t.Errorf("%.3f honor what they are told, want all: %+v", share, e.Returns)
	}
	late, ok := e.Returns[0].Policy.(clients.Late)
	if !ok || math.Abs(late.By-0.4) > 0.1 {
		t.Errorf("most are %v, want late by up to 40%%", e.Returns[0].Policy)
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
