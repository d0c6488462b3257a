package loadshed

import (
	"math"
	"time"
)

// This file has the experiments by which control tells a queue from a backend that is slow,
// and an overload from a page that is always refused: a cut must pay off, and a probe.

const (
	// A cut that brought the limit below verifyBelow of what it was has to pay off
	// before the next: latency must follow with at least this elasticity (1: latency is
	// all queue; 0: none of it).
	verifyBelow = 0.75
	elasticity  = 0.3

	// A probe halves the throughput while it lasts, and is repeated after probeCost times as
	// long: it costs 1/80 of the throughput.
	probeCost = 40

	// Of what a probe measured that restores the limit half counts if probeDoubt requests have ended, and nearly all if many have.
	probeDoubt = 10

	// A probe takes a share of recent windows with rejections above probePressure: below that
	// it costs more than it tells. pressureWeight is the EWMA weight of the newest window.
	probePressure  = 0.7
	pressureWeight = 0.15
)

// A cut is one that has yet to pay off.
type cut struct {
	open              bool
	limit, congestion float64 // before it
	at                time.Duration

	// served since it took effect
	n       int
	latency float64
}

// cutInVain reports whether latency has not followed the last cut down, once that is known.
// Then it takes the cut back, and the present latency for the baseline, to be verified soon.
func (c *control) cutInVain(now time.Duration, s *sample) bool {
	cut := &c.cut
	since := (now - cut.at).Seconds()
	if !cut.open || c.limit > verifyBelow*cut.limit || since <= max(.2, 1.5*s.mean()) {
		cut.n, cut.latency = 0, 0
		return false
	}
	cut.n += s.good
	cut.latency += s.goodLatency
	if cut.n < 60 && (cut.n == 0 || since <= 8) {
		return false
	}
	congestion := cut.latency / (c.baseline * float64(cut.n))
	if s.serving() && !s.unheard(.5) && math.Log(cut.congestion/congestion) < elasticity*math.Log(cut.limit/c.limit) {
		c.baseline *= congestion
		c.limit, cut.open = cut.limit, false
		c.probe.next = now + 2*time.Second
		return true
	}
	cut.limit, cut.congestion, cut.at, cut.n, cut.latency = c.limit, congestion, now, 0, 0
	return false
}

// phase is how far a probe is.
type phase uint8

const (
	measuring  phase = iota // no probe
	settling                // a probe has begun: requests that end now entered before it
	collecting              // requests that end now entered since
)

type probe struct {
	phase phase
	began time.Duration
	until time.Duration // when the requests from before it have left
	limit float64       // before it
	next  time.Duration // when there may be one
}

// probeDue reports whether it is time for a probe: only under pressure, as a probe of
// an idle backend rejects requests for nothing.
func (c *control) probeDue(now time.Duration, s *sample, l law) bool {
	return now >= c.probe.next && c.pressure > probePressure && s.good >= 5 && c.limit > float64(l.Min)
}

// beginProbe lowers the limit to half of the need; a small fixed limit would reject
// most requests of a large backend.
func (c *control) beginProbe(now time.Duration, s *sample, need float64, l law) {
	p := &c.probe
	p.phase, p.began, p.limit = settling, now, c.limit
	p.until = now + duration(max(.05, 1.5*s.mean()))
	c.limit = max(float64(l.Min), math.Floor(.5*min(need, c.limit)))
}

// endProbe ends a probe with what it has proven.
func (c *control) endProbe(now time.Duration, s *sample, l law) Reason {
	ratio := 1.0 // of latency to the baseline
	if shape := c.baseline * float64(s.good); shape > 0 {
		ratio = s.goodLatency / shape
	}
	if s.limitHits > 0 && float64(s.good) > .8*c.rate*max(s.span, 1e-3) && c.limit > float64(l.Min) {
		c.probe.phase = measuring
		c.baseline *= min(1, ratio)
		c.probe.next = now + jittered(now, 1) // the queue may be longer still
		c.cut.open = false
		return Proven
	}
	if s.unheard(.5) {
		ratio = min(1, ratio)
	}
	c.baseline *= math.Pow(between(.3, ratio, 3), float64(s.good)/float64(s.good+probeDoubt))
	c.probe.next = now + jittered(now, probeCost*(now-c.probe.began).Seconds())
	c.stopProbe()
	c.cut.open = false
	return Restored
}

// stopProbe ends a probe, if there is one, with the limit of before it.
func (c *control) stopProbe() {
	if c.probe.phase != measuring {
		c.limit, c.probe.phase = c.probe.limit, measuring
	}
}

// jittered returns a time from seconds to a quarter more, so that several proxies of
// one backend do not probe it together.
func jittered(now time.Duration, seconds float64) time.Duration {
	return duration(seconds * (1 + float64(mix(uint64(now))>>11)/(1<<55)))
}

const (
	// A share of refusalShareToCut of what ended refused by the backend cuts the limit,
	// and so do more than twice the share that is usual.
	refusalShareToCut = 0.1

	// Cuts to the least limit have not paid off if unpaidRefusalShare of the former share of
	// refusals is left. That share is usual then, and follows with an EWMA weight per window.
	unpaidRefusalShare = 0.75
	usualRefusalWeight = 0.1
)

// refusals of the backend, as shares of the requests that ended.
type refusals struct {
	before, limit float64 // before the first cut because of them; 0: there was none
	usual         float64 // what no cut has lowered
}

// refused cuts the limit if the backend refuses a tenth of what ended in the window, at least
// two requests. It returns why it has moved the limit, 0 if it has not.
//
// A limit that is less than half used is not the cause of the refusals: one page may always
// be refused. These cuts must pay off, too: if the share of refusals at the least limit is
// about what it was before, load is not the cause; one of several upstreams may be dead.
// Then they are taken back, and only twice that share cuts the limit again.
func (c *control) refused(s *sample, l law) Reason {
	r := &c.refusals
	share := float64(s.overloaded) / max(1, float64(s.overloaded+s.n))
	much := s.overloaded >= 2 && 2*float64(s.peak) >= c.limit && share >= max(refusalShareToCut, 2*r.usual)
	if r.usual > 0 {
		r.usual += usualRefusalWeight * (share - r.usual)
	}
	switch {
	case !much:
		r.before = 0
	case c.limit > float64(l.Min):
		if r.before == 0 {
			c.stopProbe()
			r.before, r.limit = share, c.limit
		}
		c.fall(maxCut, l)
		return Refusing
	case s.good > 0 && share > unpaidRefusalShare*r.before:
		c.limit = max(c.limit, r.limit)
		r.usual, r.before = share, 0
		return Restored
	}
	return 0
}
