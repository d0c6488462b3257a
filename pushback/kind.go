package pushback

import "time"

// A Class is how a client behaves, judged by when it has come back last.
type Class uint8

const (
	Unknown Class = iota // it has not come back yet
	Honours              // when it was told
	Late                 // later, as with its own backoff on top
	Hammer               // at once
	Early                // within two seconds, whatever it was told
	Own                  // at a time of its own before the one that it was told

	Classes = iota
)

func (c Class) String() string {
	return [...]string{"unknown", "honours", "late", "hammer", "early", "own"}[c]
}

// classOf judges a client that comes after a gap, when it was told to wait for so long.
func classOf(gap, wait time.Duration) Class {
	switch {
	case gap > lateEnd(wait):
		return Late
	case gap >= wait-tolerance:
		return Honours
	case gap < 80*time.Millisecond:
		return Hammer
	case gap < 2200*time.Millisecond:
		return Early
	}
	return Own
}

// lateEnd is the longest gap of a client that honours a wait: some add a quarter, and the
// answer and the request have been on their way.
func lateEnd(wait time.Duration) time.Duration { return wait + wait/4 + 1100*time.Millisecond }
