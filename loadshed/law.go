package loadshed

import (
	"cmp"
	"math"
	"time"
)

// The constants here and in probe.go are ours where no source is
// named. They were chosen in simulation, on the named scenarios of loadtest/lab/overload
// and on backends drawn at random, none of which the tests use.
const (
	// A window is over after two mean latencies, within these bounds (seconds), if it holds
	// enough requests. With low traffic it is over anyway after maxWindowFactor times as long.
	shortestWindow     = 0.25
	longestWindow      = 1.0
	windowMinRequests  = 25
	windowMinEffective = 12 // see sample.effective
	maxWindowFactor    = 8

	smoothing = 0.5 // the EWMA weight of the newest window

	// The limit exceeds the need by headroom of it, by half of its square root, and by two: at
	// least four for a need of two, or chance would refuse more than a tenth. Below an
	// overloadShare of requests that hit the limit, it may rise further.
	headroom      = 0.05
	overloadShare = 0.15

	// tolerance is how far latency may stand above the baseline, as a share of it,
	// before the limit is cut; 1/√need more, as few workers queue more by chance.
	tolerance = 0.25

	// maxCut is the factor that one window cuts the limit by at most, and hotWindowsToCut
	// how many windows in a row above the tolerance that takes: a pause of this process,
	// for garbage collection or by another virtual machine, looks like congestion, too.
	maxCut          = 0.7
	hotWindowsToCut = 2

	// A limit is used up if a request hit it, or if nextToAll of it was in flight. A
	// backend is serving if nextToAll of what ended did not time out.
	nextToAll = .9

	// baselineWeight is how fast the baseline follows latency while the limit is not
	// used up, as an EWMA weight.
	baselineWeight = 0.1

	rateWindows = 8 // the greatest rate of so many windows counts
)

// control is the law: it turns a window of measurements into a limit. It reads
// nothing but its arguments, and is not safe for concurrent use. Limits are
// fractions here, so that small steps add up; times are in seconds.
//
// Words: a request hits the limit if the limit is reached when it arrives, and is
// rejected if it is not let in after a wait either. The backend refuses a request.
type control struct {
	limit             float64
	latency, baseline float64 // mean over the last window, and mean without a queue; 0: not known
	begun             bool    // a window is over

	rate         float64 // requests served per second, EWMA
	rates        [rateWindows]float64
	boundWindows int     // windows in a row in which the limit was used up
	hotWindows   int     // windows in a row with congestion above the tolerance
	excess       float64 // share of requests that hit the limit, EWMA
	pressure     float64 // share of the windows with rejections, EWMA

	climb    climb
	cut      cut
	probe    probe
	refusals refusals
	crowd    crowd
}

// begin moves the limit to the nearest one that l allows. The first rejections are worth a probe, as nothing is known yet.
func (c *control) begin(l law) {
	if c.limit == 0 {
		c.limit, c.pressure = float64(l.Initial), probePressure
	}
	c.limit = between(float64(l.Min), c.limit, float64(l.Max))
}

func between[T cmp.Ordered](low, v, high T) T { return min(max(v, low), high) }

func duration(seconds float64) time.Duration { return time.Duration(seconds * float64(time.Second)) }

// over reports whether the window is over, or in how long to look again.
func (c *control) over(now time.Duration, s *sample) (bool, time.Duration) {
	switch c.probe.phase {
	case settling:
		return now >= c.probe.until, c.probe.until - now
	case collecting:
		void := s.good == 0 && s.span >= max(.25, 4*c.latency) // the only requests in flight take far longer than most
		many := s.good >= 60 && s.effective() >= 30 || s.span > 3 && s.good >= 12 || c.probe.of429 && float64(s.n+s.limited) >= max(crowdEnds, 5/c.crowd.share)
		return void || many || s.span > max(3, 4*c.latency), duration(between(.005, c.latency/4, .05))
	}
	lasts := between(shortestWindow, 2*s.mean(), longestWindow)
	if s.span < lasts {
		return false, duration(lasts - s.span)
	}
	full := s.n+s.overloaded+s.limited >= windowMinRequests && (s.n == 0 || s.effective() >= windowMinEffective)
	// Looking is not free: not at every request, even if the window fills slowly.
	return full || s.span >= maxWindowFactor*lasts, duration(lasts / 8)
}

// step draws the conclusions from a window that is over, and returns why.
func (c *control) step(now time.Duration, s *sample, l law) Reason {
	if s.n > 0 {
		c.latency = s.mean()
	}
	if l.Target > 0 {
		c.baseline = 0
		if !c.probe.of429 {
			c.stopProbe() // a reload has come in between
		}
	}
	if r := c.refused(s, l); r != 0 {
		return r
	}
	if r := c.crowded(now, s, l); r != 0 {
		return r
	}
	switch {
	case s.unheard(nextToAll) && s.usedUp(c.limit):
		c.fall(maxCut, l)
		return Failed
	case c.probe.phase == settling:
		c.probe.phase = collecting
		return Probed
	case c.probe.phase == collecting:
		return c.endProbe(now, s, l)
	case s.n == 0:
		return unused
	case l.Target > 0:
		return c.holdTarget(s, l)
	case s.good == 0:
		c.fall(maxCut, l)
		return Failed
	case !c.begun: // of the first window, the requests to end are the fastest
		c.begun = true
		return unused
	case c.baseline == 0:
		c.baseline = max(1e-9, s.goodLatency/float64(s.good)) // all in less than a microsecond
		if s.usedUp(c.limit) {
			c.boundWindows = 1 // see climb
		}
		return unused
	}
	return c.adapt(now, s, l)
}

// fall multiplies the limit by a factor below 1 because the backend failed, whatever
// its latency is.
func (c *control) fall(factor float64, l law) {
	c.stopProbe()
	c.limit = max(float64(l.Min), factor*c.limit)
	c.cut.open, c.hotWindows = false, 0
}

// adapt moves the limit by what a window without a probe says.
func (c *control) adapt(now time.Duration, s *sample, l law) Reason {
	congestion := c.measure(s)
	if !s.usedUp(c.limit) {
		return c.idle(s, l)
	}
	c.rates[c.boundWindows%rateWindows] = c.rate
	c.boundWindows++
	need := c.need(s)
	target := need + headroom*need + .5*math.Sqrt(need) + 2
	tolerated := 1 + tolerance + 1/math.Sqrt(max(1, need))
	if c.climbs(now, s, congestion < tolerated, l) {
		return grown
	}
	reason := Congested
	if congestion < tolerated {
		c.hotWindows, c.cut.open = 0, false
		c.raise(target, float64(l.Max))
		reason = grown
	} else if c.hotWindows++; target < c.limit && (c.hotWindows >= hotWindowsToCut || !s.serving()) {
		c.lower(now, s, max(float64(l.Min), maxCut*c.limit, target), congestion)
	}
	if c.cutInVain(now, s) {
		return rebased
	}
	// Only under pressure, as a probe of an idle backend rejects requests for nothing.
	if now < c.probe.next || c.pressure <= probePressure || s.good < 5 || c.limit <= float64(l.Min) {
		return reason
	}
	p := &c.probe
	p.phase, p.began, p.until, p.limit = settling, now, now+duration(max(.05, 1.5*s.mean())), c.limit
	c.limit = max(float64(l.Min), math.Floor(.5*min(need, c.limit))) // a small fixed limit would reject most requests of a large backend
	return Probed
}

// measure measures rate and pressure, and returns the congestion: latency over baseline.
func (c *control) measure(s *sample) float64 {
	rate := float64(s.good) / s.span
	c.rate = cmp.Or(c.rate, rate) // the first window counts whole
	c.rate += smoothing * (rate - c.rate)
	c.pressure += pressureWeight * (float64(min(1, s.rejected)) - c.pressure)
	c.excess += smoothing * (float64(s.limitHits)/float64(s.limitHits+s.n+s.limited) - c.excess)
	return s.latency / (c.baseline * float64(s.good))
}

// idle handles a window in which the limit was not used up. Only then is the baseline
// learned. The limit does not grow: a burst would get all of it.
func (c *control) idle(s *sample, l law) Reason {
	c.boundWindows, c.cut.open = 0, false
	if !s.serving() { // many requests time out: this is not the time to let more in
		return unused
	}
	congestion := s.goodLatency / (c.baseline * float64(s.good))
	c.baseline *= 1 + baselineWeight*(between(.5, congestion, 2)-1)
	initial := float64(l.Initial)
	if top := max(initial, 4*float64(s.peak)); c.limit > top {
		c.limit = max(top, .9*c.limit)
	} else if c.limit < initial {
		c.limit = min(initial, c.limit+math.Sqrt(c.limit))
	}
	if c.limit == initial {
		c.climb = climb{} // nothing is known of larger ones any more
	}
	return unused
}

// need returns how many have to be in flight without a queue: by Little's law the greatest
// rate of the recent windows times the baseline.
func (c *control) need(s *sample) (need float64) {
	for _, rate := range c.rates[:min(c.boundWindows, rateWindows)] {
		need = max(need, rate*c.baseline)
	}
	if peak := float64(s.peak); peak > 0 && peak < nextToAll*c.limit {
		// The requests that hit the limit had a class's share of it only: that much more
		// would have been in flight.
		need *= c.limit / peak
	}
	return need
}

// lower cuts the limit, unless the last cut has yet to pay off.
func (c *control) lower(now time.Duration, s *sample, to, congestion float64) {
	switch {
	case !c.cut.open:
		c.cut = cut{open: true, limit: c.limit, congestion: congestion, at: now}
	case s.serving() && c.limit <= verifyBelow*c.cut.limit:
		return
	}
	c.limit = to
}

// raise raises the limit by half of its square root, at most to the target, where next to no
// requests are rejected to most: then latency is all that matters.
func (c *control) raise(target, most float64) {
	top := min(target, most)
	if c.excess < overloadShare {
		top = most
	}
	if c.limit < top {
		c.limit = min(max(c.limit+.5*math.Sqrt(c.limit)+.5, target), top)
	}
}

// A sample is what is known of the requests that have ended in a window. Times are in
// seconds.
type sample struct {
	span        float64 // how long it was collected
	n, good     int     // ended with a latency; of these, not timed out
	gone        int     // good ones whose clients had waited for longer than one takes without a queue, and left
	latency     float64 // sum over n
	goodLatency float64 // sum over good
	squares     float64 // sum of the squares of n latencies
	overloaded  int     // refused by the backend
	limited     int     // answered with 429
	late        int     // took longer than the target
	peak        int     // most in flight: each peak is followed by an end
	limitHits   int     // requests that found the limit reached
	rejected    int     // those of them that were not let in after a wait either
}

// add adds a request of a weight as if so many had ended, but that its latency is known of one only.
func (s *sample) add(weight int, took float64, timedOut bool, l law) {
	all := float64(weight) * took
	s.n += weight
	s.latency += all
	s.squares += all * all
	if !timedOut {
		s.good += weight
		s.goodLatency += all
	}
	if l.Target > 0 && (timedOut || took > l.Target.Seconds()) {
		s.late += weight
	}
}

// share returns the share of n of what has ended.
func (s *sample) share(n int) float64 {
	return float64(n) / float64(max(1, s.n+s.overloaded+s.limited))
}

// effective returns the effective sample size: how many requests of equal latency would
// say as much about the mean (Kish, "Survey Sampling", 1965). A single request that took a
// hundred times as long as the others must not decide.
func (s *sample) effective() float64 {
	return s.latency * s.latency / max(s.squares, 1e-18) // all in less than a nanosecond
}

// serving reports whether next to all that ended did so in time.
func (s *sample) serving() bool { return float64(s.good) >= nextToAll*float64(s.n) }

// unheard reports whether at least a share of what ended was for clients that had gone.
func (s *sample) unheard(share float64) bool {
	return s.gone > 0 && float64(s.gone) >= share*float64(s.n)
}

// usedUp reports whether the requests needed all of limit.
func (s *sample) usedUp(limit float64) bool {
	return s.limitHits > 0 || float64(s.peak) >= nextToAll*limit
}

// mean returns the mean latency, 0 if nothing has ended.
func (s *sample) mean() float64 { return s.latency / float64(max(1, s.n)) }

// holdTarget holds 95% of the requests within the target by AIMD: at most √limit up,
// and by maxCut down.
//
// Each late request lowers the limit by 1/50, each other one raises it by 5/95 of
// that. So it stands still at one late request in twenty, whatever the distribution
// (the weighted up-down method, Kaernbach, 1991).
func (c *control) holdTarget(s *sample, l law) Reason {
	step := c.limit * (.05*float64(s.n-s.late) - .95*float64(s.late)) / 50
	most := math.Sqrt(c.limit)
	switch {
	case step < 0:
		c.limit = max(float64(l.Min), c.limit+step, maxCut*c.limit)
		return late
	case s.usedUp(c.limit):
		c.limit = min(float64(l.Max), c.limit+min(most, step))
	case c.limit < float64(l.Initial):
		c.limit = min(float64(l.Initial), c.limit+most)
	}
	return inTime
}
