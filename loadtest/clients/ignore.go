package clients

import (
	"fmt"
	"math"
	"time"
)

// Ignore does not read Retry-After. It backs off with full jitter, from 1 s
// doubling to 60 s: U·min(60 s, 2^(attempt-1) s). The formula is that of AWS,
// "Exponential Backoff And Jitter" (2015).
type Ignore struct{}

// Next implements Policy.
func (Ignore) Next(r Refused) (time.Duration, bool) {
	return seconds(r.U * min(60, math.Exp2(float64(r.Attempt-1)))), true
}

func (Ignore) String() string { return "ignores" }

// Fixed comes back after the same Gap, always.
type Fixed struct{ Gap time.Duration }

// Next implements Policy.
func (p Fixed) Next(Refused) (time.Duration, bool) { return p.Gap, true }

func (p Fixed) String() string { return fmt.Sprintf("every %v", p.Gap) }

// Hammer polls: it comes back after Gap ± 10 %, whatever it is told.
type Hammer struct{ Gap time.Duration }

// Next implements Policy.
func (p Hammer) Next(r Refused) (time.Duration, bool) {
	return nanoseconds(float64(p.Gap) * (0.9 + 0.2*r.U)), true
}

func (p Hammer) String() string { return fmt.Sprintf("hammers every %v", p.Gap) }

// GiveUp does not come back.
type GiveUp struct{}

// Next implements Policy.
func (GiveUp) Next(Refused) (time.Duration, bool) { return 0, false }

func (GiveUp) String() string { return "never returns" }

// MaxAttempts is Policy until N requests have been refused.
type MaxAttempts struct {
	N int
	Policy
}

// Next implements Policy.
func (p MaxAttempts) Next(r Refused) (time.Duration, bool) {
	if r.Attempt >= p.N {
		return 0, false
	}
	return p.Policy.Next(r)
}

func (p MaxAttempts) String() string { return fmt.Sprintf("%v, %d attempts", p.Policy, p.N) }
