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
