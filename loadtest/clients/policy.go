package clients

import (
	"math"
	"time"

	"github.com/herdshield/shield/pushback"
)

// A Policy decides when a client comes back whose attempt has failed, and
// whether it does. It is pure, and its values are comparable data. Waits are
// never negative, and at most a year.
type Policy interface {
	Next(Refused) (after time.Duration, again bool)
}

// Statuses that are not HTTP's: no answer came.
const (
	NoAnswer     = -1 // the client's time-out for the attempt was over
	NoConnection = -2 // the connection was refused, or broke
)

// Refused is what a client knows when an attempt has failed.
type Refused struct {
	Attempt int           // how many requests it has sent for this: 1 when the first failed
	Hint    pushback.Hint // what it was told; the zero Hint: nothing
	Gap     time.Duration // its wait before this attempt; 0 before the first
	Elapsed time.Duration // time since its first request
	U       float64       // a random number, uniform in [0, 1)

	// Status is the HTTP status of the answer, NoAnswer or NoConnection. 0: it
	// is not said, and taken for 503.
	Status int

	// Retries and Requests count what all clients of one process have done so
	// far: Requests the attempts that they have sent, Retries the times that they have
	// decided to come again. Whoever
	// runs a Population takes each of its shares for one process. Both 0: nobody
	// counts, and no budget binds.
	Retries, Requests int64
}

// longest bounds every wait: longer than any run, and short enough that adding
// it to an instant of a run does not overflow.
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

// milliseconds is n whole milliseconds, rounded down and bounded as nanoseconds.
func milliseconds(n float64) time.Duration {
	return nanoseconds(math.Floor(n) * float64(time.Millisecond))
}

// second makes of one random number, uniform in [0, 1), another: its digits
// after the first 26 bits. It has 27 bits of its own.
func second(u float64) float64 {
	u *= 1 << 26
	return u - float64(int64(u))
}
