package loadshed

import (
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"
)

func mustClasses(t testing.TB, list ...Class) Classes {
	t.Helper()
	c, err := newClasses(list)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// No permits are kept for classes that do not come. For the others they are kept from
// the first request of a class to 3 s after its last.
func TestLimitForAClass(t *testing.T) {
	c := mustClasses(t, Class{Name: Critical}, Class{Name: Sheddable})
	const critical, normal, sheddable, unpaid = 0, 1, 2, 3
	var s classShares
	for _, step := range []struct {
		at   time.Duration
		seen int // -1: none
		want [4]int
	}{
		{0, -1, [4]int{100, 100, 100, 100}},
		{0, unpaid, [4]int{100, 100, 100, 100}},
		{0, sheddable, [4]int{100, 100, 100, 71}}, // 0.5/0.7
		{1, normal, [4]int{100, 100, 77, 55}},     // 0.7/0.9 and 0.5/0.9
		{1, critical, [4]int{100, 90, 70, 50}},
		{1 + reserveTime - 1, -1, [4]int{100, 90, 70, 50}},
		{1 + reserveTime, -1, [4]int{100, 100, 100, 100}}, // all at once: all came at once
		{time.Hour, critical, [4]int{100, 90, 70, 50}},
		{time.Hour + time.Second, normal, [4]int{100, 90, 70, 50}},
		{time.Hour + reserveTime, -1, [4]int{100, 100, 77, 55}},
		{time.Hour + reserveTime + time.Second, -1, [4]int{100, 100, 100, 100}},
	} {
		if step.seen >= 0 {
			s.Seen(step.at, step.seen)
		}
		for class, want := range step.want {
			if got := s.LimitFor(step.at, class, 100, c); got != want {
				t.Errorf("%v: limit for %s is %d, want %d", step.at, c.At(class).Name, got, want)
			}
		}
	}
	for limit, want := range map[int]int{1: 1, 2: 1, 9: 7, 10: 7, 1000: 777} {
		var s classShares
		s.Seen(0, normal)
		if got := s.LimitFor(0, sheddable, limit, c); got != want {
			t.Errorf("limit of %d is %d, want %d", limit, got, want)
		}
	}
	if got := s.LimitFor(time.Hour, 0, 7, mustClasses(t)); got != 7 {
		t.Errorf("without classes the limit is %d, want all 7", got)
	}
}

// A backend (M/M/c, no queue) is offered four times what it can do, one request in
// twenty critical: those are served, the sheddable ones pay, and 10 s after the last
// critical one they have all. Beyond 70 % of the permits only critical ones enter, at
// a fifth of the rate at which permits become free, so that 30 % of 20 is enough.
func TestCriticalIsServed(t *testing.T) {
	c := mustClasses(t, Class{Name: Critical}, Class{Name: Sheddable})
	const critical, sheddable = 0, 2
	for _, limit := range []int{20, 50} {
		rng := rand.New(rand.NewPCG(4, uint64(limit)))
		var s classShares
		var busy []time.Duration // until when each permit is taken
		offered, served := map[int]int{}, map[int]int{}
		offer := func(now time.Duration, class int) {
			busy = slices.DeleteFunc(busy, func(until time.Duration) bool { return until <= now })
			s.Seen(now, class)
			offered[class]++
			if len(busy) < s.LimitFor(now, class, limit, c) {
				served[class]++
				busy = append(busy, now+time.Duration(rng.ExpFloat64()*0.1*float64(time.Second)))
			}
		}
		capacity := float64(limit) / 0.1
		now := time.Duration(0)
		next := func() time.Duration {
			now += time.Duration(rng.ExpFloat64() / (4 * capacity) * float64(time.Second))
			return now
		}
		for next() < time.Minute {
			if rng.Float64() < 0.05 {
				offer(now, critical)
			} else {
				offer(now, sheddable)
			}
		}
		if share := float64(served[critical]) / float64(offered[critical]); share < 0.999 {
			t.Errorf("%d permits: %.2f %% of %d critical requests were served, want 99.9", limit, 100*share, offered[critical])
		}
		if rate := float64(served[sheddable]) / 60; rate < 0.45*capacity {
			t.Errorf("%d permits: %.0f sheddable requests per second as well, want nearly %.0f", limit, rate, 0.5*capacity)
		}
		for next() < 70*time.Second { // no critical requests from here
			offer(now, sheddable)
		}
		served[sheddable] = 0
		for next() < 80*time.Second {
			offer(now, sheddable)
		}
		if rate := float64(served[sheddable]) / 10; rate < 0.93*capacity {
			t.Errorf("%d permits: %.0f sheddable requests per second without higher classes, want nearly %.0f", limit, rate, capacity)
		}
	}
}

func TestClassNames(t *testing.T) {
	for _, name := range []string{"a b", "é", "a\n", "{x}", strings.Repeat("x", maxClassName+1)} {
		if _, err := newClasses([]Class{{name, 0.5}}); err == nil || !strings.Contains(err.Error(), "class name") {
			t.Errorf("%q: %v; want an error about the name", name, err)
		}
	}
	mustClasses(t, Class{"AZaz09_-./:", 0.5}, Class{strings.Repeat("x", maxClassName), 0.5})
}
