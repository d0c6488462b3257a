package accesslog

import (
	"cmp"
	"maps"
	"math"
	"slices"
	"time"

	"github.com/herdshield/shield/loadtest/clients"
)

const (
	maxCallers = 1 << 15 // rejected clients that are watched
	maxCounted = 1 << 16 // clients whose requests are counted

	// patience is how long after its time a returning client still counts as a retry.
	patience = 2 * time.Minute

	openWaits = 4 // rejections of one client that are followed at once

	same    = 5 * time.Millisecond   // a line is written a little after its response
	soonest = 100 * time.Millisecond // that a client may be early: its timer began when it had read the head of the response
	latest  = 250 * time.Millisecond // that it may be late by Retry-After-Ms: the network, and its reaction

	// A client that returns later than lateTimes Retry-After plus lateBy does not obey it.
	lateTimes = 1.5
	lateBy    = time.Second
)

// A Behaviour is how a group of rejected clients retries. Most waits of a client decide which one it has:
//
//   - An [clients.Exact] waits as Retry-After says, from 0.1 s less to half of it and a second more, or as
//     Retry-After-Ms does, to 0.25 s more.
//   - An [clients.Ignore] comes back at other times.
//   - A [clients.GiveUp] did not come back within two minutes after its time.
type Behaviour struct {
	Policy  clients.Policy
	Clients int // that have it
}

// A wait is a rejection that has not been followed by a retry yet.
type wait struct {
	what            uint64
	at              time.Duration // since 1970
	seconds, millis time.Duration
}

// A caller is a client that has been rejected.
type caller struct {
	waits    []wait // at most openWaits, the oldest first
	returned int    // retries
	untold   int    // of these, that were not told when to come
	obeyed   int    // that came when they were told
	quits    int    // rejections that it has not come back for
}

// came records a request of the client, and reports whether it is a retry.
func (c *caller) came(r request) bool {
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
		return false
	}
	w := c.waits[best]
	c.waits = slices.Delete(c.waits, best, best+1)
	c.returned++
	switch gap := max(0, at-w.at); {
	case w.seconds == 0 && w.millis == 0:
		c.untold++
	case w.millis > 0 && gap >= w.millis-soonest && gap <= w.millis+latest,
		w.seconds > 0 && gap >= w.seconds-soonest && float64(gap) <= lateTimes*float64(w.seconds)+float64(lateBy):
		c.obeyed++
	}
	return true
}

// expire ends the waits that are over, as the client did not come.
func (c *caller) expire(now time.Duration) {
	before := len(c.waits)
	c.waits = slices.DeleteFunc(c.waits, func(w wait) bool { return now > w.at+w.seconds+patience })
	c.quits += before - len(c.waits)
}

// policy returns how the client retries, or nil if it may still come.
func (c *caller) policy() clients.Policy {
	switch {
	case c.returned == 0 && c.quits == 0:
		return nil
	case c.returned == 0:
		return clients.GiveUp{}
	case 2*c.obeyed > c.returned-c.untold:
		return clients.Exact{}
	}
	return clients.Ignore{}
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

type callers struct{ sample[*caller] }

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
		c = new(caller)
		cs.put(r.client, c)
	}
	if c.came(r) {
		retries = cs.scale()
	}
	if r.rejected() {
		if len(c.waits) == openWaits {
			c.waits = slices.Delete(c.waits, 0, 1)
		}
		c.waits = append(c.waits, wait{r.what, r.end, r.seconds, r.millis})
	}
	return retries
}

// judge returns how many retries there were by now, and the Behaviours of the clients, the most frequent first.
func (cs *callers) judge(now time.Duration) (retries float64, all []Behaviour) {
	counts := map[clients.Policy]int{}
	for _, c := range cs.of {
		c.expire(now)
		retries += cs.scale() * float64(c.returned)
		if p := c.policy(); p != nil {
			counts[p]++
		}
	}
	for _, p := range []clients.Policy{clients.Exact{}, clients.Ignore{}, clients.GiveUp{}} {
		if counts[p] > 0 {
			all = append(all, Behaviour{p, counts[p]})
		}
	}
	slices.SortStableFunc(all, func(a, b Behaviour) int { return cmp.Compare(b.Clients, a.Clients) })
	return retries, all
}
