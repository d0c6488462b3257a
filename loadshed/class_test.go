package loadshed

import (
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"
)

func TestClassesAreSortedByShare(t *testing.T) {
	p := mustPlan(t, PlanConfig{Limit: 1, Classes: []Class{{Name: "batch", Share: .3}, {Name: Sheddable}, {Name: "pay", Share: 1}, {Name: Critical}}})
	want := []Class{{"pay", 1}, {Critical, 1}, {Default, .9}, {Sheddable, .7}, {"batch", .3}, {unpaid, .3}}
	if !slices.Equal(p.Classes, want) {
		t.Errorf("%v, want %v", p.Classes, want)
	}
	if i, ok := p.ClassNamed("batch"); i != 4 || !ok {
		t.Errorf("batch is %d, %v", i, ok)
	}
	for _, name := range []string{"unknown", unpaid, ""} {
		if i, ok := p.ClassNamed(name); p.Classes[i].Name != Default || ok {
			t.Errorf("%q is %s, %v; want the default, since there is no such class", name, p.Classes[i].Name, ok)
		}
	}
	if none := mustPlan(t, PlanConfig{}); !slices.Equal(none.Classes, []Class{{Default, 1}}) || none.byDefault != 0 {
		t.Errorf("no classes: %v", none)
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
		if _, _, err := newClasses(list); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v; want %q", err, want)
		}
	}
	mustClasses(t, Class{"AZaz09_-./:", 0.5}, Class{strings.Repeat("x", maxClassName), 0.5})
}

func mustClasses(t testing.TB, list ...Class) []Class {
	t.Helper()
	c, _, err := newClasses(list)
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
			s.saw(now, class)
			offered[class]++
			if len(busy) < s.limitFor(now, class, limit, c) {
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
