package limiter

import (
	"math/rand/v2"
	"testing"
	"time"
)

// kept returns a table as it is after a restart: its process began at another time, and it was down for a while.
func (t *Table) kept(now, down, then time.Duration) *Table {
	again := new(Table)
	t.Save(now, func(p *Part) { again.Load(p, down, then) })
	return again
}

// After a restart each key has what it would have if the process had run on, also under another limit, and if it owes
// more than a burst.
func TestSavedTableIsTheSame(t *testing.T) {
	for seed := range uint64(30) {
		rng := rand.New(rand.NewPCG(seed, 1))
		limits := []Limit{
			mustLimit(1+float64(rng.IntN(1000)), time.Minute, 1+rng.IntN(50)),
			mustLimit(1+float64(rng.IntN(1000)), time.Minute, 1+rng.IntN(50)),
		}
		if seed%3 == 0 { // as of a zone that replicas share, whose number changes
			limits[0], _ = limits[0].partOf(3, 1)
			limits[1], _ = limits[0].partOf(2, 1)
		}
		var table Table
		now := time.Duration(rng.Int64N(int64(24 * time.Hour)))
		keys := make([]Key, 3000)
		for i := range keys {
			keys[i] = Key(rng.Uint64())
			for range rng.IntN(60) {
				table.Take(limits[0], MinKeys, keys[i], now, 1)
			}
			if i%100 == 0 {
				c, _ := table.Claim(limits[0], MinKeys, keys[i], now, 0)
				c.Commit()
				*c.fullAt = now + 3*limits[0].Refill() // a debt
				c.Release()
			}
			now += time.Duration(rng.IntN(int(10 * time.Millisecond)))
		}
		down, then := time.Duration(rng.Int64N(int64(time.Minute))), time.Duration(rng.Int64N(int64(time.Minute)))
		if seed%5 == 0 {
			down = 0
		}
		again := table.kept(now, down, then)
		again.Save(then, func(p *Part) { // what is there stays
			for i := range p.Owed {
				p.Owed[i] *= 2
			}
			again.Load(p, 0, then)
		})
		if s := again.Stats(then); s.Evicted > 0 || s.Keys != table.Stats(now+down).Keys {
			t.Errorf("seed %d: %+v after a restart, %+v before", seed, s, table.Stats(now+down))
		}
		for _, l := range limits {
			for _, key := range keys {
				tokens, wait := table.Look(l, MinKeys, key, now+down, 1)
				if n, w := again.Look(l, MinKeys, key, then, 1); n != tokens || w != wait {
					t.Fatalf("seed %d: %x has %d tokens and waits %v, want %d and %v", seed, key, n, w, tokens, wait)
				}
			}
		}
	}
}

// A full table is kept as it is: what new keys share, too. With a lower bound, those that owe least are forgotten.
func TestSavedTableWithoutRoom(t *testing.T) {
	l := mustLimit(1, time.Hour, 1)
	var table Table
	rng := rand.New(rand.NewPCG(3, 1))
	for range 3 * MinKeys {
		table.Take(l, 2*MinKeys, Key(rng.Uint64()), time.Second, 1)
	}
	again := table.kept(time.Second, 0, time.Minute)
	if before, after := table.Stats(time.Second).Keys, again.Stats(time.Minute); after.Keys != before {
		t.Errorf("%d of %d keys are there", after.Keys, before)
	}
	for range 1000 { // those for which there is still room have their own burst
		key := Key(rng.Uint64())
		if a, b := table.Take(l, 2*MinKeys, key, time.Second, 1), again.Take(l, 2*MinKeys, key, time.Minute, 1); a > 0 && b == 0 {
			one, other := again.shards[key>>57].setsOf(key)
			if _, known := find(key, one, other); !known {
				t.Fatalf("key %x shares a bucket that was full again", key)
			}
		}
	}
	again = table.kept(time.Second, 0, time.Minute)
	again.Look(l, MinKeys, 1, time.Minute, 1)
	for shard := range Key(shards) {
		again.Look(l, MinKeys, shard<<57|1, time.Minute, 1)
	}
	if n := again.slots(); n > MinKeys {
		t.Errorf("%d slots under a bound of %d keys", n, MinKeys)
	}
}

// Load takes no harm from what Save has not written.
func TestLoadOfNoPart(t *testing.T) {
	l := mustLimit(1, time.Second, 5)
	for _, p := range []Part{
		{}, {Shard: -1}, {Shard: shards}, {Keys: []uint64{1}}, {Shard: 1, Keys: []uint64{1}, Owed: []int64{9}},
		{Interval: -1, Burst: -1, Shared: -1, Keys: []uint64{1}, Owed: []int64{-1}},
		{Interval: 1, Burst: 1 << 62, Shared: 1 << 62, Keys: []uint64{1, 1}, Owed: []int64{1 << 62, -1 << 63}},
	} {
		var table Table
		table.Load(&p, 0, time.Second)
		table.Load(&p, time.Hour, time.Second)
		if wait := table.Take(l, MinKeys, 2, time.Second, 1); wait != 0 {
			t.Errorf("%+v: a new client waits %v", p, wait)
		}
	}
}
