package pushback

// A Visit is what is known of a client that has come, as of then.
type Visit struct {
	Standing Standing
	Rejected bool // it comes before its time while the line is long: it hears the same time again

	shared bool // it is one of several clients behind one key
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

// IsDue reports whether the time of the client's slot has come.
func (v *Visit) IsDue() bool { return v.Standing == Due }

// IsEarly reports whether the client comes before its time.
func (v *Visit) IsEarly() bool { return v.Standing == TooEarly }

// proven reports whether the client has come back when it was told, now or before.
func (v *Visit) proven() bool { return v.Trust == Proven || v.served || v.OnTime() }

// OnTime reports whether a client has come when it was told.
func (v *Visit) OnTime() bool { return v.Standing == Due || v.Standing == Asks }

// The share of a full bucket that a request leaves to others while clients wait: one that is
// due may take the last token.
const (
	reserveOfOthers = 0.3
	reserveOfShared = 0.5 // any of them could be the one that is due, so they go after new clients
)

// Reserve returns how many tokens that is of a bucket. doubt is how little new clients are trusted to come back.
func (v *Visit) Reserve(doubt float64, burst int) (tokens int) {
	share := reserveOfOthers
	switch {
	case v.shared:
		share = reserveOfShared
	case v.Standing == Due:
		return 0
	case v.Standing != Asks && !v.ready:
		share += (1 - share) * doubt
	}
	// Of a bucket of two or three, something is left to take.
	most := max(burst-2, min(burst-1, 2))
	return max(0, min(int(share*float64(burst)), most))
}
