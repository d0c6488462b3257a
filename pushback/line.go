package pushback

import (
	"math"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// utilization is the share of the backend's rate that is promised. Others come at
	// random beside it, and need some room: at 0.98 the herds of the simulator find no promise broken.
	utilization = 0.98

	// leastSpare is the share of the rate that is promised in any case, however much else
	// comes: a rejected client must be served some time.
	leastSpare = 0.1

	// leastLeft is the share of what new clients leave that known ones leave, or visitors who never stop would let no other in.
	leastLeft = 0.4

	// dryTime: the line has run dry if fewer clients are expected than the backend serves in
	// so long. None can come sooner than in a second, so a line of two has a second's worth.
	dryTime = 2 * time.Second
)

// Trust is whether a client is known to come back when it is told to.
type Trust uint8

const (
	untried Trust = iota // it has not come back yet
	Proven               // it has

	trusts = iota
)

// A Line says when rejected clients are to come back, so that they do at the rate that a
// backend can spare. It is a ring of seconds, each with how many clients are expected in it,
// and a tail of numbers for clients that have no second within the longest wait.
//
// It rejects no request: any client may have a token for which no other waits.
//
// The zero Line is empty. All its memory is this struct, 6 KiB: no number of clients makes
// it grow. It is safe for concurrent use. A mutex is held for tens of nanoseconds, and only
// while clients wait.
type Line struct {
	until atomic.Int64  // the last slot that was promised
	last  atomic.Int64  // the last time that any client was told
	fresh atomic.Uint64 // new clients admitted since the last tick
	again atomic.Uint64 // known clients admitted since the last tick

	waiting atomic.Int64              // clients with a slot that may still come for it
	news    atomic.Pointer[chan Note] // for other replicas; nil: there are none

	// What each request reads while clients wait, as of the last unlock.
	servedNow atomic.Uint64 // bits of float64

	mu sync.Mutex
	lineState
}

// A lineState is what a Line guards by its mutex.
type lineState struct {
	at             time.Duration // as of when all that follows is
	issued, served float64       // numbers of the tail
	skipped        float64       // in the last second, as the line ran dry; 0: it did not
	base           float64       // new clients admitted per second while no client waits
	known          float64       // known clients admitted per second
	baseSeen       time.Duration // over how long it has been averaged, up to baseWindow
	ticked         time.Duration
	second         int64 // all before it are in made and came
	ring           [ringSize]second
	made, came     [trusts]float64 // promises that were made, and kept: sums that fade
	kept           [trusts]float64 // the kept share; 0: nothing is known, which means 1
	surge          struct {
		quarter     int64   // of a second, of the last new client
		came, usual float64 // in it, and in one on average
	}
	counts Promises
	sharedLine
}

// ringSize is how many the ring has: a minute ahead is the longest wait, and rejections are
// held for up to a second.
const ringSize = 128

// A second is what is expected in one second of the line, of new clients and proven ones.
type second struct {
	booked [trusts]float32 // slots
	told   [trusts]float32 // clients that were told to come then, with a slot or without
	came   [trusts]float32 // of those
	lost   float32         // room that was left when it was too late to promise it

	waiting int32 // clients with a slot that have not come yet
}

// maxRate stands for a rate that is not known.
const maxRate = 1e9

// Supply is what a backend can do.
type Supply struct {
	Rate  float64       // requests per second; +Inf: not known
	Token time.Duration // until there is a token for any request
}

// Promises counts what has become of appointments.
type Promises struct {
	Made     uint64 // slots promised
	Deferred uint64 // times that a client was told to ask again later
	Kept     uint64 // came at its time, or within a second after it
	Late     uint64 // came later
	NoShow   uint64 // had not come by then; late ones are counted in both
}

// A Turn is what a client was promised.
type Turn struct {
	At     time.Duration // when to come
	Number float64       // if it is no Slot: the client's in the tail; 0: it has none
	Trust  Trust         // of the client
	Slot   bool          // room is booked; else the client asks again at At
}

// Backlogged reports whether any client is promised a time after now. It is one atomic load.
func (l *Line) Backlogged(now time.Duration) bool { return l.Ahead(now) > 0 }

// Ahead returns how far the promised slots reach. It is one atomic load.
func (l *Line) Ahead(now time.Duration) time.Duration {
	return max(0, time.Duration(l.until.Load())-now)
}

// Expects reports whether a client that was told to come may still do so. It is one atomic
// load.
func (l *Line) Expects(now time.Duration) bool {
	last := time.Duration(l.last.Load())
	return last > 0 && now < last+maxLate
}

// Spare returns how many rejected clients per second a backend can serve beside what comes
// anyway, if it can take rate per second.
func (l *Line) Spare(rate float64) float64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.spare(rate, utilization)
}

func (l *Line) spare(rate, share float64) float64 {
	rate = min(rate, maxRate)
	left := share*rate - l.ordinary() - l.others.base
	return max(leastSpare*rate, leastLeft*left, left-l.known)
}

// ordinary returns for how many new clients per second room is left: for those who come anyway, and would come back, and of the tokens
// that are left to new clients the same share goes to such. If 40 come per second, and in a flood a fifth come back, it is 1.6.
func (l *Line) ordinary() float64 { return l.base * l.keep(untried) * l.keep(untried) }

// unlock ends a change, and publishes what other requests read without the lock, if it has changed: a store costs more
// than a look.
func (l *Line) unlock() {
	if bits := math.Float64bits(l.served); l.servedNow.Load() != bits {
		l.servedNow.Store(bits)
	}
	l.mu.Unlock()
}

// pace returns how many numbers of the tail are served per second.
func (l *Line) pace(rate float64) float64 { return l.spare(rate, utilization) / l.keep(untried) }

// load returns how many clients will come in a second, by what is known now.
func (l *Line) load(s *second) float64 {
	load := float64(s.lost)
	for t, n := range s.booked {
		load += float64(n) * l.keep(Trust(t))
	}
	return load
}

func (l *Line) secondOf(at time.Duration) *second { return &l.ring[int64(at/time.Second)&(ringSize-1)] }

// advance brings the line to now.
func (l *Line) advance(now time.Duration, rate float64) {
	if now <= l.at {
		return
	}
	d := (now - l.at).Seconds()
	l.at = now
	if l.issued > l.served {
		l.served = min(l.issued, l.served+d*l.pace(rate))
	}
	n := int64(now / time.Second)
	if n == l.second {
		return
	}
	l.mature(n)
	l.skips(rate)
}

// skips has numbers served out of turn once the line has run dry, because many who hold one have given up: a quarter of them, or as many as
// are served in ten seconds, and twice as many in each further second. So with 9,000 numbers at 10/s, of which the first 1,000 are of
// clients that have gone, the others are reached after a second, and keep their order.
func (l *Line) skips(rate float64) {
	if l.issued == l.served || l.expected() >= dryTime.Seconds()*l.spare(rate, utilization) {
		l.skipped = 0
		return
	}
	tail := l.issued - l.served
	l.skipped = min(max(2*l.skipped, tail/4, 10*l.pace(rate)), tail)
	part := l.skipped / float64(max(1, l.replicas)) // the others do so, too
	l.served += part
	l.left += part
}

// expected returns how many clients will come in all seconds.
func (l *Line) expected() (sum float64) {
	for i := range l.ring {
		sum += l.load(&l.ring[i])
	}
	return sum
}

// A claim is what the line has to know of a rejected client.
type claim struct {
	had      *Turn         // that it came for; nil: none
	trust    Trust         // of the client
	min, max time.Duration // bounds of the wait
	behind   float64       // it may have no slot before so many others have come
}

// next gives a rejected client its turn, and returns how long it will wait in all: until its
// slot, or, if it has to ask again, until about when it will have one. A client that came for
// its slot in vain gets the next one that is left, with what is not promised to others.
func (l *Line) next(now time.Duration, s Supply, c claim) (t Turn, wait time.Duration) {
	rate := s.Rate
	l.mu.Lock()
	defer l.unlock()
	l.advance(now, rate)
	t.Trust = c.trust
	spare, inVain := l.spare(rate, utilization), c.had != nil && c.had.Slot
	if c.had == nil && c.trust == untried {
		l.surges(now)
	}
	switch {
	case c.behind > 0: // it has no number
	case c.had == nil && l.issued > l.served:
		l.issued++
		t.Number = l.issued
	case c.had == nil:
	case inVain:
		spare = l.spare(rate, 1)
	default:
		t.Number = c.had.Number
	}
	from, limit := now+max(c.min, s.Token), now+c.max
	if t.Number <= l.served && c.behind == 0 {
		if at, ok := l.slot(from, limit, spare, inVain); ok {
			t.At, t.Slot = at, true
			l.book(at, t.Trust, spare)
			l.counts.Made++
			l.tell(t)
			return t, at - now
		}
		if c.had == nil {
			l.issued = max(l.issued, l.served) + 1
			t.Number = l.issued
		}
	}
	l.counts.Deferred++
	seconds := c.max.Seconds() + max(0, t.Number-l.served)/l.pace(rate)
	if c.behind > 0 {
		seconds = c.behind / l.pace(rate)
	}
	t.At, wait = hop(now, seconds, c.min, c.max)
	l.tell(t)
	return t, wait
}

// slot returns the first slot from an instant on. If the store has not given it in time, that is behind the end of its line. One that came for its slot in vain is not asked for: the store's next one is at that end.
func (l *Line) slot(from, limit time.Duration, spare float64, inVain bool) (at time.Duration, ok bool) {
	if !inVain && l.replicas > 1 {
		if at, ok = l.granted(from, limit); ok {
			return at, ok
		}
		from = max(from, l.ends)
	}
	return l.room(from, limit, spare)
}

// hop returns when a client has to ask again that waits for so many seconds in all. It asks
// no more often than it must, after equal times, so that all keep their order.
func hop(now time.Duration, seconds float64, shortest, longest time.Duration) (at, wait time.Duration) {
	wait = time.Duration(min(max(seconds, shortest.Seconds()), 1e9) * float64(time.Second))
	hops := math.Ceil(wait.Seconds() / longest.Seconds())
	return now + min(max(shortest, time.Duration(float64(wait)/hops)), longest), wait
}

// book takes the room of one client from an instant on, where room is left for a spare rate.
// The part that does not fit into its second it takes from the next ones: where one client can be served
// in ten seconds, it takes all that these have.
func (l *Line) book(at time.Duration, t Trust, spare float64) {
	rest := l.keep(t)
	first := l.secondOf(at)
	for n := int64(at / time.Second); n < int64(at/time.Second)+ringSize/2; n++ {
		s := &l.ring[n&(ringSize-1)]
		part := min(rest, max(0, spare-l.load(s)))
		s.booked[t] += float32(part / l.keep(t))
		if rest -= part; rest < 1e-6 {
			break
		}
	}
	l.awaits(first, at)
}

// awaits notes that a client may come for a slot.
func (l *Line) awaits(s *second, at time.Duration) {
	s.waiting++
	l.waiting.Add(1)
	l.until.Store(max(l.until.Load(), int64(at)))
}

func (l *Line) tell(t Turn) {
	l.secondOf(t.At).told[t.Trust]++
	l.last.Store(max(l.last.Load(), int64(t.At)))
}

// room returns the first instant from one on whose second is not full, for a spare rate. If that is after the next slot of its
// second, it is too late to promise what is before it, and this room is lost.
func (l *Line) room(from, limit time.Duration, spare float64) (at time.Duration, ok bool) {
	for n := int64(from / time.Second); time.Duration(n)*time.Second <= limit; n++ {
		s := &l.ring[n&(ringSize-1)]
		load := l.load(s)
		if load >= spare*(1-1e-5) { // sums of float32
			continue
		}
		slot := time.Duration(n)*time.Second + time.Duration(load/spare*float64(time.Second))
		if at = max(from, slot); at > limit {
			break
		}
		s.lost += float32((at - slot).Seconds() * spare)
		return at, true
	}
	return 0, false
}

// comes notes that a client has come that was told to.
func (l *Line) comes(now time.Duration, rate float64, t *Turn) {
	l.mu.Lock()
	defer l.unlock()
	l.advance(now, rate)
	if now < t.At+lateAfter {
		s := l.secondOf(t.At)
		s.came[t.Trust]++
		l.stopsWaiting(s, t)
		l.counts.Kept++
	} else {
		l.counts.Late++
	}
}

func (l *Line) stopsWaiting(s *second, t *Turn) {
	if t.Slot && s.waiting > 0 {
		s.waiting--
		l.waiting.Add(-1)
	}
}

// giveBack takes back the turn of a client that is served before it, or will not come.
func (l *Line) giveBack(now time.Duration, t *Turn) {
	l.mu.Lock()
	defer l.unlock()
	if s := l.secondOf(t.At); now < t.At-tolerance {
		s.told[t.Trust] = max(0, s.told[t.Trust]-1)
		if t.Slot {
			s.booked[t.Trust] = max(0, s.booked[t.Trust]-1)
			l.stopsWaiting(s, t)
		}
	}
	if !t.Slot { // those behind it move up
		l.served = min(l.issued, l.served+1)
		l.left++
	}
}

// serving returns the number of the tail that is being served. It is one atomic load.
func (l *Line) serving() float64 { return math.Float64frombits(l.servedNow.Load()) }

// LineStats is a snapshot of a Line.
type LineStats struct {
	Backlog   time.Duration // how far the promised slots reach
	Waiting   int           // promised slots whose clients may still come
	Deferred  int           // clients in the tail
	Promises  Promises
	KeptShare float64 // of the times that new clients were told, how many they come at
}

// Open reports whether rejected clients are still expected: they have an appointment ahead, or no appointment yet. If all of them returned
// before the last appointment, none is.
func (s *LineStats) Open() bool {
	return (s.Backlog > 0 || s.Deferred > 0) && s.Waiting+s.Deferred > 0
}

// stats returns the LineStats at now.
func (l *Line) stats(now time.Duration) LineStats {
	l.mu.Lock()
	defer l.mu.Unlock()
	return LineStats{l.Ahead(now), int(l.waiting.Load()), int(l.issued - l.served), l.counts, l.keep(untried)}
}

func (l *Line) copyTo(to *Line) {
	l.mu.Lock()
	defer l.mu.Unlock()
	to.until.Store(l.until.Load())
	to.last.Store(l.last.Load())
	to.waiting.Store(l.waiting.Load())
	to.servedNow.Store(l.servedNow.Load())
	to.lineState = l.lineState
	to.times = nil // it asks no store
}
