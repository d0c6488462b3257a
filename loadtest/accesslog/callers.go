package accesslog

import (
	"math"
	"time"
)

const (
	maxCallers = 1 << 15 // refused clients that are watched
	maxCounted = 1 << 16 // clients whose requests are counted

	// patience is how long after its time a client may come back and still be
	// coming back.
	patience = 2 * time.Minute

	open4    = 4 // refusals of one client that are waited for at once
	attempts = 8 // are told apart; the last stands for all from there on
)

// A wait is a refusal that has not been followed by a retry yet.
type wait struct {
	what            uint64
	at              time.Duration // since 1970; 0: there is none
	seconds, millis time.Duration
	attempt         int32
	coarse          bool
}

func (w *wait) over() time.Duration { return w.at + w.seconds + patience }

// A caller is a client that has been refused, and what it did then.
type caller struct {
	waits [open4]wait
	next  uint8  // the wait that is given up if there is no room
	piece uint16 // of log in which it was seen last: an index of callers.ends

	// How it came back, by what it had been told.
	exact, precise, late, early, far, untold uint16

	retries        uint32           // all of them
	returns, quits [attempts]uint16 // by how many attempts it had made
	sum, squares   [attempts]float32
	over           float32 // sum of how much later than told the late were, in parts of what they were told
}

func (c *caller) returned() int {
	return int(c.exact) + int(c.precise) + int(c.late) + int(c.early) + int(c.far) + int(c.untold)
}

// slot is where an attempt is counted.
func slot(attempt int32) int { return int(min(attempt, attempts)) - 1 }

// inc counts, and stays where it cannot count any further.
func inc(n *uint16) { *n = max(*n, *n+1) }

// came is told of a request of the client, and returns which attempt it is.
func (c *caller) came(r request) (attempt int32) {
	at := time.Duration(r.came().UnixNano())
	var best *wait
	for i := range c.waits {
		w := &c.waits[i]
		switch {
		case w.at == 0:
		case at > w.over():
			c.quit(w)
		case w.what == r.what && at-w.at >= -slack(w, r)-same:
			// Of several that ask for the same, the one whose time it is.
			if best == nil || (at-w.at-w.seconds).Abs() < (at-best.at-best.seconds).Abs() {
				best = w
			}
		}
	}
	if best == nil {
		return 1
	}
	attempt = best.attempt
	c.back(best, max(0, at-best.at), slack(best, r))
	best.at = 0
	return attempt + 1
}

// slack is how exact the log tells the wait from w to r.
func slack(w *wait, r request) time.Duration {
	if w.coarse || r.coarse {
		return time.Second
	}
	return 0
}

const (
	same    = 5 * time.Millisecond   // a line is written a little after its answer
	soonest = 100 * time.Millisecond // before its time a client may come: its timer began when the head of the answer was read
	latest  = 250 * time.Millisecond // after: the network, and the client's reaction

	// Who comes later than lateTimes what it was told, and lateBy, does not
	// come because it was told.
	lateTimes = 1.5
	lateBy    = time.Second
)

// back counts a return after gap, which is known to slack.
func (c *caller) back(w *wait, gap, slack time.Duration) {
	c.retries++
	a := slot(w.attempt)
	if c.returns[a] == 1<<16-1 {
		return // it has told enough
	}
	inc(&c.returns[a])
	s := float32(gap.Seconds())
	c.sum[a] += s
	c.squares[a] += s * s
	near := func(told time.Duration) bool {
		return told > 0 && gap >= told-soonest-slack && gap <= told+latest+slack
	}
	switch told := w.seconds; {
	case told == 0 && w.millis == 0:
		inc(&c.untold)
	case near(w.millis) && (gap-w.millis).Abs() < (gap-told).Abs():
		inc(&c.precise)
	case near(told):
		inc(&c.exact)
	case gap < told:
		inc(&c.early)
	case float64(gap) <= lateTimes*float64(told)+float64(lateBy):
		if c.late < 1<<16-1 {
			c.over += float32(gap-told) / float32(max(told, 1))
		}
		inc(&c.late)
	default:
		inc(&c.far)
	}
}

func (c *caller) quit(w *wait) {
	inc(&c.quits[slot(w.attempt)])
	w.at = 0
}

// refused is told that the client was.
func (c *caller) refused(r request, attempt int32) (lost bool) {
	var free *wait
	for i := range c.waits {
		if c.waits[i].at == 0 {
			free = &c.waits[i]
		}
	}
	if free == nil {
		free, lost = &c.waits[c.next], true
		c.next = (c.next + 1) % open4
	}
	*free = wait{r.what, time.Duration(r.end.UnixNano()), r.seconds, r.millis, attempt, r.coarse}
	return lost
}

// end says that the log ends at now: who might still come back is undecided.
func (c *caller) end(now time.Duration) (undecided int) {
	for i := range c.waits {
		w := &c.waits[i]
		switch {
		case w.at == 0:
		case now > w.over():
			c.quit(w)
		default:
			w.at = 0
			undecided++
		}
	}
	return undecided
}

// A sample is of clients, by the lowest bits of their hashes: if it is full, half
// of them go.
type sample[V any] struct {
	of   map[uint64]V
	most int
	bits uint
}

func newSample[V any](most int) sample[V] { return sample[V]{of: map[uint64]V{}, most: most} }

// in reports whether a client belongs to the sample.
func (s *sample[V]) in(client uint64) bool { return client&(1<<s.bits-1) == 0 }

// put adds a client that belongs to it.
func (s *sample[V]) put(client uint64, v V) {
	s.of[client] = v
	for len(s.of) > s.most {
		s.bits++
		for client := range s.of {
			if !s.in(client) {
				delete(s.of, client)
			}
		}
	}
}

// scale is how many clients each of the sample stands for.
func (s *sample[V]) scale() float64 { return math.Exp2(float64(s.bits)) }

// callers watches the clients that have been refused.
type callers struct {
	sample[*caller]
	refusals, undecided, lost int

	ends []time.Duration // of the pieces of log, since 1970: callers that were last seen in them are still to be told
}

// unsettled is how many pieces may end before all callers are told.
const unsettled = 1000

// saw is told of a request, and returns for how many retries it stands: 0 if it is
// none, or not of the sample.
func (cs *callers) saw(r request) (retries float64) {
	if r.refused() {
		cs.refusals++
	}
	if !cs.in(r.client) {
		return 0
	}
	c := cs.of[r.client]
	if c == nil {
		if !r.refused() {
			return 0
		}
		c = new(caller)
		c.piece = uint16(len(cs.ends))
		cs.put(r.client, c)
	}
	cs.settle(c)
	attempt := c.came(r)
	if r.refused() && c.refused(r, attempt) {
		cs.lost++
	}
	if attempt > 1 {
		return cs.scale()
	}
	return 0
}

// end ends a piece of log. Callers are told when they are seen again, as there may
// be many of both; it is only every so often that all are.
func (cs *callers) end(now time.Duration) {
	cs.ends = append(cs.ends, now)
	if len(cs.ends) >= unsettled {
		cs.settleAll()
	}
}

// settle tells c that the piece of log in which it was last seen has ended.
func (cs *callers) settle(c *caller) {
	if int(c.piece) < len(cs.ends) {
		cs.undecided += c.end(cs.ends[c.piece])
		c.piece = uint16(len(cs.ends))
	}
}

func (cs *callers) settleAll() {
	for _, c := range cs.of {
		cs.settle(c)
		c.piece = 0
	}
	cs.ends = cs.ends[:0]
}
