package limiter

import (
	"math"
	"testing"
	"time"

	"golang.org/x/time/rate"
)

// FuzzAgreesWithXTimeRate replays one schedule on a Bucket, on a Table and on
// golang.org/x/time/rate, which is the oracle of the package's law, for any rate up to 100,000
// per second. A schedule is pairs of bytes: a gap, in units of gap, and a cost. The rounding of
// the interval loses up to a share of Rate/1e9 of what is earned. The oracle counts tokens in
// floating point and time in truncated nanoseconds, so next to the edge it may decide either
// way: there the schedule ends.
func FuzzAgreesWithXTimeRate(f *testing.F) {
	f.Add(uint32(9_999), uint8(2), uint32(25_000_000), []byte{0, 1, 0, 1, 0, 1, 40, 1, 60, 1})
	f.Add(uint32(249), uint8(0), uint32(1_000_000_000), []byte{0, 1, 0, 1, 1, 1})
	f.Add(uint32(3), uint8(2), uint32(77_777_777), []byte{0, 1, 0, 1, 0, 1, 40, 1, 60, 1})
	f.Add(uint32(99_999_999), uint8(200), uint32(1), []byte{0, 150, 0, 60, 255, 3, 9, 1})
	f.Fuzz(func(t *testing.T, milliRate uint32, burst uint8, gap uint32, schedule []byte) {
		cfg := Config{Rate: float64(milliRate%100_000_000+1) / 1000, Burst: int(burst) + 1}
		l, err := New(cfg)
		if err != nil {
			t.Fatal(err)
		}
		start := time.Unix(1_700_000_000, 0)
		oracle := rate.NewLimiter(rate.Limit(cfg.Rate), cfg.Burst)
		var bucket Bucket
		var table Table
		var now time.Duration
		for i := 0; i+1 < len(schedule); i += 2 {
			now += time.Duration(schedule[i]) * time.Duration(gap)
			cost := int(schedule[i+1])
			at := start.Add(now)
			tokens := oracle.TokensAt(at)
			wait := bucket.Take(l, now, cost)
			if w := table.Take(l, MinKeys, 42, now, cost); w != wait {
				t.Fatalf("step %d: the table says wait %v, the bucket %v", i/2, w, wait)
			}
			want := oracle.AllowN(at, cost)
			if got := wait == 0; got != want {
				lost := cfg.Rate * now.Seconds() * (float64(l.interval)*cfg.Rate/1e9 - 1)
				if math.Abs(tokens-float64(cost)) < 1e-9*(float64(i+2)*cfg.Rate+float64(cfg.Burst))+lost*1.001 {
					break
				}
				t.Fatalf("step %d at %v, cost %d: admitted %v, x/time/rate %v with %v tokens", i/2, now, cost, got, want, tokens)
			}
		}
	})
}

// FuzzPromises holds Take to the package comment on schedules whose clock
// readings also interleave backwards: rejections are free, waits are exact, and
// no window holds more than burst + rate*t.
func FuzzPromises(f *testing.F) {
	f.Add(uint16(100), uint8(2), []byte{0, 0, 0, 40, 60})
	f.Add(uint16(100), uint8(10), []byte{100, 228, 100, 228, 100, 228, 100, 228, 100, 228, 100, 228, 0, 0, 0, 0, 0, 0, 0})
	f.Fuzz(func(t *testing.T, intervalMS uint16, burst uint8, steps []byte) {
		interval := time.Duration(intervalMS%1000+1) * ms
		n := int(burst%16 + 1)
		l := Limit{interval: interval, depth: interval * time.Duration(n), burst: n}
		var fullAt, latest time.Duration
		now := time.Hour
		var admitted []time.Duration // by the latest clock reading so far
		for _, s := range steps {
			now += time.Duration(int8(s)) * ms // also backwards
			latest = max(latest, now)
			paid, wait := l.take(fullAt, now, 1)
			if wait == 0 {
				if paid < fullAt {
					t.Fatalf("the instant moved back from %v to %v", fullAt, paid)
				}
				fullAt, admitted = paid, append(admitted, latest)
				continue
			}
			if paid != fullAt {
				t.Fatalf("a rejection moved the instant by %v", paid-fullAt)
			}
			if _, again := l.take(fullAt, now+wait, 1); again != 0 {
				t.Fatalf("told to wait %v, rejected on return: %v", wait, again)
			}
			if _, early := l.take(fullAt, now+wait-1, 1); early == 0 {
				t.Fatalf("told to wait %v, admitted a nanosecond sooner", wait)
			}
		}
		for i := range admitted { // the slow, obvious oracle
			for j := i; j < len(admitted); j++ {
				cost, allowed := interval*time.Duration(j-i+1), l.depth+admitted[j]-admitted[i]
				if cost > allowed {
					t.Fatalf("%d admitted in %v: more than burst plus rate", j-i+1, admitted[j]-admitted[i])
				}
			}
		}
	})
}
