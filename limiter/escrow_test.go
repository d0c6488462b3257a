package limiter

import (
	"math/rand/v2"
	"testing"
	"time"
)

// newEscrow returns an Escrow of a replica that the store answers.
func newEscrow(t testing.TB, l Limit, cost, replicas int) *Escrow {
	t.Helper()
	e := NewEscrow(new(Table), l, cost, 400_000, replicas)
	e.Follow(0, Term{Replicas: replicas, Alone: Never})
	return e
}

// take is one request.
func (e *Escrow) takeOne(key Key, now time.Duration) (admitted, ask bool) {
	c, wait, ask := e.Claim(key, now, e.cost)
	if wait == 0 {
		c.Commit()
	}
	c.Release()
	return wait == 0, ask
}

// A replica that hears that others have left has no more of a key than before: they may have used theirs.
func TestDivisionForgivesNothing(t *testing.T) {
	e := NewEscrow(new(Table), mustLimit(1, time.Hour, 60), 1, MinKeys, 4) // parts of 7
	got := map[string]int{}
	take := func(name string, n int) {
		for range n {
			if ok, _ := e.takeOne(KeyOf(name), time.Second); ok {
				got[name]++
			}
		}
	}
	take("known", 3)
	e.Follow(time.Second, Term{Replicas: 1})
	take("known", 60)
	if take("new", 60); got["known"] != 7 || got["new"] != 7 {
		t.Errorf("%v requests are admitted, want 7 each", got)
	}
}

// Keys that find no room among the hot ones have their part; a flood of them makes room
// for none to have more.
func TestHotKeysAreBounded(t *testing.T) {
	l := mustLimit(1, time.Hour, 16)
	e := newEscrow(t, l, 1, 4) // parts of 2
	now, keys := time.Second, 100_000
	got := map[Key]int{}
	rng := rand.New(rand.NewPCG(3, 4))
	list := make([]Key, keys)
	for i := range list {
		list[i] = Key(rng.Uint64())
	}
	for range 4 {
		for _, key := range list {
			now += time.Microsecond
			if ok, _ := e.takeOne(key, now); ok {
				got[key]++
			}
		}
	}
	hot := e.Hot()
	if hot == 0 || hot > maxHot {
		t.Errorf("%d keys are hot, want no more than %d", hot, maxHot)
	}
	for key, n := range got {
		if n > 2 {
			t.Fatalf("key %x has had %d tokens that no store gave, want 2", key, n)
		}
	}
	if q := e.Queued(); q > hot {
		t.Errorf("%d keys are queued, and %d are hot", q, hot)
	}
}

// Where a request leaves tokens to others, those in the pool count, too: of 3 here and 30 there it may leave 32.
func TestStockLeavesAReserve(t *testing.T) {
	l, now := mustLimit(100, time.Second, 40), time.Minute
	var b Bucket
	b.Follow(l, now, Term{Replicas: 4, Alone: Never, Paid: Never}, func() {})
	b.Heard(l, now, 3, 30)
	for reserve, admits := range map[int]bool{32: true, 33: false} {
		c, wait := b.ClaimAbove(l, now, 1, reserve)
		if c.Release(); (wait == 0) != admits {
			t.Errorf("leaving %d it is to wait for %v, want to be admitted: %v", reserve, wait, admits)
		}
	}
	if b.Undraw(l, now); b.Level(l, now) != 3 {
		t.Errorf("without a pool it goes on with %d tokens, want its 3", b.Level(l, now))
	}
}

// A debt goes to the pool, and comes back if the pool may not have heard of it. Meanwhile no request is admitted.
func TestStockPassesOnADebt(t *testing.T) {
	l, now := mustLimit(100, time.Second, 40), time.Minute
	var b Bucket
	b.Follow(l, now, Term{Replicas: 4, Alone: Never, Paid: Never}, func() {})
	b.Heard(l, now, 0, -1)
	c, _ := b.Claim(l, now, 1)
	owed, wait := c.Owe(l, now)
	if owed.Commit(); wait != 20*time.Millisecond {
		t.Errorf("a token is earned in %v; want 20ms, as the pool owes one", wait)
	}
	c.Release()
	for range 2 {
		if held, gave, _ := b.Refill(l, now); held != 0 || gave != -1 {
			t.Errorf("of a debt of 1, %v is kept and %v passed on", held, gave)
		}
		c, wait := b.ClaimAbove(l, now+time.Second, 1, 0)
		if c.Release(); wait == 0 {
			t.Error("a request is admitted while the pool is told of a debt")
		}
		b.Unheard()
	}
}

// What may not have reached the store is told again, or tokens that were given back would be nobody's.
func TestAKeyIsToldAgain(t *testing.T) {
	e, key, now := newEscrow(t, mustLimit(10, time.Second, 40), 1, 4), KeyOf("a"), time.Second
	for e.Queued() == 0 {
		e.takeOne(key, now)
	}
	e.Collect(now, 1, nil)
	if e.Missed(now, key); e.Queued() != 1 {
		t.Errorf("%d keys are told of again, want 1", e.Queued())
	}
}
