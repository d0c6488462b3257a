package pushback

import (
	"math/bits"
	"time"
)

// A record holds what is known of one client, in 16 bytes:
//
//	who:  tag 40 | due 24 (5 ms)
//	what: told 13 (16 ms) | number 18 (32) | count 10 | fingerprint 5 | strikes 5 | class 3 | gap 6 | score 2 | protected 1 | deferred 1
//
// Instants are kept modulo their range, 23 hours and 131 s, and read as the nearest to
// now. That is right for those that still matter: no promise is farther than maxAhead,
// and none is worth anything maxLate after. An older one may be misread once in 23
// hours, as a promise that was never made.
type record struct{ who, what uint64 }

const (
	dueUnit    = 5 * time.Millisecond // divides SlotWidth: rounded down, a slot stays in its bucket
	toldUnit   = 16 * time.Millisecond
	numberUnit = 32

	tagShift = 24
	dueMask  = 1<<24 - 1

	// maxAhead is the longest promise with its penalty, and a second for rounding.
	maxAhead = maxSeconds*time.Second + maxPenalties*penalty + time.Second

	// maxLate is how late a client may come and still count as on time: some add their own
	// backoff, of up to 30 s or a fifth.
	maxLate = 60 * time.Second
)

// field is a bit field of record.what.
type field struct{ shift, bits uint8 }

var (
	fTold        = field{51, 13}
	fNumber      = field{33, 18}
	fCount       = field{23, 10}
	fFingerprint = field{18, 5}
	fStrikes     = field{13, 5}
	fClass       = field{10, 3}
	fGap         = field{4, 6}
	fScore       = field{2, 2}
	fProtected   = field{1, 1}
	fDeferred    = field{0, 1}
)

func (r *record) get(f field) uint64 { return r.what >> f.shift & (1<<f.bits - 1) }

func (r *record) set(f field, v uint64) {
	mask := uint64(1<<f.bits - 1)
	r.what = r.what&^(mask<<f.shift) | v&mask<<f.shift
}

// add adds to a counter that stops at its ends.
func (r *record) add(f field, n int) {
	v := min(max(0, int(r.get(f))+n), 1<<f.bits-1)
	r.set(f, uint64(v))
}

func (r *record) due(now time.Duration) time.Duration { return near(r.who&dueMask, 24, dueUnit, now) }

// setDue rounds down, so that no client is early by rounding.
func (r *record) setDue(at time.Duration) {
	r.who = r.who&^dueMask | uint64(at/dueUnit)&dueMask
}

// told returns when the client was told: up to 130 s ago, or within a second from now if
// the answer is held back.
func (r *record) told(now time.Duration) time.Duration {
	const turn = toldUnit << 13
	told := near(r.get(fTold), 13, toldUnit, now)
	if told > now+time.Second+toldUnit {
		told -= turn
	}
	return told
}

func (r *record) setTold(at time.Duration) { r.set(fTold, uint64(at/toldUnit)) }

// near returns the instant nearest to now that is v units modulo 2^bits.
func near(v uint64, bits int, unit, now time.Duration) time.Duration {
	n := int64(now / unit)
	d := (int64(v) - n) << (64 - bits) >> (64 - bits)
	return time.Duration(n+d) * unit
}

// outstanding returns how many valid promises the client has.
func (r *record) outstanding(now time.Duration) int {
	n := int(r.get(fCount))
	if n == 0 {
		return 0
	}
	if due := r.due(now); due > now+maxAhead || due < now-maxLate {
		return 0
	}
	return n
}

// While some promises of a client with slots are due, those that replace others are put
// aside, in the bits of a deferred client's number: how many, 8 bits, and the earliest,
// 10 bits of asideUnit.
const (
	asideBits = 10
	asideUnit = 128 * time.Millisecond
	maxAside  = 1<<8 - 1
)

// putAside adds a promise to those put aside, unless they are too many.
func (r *record) putAside(now, at time.Duration) bool {
	n, earliest := r.aside(now)
	if r.get(fDeferred) == 1 || n == maxAside {
		return false
	}
	if n > 0 {
		at = min(at, earliest)
	}
	r.set(fNumber, uint64(n+1)<<asideBits|uint64(at/asideUnit)&(1<<asideBits-1))
	return true
}

// aside returns how many promises are put aside, and the earliest of them.
func (r *record) aside(now time.Duration) (n int, earliest time.Duration) {
	if r.get(fDeferred) == 1 {
		return 0, 0
	}
	aside := r.get(fNumber)
	return int(aside >> asideBits), near(aside&(1<<asideBits-1), asideBits, asideUnit, now)
}

// A client that is Proven and expects nothing has a pass, in the same bits: it goes before
// strangers for passLife after the promise that it kept. It is worth a request for each
// passInterval that has gone by, up to passBurst, as a token bucket that begins empty, so
// that many appointments gain nothing. Ours: the next pages of a visit, with a few things
// on each.
const (
	passBits     = 18
	passUnit     = 16 * time.Millisecond
	passLife     = 5 * time.Minute
	passInterval = 4 * time.Second
	passBurst    = 16
)

// pass returns from when on the client's pass is good for one more request, and whether it
// has one.
func (r *record) pass(now time.Duration) (from time.Duration, ok bool) {
	if r.trust() != Proven || r.get(fCount) > 0 || now > r.due(now)+passLife {
		return 0, false
	}
	return near(r.get(fNumber), passBits, passUnit, now), true
}

// setPass says that the pass is empty at an instant.
func (r *record) setPass(empty time.Duration) {
	r.set(fNumber, uint64((empty+passInterval)/passUnit))
}

// recall restores the promises that were put aside, and reports whether there were any.
func (r *record) recall(now time.Duration) bool {
	n, earliest := r.aside(now)
	if n == 0 {
		return false
	}
	r.setDue(earliest)
	r.set(fCount, uint64(n))
	r.set(fNumber, 0)
	return true
}

func (r *record) trust() Trust { return Trust(r.get(fProtected)) }

// A Class is how a client behaves, judged by its returns.
type Class uint8

const (
	Unknown     Class = iota // has not come back yet
	Honours                  // comes when it was told
	Late                     // comes later, as with its own backoff on top
	Hammer                   // comes at once, over and over
	Fixed                    // comes at its own fixed interval
	Exponential              // comes at its own growing intervals
	Jittered                 // comes at its own random intervals
	Early                    // comes within two seconds, whatever it was told

	Classes = iota
)

func (c Class) String() string {
	return nameOf("Class", c, "unknown", "honours", "late", "hammer", "fixed", "exponential", "jittered", "early")
}

// observe classifies the client by a return at now. From two returns of
// simulated clients it recognises all that honour, hammer, or come at growing intervals. Of
// those with a fixed interval of up to 8 s it recognises 9 of 10; some of the others come
// on time by luck. Random
// intervals are told from short ones no better than by guessing. It relies on different
// clients being told different times.
func (r *record) observe(now time.Duration) {
	told, due := r.told(now), r.due(now)
	gap, wait := now-told, due-told
	if gap < 0 { // a parallel request, sent before the answer
		return
	}
	code := gapCode(gap)
	last := r.get(fGap)
	r.set(fGap, code)
	class := Jittered
	switch step := int(code) - int(last); {
	case gap >= wait-tolerance(wait):
		class = Late
		if gap <= wait+wait/4+1100*time.Millisecond {
			class = Honours
		}
	case gap < 80*time.Millisecond:
		class = Hammer
	case last == 0 && gap < 2200*time.Millisecond:
		class = Early
	case last == 0:
	case step >= -1 && step <= 1:
		class = Fixed
	case step >= 2 && step <= 10: // a factor of 1.25 to 4.3
		class = Exponential
	case gap < 2200*time.Millisecond:
		class = Early
	}
	switch is := Class(r.get(fClass)); {
	case is == class:
		r.add(fScore, 1)
	case r.get(fScore) > 0 && is != Unknown:
		r.add(fScore, -1)
	default:
		r.set(fClass, uint64(class))
	}
}

// tolerance is how early a client may come and still count as on time: clocks, timers
// and the rounding of this record differ a little.
func tolerance(wait time.Duration) time.Duration {
	return max(50*time.Millisecond, wait/50)
}

// gapCode is five times the binary logarithm of a gap in units of 20 ms: 1 to 63,
// up to two minutes. 0 means no gap.
func gapCode(gap time.Duration) uint64 {
	n := uint64(gap / (20 * time.Millisecond / 16)) // 16 is 20 ms
	if n < 16 {
		return 1
	}
	octave := bits.Len64(n) - 5 // n is 16..31 << octave
	within := n >> octave & 15
	return min(63, 1+uint64(octave)*5+uint64(fifths[within]))
}

// fifths are floor(5·log2(1 + i/16)).
var fifths = [16]uint8{0, 0, 0, 1, 1, 1, 2, 2, 2, 3, 3, 3, 4, 4, 4, 4}
