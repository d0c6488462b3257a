package caddymodule

import (
	"sync"
	"time"

	"github.com/herdshield/shield/pushback"
)

// An overloadReport, a pauseReport and a herdReport remember what has been reported of a
// backend. They are part of the pooled state, so that a reload neither starts nor ends an
// overload, a pause or a herd. During a reload two apps call step. A step that another
// app has overtaken changes nothing.

// overloadQuiet is how long no request must have been refused before an overload has
// ended. It bridges the gap between two waves of a herd whose clients were told to come
// back in a few seconds.
const overloadQuiet = 5 * time.Second

// An overloadReport knows whether a backend is being protected now.
type overloadReport struct {
	mu      sync.Mutex
	seen    reasonCounts  // guarded by mu, like the rest
	on      bool          // a request was refused within overloadQuiet
	since   time.Duration // when it began
	last    time.Duration // when a new refusal was seen last
	atStart reasonCounts  // seen, before it began
}

// An overloadChange is what one step has found.
type overloadChange struct {
	added          reasonCounts // refusals since the last step
	started, ended bool
	lasted         time.Duration // if ended, from the first refusal to the last
	refused        uint64        // if ended, the refusals in that time
}

// step takes the counts of refusals at now.
func (o *overloadReport) step(now time.Duration, counts reasonCounts) (c overloadChange) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for reason, n := range counts {
		if n < o.seen[reason] {
			return overloadChange{} // another app has seen more
		}
		c.added[reason] = n - o.seen[reason]
	}
	before := o.seen
	o.seen = counts
	switch {
	case c.added != (reasonCounts{}):
		if !o.on {
			o.on, o.since, o.atStart = true, now, before
			c.started = true
		}
		o.last = now
	case o.on && now-o.last >= overloadQuiet:
		o.on = false
		c.ended, c.lasted = true, o.last-o.since
		for reason, n := range counts {
			c.refused += n - o.atStart[reason]
		}
	}
	return c
}

// active reports whether an overload is going on.
func (o *overloadReport) active() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.on
}

// A pauseReport knows whether the backend's pause has been reported.
type pauseReport struct {
	mu    sync.Mutex
	on    bool // guarded by mu, like the rest
	times uint64
	since time.Duration
	seen  time.Duration
}

// A pauseChange is what one step has found.
type pauseChange struct {
	began, ended bool
	left         time.Duration // if began
	lasted       time.Duration // if ended, as far as it was seen
}

// step takes how long the pause still lasts at now, 0 for none, and how many there have
// been.
func (p *pauseReport) step(now, left time.Duration, times uint64) (c pauseChange) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if now < p.seen || times < p.times {
		return c
	}
	p.seen = now
	if times > p.times {
		p.times = times
		if !p.on {
			p.on, p.since = true, now
			c.began, c.left = true, left
		}
	}
	if p.on && left == 0 {
		p.on = false
		c.ended, c.lasted = true, now-p.since
	}
	return c
}

// A herdReport knows which herd has been reported.
type herdReport struct {
	mu    sync.Mutex
	herd  pushback.HerdReport // guarded by mu, like the rest; as it was when it was largest
	since time.Duration
	seen  time.Duration
}

// A herdChange is one herd that a step has found, or found gone.
type herdChange struct {
	detected, ended bool
	herd            pushback.HerdReport
	lasted          time.Duration // if ended
}

// step takes the detector's report at now. The changes are a herd that has ended and one
// that has begun.
func (h *herdReport) step(now time.Duration, herd pushback.HerdReport) (changes [2]herdChange) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if now < h.seen {
		return
	}
	h.seen = now
	if h.herd.Kind != pushback.NoHerd && (herd.Kind != h.herd.Kind || herd.Period != h.herd.Period && herd.Kind != pushback.BacklogHerd) {
		changes[0] = herdChange{ended: true, herd: h.herd, lasted: now - h.since}
		h.herd = pushback.HerdReport{}
	}
	if herd.Kind == pushback.NoHerd {
		return
	}
	if h.herd.Kind == pushback.NoHerd {
		changes[1] = herdChange{detected: true, herd: herd}
		h.herd, h.since = herd, now
	} else if herd.Size > h.herd.Size {
		h.herd = herd
	}
	return
}
