package pushback

import "time"

// A Visit is what is known of a client that has come, as of then.
type Visit struct {
	Standing Standing
	Rejected bool // it comes before its time while the line is long: it hears the same time again

	Hopeless bool // so many have numbers before it that the whole backend does not serve them within half of the longest wait
	Shared   bool // it is one of several clients behind one key
	found
}

// Standing is how a visit compares with what was promised.
type Standing uint8

const (
	NewClient Standing = iota // nothing is promised to it
	Due                       // the time of its slot has come
	Asks                      // it was told to ask again, and does
	TooEarly                  // its time has not come
)

// proven reports whether the client has come back when it was told, now or before.
func (v *Visit) proven() bool { return v.Trust == Proven || v.served || v.OnTime() }

// OnTime reports whether a client has come when it was told.
func (v *Visit) OnTime() bool { return v.Standing == Due || v.Standing == Asks }

// First reports whether the client goes before new ones: it is due, or known.
func (v *Visit) First() bool { return v.Standing == Due || v.ready }

// Urgent reports whether the client goes before all others: it is due, or in the middle of a task.
func (v *Visit) Urgent() bool { return v.Standing == Due || v.soon }

// A Class is how a client behaves, judged by when it has come back last.
type Class uint8

const (
	unknown Class = iota // it has not come back yet
	honors               // when it was told
	late                 // later, as with its own backoff on top
	hammer               // at once
	early                // within two seconds, whatever it was told
	own                  // at a time of its own before the one that it was told

	Classes = iota
)

func (c Class) String() string {
	return [...]string{"unknown", "honors", "late", "hammer", "early", "own"}[c]
}

// classOf judges a client that comes after a gap, when it was told to wait for so long.
func classOf(gap, wait time.Duration) Class {
	switch {
	case gap > lateEnd(wait):
		return late
	case gap >= wait-tolerance:
		return honors
	case gap < 80*time.Millisecond:
		return hammer
	case gap < 2200*time.Millisecond:
		return early
	}
	return own
}

// lateEnd is the longest gap of a client that honors a wait: some add a quarter, and the
// answer and the request have been on their way.
func lateEnd(wait time.Duration) time.Duration { return wait + wait/4 + 1100*time.Millisecond }
