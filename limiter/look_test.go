package limiter

import (
	"math/rand/v2"
	"testing"
	"time"
)

// A look at a full table, whose limit changes meanwhile, says what the next request gets, and takes
// no tokens.
func TestTableLook(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	var table Table
	now, waits := time.Hour, 0
	limits := []Limit{mustLimit(t, 2, time.Second, 4), mustLimit(t, 0.5, time.Second, 9)}
	for i := range 60_000 {
		now += time.Duration(rng.IntN(100)) * time.Microsecond
		l := limits[i/20_000%2]
		key := Key(1 + rng.Uint64N(18_000)*0x9e3779b97f4a7c15)
		tokens, want := table.Look(l, MinKeys, key, now, 2)
		if again, _ := table.Look(l, MinKeys, key, now, 2); again != tokens || (want == 0) != (tokens >= 2) {
			t.Fatalf("%d tokens, then %d, and a wait of %v", tokens, again, want)
		}
		if got := table.Take(l, MinKeys, key, now, 2); got != want {
			t.Fatalf("request %d is told %v, after a look that said %v", i, got, want)
		}
		if want > 0 {
			waits++
		}
	}
	if shared := table.Stats(now).Shared; waits < 1000 || shared == 0 {
		t.Errorf("%d waits, and %d keys shared a bucket", waits, shared)
	}
}

// A look at an Escrow says what is here of a key, cold or hot, and asks the store for nothing.
func TestEscrowLook(t *testing.T) {
	l := mustLimit(t, 1, time.Second, 12)
	e := NewEscrow(new(Table), l, 1, MinKeys, 1)
	e.Follow(0, Term{Replicas: 1, Alone: Never, Paid: Never})
	const now = time.Hour
	look := func(wantTokens int, waits bool) {
		t.Helper()
		if tokens, wait := e.Look(7, now); tokens != wantTokens || (wait > 0) != waits {
			t.Errorf("%d tokens, and a wait of %v; want %d", tokens, wait, wantTokens)
		}
	}
	take := func() {
		c, wait, _ := e.Claim(7, now)
		if wait == 0 {
			c.Commit()
		}
		c.Release()
	}
	look(6, false) // half of the burst: the rest is the pool's
	for range 3 {
		take()
	}
	look(3, false)
	if e.Queued() > 0 || e.Hot() > 0 {
		t.Error("a look has asked the store")
	}
	for range 3 {
		take()
	}
	if look(0, true); e.Hot() != 1 {
		t.Errorf("%d keys are hot", e.Hot())
	}
}
