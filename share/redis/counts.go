package redis

import (
	"sync/atomic"
	"time"
)

// An outcome is what became of an exchange.
type outcome int

const (
	inTime  outcome = iota // answered within share.MaxTrip
	slow                   // answered later; of use, but the replica works alone
	late                   // given up
	refused                // the server replied an error
	failed                 // no connection, or a broken one
	outcomes
)

var outcomeNames = [outcomes]string{"answered", "slow", "late", "refused", "failed"}

// TripBuckets are the upper bounds of the Trips of Exchanges, which have one more for all
// that take longer.
var TripBuckets = [...]time.Duration{
	250 * time.Microsecond, 500 * time.Microsecond, time.Millisecond, 2 * time.Millisecond, 5 * time.Millisecond,
	10 * time.Millisecond, 25 * time.Millisecond, 50 * time.Millisecond, 100 * time.Millisecond, 250 * time.Millisecond,
}

// exchanges counts what became of the exchanges of one kind.
type exchanges struct {
	outcomes [outcomes]atomic.Uint64
	trips    [len(TripBuckets) + 1]atomic.Uint64 // of those that were answered
	took     atomic.Int64                        // all of those together
}

func (e *exchanges) add(o outcome, trip time.Duration) {
	e.outcomes[o].Add(1)
	if o != inTime && o != slow {
		return
	}
	i := 0
	for i < len(TripBuckets) && trip > TripBuckets[i] {
		i++
	}
	e.trips[i].Add(1)
	e.took.Add(int64(trip))
}

// Exchanges are the exchanges of one kind since the Client was opened.
type Exchanges struct {
	Outcomes map[string]uint64 // answered, slow, late, refused, failed
	Trips    []uint64          // of those answered or slow, by TripBuckets
	Took     time.Duration     // of those, together
}

func (e *exchanges) read() Exchanges {
	read := Exchanges{Outcomes: map[string]uint64{}, Took: time.Duration(e.took.Load())}
	for o := range outcomes {
		read.Outcomes[outcomeNames[o]] = e.outcomes[o].Load()
	}
	for i := range e.trips {
		read.Trips = append(read.Trips, e.trips[i].Load())
	}
	return read
}
