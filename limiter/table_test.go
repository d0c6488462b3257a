package limiter

import (
	"math/bits"
	"math/rand/v2"
	"runtime"
	"testing"
	"time"
)

// slots counts what is allocated, the hard bound on keys.
func (t *Table) slots() (n int) {
	for i := range t.shards {
		n += len(t.shards[i].sets) * ways
	}
	return n
}

// A client that is over its limit stays over it, whatever others do: five million keys
// come once each, while a thousand limited clients repeat their requests.
func TestFloodForgivesNoClient(t *testing.T) {
	const limited, maxKeys, flood = 1_000, 20_000, 1_000_000
	for _, burst := range []int{10, 1} {
		l := mustLimit(1, time.Hour, burst)
		var table Table
		rng := rand.New(rand.NewPCG(1, 2))
		now := time.Second
		for key := range Key(limited) {
			for table.Take(l, maxKeys, key<<50|key, now, 1) == 0 {
			}
		}
		for i := range flood {
			now += time.Microsecond
			table.Take(l, maxKeys, Key(rng.Uint64()), now, 1)
			if key := Key(i % limited); table.Take(l, maxKeys, key<<50|key, now, 1) == 0 {
				t.Fatalf("burst %d: limited key %d was forgiven after %d new keys", burst, key, i)
			}
		}
		if s, n := table.Stats(0), table.slots(); n > maxKeys || s.Evicted+s.Shared == 0 {
			t.Errorf("burst %d: %+v, %d slots; want %d at most, and the table full", burst, s, n, maxKeys)
		}
	}
}

// A new key that finds no room is limited all the same, with a true wait.
func TestNoRoomSharesABucket(t *testing.T) {
	l := mustLimit(1, time.Minute, 1)
	var table Table
	for key := range Key(100_000) { // all in shard 0, all over their limit
		table.Take(l, MinKeys, key, time.Second, 1)
	}
	s := table.Stats(0)
	if s.Admitted != 2*ways+1 { // their two sets of seven, and the shared bucket once
		t.Errorf("%d of 100,000 new keys admitted, want %d", s.Admitted, 2*ways+1)
	}
	if table.Take(l, 2*MinKeys, 100_001, time.Second, 1) == 0 {
		t.Error("the shared bucket is full again as the bound is raised")
	}
	wait := table.Take(l, MinKeys, 100_001, time.Second, 1)
	if wait == 0 || table.Take(l, MinKeys, 100_001, time.Second+wait, 1) != 0 {
		t.Errorf("wait %v was not true", wait)
	}
}

// A table that grows to its bound forgets no key on the way, however small the last
// step is.
func TestGrowthForgetsNoKey(t *testing.T) {
	l := mustLimit(1, time.Hour, 1)
	for seed := uint64(0); seed < 60; seed += 3 {
		maxKeys := MinKeys + int(seed)*shards*ways
		var table Table
		rng := rand.New(rand.NewPCG(seed, 15))
		for range 2 * maxKeys {
			table.Take(l, maxKeys, Key(rng.Uint64()), time.Second, 1)
		}
		if s := table.Stats(0); s.Evicted > 0 || s.Shared == 0 {
			t.Fatalf("bound %d: %+v; want the table full and no key forgotten, for all are over their limit", maxKeys, s)
		}
	}
}

// A key that could send another request is forgotten before one that owes more.
func TestLeastOwingIsForgottenFirst(t *testing.T) {
	l := mustLimit(1, time.Hour, 10)
	const maxKeys = MinKeys
	var table Table
	rng := rand.New(rand.NewPCG(11, 12))
	var heavy []Key
	for i := range 2 * maxKeys {
		key := Key(rng.Uint64())
		cost := 1
		if i%10 == 0 { // one in ten has one token left, the others have nine
			cost = 9
			heavy = append(heavy, key)
		}
		table.Take(l, maxKeys, key, time.Second, cost)
	}
	if s := table.Stats(0); s.Evicted == 0 {
		t.Fatal("no key was forgotten: the test shows nothing")
	}
	for i, key := range heavy {
		if table.Take(l, maxKeys, key, time.Second, 2) == 0 {
			t.Fatalf("key %d of %d, with one token left, was forgotten before those with nine", i, len(heavy))
		}
	}
}

// While there is room for all keys, a table decides as a map of buckets does, however it
// moves keys and grows, and whether claims are committed or not.
func TestTableIsAMapOfBuckets(t *testing.T) {
	l := mustLimit(1, time.Second, 5)
	var table Table
	oracle := map[Key]*Bucket{}
	rng := rand.New(rand.NewPCG(13, 14))
	now := time.Second
	for i := range 1_000_000 {
		now += time.Duration(rng.IntN(100)) * time.Microsecond
		key := Key(rng.Uint64N(uint64(1000+i/10))+1) * 0x9e3779b97f4a7c15
		if oracle[key] == nil {
			oracle[key] = new(Bucket)
		}
		c, wait := table.Claim(l, MaxKeys, key, now, 1)
		o, want := oracle[key].Claim(l, now, 1)
		if wait != want {
			t.Fatalf("request %d, key %x: wait %v, want %v", i, key, wait, want)
		}
		if wait == 0 && rng.IntN(2) == 0 { // the other half is rejected elsewhere
			c.Commit()
			o.Commit()
		}
		c.Release()
		o.Release()
	}
	if n := table.Stats(now + 5*time.Second).Keys; n != 0 {
		t.Errorf("%d keys owe something after all buckets are full again", n)
	}
}

// About half of the bound fits without forgetting any key. A lower one forgets those that owe least.
func TestBoundIsLowered(t *testing.T) {
	l := mustLimit(1, time.Hour, 5)
	var table Table
	rng := rand.New(rand.NewPCG(5, 6))
	for range 50_000 {
		table.Take(l, 100_000, Key(rng.Uint64()), time.Second, 1)
	}
	hot := Key(rng.Uint64())
	for table.Take(l, 100_000, hot, time.Second, 1) == 0 {
	}
	if s := table.Stats(time.Second); s.Keys != 50_001 || s.Evicted+s.Shared > 0 {
		t.Fatalf("%+v; want room for 50,001 keys within a bound of 100,000", s)
	}
	for range 50_000 {
		table.Take(l, 20_000, Key(rng.Uint64()), time.Second, 1)
	}
	if n := table.slots(); n > 20_000 {
		t.Errorf("%d slots after the bound was lowered to 20,000", n)
	}
	if table.Take(l, 20_000, hot, time.Second, 1) == 0 {
		t.Error("lowering the bound forgave the key that owed most")
	}
}

// BenchmarkBytesPerKey holds 1,000,000 keys in a table that may hold twice as
// many: once after they came, and once after 20 million others have come and
// gone in their places.
func BenchmarkBytesPerKey(b *testing.B) {
	for _, bench := range []struct {
		name   string
		others int
	}{{"filled", 0}, {"churned", 20_000_000}} {
		b.Run(bench.name, func(b *testing.B) {
			// A key owes its one token for 100 s, and 10,000 new ones come per second.
			l := mustLimit(0.01, time.Second, 10)
			for b.Loop() {
				var before, after runtime.MemStats
				runtime.GC()
				runtime.ReadMemStats(&before)
				table := new(Table)
				rng := rand.New(rand.NewPCG(1, 1))
				now := time.Second
				for range 1_000_000 + bench.others {
					now += 100 * time.Microsecond
					table.Take(l, 2_000_000, Key(rng.Uint64()), now, 1)
				}
				runtime.GC()
				runtime.ReadMemStats(&after)
				if n := table.Stats(now).Keys; n < 999_999 {
					b.Fatalf("%d keys of 1,000,000 are remembered", n)
				}
				b.ReportMetric(float64(after.HeapAlloc-before.HeapAlloc)/1e6, "B/key")
				b.ReportMetric(0, "ns/op")
				runtime.KeepAlive(table)
			}
		})
	}
}

func BenchmarkTake(b *testing.B) {
	admit := mustLimit(1e9, time.Second, 1e9)
	reject := mustLimit(1, time.Hour, 1)
	const many, maxKeys = 1 << 20, 2_000_000
	for _, bench := range []struct {
		name  string
		limit Limit
		keys  uint64
	}{
		{"keys=1/admit", admit, 1},
		{"keys=1/reject", reject, 1},
		{"keys=1e6/admit", admit, many},
		{"keys=1e6/reject", reject, many},
	} {
		var table Table
		key := func(i uint64) Key { return Key(bits.Reverse64((i&(bench.keys-1) + 1) * 0x9e3779b97f4a7c15)) }
		for i := range bench.keys {
			table.Take(bench.limit, maxKeys, key(i), time.Second, 1)
		}
		b.Run(bench.name+"/alone", func(b *testing.B) {
			b.ReportAllocs()
			i := uint64(0)
			for b.Loop() {
				i += 0x9e3779b97f4a7c15
				table.Take(bench.limit, maxKeys, key(i), time.Second, 1)
			}
		})
		b.Run(bench.name+"/parallel", func(b *testing.B) {
			b.ReportAllocs()
			b.RunParallel(func(pb *testing.PB) {
				i := rand.Uint64()
				for pb.Next() {
					i += 0x9e3779b97f4a7c15
					table.Take(bench.limit, maxKeys, key(i), time.Second, 1)
				}
			})
		})
	}
}
