package loadshed

import (
	"fmt"
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
	c.Use(plan, true)
	now := time.Minute // since an epoch of the caller's
	var permits [4]Permit
	for i := range permits {
		is, _ := c.Enter(now, plan, &Entrant{}, &permits[i])
		fmt.Println(i, map[Entry]string{Entered: "enters", Waiting: "waits", Full: "is rejected"}[is])
	}
	permits[0].Leave(now+30*time.Millisecond, Served)
	verdict := <-permits[2].Verdict()
	fmt.Println(2, verdict == Granted && c.Settle(now+30*time.Millisecond, plan, &permits[2], verdict))
	// Output:
	// 0 enters
	// 1 enters
	// 2 waits
	// 3 is rejected
	// 2 true
}

func mustPlan(t testing.TB, c PlanConfig) *Plan {
	t.Helper()
	p, err := NewPlan(c)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// A saturated backend is measured; one that idles is forgotten, and taken for what
// Little's law has of its limit.
func TestThroughput(t *testing.T) {
	p := mustPlan(t, PlanConfig{Limit: 10})
	var c Concurrency
	c.Use(p, true)
	if rate := c.Rate(p); rate < 109 || rate > 111 {
		t.Errorf("%v per second of ten permits before anything is known, want 10 each and a tenth more", rate)
	}
	now, admitted, limitHits := time.Minute, uint64(0), uint64(0)
	second := func(served int, saturated bool, ends Outcome) {
		var permits []Permit
		for range 10 {
			var pl Permit
			if is, _ := c.Enter(now, p, &Entrant{}, &pl); is == Entered {
				permits = append(permits, pl)
				admitted++
			}
		}
		if saturated {
			limitHits++
		}
		c.measure(now, admitted, limitHits, p, !saturated)
		for i := range permits {
			permits[i].Leave(now, ends)
		}
		admitted += uint64(served) - uint64(len(permits))
		now += time.Second
	}
	for range 60 {
		second(40, true, Detached)
	}
	if rate := c.Rate(p); rate < 33 || rate > 49 {
		t.Errorf("%v per second of a backend that does 40", rate)
	}
	for range 90 {
		second(10, false, Detached)
	}
	if rate := c.Rate(p); rate < 90 {
		t.Errorf("%v per second a minute and a half after it was saturated, want it forgotten", rate)
	}
	for range 60 {
		second(50, true, Overloaded) // ten of them
	}
	if rate := c.Rate(p); rate < 33 || rate > 49 {
		t.Errorf("%v per second of a backend that does 40 and refuses 10", rate)
	}
	c.pause.until.Store(int64(now))
	if c.resume(now, p); c.Rate(p) < 90 {
		t.Errorf("%v per second after a pause, want what the limit lets expect", c.Rate(p))
	}
}
