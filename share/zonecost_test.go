package share_test

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/herdshield/shield/limiter"
	"github.com/herdshield/shield/share"
)

// A key of 100 tokens a minute has 20 workers whose requests cost 5 to 60, of which 55 are taken before that is known, and are
// balanced over four replicas. From the second minute on they get what one bucket would give.
func TestCostsSettleInTheStore(t *testing.T) {
	limit, err := limiter.New(limiter.Config{Rate: 100, Per: time.Minute, Burst: 100})
	if err != nil {
		t.Fatal(err)
	}
	const key, minutes = limiter.Key(0x9e3779b97f4a7c15), 10
	for _, reserve := range []int{3, 55, 100} {
		seeds := uint64(1)
		if *quotaTime >= 20*time.Second {
			seeds = 10
		}
		for seed := range seeds {
			s, rng := newQuotaSimOf(t, limit.WithDebt(), 1, 4), rand.New(rand.NewPCG(seed, 3))
			begun := s.now
			used := make([]int, minutes+1)
			var send func()
			decide := func(r *quotaReplica, final bool) {
				r.zone.Use(s.now)
				c, wait, ask := r.escrow.Claim(key, s.now, reserve)
				if wait == 0 {
					c.Commit()
				}
				c.Release()
				r.look()
				switch {
				case wait == 0:
					cost, took := 5+rng.IntN(56), time.Duration((0.5+2.5*rng.Float64())*float64(time.Second))
					s.at(s.now+took, func() {
						used[min(minutes, int((s.now-begun)/time.Minute))] += cost
						r.escrow.Settle(s.now, key, reserve, cost)
						r.look()
						send()
					})
				case ask && !final:
					return
				default:
					s.at(s.now+max(time.Second, wait), send)
				}
			}
			send = func() {
				r := s.replicas[rng.IntN(4)]
				r.zone.Use(s.now)
				c, wait, ask := r.escrow.Claim(key, s.now, reserve)
				c.Release()
				if wait > 0 && ask && r.zone.Ask(s.now, key) != nil {
					r.look()
					s.at(s.now+share.MaxTrip, func() { decide(r, true) })
					return
				}
				decide(r, true)
			}
			for range 20 {
				s.at(s.now+time.Duration(rng.IntN(1e9)), send)
			}
			s.run(begun + minutes*time.Minute)
			later, all := 0, 0
			for i, n := range used[:minutes] {
				if all += n; i > 0 {
					later += n
				}
			}
			t.Logf("reserve %d, seed %d: %d in all, %d from the second minute on: %v", reserve, seed, all, later, used)
			if all > 1210 {
				t.Errorf("reserve %d, seed %d: %d tokens in %d minutes; want at most 1210", reserve, seed, all, minutes)
			}
			if reserve > 3 && (later > 990 || later < 810) {
				t.Errorf("reserve %d, seed %d: %d tokens from the second minute on; want 810 to 990", reserve, seed, later)
			}
		}
	}
}
