package clients

import (
	"fmt"
	"math"
	"time"
)

// reaction is the mean time that a client takes to act when its timer fires. It is
// distributed exponentially. Ours: what timers, schedulers and a connection from a pool
// take on a machine that is not idle.
const reaction = 5 * time.Millisecond

func react(u float64) time.Duration {
	return time.Duration(-math.Log1p(-u) * float64(reaction))
}

// untold is what clients that honour Retry-After do when there is none: they stop if told
// never to come back, and otherwise behave as an Ignore.
func untold(r Refused) (time.Duration, bool) {
	if r.Hint.Never {
		return 0, false
	}
	return Ignore{}.Next(r)
}

// Exact waits the whole seconds of Retry-After, and then reacts. Without
// Retry-After it behaves as an Ignore. Told never to come back, it stops.
type Exact struct{}

// Next implements Policy.
func (Exact) Next(r Refused) (time.Duration, bool) {
	if r.Hint.Seconds == 0 {
		return untold(r)
	}
	return time.Duration(r.Hint.Seconds)*time.Second + react(r.U), true
}

func (Exact) String() string { return "exact" }

// ExactMs waits the milliseconds of Retry-After-Ms or of gRPC's pushback, and
// then reacts. Otherwise it behaves as Exact.
type ExactMs struct{}

// Next implements Policy.
func (ExactMs) Next(r Refused) (time.Duration, bool) {
	if r.Hint.Ms == 0 {
		return untold(r)
	}
	return time.Duration(r.Hint.Ms)*time.Millisecond + react(r.U), true
}

func (ExactMs) String() string { return "exact ms" }

// Late waits the whole seconds of Retry-After and a uniform share of them, at
// most By, more. Otherwise it behaves as Exact.
type Late struct {
	By float64 // above 0: 0.2 means up to 20 %
}

// Next implements Policy.
func (p Late) Next(r Refused) (time.Duration, bool) {
	if r.Hint.Seconds == 0 {
		return untold(r)
	}
	return seconds(float64(r.Hint.Seconds) * (1 + p.By*r.U)), true
}

func (p Late) String() string { return fmt.Sprintf("late by up to %.0f %%", 100*p.By) }
