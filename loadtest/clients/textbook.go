package clients

import (
	"math"
	"time"
)

// GoogleAnalytics waits 2^(n-1) s and 1 to 1000 ms, whole and uniform: Google
// Analytics' Core Reporting API, "Implementing exponential backoff". Its n starts at 0,
// and it ends when n is 5: the Catalog bounds it.
type GoogleAnalytics struct{}

// Next implements Policy.
func (GoogleAnalytics) Next(r Refused) (time.Duration, bool) {
	return seconds(math.Exp2(float64(max(r.Attempt, 1)-1))) + time.Millisecond + milliseconds(1000*r.U), true
}

// GoArray is the stateless policy of Peter Teichman's "Simple backoff": the
// n-th wait is m/2 + ⌊U·m⌋ ms, m being the n-th of these numbers, and the last
// of them for ever after. The first, 0, is before the first attempt.
type GoArray struct{}

var goArray = [...]float64{0, 10, 10, 100, 100, 500, 500, 3000, 3000, 5000}

// Next implements Policy.
func (GoArray) Next(r Refused) (time.Duration, bool) {
	m := goArray[min(max(r.Attempt, 0), len(goArray)-1)]
	return milliseconds(m/2) + milliseconds(r.U*m), true
}

// GoogleHTTPJava is ExponentialBackOff of google-http-java-client, with its
// defaults: an interval of 500 ms is multiplied by 1.5, rounded down to
// milliseconds, until it is 60 s; the wait is ⌊interval/2 + U·(interval + 1)⌋
// ms. It stops when more than 15 minutes have passed.
type GoogleHTTPJava struct{}

// Next implements Policy.
func (GoogleHTTPJava) Next(r Refused) (time.Duration, bool) {
	const most = 60_000
	if r.Elapsed > 15*time.Minute {
		return 0, false
	}
	interval := 500
	for n := 1; n < r.Attempt && interval < most; n++ {
		if float64(interval) >= most/1.5 {
			interval = most
		} else {
			interval = int(float64(interval) * 1.5)
		}
	}
	return milliseconds(float64(interval)/2 + r.U*(float64(interval)+1)), true
}

// Ethernet's numbers, IEEE 802.3 4.2.3.2.5.
const (
	backoffLimit = 10 // windows grow no more after so many collisions
	attemptLimit = 16
)

// Binary is truncated binary exponential backoff: it waits U·2^min(n,10) slots,
// and stops after 16 attempts: Metcalfe and Boggs, "Ethernet" (1976), and IEEE
// 802.3. Whole rounds down to whole slots, 0 to 2^min(n,10)-1, as Ethernet does.
// Otherwise waits are as in the second graph of "Exponential back-off, revisited" (2024).
type Binary struct {
	Slot  time.Duration // above 0
	Whole bool
}

// Next implements Policy.
func (p Binary) Next(r Refused) (time.Duration, bool) {
	if r.Attempt >= attemptLimit {
		return 0, false
	}
	slots := r.U * math.Exp2(float64(min(r.Attempt, backoffLimit)))
	if p.Whole {
		slots = math.Floor(slots)
	}
	return nanoseconds(slots * float64(p.Slot)), true
}

// ModifiedBinary retries once in each of the windows [2^n-2, 2^(n+1)-2) slots,
// n = 1, 2, 3 …, which do not overlap: the proposal of "Exponential back-off,
// revisited" (2024). It is the window strategy of Bender, Farach-Colton, He,
// Kuszmaul and Leiserson, "Adversarial Contention Resolution for Simple
// Channels" (2005). If all fail at once, the rate of retries never rises:
// N/2^⌊log2(t+2)⌋ per slot.
//
// The windows count from the first request. The wait is uniform in what is left of a
// window. A client that learns of its failure only after its window, as after a time-out,
// takes the current one.
type ModifiedBinary struct{ Slot time.Duration } // above 0

// Next implements Policy.
func (p ModifiedBinary) Next(r Refused) (time.Duration, bool) {
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

// ServerTiming waits exactly as long as the server says, or else 2^(n-1) s, for ever:
// J. J. Geewax, "API Design Patterns" (2021), 29.2.2 "Server-specified retry timing" and
// listing 29.1. Told never to come back, it stops.
type ServerTiming struct{}

// Next implements Policy.
func (ServerTiming) Next(r Refused) (time.Duration, bool) {
	if r.Hint.Never {
		return 0, false
	}
	if r.Hint.Seconds > 0 {
		return time.Duration(r.Hint.Seconds) * time.Second, true
	}
	return nanoseconds(power(time.Second, 0, 2, r.Attempt)), true
}

// Budgeted is Policy while fewer than Ratio of its process' requests are retries: the
// per-client retry budget of Beyer et al., "Site Reliability Engineering" (2016),
// "Handling Overload", with 10 %. Its per-request budget, 3 attempts, is a MaxAttempts.
// The book wants retries to be randomised and exponential ("Addressing Cascading Failures"), and
// gives no numbers for that.
type Budgeted struct {
	Ratio float64
	Policy
}

// Next implements Policy.
func (p Budgeted) Next(r Refused) (time.Duration, bool) {
	if r.Requests > 0 && float64(r.Retries) >= p.Ratio*float64(r.Requests) {
		return 0, false
	}
	return p.Policy.Next(r)
}
