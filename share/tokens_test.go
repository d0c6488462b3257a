package share_test

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/herdshield/shield/limiter"
	"github.com/herdshield/shield/loadshed"
	"github.com/herdshield/shield/pushback"
	"github.com/herdshield/shield/share"
	"github.com/herdshield/shield/share/virtual"
)

// A fleet is some replicas that share 100 tokens per second and a burst of 10. Their clocks differ.
type fleet struct {
	world
	*rand.Rand
	limit limiter.Limit
	of    []*member
	lost  func(replica int) bool          // whether what is sent now gets lost
	way   func(replica int) time.Duration // how long a trip takes one way
	took  []time.Duration                 // tokens
}

type member struct {
	peer
	*share.Link
	capacity limiter.Bucket
}

func newFleet(t *testing.T, n, assumed int) *fleet {
	l := must(limiter.New(limiter.Config{Rate: 100, Burst: 10}))
	f := &fleet{
		Rand: rand.New(rand.NewPCG(1, uint64(n))), limit: l, world: world{now: time.Second, store: newStore(t)},
		lost: func(int) bool { return false }, way: func(int) time.Duration { return ms / 2 },
	}
	for i := range n {
		m := &member{}
		m.peer = peer{world: &f.world, ahead: time.Duration(f.Int64N(int64(time.Hour))), trip: func() (time.Duration, bool) { return f.way(i), !f.lost(i) }}
		m.Link = share.NewLink(fmt.Sprint("r", i), share.Shared{Capacity: &m.capacity, InFlight: new(loadshed.Concurrency), Clients: new(pushback.Appointments)},
			share.Limits{Capacity: l, Replicas: assumed}, f.now+m.ahead)
		m.link = m.Link
		m.begin(f.now)
		f.of = append(f.of, m)
	}
	return f
}

// run goes on for so long. Each millisecond, wants says for which replicas a request comes.
func (f *fleet) run(d time.Duration, wants func(replica int) int) {
	for end := f.now + d; f.now < end; f.world.run(f.now + ms) {
		for i, r := range f.of {
			if r.dead {
				continue
			}
			for range wants(i) {
				now := f.now + r.ahead
				r.Look(now)
				if took, misses := r.take(f.limit, now); took {
					f.took = append(f.took, f.now)
				} else if misses {
					r.Ask(now)
				}
			}
			r.look()
		}
	}
}

func (m *member) take(l limiter.Limit, now time.Duration) (took, misses bool) {
	c, wait := m.capacity.ClaimAbove(l, now, 1, 0)
	defer c.Release()
	if wait == 0 {
		c.Commit()
		return true, false
	}
	return false, c.Misses(l, now, 0)
}

// excess returns the most that was taken beyond burst + rate * time, in any window.
func (f *fleet) excess() (most float64) {
	level, last := float64(f.limit.Burst()), time.Duration(0)
	for _, at := range f.took {
		level = min(float64(f.limit.Burst()), level+(at-last).Seconds()*f.limit.Rate()) - 1
		last = at
		most = max(most, -level)
	}
	return most
}

func (f *fleet) alone() (n int) {
	for _, r := range f.of {
		if alone, _ := r.Alone(f.now + r.ahead); alone {
			n++
		}
	}
	return n
}

// Whatever happens to the store and the way to it, no more is taken than the limit says, and one for each replica.
func TestReplicasKeepTheLimitInAnyFault(t *testing.T) {
	seeds := []uint64{32, 67} // 16 replicas of 10 tokens; a store's clock that is set back while all are cut off
	for seed := range uint64(*faultSeeds) {
		seeds = append(seeds, seed)
	}
	for _, seed := range seeds {
		n := 2 + int(seed*7%15)
		f := newFleet(t, n, n)
		f.Rand = rand.New(rand.NewPCG(seed, 7))
		cut, slow := make([]bool, n), make([]time.Duration, n)
		f.lost = func(i int) bool { return cut[i] }
		f.way = func(i int) time.Duration { return ms/2 + slow[i] }
		f.run(2*time.Second, func(int) int { return 0 })
		for range 20 {
			everyone := f.IntN(2) == 0
			of := f.IntN(n)
			is := f.IntN(4)
			for i := range n {
				if everyone || i == of {
					cut[i], slow[i] = is == 1, time.Duration(is/2)*time.Duration(f.IntN(120))*ms
				}
			}
			if f.IntN(8) == 0 {
				f.store.Flush()
			}
			if f.IntN(8) == 0 {
				f.set += []time.Duration{-time.Hour, -time.Second, -400 * ms, -100 * ms, time.Second, time.Hour}[f.IntN(6)]
			}
			f.run(time.Duration(f.IntN(1500))*ms, func(int) int { return f.IntN(2) })
		}
		if is := f.excess(); is > float64(n)+0.25 {
			t.Errorf("seed %d: %d replicas took %.1f more than the limit, want at most one each", seed, n, is)
		}
	}
}

// With the store one that has all of the demand gets all of the rate, also when the store's clock was set; without it, or with a clock that
// is another one in each answer, its part.
func TestOneReplicaGetsAllOfTheRate(t *testing.T) {
	f := newFleet(t, 4, 4)
	gone := false
	f.lost = func(int) bool { return gone }
	only := func(i int) int { return 1 - min(i, 1) }
	f.run(time.Second, only)
	if f.alone() > 0 {
		t.Fatalf("%d replicas are alone, with a store", f.alone())
	}
	count := func() int {
		before := len(f.took)
		f.run(10*time.Second, only)
		return len(f.took) - before
	}
	if n := count(); n < 970 || n > 1001 {
		t.Errorf("one replica of four took %d tokens in 10 s, want 1000", n)
	}
	for _, f.set = range []time.Duration{time.Hour, -time.Hour} {
		if n := count(); n < 950 || n > 1001 {
			t.Errorf("when the store's clock was set by %v it took %d tokens in 10 s, want 1000", f.set, n)
		}
	}
	f.lost = func(int) bool { f.set = time.Duration(f.Int64N(int64(1000 * time.Hour))); return gone } // another clock in each answer
	if n := count(); n < 225 || n > 1001 {
		t.Errorf("with a clock that is of no use it took %d tokens in 10 s, want its part, 250", n)
	}
	f.lost, f.set = func(int) bool { return gone }, 0
	f.run(2*time.Second, only)
	gone = true
	f.run(2*time.Second, only)
	if n := count(); f.alone() != 4 || n < 240 || n > 260 {
		t.Errorf("without the store one replica took %d tokens in 10 s, and %d are alone; want 250, and 4", n, f.alone())
	}
	gone = false
	f.run(time.Second, only)
	if n := count(); f.alone() > 0 || n < 970 || n > 1012 {
		t.Errorf("with the store again it took %d tokens in 10 s, and %d are alone", n, f.alone())
	}
}

// A replica that ends leaves its part to the others at once.
func TestReplicaSaysGoodbye(t *testing.T) {
	f := newFleet(t, 2, 2)
	both := func(int) int { return 1 }
	f.run(16*time.Second, both) // the store is not young any more
	last := f.of[1]
	bye, ok := last.Bye(f.now + last.ahead)
	if !ok || !bye.Leaves {
		t.Fatalf("the last ask is %+v, %t", bye, ok)
	}
	f.store.Do(simStart+int64(f.now/ms), bye)
	last.dead = true
	f.run(100*ms, both)
	before := len(f.took)
	f.run(5*time.Second, both)
	if n := len(f.took) - before; n < 485 || n > 501 {
		t.Errorf("the replica that is left took %d tokens in 5 s, want 500", n)
	}
	if _, again := last.Bye(f.now + last.ahead); again {
		t.Error("it says goodbye twice")
	}
}

// Replicas that never hear of the store, or hear of it too late each time, have their parts, of as many as the operator says; one that
// is the only one has all of the limit at once, whatever the operator guessed.
func TestReplicasThatAreGuessed(t *testing.T) {
	all := func(int) int { return 1 }
	for _, late := range []bool{false, true} {
		f := newFleet(t, 2, 2)
		if late {
			f.run(2*time.Second, all)
			f.way = func(int) time.Duration { return 50 * ms }
		} else {
			f.lost = func(int) bool { return true }
		}
		f.run(2*time.Second, all)
		before := len(f.took)
		f.run(10*time.Second, all)
		if n := len(f.took) - before; f.alone() != 2 || f.excess() > 2 || n < 950 || n > 1020 {
			t.Errorf("late %v: two replicas took %d tokens in 10 s, want 1000; %d are alone, and the excess is %.1f", late, n, f.alone(), f.excess())
		}
	}
	f := newFleet(t, 1, 5)
	f.run(6*time.Second, all)
	if n := len(f.took); n < 580 || f.excess() > 1 {
		t.Errorf("one replica took %d tokens in 6 s, want 600", n)
	}
}

// Replicas that become idle leave the burst to the one that is not, whenever it wants it.
func TestIdleReplicasLeaveTheBurst(t *testing.T) {
	for n, burst := range map[int]int{2: 100, 4: 10} {
		limit := must(limiter.New(limiter.Config{Rate: 5, Burst: burst}))
		for _, idle := range []time.Duration{9 * time.Second, 10400 * ms, 10600 * ms, 12 * time.Second} {
			if n == 4 && idle != 10400*ms && *quotaTime < 20*time.Second {
				continue
			}
			f := newFleet(t, n, n)
			f.limit = limit
			for _, r := range f.of {
				r.Link.Set(f.now+r.ahead, share.Limits{Capacity: limit, Replicas: 2})
			}
			ticks := 0
			seldom := func(i int) int { // one per second, to the first replica
				if ticks++; i > 0 || ticks%(1000*n) != 1 {
					return 0
				}
				return 1
			}
			f.run(60*time.Second, seldom)
			f.run(ms, func(i int) int { return min(i, 1) })
			f.run(idle, seldom)
			before := len(f.took)
			f.run(300*ms, func(i int) int { return 1 - min(i, 1) })
			if got := len(f.took) - before; got < burst || f.excess() > float64(n) {
				t.Errorf("%d replicas, %v after a request at the others: %d of a burst of %d are admitted, %.1f more than the limit", n, idle, got, burst, f.excess())
			}
		}
	}
}

// A request may ask what it waits for when the exchange that tells its key is under way already.
func TestAnswerEndsTheWait(t *testing.T) {
	limit := must(limiter.New(limiter.Config{Rate: 10, Burst: 4}))
	e := limiter.NewEscrow(new(limiter.Table), limit, 1, 200_000, 2)
	z, store, now := share.NewZone("a", e), virtual.New(), time.Hour
	store.Do(simStart+now.Milliseconds(), share.LeaseAsk{Me: "b", Seq: 1, Life: 1, N: 2, Alone: true})
	for range 100 {
		if ask, ok := z.Due(now); ok {
			z.Heard(now+ms, now, store.Do(simStart+now.Milliseconds(), ask))
		}
		now += 10 * ms
	}
	const key = 7
	for asks := false; !asks; now += ms {
		z.Use(now)
		c, wait, ask := e.Claim(key, now, 1)
		if asks = ask; wait == 0 {
			c.Commit()
		}
		c.Release()
	}
	ask, ok := z.Due(now)
	if !ok || len(ask.Pools) != 1 {
		t.Fatalf("%v %+v, want an exchange about the key", ok, ask)
	}
	ends := z.Ask(now, key)
	z.Heard(now+ms, now, store.Do(simStart+now.Milliseconds(), ask))
	select {
	case <-ends:
	default:
		t.Error("the request waits for another exchange")
	}
}
