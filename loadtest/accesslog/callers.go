package accesslog

import (
	"maps"
	"math"
	"slices"
	"time"
)

const (
	maxCallers = 1 << 15 // rejected clients that are watched
	maxCounted = 1 << 16 // clients whose requests are counted

	// patience is how long after its time a returning client still counts as a retry.
	patience = 2 * time.Minute

	openWaits = 4 // rejections of one client that are followed at once
	attempts  = 8 // that are told apart; the last stands for all later ones
)

// A wait is a rejection that has not been followed by a retry yet.
type wait struct {
	what            uint64
	at              time.Duration // since 1970
	seconds, millis time.Duration
	attempt         int32
}

// A caller is a client that has been rejected.
type caller struct {
	waits   []wait // at most openWaits, the oldest first
	waiting bool   // it is one of callers.waiting
	group          // of its own reactions
}

func slot(attempt int32) int { return int(min(attempt, attempts)) - 1 }

// came records a request of the client, and returns its attempt number.
func (c *caller) came(r request) (attempt int32) {
	at := r.came()
	c.expire(at)
	best, off := -1, time.Duration(0)
	for i, w := range c.waits {
		if w.what != r.what || at-w.at < -same {
			continue
		}
		// Of several waits for the same, the one that is due.
		if now := (at - w.at - w.seconds).Abs(); best < 0 || now < off {
			best, off = i, now
		}
	}
	if best < 0 {
		return 1
	}
	w := c.waits[best]
	c.waits = slices.Delete(c.waits, best, best+1)
	c.back(w, max(0, at-w.at))
	return w.attempt + 1
}

// expire ends the waits that are over, as the client did not come.
func (c *caller) expire(now time.Duration) {
	c.waits = slices.DeleteFunc(c.waits, func(w wait) bool {
		over := now > w.at+w.seconds+patience
		if over {
			c.quits[slot(w.attempt)]++
		}
		return over
	})
}

const (
	same    = 5 * time.Millisecond   // a line is written a little after its response
	soonest = 100 * time.Millisecond // that a client may be early: its timer began when it had read the head of the response
	latest  = 250 * time.Millisecond // that it may be late: the network, and its reaction

	// A client that returns later than lateTimes Retry-After plus lateBy does not obey it.
	lateTimes = 1.5
	lateBy    = time.Second
)

// back counts a return after gap.
func (c *caller) back(w wait, gap time.Duration) {
	a := slot(w.attempt)
	c.returns[a]++
	s := float32(gap.Seconds())
	c.sum[a] += s
	c.squares[a] += s * s
	near := func(told time.Duration) bool {
		return told > 0 && gap >= told-soonest && gap <= told+latest
	}
	switch told := w.seconds; {
	case told == 0 && w.millis == 0:
		c.untold++
	case near(w.millis), near(told):
		c.exact++
	case gap >= told && float64(gap) <= lateTimes*float64(told)+float64(lateBy):
		c.late++
		c.over += float32(gap-told) / float32(max(told, 1))
	}
}

// A sample is a random sample of clients, by the lowest bits of their hashes. When it is
// full, half of them are dropped.
type sample[V any] struct {
	of   map[uint64]V
	most int
	bits uint
}

func newSample[V any](most int) sample[V] { return sample[V]{of: map[uint64]V{}, most: most} }

func (s *sample[V]) in(client uint64) bool { return client&(1<<s.bits-1) == 0 }

// put sets the value of a client that may be in it.
func (s *sample[V]) put(client uint64, v V) {
	s.of[client] = v
	for len(s.of) > s.most {
		s.bits++
		maps.DeleteFunc(s.of, func(client uint64, _ V) bool { return !s.in(client) })
	}
}

// scale is how many clients each one of the sample stands for.
func (s *sample[V]) scale() float64 { return math.Exp2(float64(s.bits)) }

type callers struct {
	sample[*caller]
	waiting   []uint64 // clients that have been rejected in this piece of log
	undecided int
}

// saw records a request, and returns how many retries it stands for: 0 if it is none, or not
// in the sample.
func (cs *callers) saw(r request) (retries float64) {
	if !cs.in(r.client) {
		return 0
	}
	c := cs.of[r.client]
	if c == nil {
		if !r.rejected() {
			return 0
		}
		c = &caller{group: group{clients: 1}}
		cs.put(r.client, c)
	}
	attempt := c.came(r)
	if attempt > 1 {
		retries = cs.scale()
	}
	if r.rejected() {
		if len(c.waits) == openWaits {
			c.waits = slices.Delete(c.waits, 0, 1)
		}
		c.waits = append(c.waits, wait{r.what, r.end, r.seconds, r.millis, attempt})
		if !c.waiting {
			c.waiting, cs.waiting = true, append(cs.waiting, r.client)
		}
	}
	return retries
}

func (cs *callers) end(now time.Duration) {
	for _, client := range cs.waiting {
		if c := cs.of[client]; c != nil { // it is still in the sample
			c.expire(now)
			cs.undecided += len(c.waits)
			c.waits, c.waiting = c.waits[:0], false
		}
	}
	cs.waiting = cs.waiting[:0]
}
