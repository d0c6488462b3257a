// Package clients models how clients retry: backoff, jitter, Retry-After, retry budgets
// and giving up.
//
// A [Policy] is data and a pure function. It gets everything that it may use, a random
// number included, and keeps no state. So a million clients share one value, and each
// client is a few numbers in a slice. A [Population] is a mix of policies. [Catalog] lists
// the named policies with their formulas and sources, and [Parse] reads a mix of names.
//
// A wait runs from the moment at which the client has read the rejection until it sends its
// next request. Network time is not included.
//
// In the formulas n counts the attempts that have failed, from 1, and U is
// uniform in [0, 1).
package clients

import (
	"time"

	"github.com/herdshield/shield/pushback"
)

// A Policy decides whether a client retries a failed attempt, and when. It is pure, and its
// values are comparable data. Waits are never negative, and at most a year.
type Policy interface {
	Next(Rejected) (after time.Duration, again bool)
}

// Statuses that are not HTTP's: no response came.
const (
	NoAnswer     = -1 // the client's timeout for the attempt was over
	NoConnection = -2 // the connection was rejected, or broke
)

// Rejected is what a client knows when an attempt has failed.
type Rejected struct {
	Attempt int           // requests sent so far for this: 1 when the first has failed
	Hint    pushback.Hint // what the response said; the zero Hint: nothing
	Gap     time.Duration // its wait before this attempt; 0 before the first
	Elapsed time.Duration // time since its first request
	U       float64       // a random number, uniform in [0, 1)

	// Status is the HTTP status of the response, NoAnswer or NoConnection. 0 means that
	// it is not known, and counts as 503.
	Status int

	// Retries and Requests are counts of all clients of one process so far: Requests of
	// attempts sent, Retries of decisions to retry. Code that runs a Population treats
	// each share as one process. If both are 0, nothing is counted and no budget binds.
	Retries, Requests int64
}

// longest bounds every wait. It is longer than any run, and short enough that adding it
// to an instant of a run does not overflow.
const longest = 365 * 24 * time.Hour

// nanoseconds is n nanoseconds, bounded by 0 and longest.
func nanoseconds(n float64) time.Duration {
	if !(n > 0) { // NaN too
		return 0
	}
	return time.Duration(min(n, float64(longest)))
}

// seconds is n seconds, bounded by 0 and longest.
func seconds(n float64) time.Duration { return nanoseconds(n * float64(time.Second)) }
