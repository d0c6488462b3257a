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

// The formulas and sources of these policies are in the Catalog.

type GoogleAnalytics struct{}

func (GoogleAnalytics) Next(r Rejected) (time.Duration, bool) {
	return seconds(math.Exp2(float64(max(r.Attempt, 1)-1))) + time.Millisecond + milliseconds(1000*r.U), true
}

type GoArray struct{}

// goArray has the milliseconds before each attempt, and the last for all later ones.
var goArray = [...]float64{0, 10, 10, 100, 100, 500, 500, 3000, 3000, 5000}

func (GoArray) Next(r Rejected) (time.Duration, bool) {
	m := goArray[min(max(r.Attempt, 0), len(goArray)-1)]
	return milliseconds(m/2) + milliseconds(r.U*m), true
}

// GoogleHTTPJava rounds its interval down to milliseconds each time that it multiplies it.
type GoogleHTTPJava struct{}

func (GoogleHTTPJava) Next(r Rejected) (time.Duration, bool) {
	const most = 60_000
	if r.Elapsed > 15*time.Minute {
		return 0, false
	}
	interval := 500
	for n := 1; n < r.Attempt && interval < most; n++ {
		interval = min(int(float64(interval)*1.5), most)
	}
	return milliseconds(float64(interval)/2 + r.U*(float64(interval)+1)), true
}

// Ethernet's numbers, IEEE 802.3 4.2.3.2.5.
const (
	backoffLimit = 10 // windows grow no more after so many collisions
	attemptLimit = 16
)

// Binary is truncated binary exponential backoff in slots of 1 s. Whole rounds down to whole
// slots, 0 to 2^min(n,10)-1, as Ethernet does.
type Binary struct{ Whole bool }

func (p Binary) Next(r Rejected) (time.Duration, bool) {
	if r.Attempt >= attemptLimit {
		return 0, false
	}
	slots := r.U * math.Exp2(float64(min(r.Attempt, backoffLimit)))
	if p.Whole {
		slots = math.Floor(slots)
	}
	return seconds(slots), true
}

// ModifiedBinary retries once in each of the windows [2^n-2, 2^(n+1)-2) slots, n = 1, 2, 3 …,
// which do not overlap. If all fail at once, the rate of retries never rises:
// N/2^⌊log2(t+2)⌋ per slot. The wait is uniform in what is left of a window. A client that
// learns of its failure only after its window, as after a timeout, takes the current one.
type ModifiedBinary struct{ Slot time.Duration } // above 0

func (p ModifiedBinary) Next(r Rejected) (time.Duration, bool) {
	now := max(r.Elapsed, 0).Seconds() / p.Slot.Seconds()
	for n := min(max(r.Attempt, 1), 60); ; n++ {
		size := math.Exp2(float64(n))
		start, end := size-2, 2*size-2
		if now < end || n == 62 {
			start = max(start, now)
			return nanoseconds((start + r.U*(end-start) - now) * float64(p.Slot)), true
		}
	}
}

// ServerTiming waits exactly as long as the server says. Told never to come back, it stops.
type ServerTiming struct{}

func (ServerTiming) Next(r Rejected) (time.Duration, bool) {
	if r.Hint.Never {
		return 0, false
	}
	if r.Hint.Seconds > 0 {
		return time.Duration(r.Hint.Seconds) * time.Second, true
	}
	return nanoseconds(power(time.Second, 0, 2, r.Attempt)), true
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
