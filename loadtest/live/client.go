package live

import (
	"net/http"
	"strconv"
	"time"
)

// An answer is what one attempt brought the client.
type answer struct {
	status     int    // HTTP status, or timedOut, or unreachable
	retryAfter string // the Retry-After field as received, "" if none
}

// What stands in for a status when there was none.
const (
	timedOut    = 0  // no complete answer within the client's time-out
	unreachable = -1 // connection refused or broken
)

// A verdict is what a client does after an attempt.
type verdict int

const (
	served verdict = iota // it has what it came for
	retry                 // it tries again after a wait
	gaveUp                // it goes away without
)

func (v verdict) String() string {
	return [...]string{"served", "retry", "gave up"}[v]
}

// decide returns what a client does after its attempt number n (the first is
// 1), which ended elapsed after its first one began, and for retry how long it
// waits. It is the client's whole behaviour: no clock, no randomness.
//
// A client never tries more than c.Attempts times, and never begins an attempt
// later than c.Patience.
func (c HerdConfig) decide(a answer, n int, elapsed time.Duration) (verdict, time.Duration) {
	switch {
	case a.status >= 200 && a.status < 300:
		return served, 0
	case !retryable(a.status), n >= c.Attempts:
		return gaveUp, 0
	}
	wait := c.RetryDelay
	if told, ok := retryAfter(a); ok {
		wait = told
	}
	if wait > c.Patience-elapsed { // not elapsed+wait, which a huge Retry-After would overflow
		return gaveUp, 0
	}
	return retry, wait
}

// retryable reports whether trying again may help: no answer, 429, or a fault
// of the server. What is wrong with the request itself stays wrong.
func retryable(status int) bool {
	return status == timedOut || status == unreachable ||
		status == http.StatusTooManyRequests || status >= 500
}

// retryAfter returns how long a is told to wait. Only 429 and 503 can tell, and
// only in delay-seconds (RFC 9110, section 10.2.3): few clients read dates.
func retryAfter(a answer) (time.Duration, bool) {
	if a.status != http.StatusTooManyRequests && a.status != http.StatusServiceUnavailable {
		return 0, false
	}
	seconds, err := strconv.ParseUint(a.retryAfter, 10, 31) // 31 bits of seconds fit in a Duration
	if err != nil {
		return 0, false
	}
	return time.Duration(seconds) * time.Second, true
}
