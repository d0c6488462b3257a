package clients

import (
	"time"

	"github.com/herdshield/shield/pushback"
)

// A Policy decides when a refused client comes back, and whether it does. It is
// pure, and its values are comparable data.
type Policy interface {
	Next(Refused) (after time.Duration, again bool)
}

// Refused is what a client knows when it has read a refusal.
type Refused struct {
	Attempt int           // how many requests it has sent for this: 1 when the first was refused
	Hint    pushback.Hint // what it was told; the zero Hint: nothing
	Gap     time.Duration // its wait before this attempt; 0 before the first
	Elapsed time.Duration // time since its first request
	U       float64       // a random number, uniform in [0, 1)
}

// seconds is n seconds.
func seconds(n float64) time.Duration { return time.Duration(n * float64(time.Second)) }
