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

func react(u float64) time.Duration { return time.Duration(-math.Log1p(-u) * float64(reaction)) }

// untold is what clients that honor Retry-After do when there is none: they stop if told
// never to come back, and otherwise behave as an Ignore.
func untold(r Rejected) (time.Duration, bool) {
	if r.Hint.Never {
		return 0, false
	}
	return Ignore{}.Next(r)
}

// Exact waits the whole seconds of Retry-After, and then reacts. Without it, see untold.
type Exact struct{}

func (Exact) Next(r Rejected) (time.Duration, bool) {
	if r.Hint.Seconds == 0 {
		return untold(r)
	}
	return time.Duration(r.Hint.Seconds)*time.Second + react(r.U), true
}

func (Exact) String() string { return "exact" }

// Late waits a uniform share of Retry-After longer than Exact.
type Late struct {
	By float64 // the share at most, above 0: 0.2 means up to 20%
}

func (p Late) Next(r Rejected) (time.Duration, bool) {
	if r.Hint.Seconds == 0 {
		return untold(r)
	}
	return seconds(float64(r.Hint.Seconds) * (1 + p.By*r.U)), true
}

func (p Late) String() string { return fmt.Sprintf("late by up to %.0f%%", 100*p.By) }

// Ignore does not read Retry-After, and backs off with AWS' full jitter: see FullJitter.
type Ignore struct{}

func (Ignore) Next(r Rejected) (time.Duration, bool) {
	return seconds(r.U * min(60, math.Exp2(float64(r.Attempt-1)))), true
}

func (Ignore) String() string { return "ignores" }

// Fixed comes back after the same Gap, always.
type Fixed struct{ Gap time.Duration }

func (p Fixed) Next(Rejected) (time.Duration, bool) { return p.Gap, true }

func (p Fixed) String() string { return fmt.Sprintf("every %v", p.Gap) }

// Hammer polls: it comes back after Gap ± 10%, whatever it is told.
type Hammer struct{ Gap time.Duration }

func (p Hammer) Next(r Rejected) (time.Duration, bool) {
	return nanoseconds(float64(p.Gap) * (0.9 + 0.2*r.U)), true
}

func (p Hammer) String() string { return fmt.Sprintf("hammers every %v", p.Gap) }

// GiveUp does not come back.
type GiveUp struct{}

func (GiveUp) Next(Rejected) (time.Duration, bool) { return 0, false }

func (GiveUp) String() string { return "never returns" }

// MaxAttempts is Policy until N requests have been rejected.
type MaxAttempts struct {
	N int
	Policy
}

func (p MaxAttempts) Next(r Rejected) (time.Duration, bool) {
	if r.Attempt >= p.N {
		return 0, false
	}
	return p.Policy.Next(r)
}

func (p MaxAttempts) String() string { return fmt.Sprintf("%v, %d attempts", p.Policy, p.N) }
