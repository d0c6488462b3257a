package shield

import (
	"testing"
	"time"

	"github.com/herdshield/shield/limiter"
	"github.com/herdshield/shield/loadshed"
)

// coldStart plays five times the capacity of a backend of workers with a mean time of
// service, from the first request that a Guard with an adaptive limit ever sees, for 16 s.
// The requests come from so many addresses (0: all different). It returns, by
// second, the requests that were answered within a second as a share of the capacity.
func coldStart(t *testing.T, workers int, service time.Duration, fixed bool, addresses int, seed uint64) (goodput [16]float64, most int) {
	s := newStage(t, Config{Adaptive: &loadshed.AdaptiveConfig{}}, workers, service, seed)
	s.fixed = fixed
	const begin, end = time.Hour, time.Hour + 16*time.Second
	capacity := float64(workers) / service.Seconds()
	s.often(begin, end, 5*capacity, func(now time.Duration) {
		r := Request{Client: limiter.Key(s.random.Uint64())}
		if addresses > 0 {
			r.Client = limiter.Key(1 + s.random.IntN(addresses))
		}
		most = max(most, s.working+len(s.work))
		s.ask(now, r, func(at time.Duration) {
			if at-now < time.Second && at < end {
				goodput[(at-begin)/time.Second] += 1 / capacity
			}
		}, func(time.Duration, Decision) {})
	})
	s.play(end)
	return goodput, most
}

// An adaptive limit that begins in the middle of an overload serves what the backend can do
// from the first seconds on.
func TestColdStartInAnOverload(t *testing.T) {
	for _, b := range []struct {
		name    string
		workers int
		service time.Duration
		fixed   bool
		least   float64
	}{
		{"8 workers of 50 ms, exponential", 8, 50 * ms, false, .93},
		{"8 workers of 50 ms", 8, 50 * ms, true, .93},
		{"32 workers of 100 ms: the limit begins at two thirds of them", 32, 100 * ms, false, .89},
	} {
		for _, n := range []int{1, 10, 1000, 0} {
			const seeds = 5
			var bySecond [16]float64
			mean, worst, high := 0., 2., 0
			for seed := range uint64(seeds) {
				sum := 0.
				g, most := coldStart(t, b.workers, b.service, b.fixed, n, seed)
				for i, share := range g {
					bySecond[i] += share / seeds
					sum += share / 16
				}
				mean, worst, high = mean+sum/seeds, min(worst, sum), max(high, most)
			}
			t.Logf("%s, %d addresses: goodput %.2f, worst %.2f, at most %d in the backend; by second %.2f", b.name, n, mean, worst, high, bySecond)
			if mean < b.least {
				t.Errorf("%s, %d addresses: goodput %.2f, want %v", b.name, n, mean, b.least)
			}
		}
	}
}
