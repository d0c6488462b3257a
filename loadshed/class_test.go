package loadshed

import (
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"
)

func TestClassesAreSortedByShare(t *testing.T) {
	c, err := newClasses([]Class{{Name: "batch", Share: .3}, {Name: Sheddable}, {Name: "pay", Share: 1}, {Name: Critical}})
	if err != nil {
		t.Fatal(err)
	}
	want := []Class{{"pay", 1}, {Critical, 1}, {Default, .9}, {Sheddable, .7}, {"batch", .3}, {unpaid, .3}}
	if !slices.Equal(c.list, want) {
		t.Errorf("%v, want %v", c.list, want)
	}
	if i, ok := c.Index("batch"); i != 4 || !ok {
		t.Errorf("batch is %d, %v", i, ok)
	}
	for _, name := range []string{"unknown", unpaid, ""} {
		if i, ok := c.Index(name); c.At(i).Name != Default || ok {
			t.Errorf("%q is %s, %v; want the default, since there is no such class", name, c.At(i).Name, ok)
		}
	}
	none, err := newClasses(nil)
	if err != nil || none.Len() != 1 || none.byDefault != 0 || none.At(0) != (Class{Default, 1}) {
		t.Errorf("no classes: %v, %v", none, err)
	}
}

func TestClassErrors(t *testing.T) {
	var many []Class
	for i := range maxClasses {
		many = append(many, Class{Name: string(rune('a' + i)), Share: .5})
	}
	for want, list := range map[string][]Class{
		`class "batch" has no share; set one, or use the name critical, default or sheddable`: {{Name: "batch"}},
		`class "batch": share is 1.5 (150%); use 0.01 to 1 (1% to 100%)`:                      {{Name: "batch", Share: 1.5}},
		`class "batch": share is -1 (-100%); use 0.01 to 1 (1% to 100%)`:                      {{Name: "batch", Share: -1}},
		`class "critical" is a duplicate; use different names`:                                {{Name: Critical}, {Name: Critical}},
		`class name is ""; use letters, digits and _ - . / :, 1 to 64 of them`:                {{Share: 1}},
		`class "unpaid" is reserved for retries before their appointment; use another name`:   {{Name: unpaid, Share: .5}},
		`10 classes are set; use at most 8`:                                                   many,
		`class name is "a b"`:                                                                 {{"a b", .5}},
		`class name is "é"`:                                                                   {{"é", .5}},
		`class name is "a\n"`:                                                                 {{"a\n", .5}},
		`class name is "{x}"`:                                                                 {{"{x}", .5}},
		`class name is "xxxx`:                                                                 {{strings.Repeat("x", maxClassName+1), .5}},
	} {
		if _, err := newClasses(list); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v; want %q", err, want)
		}
	}
	mustClasses(t, Class{"AZaz09_-./:", 0.5}, Class{strings.Repeat("x", maxClassName), 0.5})
}

// A client that is drawn stays so for an hour. Then all are drawn anew, but not at
// once.
func TestDrawnForAnHour(t *testing.T) {
	const clients = 20_000
	drawn := func(now time.Duration) (set []bool, n int) {
		for i := range clients {
			is := Drawn(mix(uint64(i)), now, .3)
			set = append(set, is)
			if is {
				n++
			}
		}
		return set, n
	}
	changes := func(a, b []bool) (n int) {
		for i := range a {
			if a[i] != b[i] {
				n++
			}
		}
		return n
	}
	first, n := drawn(24 * time.Hour)
	if n < clients*29/100 || n > clients*31/100 {
		t.Errorf("%d of %d are drawn, want 3 in 10", n, clients)
	}
	soon, _ := drawn(24*time.Hour + time.Minute)
	later, _ := drawn(26 * time.Hour)
	// Of a pair of independent draws 2·0.3·0.7 = 42% differ; in a minute a sixtieth of
	// the clients are drawn anew.
	if n := changes(first, soon); n < clients*42/100/60/2 || n > clients*42/100/60*2 {
		t.Errorf("%d of %d changed within a minute, want about %d", n, clients, clients*42/100/60)
	}
	if n := changes(first, later); n < clients*40/100 || n > clients*44/100 {
		t.Errorf("%d of %d changed within two hours, want 42%%", n, clients)
	}
	for _, share := range []float64{0, 1} {
		if got := Drawn(7, time.Hour, share); got != (share == 1) {
			t.Errorf("a share of %v: %v", share, got)
		}
	}
}

func mustClasses(t testing.TB, list ...Class) Classes {
	t.Helper()
	c, err := newClasses(list)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// A backend (M/M/c, no queue) is offered four times what it can do, one request in
// twenty critical: those are served, the sheddable ones pay, and 10 s after the last
// critical one they have all. Beyond 70% of the permits only critical ones enter, at
// a fifth of the rate at which permits become free, so that 30% of 20 is enough.
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
			t.Errorf("%d permits: %.2f%% of %d critical requests were served, want 99.9", limit, 100*share, offered[critical])
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
