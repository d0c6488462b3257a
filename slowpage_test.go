package shield

import (
	"testing"
	"time"

	"github.com/herdshield/shield/limiter"
	"github.com/herdshield/shield/loadshed"
)

// One client that asks for a page of 3 s, 100 times per second, and hangs up after 200 ms,
// does not keep a backend from the others, which ask for half of what it can do.
func TestSlowPageOfOneClient(t *testing.T) {
	for _, c := range []struct {
		name   string
		config Config
		most   float64 // share of the honest that give up after three tries
	}{
		{"adaptive, per 4", Config{Adaptive: &loadshed.AdaptiveConfig{}, PerClient: 4}, .01},
		{"adaptive", Config{Adaptive: &loadshed.AdaptiveConfig{}}, .05},
		{"concurrency 10", Config{Concurrency: 10, Queue: Queue{Size: 20}}, .05},
		{"concurrency 12", Config{Concurrency: 12}, .05},
	} {
		for _, cold := range []bool{false, true} {
			lost, all, first := 0, 0, 0
			for seed := range uint64(5) {
				s := newStage(t, c.config, 10, 50*ms, seed)
				s.slow = 3 * time.Second
				const begin, end = time.Hour, time.Hour + 20*time.Second
				attack := time.Duration(begin)
				if !cold {
					attack += 5 * time.Second
				}
				var honest []*patron
				s.often(begin, end, 100, func(now time.Duration) {
					v := &patron{key: limiter.Key(s.random.Uint64()), attempts: 3}
					honest = append(honest, v)
					s.visit(now, v)
				})
				s.often(attack, end, 100, func(now time.Duration) {
					s.ask(now, Request{Client: 1, InFlightKey: 1}, func(time.Duration) {}, func(time.Duration, Decision) {})
				})
				s.play(end + 2*time.Minute)
				for _, v := range honest {
					if all++; v.waited < 0 {
						lost++
					}
					if v.requests == 1 {
						first++
					}
				}
			}
			share := float64(lost) / float64(all)
			t.Logf("%s, cold %v: %.1f %% of the honest give up, %.1f %% are served at once", c.name, cold, 100*share, 100*float64(first)/float64(all))
			if share > c.most {
				t.Errorf("%s, cold %v: %.1f %% of the honest give up, want %v %%", c.name, cold, 100*share, 100*c.most)
			}
		}
	}
}
