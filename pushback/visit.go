package pushback

import "time"

// A Visit is what is known of a client that has come, as of then.
type Visit struct {
	Standing Standing
	Promises int           // how many times are promised to it
	At       time.Duration // the nearest of them
	Rejected bool          // it comes before its time while the line is long: it hears the same time again
	Shared   bool          // it is one of several clients behind one key
	Known    bool          // it has kept a promise not long ago

	turn    Turn
	unheard bool // it came before it can have heard its time
	proven  bool // it has come back before
	served  bool // it has kept a promise in the last minute
	late    bool // it came when it was told, and much later than that
	kind    Class
}

// Standing is how a visit compares with what was promised.
type Standing uint8

const (
	Stranger Standing = iota // nothing is promised to it
	Due                      // the time of its slot has come
	Asks                     // it was told to ask again, and does
	TooEarly                 // its time has not come
)

// OnTime reports whether a client has come when it was told.
func (v *Visit) OnTime() bool { return v.Standing == Due || v.Standing == Asks }

// What of a full bucket a request leaves to others while clients wait, as a share: a client
// that is due may take the last token.
const (
	reserveOfKnown  = 0.2
	reserveOfOthers = 0.3
	reserveOfShared = 0.5 // whoever comes could be the one that is due, so after new clients
)

// Reserve returns that share. doubt is how little new clients are trusted to come back.
func (v *Visit) Reserve(doubt float64) float64 {
	switch {
	case v.Shared:
		return reserveOfShared
	case v.Standing == Due:
		return 0
	case v.Known:
		return reserveOfKnown
	case v.Standing == Asks:
		return reserveOfOthers
	}
	return reserveOfOthers + (1-reserveOfOthers)*doubt
}
