package share_test

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/herdshield/shield/limiter"
	"github.com/herdshield/shield/share"
)

// some returns n of all, others for each i; all where -quotas asks for the time of the tables.
func some(i, n int, all ...string) (these []string) {
	if *quotaTime >= 20*time.Second {
		return all
	}
	for k := range n {
		these = append(these, all[(i+k)%len(all)])
	}
	return these
}

// Replicas that share a quota admit what one bucket would: also where a replica's part is less than a request, where requests
// cost more than one token, and where tokens take minutes.
func TestQuotasOfAllKinds(t *testing.T) {
	often := 250 * (*quotaTime).Seconds() // 5,000/s in the tables
	for i, c := range []struct {
		name   string
		rate   float64
		per    time.Duration
		burst  int
		cost   int
		keys   int
		zipf   float64
		come   float64
		length time.Duration
		n      int // replicas
	}{
		{"burst < replicas", 10, time.Second, 3, 1, 300, 1.05, 600, 8 * time.Second, 4},
		{"burst 1", 2, time.Second, 1, 1, 300, 1.05, 600, 8 * time.Second, 4},
		{"cost 5", 50, time.Second, 200, 5, 300, 1.05, 600, 8 * time.Second, 4},
		{"cost 5 of burst 8", 50, time.Second, 8, 5, 300, 1.05, 600, 8 * time.Second, 4},
		{"60 per hour", 60, time.Hour, 60, 1, 300, 1.05, 600, 8 * time.Second, 4},
		{"60 per hour, seldom", 60, time.Hour, 10, 1, 50, 0.6, 2, 600 * time.Second, 4},
		{"1000/s", 1000, time.Second, 100, 1, 100, 1.05, 8000, 4 * time.Second, 4},
		{"two replicas", 10, time.Second, 20, 1, 25_000, 1.05, often, 16 * time.Second, 2},
		{"four replicas", 10, time.Second, 20, 1, 25_000, 1.05, often, 16 * time.Second, 4},
		{"eight replicas", 10, time.Second, 20, 1, 25_000, 1.05, often, 16 * time.Second, 8},
	} {
		for _, balance := range some(i, 1, "even", "sticky", "90% to one", "moving") {
			t.Run(c.name+", "+balance, func(t *testing.T) {
				s := newQuotaSim(t, c.rate, c.per, c.burst, c.cost, c.n)
				length := c.length
				if *quotaTime < 20*time.Second {
					length /= 4
				}
				s.play(quotaLoad{keys: c.keys, zipf: c.zipf, rate: c.come, length: length, balance: balance})
				t.Log(s)
				if s.worst > 0.01 || s.share() < 0.96 {
					t.Errorf("worst excess %v, share %v; want 0, 0.96", s.worst, s.share())
				}
			})
		}
	}
}

// Requests of clients below their limit wait for no trip, but for a few, if the burst is at
// least four times the number of replicas: with 20 and eight replicas 3.9% wait.
func TestBelowTheQuotaFewWait(t *testing.T) {
	for _, n := range []int{2, 4, 8} {
		s := newQuotaSim(t, 10, time.Second, max(20, 4*n), 1, n)
		s.play(quotaLoad{keys: 25_000, zipf: 0.6, rate: 5_000, length: *quotaTime, balance: "even"})
		t.Log(n, s)
		waited, below := float64(s.waited)/float64(s.requests), float64(s.belowWaited)/float64(s.below)
		if waited > 0.02 || below > 0.001 {
			t.Errorf("%d replicas: %.2f%% waited, and %.2f%% of those below half of their quota; want 2%%, and 0.1%%", n, 100*waited, 100*below)
		}
	}
}

// Whatever becomes of the store or of a replica, clients have their limit.
func TestQuotasWhenThingsGoWrong(t *testing.T) {
	span := func(from, to int) func(time.Duration) bool {
		return func(now time.Duration) bool {
			return now > time.Duration(from)*time.Second && now < time.Duration(to)*time.Second
		}
	}
	for i, c := range []struct {
		name  string
		set   func(s *quotaSim)
		share float64
		worst float64 // tokens
	}{
		{"gone 5 of 20 s", func(s *quotaSim) {
			away := span(7, 12)
			s.gone = func(now time.Duration, _ int) bool { return away(now) }
		}, 0.9, 0},
		{"one replica cut off 10 of 20 s", func(s *quotaSim) {
			away := span(7, 17)
			s.gone = func(now time.Duration, r int) bool { return r == 0 && away(now) }
		}, 0.88, 0},
		{"flushed at 10 s", func(s *quotaSim) { s.at(12*time.Second, s.store.Flush) }, 0.95, 0},
		{"replica killed at 10 s", func(s *quotaSim) { s.at(12*time.Second, func() { s.start(0) }) }, 0.95, 2},
		{"frozen 2 s", func(s *quotaSim) {
			s.freezes = func(now time.Duration) time.Duration {
				if span(10, 12)(now) {
					return 12 * time.Second
				}
				return now
			}
		}, 0.9, 0},
		{"20 ms away", func(s *quotaSim) { s.trip = 20 * time.Millisecond }, 0.9, 0},
		{"100 ms away", func(s *quotaSim) { s.trip = 100 * time.Millisecond }, 0.75, 0},
		{"1 s away", func(s *quotaSim) { s.trip = time.Second }, 0.75, 0},
		{"each twentieth trip takes 40 ms", func(s *quotaSim) {
			n := 0
			s.slow = func() time.Duration {
				if n++; n%40 == 0 { // one way
					return 80 * time.Millisecond
				}
				return time.Millisecond
			}
		}, 0.9, 0},
		{"half of the answers lost for 10 s", func(s *quotaSim) {
			n, away := 0, span(7, 17)
			s.gone = func(now time.Duration, _ int) bool { n++; return away(now) && n%4 == 1 }
		}, 0.78, 0},
	} {
		for _, balance := range some(i, 1, "even", "90% to one", "moving") {
			t.Run(fmt.Sprint(c.name, ", ", balance), func(t *testing.T) {
				burst, keys := 20, 500
				if c.worst > 0 {
					burst, keys = 80, 10 // the part of a replica that begins is more than c.worst, and each key needs it
				}
				s := newQuotaSim(t, 10, time.Second, burst, 1, 4)
				c.set(s)
				load := quotaLoad{keys: keys, zipf: 1.05, rate: 100, length: 20 * time.Second, balance: balance}
				if *quotaTime >= 20*time.Second {
					load.keys, load.rate = 2_500, 500
				}
				s.play(load)
				t.Log(s)
				if s.worst > max(0.02, c.worst) || s.share() < c.share {
					t.Errorf("worst excess %.2f, share %.3f; want %v, at least %v", s.worst, s.share(), c.worst, c.share)
				}
			})
		}
	}
}

// faultSeeds is how many random series of faults are played: the tables have 150.
var faultSeeds = flag.Int("faults", 2, "")

// Asks and answers are lost or late; replicas are killed, frozen, cut off and new; the store is gone for all, flushed, or
// begins anew. No client ever has more than its limit and one token for each replica; one request,
// where the part of a replica is less than that; and the part of one that begins while it can't reach the store.
func TestQuotasInAnyFault(t *testing.T) {
	worst, used := 0.0, 0.0
	for seed := range *faultSeeds {
		r := rand.New(rand.NewPCG(uint64(seed), 9))
		replicas := 2 + seed*4%15
		burst := []int{1, 4, 10, 20, 60, 200}[r.IntN(6)]
		s := newQuotaSim(t, 10, time.Second, burst, 1+r.IntN(min(burst, 3)), replicas)
		s.guess = replicas
		log := fmt.Sprintf("%d replicas, burst %d, cost %d:", replicas, burst, s.cost)
		cut, frozen := make([]time.Duration, replicas), make([]time.Duration, replicas)
		most := float64(replicas)
		if burst/(2*replicas) < s.cost {
			most *= float64(s.cost)
		}
		storeGone, chaos := time.Duration(0), []float64{0, 0.02, 0.2}[r.IntN(3)]
		s.gone = func(now time.Duration, i int) bool { return now < storeGone || now < cut[i] || r.Float64() < chaos/2 }
		s.slow = func() time.Duration {
			if r.Float64() < chaos {
				return time.Duration(r.IntN(300)) * time.Millisecond
			}
			return time.Millisecond
		}
		load := quotaLoad{keys: 40, zipf: 0.9, rate: 300, balance: []string{"even", "sticky", "90% to one", "moving"}[r.IntN(4)]}
		for range 20 {
			i, d := r.IntN(replicas), time.Duration(r.IntN(8000))*time.Millisecond
			event := "nothing"
			switch r.IntN(9) {
			case 0:
				s.start(i)
				if s.now < max(storeGone, cut[i]) { // the new one has never heard of a store, and has its whole part
					most += float64(burst / (2 * replicas))
				}
				event = fmt.Sprintf("%d is killed", i)
			case 1:
				cut[i] = s.now + d
				event = fmt.Sprintf("%d is cut off for %v", i, d)
			case 2:
				frozen[i] = s.now + d
				s.replicas[i].frozen = frozen[i]
				event = fmt.Sprintf("%d is frozen for %v", i, d)
			case 3:
				storeGone = s.now + d
				event = fmt.Sprintf("gone for %v", d)
			case 4:
				s.store.Flush()
				event = "flushed"
			case 5:
				load.rate = 100 + 2000*r.Float64()*r.Float64()
				event = fmt.Sprintf("%.0f/s", load.rate)
			}
			log += fmt.Sprintf(" %v %s;", s.now, event)
			load.length = time.Duration(500+r.IntN(1500)) * time.Millisecond
			s.play(load)
			if s.worst > most {
				break
			}
		}
		t.Logf("%s\n%s", log, s)
		worst, used = max(worst, s.worst/float64(s.cost)/float64(replicas)), used+s.share()/float64(*faultSeeds)
		if s.worst > most {
			t.Errorf("seed %d: %.2f tokens beyond the limit of a client, want %v at most\n%s now %v", seed, s.worst, most, log, s.now)
		}
	}
	t.Logf("the worst is %.2f requests for each replica; %.3f is used on average", worst, used)
}

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

// A replica that is more than the store's first replicas expect has no part of what clients have used, also if the store has begun a
// moment ago: the pools have left none for it.
func TestOneMoreReplicaBringsNoTokens(t *testing.T) {
	const key = limiter.Key(0x9e3779b97f4a7c15)
	s := newQuotaSim(t, 10, time.Second, 60, 3, 0)
	s.guess = 2
	s.start(0)
	s.start(1)
	s.run(s.now + 100*time.Millisecond)
	begun := s.now
	got := s.spend(key, 0, 3) + s.spend(key, 1, 3)
	s.start(0)
	s.run(s.now + 50*time.Millisecond)
	got += s.spend(key, 0, 3)
	if most := 60 + 10*(s.now-begun).Seconds() + 3; float64(got) > most {
		t.Errorf("a client of two replicas, of which one began anew, has %d tokens in %v, want %.0f at most", got, s.now-begun, most)
	}
}
