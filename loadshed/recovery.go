package loadshed

import (
	"math"
	"time"
)

const (
	// A share of refusalShareToCut of what ended refused by the backend cuts the limit,
	// and so do more than twice the share that is usual.
	refusalShareToCut = 0.1

	// Cuts to the least limit have not paid off if, of windowMinRequests results or
	// more, unpaidRefusalShare of the former share of refusals is left. That share is
	// usual then. It is forgotten with the EWMA weight usualRefusalWeight per window,
	// and at once below rareRefusalShare.
	unpaidRefusalShare = 0.75
	usualRefusalWeight = 0.1
	rareRefusalShare   = 0.01
)

// cutForRefusals cuts the limit if the backend refuses so much: a tenth of what ended
// in the window, at least two requests, and once per round trip. It reports whether.
//
// A limit that is less than half used is not the cause of the refusals: one page may always
// be refused.
//
// These cuts must pay off, too. If the share of refusals at the least limit is about
// what it was before the first cut, load is not the cause; one of several upstreams
// may be dead. Then the limit rises again, and only twice that share cuts it.
func (c *control) cutForRefusals(now time.Duration, s *sample, l law) bool {
	r := &c.refusals
	ended := s.overloaded + s.good
	share := float64(s.overloaded) / float64(ended)
	if s.overloaded < 2 || 2*float64(s.peak) < c.limit || share < max(refusalShareToCut, 2*r.usual) {
		return false
	}
	least := c.recoveryLimit > 0 && c.limit <= float64(l.Min)
	if (least || r.usual > 0) && ended < windowMinRequests {
		return false
	}
	if least {
		if share > unpaidRefusalShare*r.before {
			r.usual = share
			return false
		}
		r.before = share // that of the first cut was of a few requests
	}
	if r.at > 0 && (now-r.at).Seconds() < max(c.latency, .1) {
		return false
	}
	r.at = now
	if c.recoveryLimit == 0 {
		r.before = share
	}
	c.fall(maxCutPerWindow, l)
	return true
}

// forgetRefusals follows the usual share of refusals, while it is not rare.
func (c *control) forgetRefusals(s *sample) {
	if r := &c.refusals; r.usual > rareRefusalShare {
		r.usual += usualRefusalWeight * (float64(s.overloaded)/float64(s.overloaded+s.n) - r.usual)
	} else {
		r.usual = 0
	}
}

// fall multiplies the limit by a factor below 1 because the backend failed, whatever
// its latency is, and keeps the old one for climb.
func (c *control) fall(factor float64, l law) {
	if c.probe.phase != measuring {
		c.limit, c.probe.phase = c.probe.limit, measuring
	}
	c.recoveryLimit = max(c.recoveryLimit, c.limit)
	c.limit = max(float64(l.Min), factor*c.limit)
	c.cut.open = false
	c.congestion, c.hotWindows = 1, 0
}

// climb raises the limit by half, at most to that before the failure: slow start.
func (c *control) climb() { c.limit = min(1.5*c.limit+.5, c.recoveryLimit) }

// targetLateShare is the share of requests that may take longer than the target.
const targetLateShare = 0.05

// holdTarget holds 95 % of the requests within the target by AIMD: at most √limit up,
// and by maxCutPerWindow down.
//
// Each late request lowers the limit by 1/50, each other one raises it by 5/95 of
// that. So it stands still at one late request in twenty, whatever the distribution
// (the weighted up-down method, Kaernbach, 1991).
func (c *control) holdTarget(s *sample, l law) Reason {
	c.baseline = 0
	within := s.n - s.late
	step := (targetLateShare*float64(within) - (1-targetLateShare)*float64(s.late)) / 50
	if step < 0 {
		if within == 0 {
			c.recoveryLimit, c.hotWindows = max(c.recoveryLimit, c.limit), 0
		} else if c.hotWindows++; c.hotWindows >= hotWindowsToCut {
			c.recoveryLimit = 0 // the backend is back, but slower than it was
		}
		c.limit = max(float64(l.Min), c.limit*max(maxCutPerWindow, 1+step))
		return Late
	}
	switch {
	case c.recoveryLimit > 0: // the failure is over
		if c.climb(); c.limit == c.recoveryLimit {
			c.recoveryLimit = 0
		}
	case s.usedUp(c.limit):
		c.limit = min(float64(l.Max), c.limit+min(math.Sqrt(c.limit), step*c.limit))
	case c.limit < float64(l.Initial):
		c.limit = min(float64(l.Initial), c.limit+math.Sqrt(c.limit))
	}
	return InTime
}
