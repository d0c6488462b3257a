package clients

import (
	"fmt"
	"math"
	"time"
)

// power is base·factor^(n-1), at most limit if limit is above 0.
func power(base, limit time.Duration, factor float64, n int) float64 {
	wait := float64(base) * math.Pow(factor, float64(max(n, 1)-1))
	if base <= 0 { // 0·∞
		wait = 0
	}
	if limit > 0 {
		wait = min(wait, float64(limit))
	}
	return wait
}

// Exponential waits min(Cap, Base·Factor^(n-1)), times a uniform factor
// between 1-Jitter and 1+Jitter.
type Exponential struct {
	Base, Cap time.Duration // a Cap of 0: none
	Factor    float64       // at least 1
	Jitter    float64       // 0 to 1
}

func (p Exponential) Next(r Rejected) (time.Duration, bool) {
	return nanoseconds(power(p.Base, p.Cap, p.Factor, r.Attempt) * (1 + p.Jitter*(2*r.U-1))), true
}

func (p Exponential) String() string {
	return fmt.Sprintf("%v × %v to %v ± %.0f%%", p.Base, p.Factor, p.Cap, 100*p.Jitter)
}

// FullJitter waits U·min(limit, base·2^(n-1)): AWS Architecture Blog,
// "Exponential Backoff And Jitter" (2015), whose exponent starts at 0.
func FullJitter(base, limit time.Duration) Exponential { return jittered(base, limit, 0, 1) }

// EqualJitter waits v/2 + U·v/2, v = min(limit, base·2^(n-1)); see FullJitter.
func EqualJitter(base, limit time.Duration) Exponential { return jittered(base, limit, 0.5, 1) }

// jittered waits a uniform share, from low to high, of min(limit, base·2^(n-1)).
func jittered(base, limit time.Duration, low, high float64) Exponential {
	mean := (low + high) / 2
	return Exponential{
		Base: nanoseconds(mean * float64(base)), Cap: nanoseconds(mean * float64(limit)), Factor: 2, Jitter: (high - low) / (high + low),
	}
}

// Decorrelated waits min(Cap, Base + U·(3·s - Base)), where s is its last wait, or Base
// at first: AWS's decorrelated jitter; see FullJitter.
type Decorrelated struct{ Base, Cap time.Duration }

func (p Decorrelated) Next(r Rejected) (time.Duration, bool) {
	last := max(r.Gap, p.Base)
	wait := float64(p.Base) + r.U*(3*float64(last)-float64(p.Base))
	return nanoseconds(min(float64(p.Cap), wait)), true
}

func (p Decorrelated) String() string { return fmt.Sprintf("decorrelated, %v to %v", p.Base, p.Cap) }

// Plus adds a uniform share of Spread to the waits of Policy.
type Plus struct {
	Spread time.Duration
	Policy // should not use U: Plus uses the same number
}

func (p Plus) Next(r Rejected) (time.Duration, bool) {
	wait, again := p.Policy.Next(r)
	return nanoseconds(float64(wait) + r.U*float64(p.Spread)), again
}

// Budgeted is Policy while fewer than Ratio of its process' requests are retries.
type Budgeted struct {
	Ratio float64
	Policy
}

func (p Budgeted) Next(r Rejected) (time.Duration, bool) {
	if r.Requests > 0 && float64(r.Retries) >= p.Ratio*float64(r.Requests) {
		return 0, false
	}
	return p.Policy.Next(r)
}
