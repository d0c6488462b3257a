package share

import (
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/herdshield/shield/limiter"
)

// The pool of a key, what replicas were given of it, and the parts of those that have told
// nothing are never more than a burst: whatever is asked, again, too late, and without an
// answer.
func TestAPoolAndItsHoldersHaveOneBurst(t *testing.T) {
	for seed := range uint64(40) {
		r := rand.New(rand.NewPCG(seed, 5))
		var z ZoneModel
		const replicas = 4
		zone := []TakeAsk{{Rate: 10, Burst: 20, Cost: 1}, {Rate: 0.1, Burst: 5, Cost: 2}, {Rate: 100, Burst: 64, Cost: 4}}[seed%3]
		var state [replicas]TakeAsk
		var holds [replicas]int64 // what it has, at most
		var past []TakeAsk
		for now := int64(1_795_000_000_000); now < 1_795_000_060_000; now += int64(r.IntN(60)) {
			of := r.IntN(replicas)
			mine := &state[of]
			mine.Seq++
			a := *mine
			a.Name, a.Life, a.Lease = fmt.Sprint("replica", of), a.Life+1, 350
			a.Rate, a.Burst, a.Cost, a.Replicas = zone.Rate, zone.Burst, zone.Cost, replicas
			used := r.Int64N(holds[of] + 1)
			gave := r.Int64N(holds[of] - used + 1)
			holds[of] -= used + gave
			a.Keys = []KeyTake{{Key: "00000000000000aa", Held: holds[of], Gave: gave, Want: r.IntN(9)}}
			past = append(past, a)
			fate := r.IntN(10)
			if fate == 0 { // it arrives later, or never
				continue
			}
			if fate == 1 {
				z.Take(now, past[r.IntN(len(past))])
			}
			answer := z.Take(now, a)
			if b := z.buckets["00000000000000aa"]; b != nil {
				part := int64(zone.Burst / (2 * replicas))
				if part < int64(zone.Cost) {
					part = 0
				}
				sum := b.pool + million*part*max(0, int64(replicas-len(b.held)))
				for _, h := range b.held {
					sum += h.tokens
				}
				if b.pool < 0 || b.pool > 0 && sum > million*int64(zone.Burst) {
					t.Fatalf("seed %d, at %d: %d millionths in all, want at most %d tokens: %+v", seed, now, sum, zone.Burst, b)
				}
			}
			if fate == 2 || answer.Stale { // the answer is lost
				continue
			}
			mine.Last, mine.Heard = a.Seq, answer.Now
			if answer.Over {
				mine.Life++
				continue
			}
			holds[of] += million * int64(answer.Keys[0].Got)
		}
	}
}

// A replica that ends is counted no longer, and what others have does not shrink when it
// comes back.
func TestAReplicaOfAZoneSaysBye(t *testing.T) {
	s := newQuotaSim(t, 10, time.Second, 20, 1, 3)
	s.run(25 * time.Second)
	l := s.replicas[2].zone.Links()[0]
	ask, ok := l.Bye(s.now)
	if !ok || !ask.Leaves {
		t.Fatalf("Bye returns %+v, %v", ask, ok)
	}
	left := s.replicas[2]
	s.replicas[2] = s.replicas[0] // it is pumped no more
	s.models[0].Take(simStart+s.now.Milliseconds(), ask)
	s.run(s.now + time.Second)
	if n := s.replicas[0].escrow.Replicas(); n != 2 {
		t.Errorf("%d replicas a second after the third has left, want 2", n)
	}
	born := s.models[0].born
	s.replicas[2] = left
	left.pump(0)
	s.run(s.now + time.Second)
	if n := s.replicas[0].escrow.Replicas(); n != 3 || s.models[0].born != born {
		t.Errorf("%d replicas a second after it is back, want 3; born %d, want %d", n, s.models[0].born, born)
	}
}

// Requests, exchanges and scrapes may come at once: run with -race.
func TestAZoneAtOnce(t *testing.T) {
	limit, err := limiter.New(limiter.Config{Rate: 100, Burst: 40})
	if err != nil {
		t.Fatal(err)
	}
	e := limiter.NewEscrow(new(limiter.Table), limit, 1, 1, limiter.MinKeys)
	z := NewZone("replica", e)
	l := z.Links()[0]
	wake := make(chan struct{}, 1)
	l.OnWake(func() {
		select {
		case wake <- struct{}{}:
		default:
		}
	})
	var clock atomic.Int64
	clock.Store(int64(time.Second))
	now := func() time.Duration { return time.Duration(clock.Add(1000)) }
	var requests, rest sync.WaitGroup
	done := make(chan struct{})
	var model ZoneModel
	rest.Go(func() {
		for {
			select {
			case <-done:
				return
			case <-wake:
			case <-time.After(time.Millisecond):
			}
			at := now()
			if ask, ok := l.Due(at); ok {
				l.Heard(now(), at, model.Take(simStart+at.Milliseconds(), ask))
			}
			e.Hot()
		}
	})
	var admitted, waited atomic.Int64
	for g := range 4 {
		requests.Go(func() {
			r := rand.New(rand.NewPCG(uint64(g), 6))
			for range 5000 {
				key := limiter.Key(1+r.IntN(50)) * 0x9e3779b97f4a7c15
				for range 2 {
					at := now()
					c, wait, ask := e.Claim(key, at)
					if wait == 0 {
						c.Commit()
						admitted.Add(1)
					}
					c.Release()
					if !ask {
						break
					}
					if ends := z.Ask(at, key); ends != nil {
						waited.Add(1)
						select {
						case <-ends:
						case <-time.After(10 * time.Millisecond):
						}
					}
				}
			}
		})
	}
	requests.Wait()
	close(done)
	rest.Wait()
	most := 50 * (40 + 100*time.Duration(clock.Load()).Seconds())
	t.Logf("%d admitted, at most %.0f; %d waited", admitted.Load(), most, waited.Load())
	if n := admitted.Load(); n < 50*20 || float64(n) > most {
		t.Errorf("%d are admitted, want %d to %v", n, 50*20, most)
	}
}
