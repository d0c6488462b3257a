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
	of429 bool          // it is about 429s of the backend: see crowd
}

// endProbe ends a probe with what it has proven.
func (c *control) endProbe(now time.Duration, s *sample, l law) Reason {
	if c.probe.of429 {
		return c.endCrowd(now, s)
	}
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
	return restored
}

// stopProbe ends a probe, if there is one, with the limit of before it.
func (c *control) stopProbe() {
	if c.probe.phase != measuring {
		c.limit, c.probe.phase, c.probe.of429 = c.probe.limit, measuring, false
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
	share := s.share(s.overloaded)
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
		return refusing
	case s.good > 0 && share > unpaidRefusalShare*r.before:
		c.limit = max(c.limit, r.limit)
		r.usual, r.before = share, 0
		return restored
	}
	return 0
}

// A backend answers 429 because a client has used up its quota, or because it is full, as inference
// servers with a bounded queue are. One that is full rejects whoever comes while as many are in
// flight as it takes, and nobody while fewer are. Quotas look at the client instead.
//
// So 429s may mean that the backend is full if for some time about as many were in flight at each of them: one that is
// full with 12 has 12 each time, and to independent requests the number varies by its own square root. Then a probe lowers the
// limit a little. If the 429s end, the backend is full with as many as before, and that bounds the limit for a while.
const (
	crowdSpan     = 30   // mean latencies, or two seconds if that is longer
	crowdSample   = 50   // 429s in that time
	crowdVariance = 0.25 // of the number in flight, of what it would be for independent requests (Poisson)
	crowdProbe    = 0.95
	crowdEnds     = 25   // requests that end in a probe
	crowdPays     = 0.25 // of the share of 429s is left, or less
	crowdHolds    = 20.  // seconds, or probeCost mean latencies if that is longer
)

// A crowd is what 429s of the backend have shown.
type crowd struct {
	limit float64       // so many are in flight when the backend is full; 0: 429s are quotas, or it is not known
	until time.Duration // so long that holds
	share float64       // of 429s in what ended, before the probe
	least float64       // the limit in the probe
	seen  seen
}

// seen is what 429s were like since an instant.
type seen struct {
	since          time.Duration
	n, in, squares float64 // 429s; sums over them of how many were in flight, and of its square
	onWay          float64 // sum of how long they took
	served         float64 // requests that were served meanwhile
}

// answered adds a response: a 429, or that of a request that was served.
func (e *seen) answered(o Outcome, took float64, inFlight int) {
	if o == Served {
		e.served++
		return
	}
	in := float64(inFlight)
	e.n, e.in, e.squares, e.onWay = e.n+1, e.in+in, e.squares+in*in, e.onWay+took
}

// full returns how many requests the backend takes, as far as what was seen may mean that it is full; else 0.
func (e *seen) full(now time.Duration) float64 {
	mean, onWay := e.in/e.n, e.onWay/(now-e.since).Seconds()
	full := math.Round(mean - 1 - onWay) // other 429s were in flight as well
	if e.n < crowdSample || e.n < refusalShareToCut*(e.n+e.served) || e.squares/e.n-mean*mean-onWay > crowdVariance*full {
		return 0
	}
	return full
}

// hold has what is known hold for a while.
func (c *control) hold(now time.Duration, limit float64) {
	c.crowd.limit, c.crowd.until = limit, now+jittered(now, max(crowdHolds, probeCost*c.latency))
}

// crowded looks whether 429s mean that the backend is full. It returns why it has moved the limit, 0 if it has not.
func (c *control) crowded(now time.Duration, s *sample, l law) Reason {
	d, share := &c.crowd, s.share(s.limited)
	e := d.seen
	d.seen = seen{since: now}
	switch {
	case c.probe.phase != measuring:
	case now < d.until:
		if d.limit == 0 || share < max(refusalShareToCut, d.share/2) {
			return 0
		}
		if d.limit--; d.limit < d.least { // they come however many are in flight
			c.hold(now, 0)
		}
		return refusing
	case d.limit > 0 && e.n >= crowdEnds && math.Abs(e.in/e.n-1-d.limit) < .1*d.limit+1: // it is full again
		c.hold(now, d.limit)
		return refusing
	case (now - e.since).Seconds() < max(2, crowdSpan*c.latency):
		d.seen = e
	default:
		if full := e.full(now); full > float64(l.Min) {
			d.limit, d.share, d.least = full, e.n/(e.n+e.served), math.Floor(crowdProbe*full)
			c.probe = probe{phase: settling, began: now, until: now + duration(max(.05, .5*c.latency)), limit: c.limit, next: c.probe.next, of429: true}
			c.limit = d.least
			return Probed
		}
	}
	return 0
}

// endCrowd ends a probe with what it has shown of 429s.
func (c *control) endCrowd(now time.Duration, s *sample) Reason {
	d := &c.crowd
	c.stopProbe()
	if s.n+s.limited < crowdEnds || s.share(s.limited) > crowdPays*d.share {
		c.hold(now, 0)
		return restored
	}
	c.hold(now, d.limit)
	c.probe.next = now + jittered(now, probeCost*(now-c.probe.began).Seconds())
	return Proven
}
