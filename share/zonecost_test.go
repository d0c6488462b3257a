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
	limit := must(limiter.New(limiter.Config{Rate: 100, Per: time.Minute, Burst: 100}))
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
					taken := s.now
					s.at(s.now+took, func() {
						used[min(minutes, int((s.now-begun)/time.Minute))] += cost
						r.escrow.Settle(s.now, key, taken, reserve, cost)
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

// spend has a key use all that it gets at a replica for deposits of n, and returns how much that was. No deposit is settled.
func (s *quotaSim) spend(key limiter.Key, replica, n int) (got int) {
	for tries := 0; tries < 5; {
		r := s.replicas[replica]
		r.zone.Use(s.now)
		c, wait, ask := r.escrow.Claim(key, s.now, n)
		if wait == 0 {
			c.Commit()
			got += n
		}
		c.Release()
		if wait > 0 {
			if tries++; ask {
				r.zone.Ask(s.now, key)
			}
			r.look()
		}
		s.run(s.now + 5*time.Millisecond)
	}
	return got
}

// A debt lasts until it is paid, however long the key pauses; and deposits that come back late, when the key has had all of its burst
// meanwhile, are no second burst.
func TestDebtsLastInTheStore(t *testing.T) {
	limit := must(limiter.New(limiter.Config{Rate: 100, Burst: 100}))
	const key = limiter.Key(0x9e3779b97f4a7c15)
	for _, pause := range []time.Duration{8 * time.Second, 70 * time.Second, 10 * time.Minute} {
		s := newQuotaSimOf(t, limit.WithDebt(), 1, 2)
		s.spend(key, 0, 10)
		s.replicas[0].escrow.Settle(s.now, key, s.now, 10, 100_000)
		s.run(s.now + pause)
		if got := s.spend(key, 0, 1) + s.spend(key, 1, 1); got > 25 { // its part at the other replica, once
			t.Errorf("%v after a cost of 100,000 at 100 per second the key gets %d", pause, got)
		}
	}
	s := newQuotaSimOf(t, limit.WithDebt(), 1, 2)
	var deposits []time.Duration
	for range 30 {
		for _, replica := range s.replicas[:1] {
			c, wait, _ := replica.escrow.Claim(key, s.now, 50)
			if wait == 0 {
				c.Commit()
				deposits = append(deposits, s.now)
			}
			c.Release()
			if wait > 0 {
				replica.zone.Ask(s.now, key)
			}
			replica.look()
		}
		s.run(s.now + 500*time.Millisecond)
	}
	s.run(s.now + 5*time.Second)
	used := 0
	for _, taken := range deposits {
		used += s.spend(key, 0, 50)
		s.replicas[0].escrow.Settle(s.now, key, taken, 50, 0)
		if used > 100+100*len(deposits)*5*5/1000+100 { // a burst, what is earned meanwhile, and what the last deposits give back
			t.Fatalf("%d tokens after %d of %d deposits were settled", used, len(deposits), len(deposits))
		}
	}
	t.Logf("%d deposits were open, and %d tokens were used while they came back", len(deposits), used)
}

// Without the store a replica admits deposits that are larger than its part of the burst, at its part of the rate; and debts do not add up
// without end.
func TestDepositsWithoutTheStore(t *testing.T) {
	limit := must(limiter.New(limiter.Config{Rate: 100, Per: time.Minute, Burst: 100}))
	const key = limiter.Key(0x9e3779b97f4a7c15)
	for _, n := range []int{1, 20, 100} {
		s := newQuotaSimOf(t, limit.WithDebt(), 1, 4)
		s.gone = func(time.Duration, int) bool { return true }
		s.run(s.now + 2*time.Second)
		got, begun := 0, s.now
		for s.now < begun+time.Hour {
			c, wait, _ := s.replicas[0].escrow.Claim(key, s.now, n)
			if wait == 0 {
				c.Commit()
				got += n
			}
			if c.Release(); wait > 0 {
				s.run(s.now + 10*time.Second)
			}
		}
		if got < 1200 || got > 1500+100 { // 25 a minute are 1500
			t.Errorf("deposits of %d: %d tokens in an hour; want 1200 to 1600", n, got)
		}
		for range 10 {
			s.replicas[0].escrow.Settle(s.now, key, s.now, n, 1_000_000)
		}
		if c, wait, _ := s.replicas[0].escrow.Claim(key, s.now, n); wait > 4*(time.Hour+4*time.Minute) {
			t.Errorf("ten wrong numbers lock a key out for %v", wait)
			c.Release()
		} else {
			c.Release()
		}
	}
}
