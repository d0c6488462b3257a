package limiter

import (
	"math/bits"
	"math/rand/v2"
	"testing"
	"time"
)

// answered has everything in the Escrow's queue answered as grant says.
func answered(e *Escrow, now time.Duration, grant func(Held) (got int, wait time.Duration)) (asked int) {
	for _, h := range e.Collect(now, 1<<20, nil) {
		asked++
		got, wait := grant(h)
		e.Grant(now, h.Key, got, wait)
	}
	return asked
}

// newEscrow returns an Escrow of a replica that the store answers.
func newEscrow(t testing.TB, l Limit, cost, replicas int) *Escrow {
	t.Helper()
	e := NewEscrow(new(Table), l, cost, 400_000, replicas)
	e.Follow(0, Term{Replicas: replicas, Alone: Never})
	return e
}

// take is one request.
func (e *Escrow) takeOne(key Key, now time.Duration) (admitted, ask bool) {
	c, wait, ask := e.Claim(key, now)
	if wait == 0 {
		c.Commit()
	}
	c.Release()
	return wait == 0, ask
}

// A key within its part costs no exchange; one that has used most of it is told of once,
// and what it gets it may use.
func TestAKeyIsHotOnceItHasUsedItsPart(t *testing.T) {
	l := mustLimit(t, 10, time.Second, 40)
	e := newEscrow(t, l, 1, 4) // a part of 5 tokens, 2.5 per second
	key, now := KeyOf("a"), time.Second
	for i := range 2 {
		if ok, _ := e.takeOne(key, now); !ok || e.Queued() != 0 {
			t.Fatalf("request %d: admitted %v, queued %d; want true, 0", i, ok, e.Queued())
		}
	}
	for i := range 3 {
		if ok, _ := e.takeOne(key, now); !ok || e.Queued() != 1 {
			t.Fatalf("request %d: admitted %v, queued %d; want true, 1", 2+i, ok, e.Queued())
		}
	}
	if ok, ask := e.takeOne(key, now); ok || !ask {
		t.Errorf("without a token: admitted %v, ask %v; want false, true", ok, ask)
	}
	n := answered(e, now, func(h Held) (int, time.Duration) {
		if h.Held+h.Gave != 0 || h.Want < 1 || h.Want > 5 {
			t.Errorf("told %+v, want nothing held, and 1 to 5 wanted", h)
		}
		return 2, 0
	})
	if n != 1 {
		t.Fatalf("%d keys are told of, want 1", n)
	}
	got := 0
	for range 5 {
		if ok, _ := e.takeOne(key, now); ok {
			got++
		}
	}
	if got != 2 {
		t.Errorf("%d of 5 requests are admitted with 2 tokens", got)
	}
	if n := answered(e, now, func(Held) (int, time.Duration) { return 0, 100 * time.Millisecond }); n != 1 {
		t.Fatalf("%d keys are told of, want 1", n)
	}
	c, wait, ask := e.Claim(key, now)
	c.Release()
	if wait != 800*time.Millisecond/10 && wait < 100*time.Millisecond || ask || e.Queued() != 0 {
		t.Errorf("after a response of none: wait %v, ask %v, queued %d; want 100 ms at least, false, 0", wait, ask, e.Queued())
	}
	c, late, _ := e.Claim(key, now-50*time.Millisecond)
	c.Release()
	if _, look := e.Look(key, now-50*time.Millisecond); late != wait+50*time.Millisecond || look != late {
		t.Errorf("by a clock that is 50 ms behind the wait is %v, and %v by a look, want 50 ms more than %v", late, look, wait)
	}
	// The pool earns for it as long as the replica is heard of.
	if ok, ask := e.takeOne(key, now+wait); ok || !ask {
		t.Errorf("after the wait: admitted %v, ask %v; want false, true", ok, ask)
	}
	e.Collect(now+wait, 1, nil)
	if e.Missed(now+wait, key); e.Queued() != 1 {
		t.Errorf("%d keys are told of again after an exchange that may not have arrived, want 1", e.Queued())
	}
	// That the pool has none for an hour does not count once it had some.
	answered(e, now+wait, func(Held) (int, time.Duration) { return 0, time.Hour })
	now += e.Stay()
	e.Learn(now, key)
	answered(e, now, func(Held) (int, time.Duration) { return 2, 0 })
	for ok := true; ok; {
		ok, ask = e.takeOne(key, now)
	}
	if !ask {
		t.Error("the pool is not asked for more than it gave")
	}
}

// A replica that the store does not answer has its part of the rate, from when the pool
// does not earn for it.
func TestAloneAKeyHasItsPart(t *testing.T) {
	l := mustLimit(t, 10, time.Second, 40)
	for _, c := range []struct {
		name string
		term Term
		from time.Duration // its part is earned
	}{
		{"no response", Term{Paid: 3 * time.Second}, 3 * time.Second},
		{"the key is not hot any more", Term{Paid: time.Hour, Alone: Never}, 14 * time.Second},
		{"another life", Term{Paid: time.Hour, Life: 1, Began: 4 * time.Second}, 4 * time.Second},
	} {
		e := newEscrow(t, l, 1, 4)
		key, now := KeyOf("a"), time.Second
		for range 5 {
			e.takeOne(key, now)
		}
		answered(e, now, func(Held) (int, time.Duration) { return 0, time.Second })
		c.term.Replicas = 4
		e.Follow(now, c.term)
		got := 0
		for at := now; at <= c.from+2*time.Second; at += 10 * time.Millisecond {
			if ok, _ := e.takeOne(key, at); ok {
				if got++; at < c.from+400*time.Millisecond {
					t.Errorf("%s: a token at %v; its part is earned from %v on", c.name, at, c.from)
				}
			}
		}
		if got != 5 { // 2 s at 2.5/s
			t.Errorf("%s: %d requests are admitted within 2 s of its part, want 5", c.name, got)
		}
	}
}

// Whatever the number of replicas does, no key gets tokens by it.
func TestDivisionForgivesNothing(t *testing.T) {
	l := mustLimit(t, 1, time.Hour, 60)
	rng := rand.New(rand.NewPCG(1, 2))
	for range 200 {
		e := NewEscrow(new(Table), l, 1, MinKeys, 1) // alone: of 30 tokens
		got, now := 0, time.Second
		for range 200 {
			now += time.Millisecond
			key := KeyOf("a")
			if ok, _ := e.takeOne(key, now); ok {
				got++
			}
			if rng.IntN(4) == 0 {
				e.Follow(now, Term{Replicas: 1 + rng.IntN(10)})
			}
		}
		if got > 30 {
			t.Fatalf("%d requests are admitted of a part of 30", got)
		}
	}
}

// Keys that find no room among the hot ones have their part; a flood of them makes room
// for none to have more.
func TestHotKeysAreBounded(t *testing.T) {
	l := mustLimit(t, 1, time.Hour, 16)
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

func BenchmarkEscrow(b *testing.B) {
	const many, maxKeys = 1 << 20, 2_000_000
	l := mustLimit(b, 1e9, time.Second, 1e9)
	for _, bench := range []struct {
		name string
		hot  bool
		keys uint64
	}{
		{"keys=1/cold", false, 1},
		{"keys=1/hot", true, 1},
		{"keys=1e6/cold", false, many},
		{"keys=5e4/hot", true, 1 << 15},
	} {
		e := newEscrow(b, l, 1, 4)
		e.Follow(0, Term{Replicas: 4, Alone: Never, Paid: Never})
		e.Bound(maxKeys)
		key := func(i uint64) Key { return Key(bits.Reverse64((i&(bench.keys-1) + 1) * 0x9e3779b97f4a7c15)) }
		heat := func(k Key) {
			e.Learn(time.Second, k)
			answered(e, time.Second, func(Held) (int, time.Duration) { return 1e8, 0 })
		}
		if !bench.hot { // some keys are hot, and others are looked for among them
			for i := range uint64(1 << 14) {
				heat(Key((i + 1) * 0xd6e8feb86659fd93))
			}
		}
		for i := range bench.keys {
			if bench.hot {
				heat(key(i))
			} else {
				e.takeOne(key(i), time.Second)
			}
		}
		b.Run(bench.name, func(b *testing.B) {
			b.ReportAllocs()
			i := uint64(0)
			for b.Loop() {
				i += 0x9e3779b97f4a7c15
				c, wait, _ := e.Claim(key(i), time.Second)
				if wait == 0 {
					c.Commit()
				}
				c.Release()
			}
		})
	}
}
