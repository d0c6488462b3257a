package shield

import (
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/herdshield/shield/limiter"
	"github.com/herdshield/shield/loadshed"
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

// A request that finds no token waits for the store, and takes what it gives.
func TestRequestWaitsForTheStore(t *testing.T) {
	now := time.Minute
	g := linked(t, Config{Capacity: perSecond(100, 10)}, now, 0)
	l := g.Link(now)
	g.backend.capacity.Heard(g.capacity, now, 0, 5)
	woken := 0
	l.OnWake(func() { woken++ })
	g.Admit(now, Request{Client: 1}) // on credit
	d := g.Admit(now, Request{Client: 2})
	if !d.Queued() || d.Awaits() == nil || woken == 0 {
		t.Fatalf("it does not wait for the store: %+v", d)
	}
	store := virtual.New()
	answer := func() {
		ask, ok := l.Due(now)
		if !ok {
			t.Fatal("nothing is asked for it")
		}
		now += ms
		l.Heard(now, now-ms, store.Do(1e12+int64(time.Minute/ms), ask))
	}
	answer()
	select {
	case <-d.Awaits():
	default:
		t.Fatal("the store has answered, and it waits")
	}
	g.Settle(now, Request{Client: 2}, &d, 0)
	if d.Queued() || !d.Admit && d.Reason != Capacity {
		t.Errorf("it is %+v", d)
	}
	gone := g.Admit(now, Request{Client: 4})
	for ; !gone.Queued(); gone = g.Admit(now, Request{Client: 4}) { // as long as there are tokens
		if !gone.Admit {
			return
		}
	}
	if g.Abandon(now, &gone); gone.Queued() || !gone.Gone {
		t.Errorf("it was abandoned, and is %+v", gone)
	}
}

// A client that hangs up while it holds a permit, and waits for a token of the store, gives the permit back.
func TestGoneWithAPermit(t *testing.T) {
	now := time.Minute
	g := linked(t, Config{
		Capacity: perSecond(100, 10), Concurrency: 1, Queue: loadshed.QueueConfig{Size: 10, Timeout: 5 * time.Second},
		Classes: []loadshed.Class{{Name: loadshed.Critical}, {Name: loadshed.Default}},
	}, now, 0)
	b := g.backend
	b.inFlight.Grant(now, 1, now+time.Hour)
	for i := range 30 { // who wait
		r := Request{Client: limiter.Key(1000 + i), Class: 2}
		d := g.Admit(now, r)
		for d.Queued() {
			var v loadshed.Verdict
			if d.permit.Waits() {
				g.Sweep(now + 6*time.Second)
				v = <-d.Verdict()
			}
			g.Settle(now, r, &d, v)
		}
		if d.Admit {
			d.Done(now, Served)
		}
	}
	r := Request{Client: 7, Class: 1}
	b.capacity.Heard(g.capacity, now, 0, 0.5)
	d := g.Admit(now, r) // it waits for a token
	b.capacity.Heard(g.capacity, now, 5, 1)
	other := g.Admit(now, Request{Client: 8, Class: 1})
	g.Settle(now, r, &d, 0) // for the permit
	b.capacity.Lose()
	b.capacity.Heard(g.capacity, now, -1, 0.5)
	now += 5 * ms
	other.Done(now, Served)
	g.Sweep(now)
	g.Settle(now, r, &d, <-d.Verdict()) // and for another token
	if !d.Queued() || !d.permit.Held() {
		t.Fatalf("%+v", d)
	}
	if g.Abandon(now, &d); b.inFlight.InFlight() != 0 {
		t.Errorf("%d in flight, and all are gone", b.inFlight.InFlight())
	}
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

// Requests that find no permit ask the store for one while it answers: neither waits for the other.
func TestPermitsAreAskedForAtOnce(t *testing.T) {
	var of [2]*Guard
	for i := range of {
		of[i] = mustNew(t, Config{Capacity: perSecond(1e6, 1e6), Concurrency: 8, Queue: loadshed.QueueConfig{Size: loadshed.NoQueue}, Shared: true, Secret: make([]byte, 16), Replica: string(rune('a' + i))}, nil)
	}
	store, done := virtual.New(), make(chan struct{})
	var requests sync.WaitGroup
	for range 4 {
		requests.Go(func() {
			for n := 0; ; {
				select {
				case <-done:
					return
				default:
				}
				var held []Decision
				for range 16 {
					d := of[0].Admit(Now(), Request{})
					if d.Queued() {
						of[0].Abandon(Now(), &d)
					} else if d.Admit {
						held = append(held, d)
					}
				}
				for _, d := range held {
					d.Done(Now(), Served)
				}
				if n++; n%10 == 0 { // so that permits are given back
					time.Sleep(120 * ms)
				}
			}
		})
	}
	for end := time.Now().Add(2 * time.Second); time.Now().Before(end); {
		for _, g := range of {
			now := Now()
			if ask, ok := g.Link(now).Due(now); ok {
				g.Link(now).Heard(Now(), now, store.Do(1e12+now.Milliseconds(), ask))
			}
		}
	}
	close(done)
	requests.Wait()
}
