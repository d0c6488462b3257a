package limiter

import (
	"math/rand/v2"
	"testing"
	"time"
)

// A copy of a full table, whose limit changes meanwhile, decides on each key as the table does, and
// what is asked of it does not change the table.
func TestTableCopy(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	var table Table
	now, same, waits, shared := time.Hour, 0, 0, 0
	limits := []Limit{mustLimit(t, 2, time.Second, 4), mustLimit(t, 0.5, time.Second, 9)}
	for i := range 60_000 {
		now += time.Duration(rng.IntN(100)) * time.Microsecond
		l := limits[i/20_000%2]
		key := Key(1 + rng.Uint64N(18_000)*0x9e3779b97f4a7c15)
		var c Table
		if i%7 == 0 {
			table.CopyTo(&c, l, MinKeys, key, now, 2)
			before := c.Tokens(l, key, now)
			want := c.Take(l, MinKeys, key, now, 2)
			if want == 0 && before < 2 || want > 0 && before >= 2 {
				t.Fatalf("%d tokens, and a wait of %v", before, want)
			}
			if got := table.Take(l, MinKeys, key, now, 2); got == want {
				same++
			} else if want > 0 {
				t.Fatalf("request %d: the table says %v, its copy %v", i, got, want)
			}
			if want > 0 {
				waits++
			}
			continue
		}
		table.Take(l, MinKeys, key, now, 2)
	}
	shared = int(table.Stats(now).Shared)
	if asked := 60_000/7 + 1; same < asked*99/100 || waits < 1000 || shared == 0 {
		t.Errorf("of %d answers %d were alike, %d of them waits; %d keys shared a bucket", asked, same, waits, shared)
	}
}

func TestBucketCopy(t *testing.T) {
	l := mustLimit(t, 1, time.Second, 3)
	for _, shared := range []bool{false, true} {
		var b, c Bucket
		b.Take(l, time.Hour, 2)
		if shared {
			b.Draw(time.Hour, 1)
			b.Heard(time.Hour, 1, 0, 0)
		}
		b.CopyTo(&c)
		before := b.Level(l, time.Hour)
		if c.Level(l, time.Hour) != before {
			t.Errorf("shared %v: a copy has %d tokens, the bucket %d", shared, c.Level(l, time.Hour), before)
		}
		for range 5 {
			c.Take(l, time.Hour, 1)
		}
		if b.Level(l, time.Hour) != before {
			t.Errorf("shared %v: tokens that were taken from a copy are missing", shared)
		}
	}
}
