package sim

import (
	"testing"
	"time"

	"github.com/herdshield/shield/loadtest/clients"
)

// Clients that come back at a rate of their own, or ask for something else each time, gain
// nothing: half of them should be served no sooner than half of the honest ones.
func TestHammeringGainsNothing(t *testing.T) {
	for _, vary := range []bool{false, true} {
		for _, share := range []float64{0.02, 0.1, 0.5} {
			for _, gap := range []time.Duration{time.Second, 200 * time.Millisecond} {
				var p clients.Policy = clients.Hammer{Gap: gap}
				if vary {
					p = Varied{p}
				}
				const seeds = 3
				var honest, hammering, p99, drained, requests float64
				for seed := range uint64(seeds) {
					s := cheat("", share, p)
					s.Seed = seed + 1
					r, err := playCheat(s)
					if err != nil {
						t.Fatal(err)
					}
					honest += r.Policies[0].P50.Seconds() / seeds
					p99 += r.Policies[0].P99.Seconds() / seeds
					hammering += r.Policies[1].P50.Seconds() / seeds
					requests += float64(r.Policies[1].Requests) / float64(r.Policies[1].Served) / seeds
					drained += r.Drained.Seconds() / seeds
				}
				t.Logf("%2.0f %% every %-5v new kinds %-5v: honest p50 %.1f p99 %.1f s; hammering p50 %.1f s (%.2f), %.0f requests each; drained %.0f s", 100*share, gap, vary, honest, p99, hammering, hammering/honest, requests, drained)
				if hammering < .95*honest || honest > 37.2 {
					t.Errorf("%v %% every %v, new kinds %v: honest p50 %.1f s, hammering %.1f s; want at least 0.95 of it, and 37 s", 100*share, gap, vary, honest, hammering)
				}
			}
		}
	}
}
