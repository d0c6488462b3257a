package pushback

import "time"

// A Visit is what is known of a client that has come, as of then. It is written by
// Ledger.Visit, and completed by Appointments, which knows the tickets and the queue.
type Visit struct {
	Standing Standing
	Trust    Trust

	Promises int           // how many times are promised to this client
	At       time.Duration // the nearest of them, which an early client is told again
	Deferred bool          // At is no slot but the time at which to ask again
	Number   uint32        // if Deferred: its position in the queue, see Calendar.Rebook

	Pass         bool // it has kept a promise not long ago, and has not asked for much since
	Due          bool // its slot, or its number in the queue, has come
	Late         bool // on time, but later than a client that obeys
	Served       bool // its last promise was done with less than a minute ago: a ticket for it is used
	BeforeAnswer bool // it came before the client can have received its time
	Uncontended  bool // no other client waits
	Hammers      bool // the client does not obey, so nothing should be spent on it

	// NearlyDue: it came early, but has waited for most of the time. Its next return
	// might be long after its time, so it is better served now.
	NearlyDue bool

	// Crowd: it is one of a crowd behind one key, whose promises are told apart by their
	// times only. If it has Promises, promise is what it came for.
	Crowd   bool
	Excess  bool // the crowd wants more than its share of the calendar
	promise promise

	// Standby: it has a time to come already, or has come before it, and others wait. It
	// may have what would be lost otherwise. Rejected: its promise stands, so that it costs
	// no more to refuse it.
	Standby, Rejected bool

	turn  Turn // of the Core
	tried bool
}

// number returns the client's number in the queue, given one that is being served: the
// nearest to that one that the record may mean.
func (v *Visit) number(served float64) float64 {
	n := int64(served) / numberUnit
	d := (int64(v.Number) - n) << 46 >> 46 // 18 bits
	return float64((n + d) * numberUnit)
}

// Trust is whether a client is known to come back when it is told to.
type Trust uint8

const (
	Untried Trust = iota // it has not come back yet
	Proven               // it has come back when it was told, and may be refused then

	trusts = iota
)

// Standing is how a visit compares with what was promised.
type Standing uint8

const (
	Stranger     Standing = iota // has no valid promise
	OnTime                       // its time has come
	TooEarly                     // it repeats a request before its time
	OtherRequest                 // it has a time to come, but this is another request
	Ambiguous                    // one of several clients behind one key, too early or with another request
)

// Unpaid reports whether a request comes before its time, and others pay for it.
func (v *Visit) Unpaid() bool { return v.Standing == TooEarly && !v.NearlyDue && !v.Uncontended }

// How many of the tokens of a full bucket a request leaves to others while a backlog
// stands, in tenths. Clients that are due, or nearly, may take the last.
const (
	reserveOfChance   = 2 // deferred, and drawn to be let in
	reserveOfPass     = 2
	reserveOfStranger = 3
	reserveOfDoubted  = 10 // all but what would be lost: strangers in a flood
	reserveOfDeferred = 9
)

// Reserve returns that of a request that is not on Standby. doubt is how little strangers
// are trusted to come back.
func (v *Visit) Reserve(doubt float64) int {
	switch {
	case v.Due || v.NearlyDue || v.Uncontended:
		return 0
	case v.Standing == OnTime:
		return reserveOfDeferred
	case v.Pass:
		return reserveOfPass
	default:
		return reserveOfStranger + int(doubt*(reserveOfDoubted-reserveOfStranger))
	}
}

// Draws reports whether chance may let a deferred client in: see Drawn.
func (v *Visit) Draws() bool { return v.Standing == OnTime && !v.Due }
