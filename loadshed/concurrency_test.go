package loadshed

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"
)

// Two requests may be in flight, and one waits for up to 50 ms.
func ExampleConcurrency() {
	plan, err := NewPlan(PlanConfig{Limit: 2, Queue: QueueConfig{Size: 1, Timeout: 50 * time.Millisecond}})
	if err != nil {
		panic(err)
	}
	var c Concurrency
	c.Use(plan)
	now := time.Minute // since an epoch of the caller's
	var places [4]Place
	for i := range places {
		is, _ := c.Enter(now, plan, &Entrant{}, &places[i])
		fmt.Println(i, map[Entry]string{Entered: "enters", Waiting: "waits", Full: "is refused"}[is])
	}
	places[0].Leave(now+30*time.Millisecond, Served)
	verdict := <-places[2].Verdict()
	fmt.Println(2, verdict, c.Settle(now+30*time.Millisecond, plan, &places[2], verdict))
	// Output:
	// 0 enters
	// 1 enters
	// 2 waits
	// 3 is refused
	// 2 granted true
}

func mustPlan(t testing.TB, c PlanConfig) *Plan {
	t.Helper()
	p, err := NewPlan(c)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// Whatever happens to requests, and whichever plan is in force: there are never more in
// flight than the limit, and at the end each place, count and wait is given back.
func TestConcurrencyGivesEverythingBack(t *testing.T) {
	plans := []*Plan{
		mustPlan(t, PlanConfig{Limit: 5, PerClient: 2, Queue: QueueConfig{Size: 4, Timeout: 50 * time.Millisecond}}),
		mustPlan(t, PlanConfig{Adaptive: &AdaptiveConfig{Initial: 6, Max: 6}, Classes: []Class{{Name: Critical}, {Name: Sheddable}}}),
		mustPlan(t, PlanConfig{Limit: 3}),
		mustPlan(t, PlanConfig{PerClient: 1}),
	}
	type request struct {
		place Place
		plan  *Plan
	}
	for seed := range uint64(20) {
		r := rand.New(rand.NewPCG(seed, 1))
		var c Concurrency
		var open, waiting []*request
		now, p := time.Minute, plans[0]
		pick := func(list *[]*request) *request {
			i := r.IntN(len(*list))
			q := (*list)[i]
			*list = slices.Delete(*list, i, i+1)
			return q
		}
		settle := func() {
			for i := 0; i < len(waiting); i++ {
				q := waiting[i]
				if len(q.place.Verdict()) == 0 {
					continue
				}
				waiting = slices.Delete(waiting, i, i+1)
				if c.Settle(now, q.plan, &q.place, <-q.place.Verdict()) {
					open = append(open, q)
				} else {
					c.Refuse(now, &q.place)
				}
				i = -1
			}
		}
		for step := range 5_000 {
			if step%500 == 0 {
				p = plans[r.IntN(len(plans))]
				c.Use(p)
			}
			now += time.Duration(r.IntN(5)) * time.Millisecond
			switch k := r.IntN(10); {
			case k < 5:
				q := &request{plan: p}
				e := Entrant{Client: 1 + r.Uint64N(20), InFlight: 1 + r.Uint64N(20), Class: uint8(r.IntN(3)), Due: k == 0, Reserve: r.IntN(10)}
				switch is, wait := c.Enter(now, p, &e, &q.place); is {
				case Entered:
					open = append(open, q)
					if p.Limits() && c.InFlight() > c.Limit(p) {
						t.Fatalf("seed %d: %d in flight, and a limit of %d", seed, c.InFlight(), c.Limit(p))
					}
				case Waiting:
					waiting = append(waiting, q)
				default:
					if q.place.Held() || q.place.Waits() || wait <= 0 {
						t.Fatalf("seed %d: refused for %v with %+v", seed, wait, q.place)
					}
				}
			case k < 8 && len(open) > 0:
				pick(&open).place.Leave(now, Outcome(r.IntN(5)))
			case k == 8 && len(waiting) > 0:
				c.Abandon(now, &pick(&waiting).place)
			default:
				c.Sweep(now)
			}
			settle()
		}
		now += time.Hour
		c.Sweep(now)
		settle()
		for len(open) > 0 {
			pick(&open).place.Leave(now, Served)
			settle()
		}
		now += time.Hour
		c.Sweep(now)
		if s := c.Stats(now); s.InFlight != 0 || s.Queue.Length != 0 || s.Orphans != 0 || s.Clients != 0 || len(waiting) != 0 {
			t.Errorf("seed %d: at the end there is %+v", seed, s)
		}
	}
}

// A saturated backend is measured; one that idles is forgotten, and taken for what
// Little's law has of its limit.
func TestThroughput(t *testing.T) {
	p := mustPlan(t, PlanConfig{Limit: 10})
	var c Concurrency
	c.Use(p)
	if rate := c.Rate(p); rate < 109 || rate > 111 {
		t.Errorf("%v per second of ten places before anything is known, want 10 each and a tenth more", rate)
	}
	now, admitted, limitHits := time.Minute, uint64(0), uint64(0)
	second := func(served int, saturated bool) {
		var places []Place
		for range 10 {
			var pl Place
			if is, _ := c.Enter(now, p, &Entrant{}, &pl); is == Entered {
				places = append(places, pl)
				admitted++
			}
		}
		if saturated {
			limitHits++
		}
		c.measure(now, admitted, limitHits, p, !saturated)
		for i := range places {
			places[i].Leave(now, Detached)
		}
		admitted += uint64(served) - uint64(len(places))
		now += time.Second
	}
	for range 60 {
		second(40, true)
	}
	if rate := c.Rate(p); rate < 33 || rate > 49 {
		t.Errorf("%v per second of a backend that does 40", rate)
	}
	for range 90 {
		second(10, false)
	}
	if rate := c.Rate(p); rate < 90 {
		t.Errorf("%v per second a minute and a half after it was saturated, want it forgotten", rate)
	}
}
