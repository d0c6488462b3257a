package limiter

import (
	"math/rand/v2"
	"testing"
	"time"
)

// A client sends requests of random costs, several at a time, with a reserve that is wrong in both directions. In any window it is
// served no more than the burst and what the rate earns, but for what was in flight and cost more than was taken for it.
func TestRealCostsKeepToTheRate(t *testing.T) {
	const burst = 100
	for seed := range uint64(200) {
		rng := rand.New(rand.NewPCG(seed, 1))
		l := mustLimit(10, time.Second, burst).WithDebt()
		type request struct {
			at, ends time.Duration
			reserve  int
			real     int
			hold     *Hold
		}
		var table Table
		var open, all []*request
		now, load := time.Duration(0), []time.Duration{20, 200, 2000}[seed%3]*time.Millisecond
		for range 400 {
			now += time.Duration(rng.ExpFloat64() * float64(load))
			left := open[:0]
			for _, r := range open {
				if r.ends > now {
					left = append(left, r)
					continue
				}
				table.Settle(l, MinKeys, now, r.hold, r.real)
			}
			open = left
			r := &request{at: now, reserve: 1 + rng.IntN(burst), real: rng.IntN(burst), hold: new(Hold)}
			r.ends = now + time.Duration(rng.ExpFloat64()*float64(3*time.Second))
			c, wait := table.Claim(l, MinKeys, 7, now, r.reserve)
			if wait == 0 {
				c.Commit()
				c.Hold(r.hold, r.reserve)
				open, all = append(open, r), append(all, r)
			}
			c.Release()
		}
		if seed%3 == 0 && len(all) == 400 {
			t.Errorf("seed %d: nothing was rejected", seed)
		}
		for i, first := range all {
			sum := 0.
			for j, r := range all[i:] {
				sum += float64(r.real)
				most := burst + 10*(r.at-first.at).Seconds()
				for _, q := range all[i : i+j+1] {
					if q.ends > r.at {
						most += max(0, float64(q.real-q.reserve))
					}
				}
				if sum > most+0.001 {
					t.Fatalf("seed %d: %v in %v; want at most %v", seed, sum, r.at-first.at, most)
				}
			}
		}
		for i := range table.shards {
			if n := len(table.shards[i].holds); n > len(open) {
				t.Errorf("seed %d: %d holds are left", seed, n)
			}
		}
	}
}

// Many requests that come at once, and turn out to cost a tenth of what they took, get the rest back, in whichever order they end.
func TestManyDepositsAtOnce(t *testing.T) {
	const burst, requests = 10_000, 500
	l := mustLimit(1, time.Minute, burst).WithDebt()
	for seed := range uint64(3) {
		var table Table
		holds := make([]Hold, requests)
		for i := range holds {
			c, wait := table.Claim(l, MinKeys, 7, time.Second, 10)
			if wait != 0 {
				t.Fatalf("request %d is rejected", i)
			}
			c.Commit()
			c.Hold(&holds[i], 10)
			c.Release()
		}
		order := rand.New(rand.NewPCG(seed, 1)).Perm(requests)
		if seed < 2 { // as they came, and the last first
			for i := range order {
				order[i] = i + int(seed)*(requests-1-2*i)
			}
		}
		for _, i := range order {
			table.Settle(l, MinKeys, time.Second, &holds[i], 1)
		}
		if left, _ := table.Look(l, MinKeys, 7, time.Second, 1); left != burst-requests {
			t.Errorf("seed %d: %d tokens are left, want %d", seed, left, burst-requests)
		}
	}
}
