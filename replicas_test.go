package shield

import (
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/herdshield/shield/limiter"
	"github.com/herdshield/shield/share"
	"github.com/herdshield/shield/share/virtual"
)

// linked returns a Guard whose backend has heard of a store at now, and holds that many
// tokens.
func linked(t testing.TB, c Config, now time.Duration, tokens int) *Guard {
	t.Helper()
	c.Shared, c.Secret = true, []byte("0123456789abcdef")
	g := mustNew(t, c, nil)
	l := g.Link(now)
	store := virtual.New()
	for ask, ok := l.Due(now); ok; ask, ok = l.Due(now) {
		l.Heard(now, now, store.Do(1e12, ask))
	}
	g.backend.capacity.Heard(g.capacity, now, tokens, 1)
	if alone, _ := l.Alone(now); alone {
		t.Fatal("the link has not heard of the store")
	}
	return g
}

// A request waits for the store for 25 ms at most.
func TestRequestDoesNotWaitForLong(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		now := Now()
		g := linked(t, Config{Capacity: perSecond(100, 10)}, now, 0)
		g.backend.capacity.Heard(g.capacity, now, 0, 5)
		g.Admit(now, Request{Client: 1}) // on credit
		g.Enter(t.Context(), now, Request{Client: 2})
		if waited := Now() - now; waited != share.MaxTrip {
			t.Errorf("it has waited for %v, want %v", waited, share.MaxTrip)
		}
	})
}

// A request that waits for a permit has the store asked at once whether another replica has one to spare.
func TestWaitForAPermitAsksTheStore(t *testing.T) {
	now, woken := time.Minute, false
	g := linked(t, Config{Concurrency: 8}, now, 0)
	g.Link(now).OnWake(func() { woken = true })
	for i := range 9 {
		if d := g.Admit(now, one(1+i)); d.Queued() != woken {
			t.Fatalf("request %d waits: %v, and the store is to be asked: %v", i, d.Queued(), woken)
		}
	}
	if !woken {
		t.Error("nine requests at once wait for none of eight permits")
	}
}

// Requests that find no permit, or no token of their zone, ask the store while it answers: neither waits for the other, and a zone
// admits no more than its limit. Run with -race.
func TestTheStoreIsAskedAtOnce(t *testing.T) {
	t.Parallel()
	const keys, rate, burst = 5, 1, 40
	var of [2]*Guard
	for i := range of {
		of[i] = mustNew(t, Config{
			Zones: []Zone{{Name: "z", Limit: perSecond(rate, burst), Shared: true}}, Capacity: perSecond(1e6, 1e6),
			Concurrency: 8, Queue: noQueue, Shared: true, Secret: make([]byte, 16), Replica: string(rune('a' + i)),
		}, nil)
	}
	stores, done, began := [2]*virtual.Store{virtual.New(), virtual.New()}, make(chan struct{}), Now()
	var requests sync.WaitGroup
	var admitted, waited atomic.Int64 // in the zone
	for worker := range 4 {
		requests.Go(func() {
			for n := 0; ; n++ {
				select {
				case <-done:
					return
				default:
				}
				var held []Decision
				for i := range 16 {
					r := Request{Keys: []limiter.Key{NoKey}}
					if i%4 == 0 {
						r.Keys[0] = limiter.Key(1+(n+worker)%keys) * 0x9e3779b97f4a7c15
					}
					d := of[0].Admit(Now(), r)
					if d.Queued() && i%8 == 0 {
						waited.Add(1)
						select {
						case <-d.Awaits():
						case <-time.After(share.MaxTrip):
						}
						of[0].Settle(Now(), r, &d, 0)
					}
					if d.Queued() {
						of[0].Abandon(Now(), &d)
					} else if d.Admit {
						held = append(held, d)
						if r.Keys[0] != NoKey {
							admitted.Add(1)
						}
					}
				}
				for _, d := range held {
					d.Done(Now(), Served)
				}
				if n%10 == 9 { // so that permits are given back
					time.Sleep(120 * ms)
				}
			}
		})
	}
	for end := time.Now().Add(2 * time.Second); time.Now().Before(end); {
		for _, g := range of {
			for i, l := range sharers(g, Now()) {
				now := Now()
				if ask, ok := l.Due(now); ok {
					l.Heard(Now(), now, stores[i].Do(1e12+now.Milliseconds(), ask))
				}
			}
		}
	}
	close(done)
	requests.Wait()
	most := keys * (burst + 1 + rate*(Now()-began).Seconds())
	t.Logf("%d admitted, at most %.0f; %d waited", admitted.Load(), most, waited.Load())
	if n := admitted.Load(); n < keys*burst/2 || float64(n) > most {
		t.Errorf("%d are admitted, want %d to %.0f", n, keys*burst/2, most)
	}
}
