package limiter

import (
	"math"
	"strings"
	"testing"
	"time"
)

const ms = time.Millisecond

// must returns what a call returned that may fail, and does not in a test.
func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

func mustLimit(rate float64, per time.Duration, burst int) Limit {
	return must(New(Config{Rate: rate, Per: per, Burst: burst}))
}

// Take decides on one request, and charges it.
func (t *Table) Take(l Limit, maxKeys int, key Key, now time.Duration, n int) (wait time.Duration) {
	c, wait := t.Claim(l, maxKeys, key, now, n)
	if wait == 0 {
		c.Commit()
	}
	c.Release()
	return wait
}

func TestDefaultBursts(t *testing.T) {
	const day = 24 * time.Hour
	for _, c := range []struct {
		rate             float64
		per              time.Duration
		client, capacity int
	}{
		{100, 0, 100, 10}, {500, time.Second, 500, 50}, {85.9, time.Second, 85, 10}, {30, time.Second, 30, 10},
		{25, time.Second, 25, 10}, {10, time.Second, 10, 10}, {2.5, time.Second, 2, 2}, {1, time.Second, 1, 1}, {0.1, time.Second, 1, 1},
		{100, time.Minute, 100, 1}, {5, time.Minute, 5, 1}, {6000, time.Minute, 6000, 10}, {1000, time.Hour, 1000, 1}, {1, time.Hour, 1, 1},
		{10, 100 * time.Millisecond, 100, 10}, {3, 10 * time.Second, 3, 1}, {3.3, 3300 * time.Millisecond, 3, 1},
		{1e9, time.Second, 1e9, 1e8}, {1e7, 31 * day, 1e7, 3}, {2, 700 * day, 1, 1}, // never more than may refill
	} {
		client, err := New(Config{Rate: c.rate, Per: c.per})
		capacity, err2 := NewCapacity(Config{Rate: c.rate, Per: c.per})
		if err != nil || err2 != nil || client.Burst() != c.client || capacity.Burst() != c.capacity {
			t.Errorf("%v per %v: burst of a client %d, %v; of a capacity %d, %v; want %d and %d",
				c.rate, c.per, client.Burst(), err, capacity.Burst(), err2, c.client, c.capacity)
		}
		for _, read := range []func(Config) (Limit, error){New, NewCapacity} {
			if l, err := read(Config{Rate: c.rate, Per: c.per, Burst: 1}); err != nil || l.Burst() != 1 {
				t.Errorf("%v per %v burst 1: %d, %v", c.rate, c.per, l.Burst(), err)
			}
		}
	}
}

func TestNewSaysWhatIsWrong(t *testing.T) {
	for _, c := range []struct {
		cfg  Config
		want string // "" means valid
	}{
		{Config{Rate: 5}, ""},
		{Config{Rate: 0.5}, ""},
		{Config{Rate: 1e9}, ""},
		{Config{Rate: 1, Per: 24 * time.Hour, Burst: 366}, ""},
		{Config{Rate: 0, Burst: 1}, "rate is 0 per 1s; use more than 0"},
		{Config{Rate: -1, Burst: 1}, "rate is -1 per 1s; use more than 0"},
		{Config{Rate: math.NaN(), Burst: 1}, "rate is NaN per 1s; use more than 0"},
		{Config{Rate: math.Inf(1), Burst: 1}, "rate is +Inf per 1s; use more than 0 and at most 1e9 per second"},
		{Config{Rate: 2e9, Burst: 1}, "at most 1e9 per second"},
		{Config{Rate: -1, Per: -time.Second, Burst: 1}, "rate is -1 per -1s"},
		{Config{Rate: 1, Burst: -1}, "burst is -1; use at least 1"},
		{Config{Rate: -1, Burst: -2}, "burst is -2; use at least 1"},
		{Config{Rate: 1, Per: 24 * time.Hour, Burst: 367}, "the limit is 31622400 s (366 days)"},
		{Config{Rate: 1e-300, Burst: 1}, "to refill"},
	} {
		_, err := New(c.cfg)
		switch {
		case c.want == "" && err != nil:
			t.Errorf("New(%+v) = %v, want no error", c.cfg, err)
		case c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)):
			t.Errorf("New(%+v) error = %v, want one with %q", c.cfg, err, c.want)
		}
	}
}

// A client that has used three tokens has used three tokens, whatever the limit
// becomes; and it never owes more than a whole burst.
func TestLimitChanges(t *testing.T) {
	per := func(n float64, burst int) Config { return Config{Rate: n, Per: time.Hour, Burst: burst} }
	for _, c := range []struct {
		name     string
		old, new Config
		used     int
		left     int           // admitted at once under the new limit
		wait     time.Duration // then
	}{
		{"rate and burst raised", per(2, 2), per(50, 50), 2, 48, time.Hour / 50},
		{"burst raised", per(3, 3), per(3, 5), 3, 2, time.Hour / 3},
		{"rate raised", per(3, 3), per(30, 3), 3, 0, time.Hour / 30},
		{"rate and burst lowered", per(50, 50), per(5, 5), 3, 2, time.Hour / 5},
		{"lowered below what is used", per(50, 50), per(2, 2), 40, 0, time.Hour / 2},
		{"burst lowered", per(50, 50), per(50, 2), 40, 0, time.Hour / 50},
		{"from a month to a nanosecond", Config{Rate: 1, Per: maxRefill, Burst: 1}, Config{Rate: 1e9, Burst: 5}, 1, 4, 1},
		{"and back", Config{Rate: 1e9, Burst: 1000}, Config{Rate: 1, Per: maxRefill, Burst: 1}, 1000, 0, maxRefill},
	} {
		t.Run(c.name, func(t *testing.T) {
			old, l := must(New(c.old)), must(New(c.new))
			var b Bucket
			var table Table
			for range c.used {
				if b.Take(old, time.Hour, 1) != 0 || table.Take(old, MinKeys, 7, time.Hour, 1) != 0 {
					t.Fatal("rejected under the old limit")
				}
			}
			left := 0
			for ; b.Take(l, time.Hour, 1) == 0; left++ {
				if table.Take(l, MinKeys, 7, time.Hour, 1) != 0 {
					t.Fatal("the table rejects what the bucket admits")
				}
			}
			wait := b.Take(l, time.Hour, 1)
			if left != c.left || wait < c.wait || wait > c.wait+time.Duration(l.burst) {
				t.Errorf("%d left, then wait %v; want %d, then %v", left, wait, c.left, c.wait)
			}
			if never := b.Take(l, time.Hour, l.burst+1); never != Never {
				t.Errorf("more than the burst is to wait for %v, and there are never so many tokens", never)
			}
			if w := table.Take(l, MinKeys, 7, time.Hour, 1); w != wait {
				t.Errorf("the table says wait %v, the bucket %v", w, wait)
			}
		})
	}
}
