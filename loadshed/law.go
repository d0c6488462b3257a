package loadshed

import (
	"math"
	"time"
)

// The constants of the law. Where no source is named they are ours: they were
// chosen in simulation, on the named scenarios of loadtest/lab/overload and on
// backends drawn at random, none of which are those that the tests are held to.
const (
	// A window is over after two mean latencies, but not before shortest and not
	// after longestWindow, if it holds enough requests; it is over anyhow after
	// patience times as long (F9). A limiter that looks more often than requests
	// take sees its own past.
	shortestWindow  = 0.25 // seconds
	longestWindow   = 1.0
	enoughRequests  = 25
	enoughEffective = 12
	patience        = 8

	// smoothing is the weight of a new window in the means: a single one decides
	// nothing (F15).
	smoothing = 0.5

	// learnt is after how many requests the time of a route is believed.
	learnt = 30

	// headroom and its square root are what the limit is above the need. The square
	// root is the staffing rule of Halfin and Whitt ("Heavy-Traffic Limits for
	// Queues with Many Exponential Servers", 1981). Under heavy overload, where a
	// place is taken as soon as it is free, tight of it is enough.
	headroom = 0.1
	tight    = 0.5
	overload = 0.15 // share of refusals from which on it is less, and at
	heavy    = 0.5  // which it is least

	// Where next to nobody is refused, a limit of lenient times the target does no
	// harm if latency is fine.
	lenient   = 1.5
	fewAbove  = 0.05
	someBelow = 0.15

	// tolerance is how much latency may stand above the baseline before the limit is
	// cut; 1/√need more, as few workers queue more by chance.
	tolerance = 0.25

	// cut is by what a limit is cut at most in one window, and after how many
	// windows above the tolerance.
	cut       = 0.7
	hotBefore = 2

	// A cut that brought the limit below verify of what it was has to pay before the
	// next: latency must follow by at least this elasticity (1: latency is all
	// queue; 0: none of it).
	verify     = 0.75
	elasticity = 0.3

	// A share of refused refusals by the backend cuts the limit. Of enoughRefusals
	// results and more it is believed that cuts to the least limit have not paid, if
	// they have left unpaid of it. What is usual then is forgotten with the weight
	// usualMemory per window, and once it is rare.
	refused        = 0.1
	enoughRefusals = 30
	unpaid         = 0.75
	usualMemory    = 0.1
	rare           = 0.01

	// A throughput of lost less than it has been at a higher limit, and at least
	// deviations standard deviations of it, says that the limit is below the knee.
	lost       = 0.10
	deviations = 3
	rateMemory = 0.3 // weight of a new window in the throughput

	// firstProbe, laterProbe and longestProbe: how long after the limit began to
	// bind it is probed, in seconds: soon if there are no more requests than before,
	// so that the backend must have changed; later if there are. After that every 20
	// to 80 s, rarer as long as probes change nothing. A probe that took long may be
	// repeated after probeCost times as long only.
	firstProbe   = 3.0
	demandProbe  = 10.0
	nextProbe    = 20.0
	longestProbe = 80.0
	probeCost    = 40

	// A probe is void in which nothing ends for stalledAfter seconds and stalledMeans
	// mean latencies.
	stalledAfter = 0.25
	stalledMeans = 4

	// spared times the limit of a probe in flight, on average, is too much for it to
	// have been one.
	spared = 1.25

	// How fast the baseline follows latency while the limit is not used up: up
	// slowly, as a beginning overload looks like this.
	learnUp   = 0.05
	learnDown = 0.2

	// demandMemory is the weight of a window in what comes when there is room.
	demandMemory = 0.05

	// Of pressure, the share of recent windows with refusals: what is less than
	// pressed is bursts; only what is more than probed is worth a probe.
	pressed = 0.6
	probed  = 0.7

	memory = 8 // windows over which the greatest need counts
)

// control is the law: what a window of measurements makes of the limit. It reads
// nothing but its arguments, and is not safe for concurrent use. Limits are
// fractions here, so that small steps add up; times are in seconds.
type control struct {
	limit             float64
	latency, baseline float64 // means over the last window

	shape [Routes]float64 // how long a route takes when nothing queues
	seen  [Routes]int     // how many requests that is learnt from
	warm  bool            // the first window is over

	congestion float64 // latency over baseline, smoothed; 0: no window yet
	hot        int     // windows in a row above the tolerance
	need       float64 // in flight if nothing queued, smoothed
	needs      [memory]float64
	windows    int // in which the limit was bound, since it is

	bound  bool
	known  bool    // the limit has not bound once, or has been cut
	demand float64 // requests per second while it did not bind
	excess float64 // share of requests that found no room
	rate   float64 // served per second while it binds

	// best is the greatest throughput at a limit.
	best struct {
		rate, limit float64
		windows     int
	}

	// before is the limit before the backend failed, 0 once it is reached again.
	before float64

	// cuts is the cut that has yet to pay.
	cuts struct {
		open              bool
		limit, congestion float64 // before it
		at                time.Duration

		// what has been served since it took effect
		n                       int
		latency, shape, squares float64
	}

	probe struct {
		phase    phase
		began    time.Duration
		until    time.Duration // when what entered before has left
		limit    float64       // before it
		mean     float64       // latency before it
		next     time.Duration
		every    float64
		verified bool
		all      bool    // nobody is spared
		pressure float64 // share of the recent windows in which somebody was turned away
	}

	// refusals of the backend, as shares of what ended.
	refusals struct {
		at     time.Duration // of the last cut because of them
		before float64       // before the first such cut
		usual  float64       // what no cut has lowered; 0: nothing known
	}

	random uint64
}

type phase uint8

const (
	measuring  phase = iota
	settling         // a probe has begun: what ends now has entered before it
	collecting       // what ends now has entered since
)

// begin makes the limit one that l allows.
func (c *control) begin(l Law) {
	if c.limit == 0 {
		c.limit = float64(l.initial)
	}
	c.limit = between(float64(l.min), c.limit, float64(l.max))
	c.before = min(c.before, float64(l.max)) // a reload may have lowered it
}

func between(low, v, high float64) float64 { return min(max(v, low), high) }

func duration(seconds float64) time.Duration { return time.Duration(seconds * float64(time.Second)) }

// wait returns when to look at a window that begins now.
func (c *control) wait() time.Duration {
	if c.probe.phase == collecting {
		return duration(between(.005, c.latency/4, .05))
	}
	return duration(between(shortestWindow, 2*c.latency, longestWindow))
}

// over reports whether the window is over, or in how long to look again.
func (c *control) over(now time.Duration, s *sample) (bool, time.Duration) {
	switch c.probe.phase {
	case settling:
		return now >= c.probe.until, c.probe.until - now
	case collecting:
		return s.good >= 60 && s.effective() >= 30 || s.span > 3, c.wait()
	}
	lasts := between(shortestWindow, 2*s.mean(), longestWindow)
	if s.span < lasts {
		return false, duration(lasts - s.span)
	}
	full := s.n >= enoughRequests && s.effective() >= enoughEffective
	// Looking is not free: not at every request, even if the window fills slowly.
	return full || s.span >= patience*lasts, duration(lasts / 8)
}

// step makes of a window what follows from it.
func (c *control) step(now time.Duration, s *sample, l Law) Reason {
	if s.n > 0 {
		c.latency = s.mean()
		if r := &c.refusals; r.usual > rare {
			r.usual += usualMemory * (float64(s.overloaded)/float64(s.overloaded+s.n) - r.usual)
		} else {
			r.usual = 0
		}
	}
	if l.target > 0 {
		if c.probe.phase != measuring { // a reload has come in between
			c.limit, c.probe.phase = c.probe.limit, measuring
		}
		return c.meet(s, l)
	}
	switch c.probe.phase {
	case settling:
		c.probe.phase = collecting
		return Probed
	case collecting:
		c.probe.phase = measuring
		return c.verdict(now, s, l)
	}
	switch {
	case !c.warm:
		// The first to end are the fastest (F8).
		c.warm = true
		return Unused
	case s.n == 0:
		return Unused
	case s.good == 0:
		c.fall(cut, l)
		return Failed
	}
	return c.adapt(now, s, l)
}

// shapes returns how long what was served would have taken without a queue. A
// route that is not known yet counts as it was.
func (c *control) shapes(s *sample) (sum float64) {
	for r := range s.routes {
		if m := &s.routes[r]; c.seen[r] < learnt {
			sum += m.latency
		} else {
			sum += float64(m.n) * c.shape[r]
		}
	}
	return sum
}

// rescale multiplies the baseline.
func (c *control) rescale(by float64) {
	for r := range c.shape {
		c.shape[r] *= by
	}
	for i := range c.needs {
		c.needs[i] *= by
	}
	c.need *= by
}

// learn follows how long the routes take relative to each other: each route's
// latency, less what all of them have in common (F10).
func (c *control) learn(s *sample, congestion float64) {
	for r := range s.routes {
		m := &s.routes[r]
		switch {
		case m.n == 0:
		case c.seen[r] < learnt:
			c.shape[r] = (c.shape[r]*float64(c.seen[r]) + m.latency) / float64(c.seen[r]+m.n)
			c.seen[r] += m.n
		default:
			c.shape[r] += min(.5, float64(m.n)/400) * (m.latency/float64(m.n)/congestion - c.shape[r])
		}
	}
}

func (c *control) adapt(now time.Duration, s *sample, l Law) Reason {
	shape := c.shapes(s)
	if longest := l.maxLatency * float64(s.good); longest > 0 && shape > longest {
		c.rescale(longest / shape)
		shape = longest
	}
	shape = max(shape, 1e-9) // all in less than a microsecond
	c.baseline = shape / float64(s.good)

	// By Little's law, the sum of the times of service over the time that passed is
	// the mean number in flight: as it was, and as it would be without a queue.
	need, congestion := shape/s.span, s.latency/shape
	goodCongestion := max(s.goodLatency/shape, 1e-9)
	if c.congestion == 0 {
		c.congestion, c.need = congestion, need
	}
	c.congestion += smoothing * (congestion - c.congestion)
	c.need += smoothing * (need - c.need)
	refusing := 0.0
	if s.turnedAway > 0 {
		refusing = 1
	}
	c.probe.pressure += .15 * (refusing - c.probe.pressure)
	c.excess += .3 * (float64(s.refused)/float64(s.refused+s.n) - c.excess)
	c.learn(s, goodCongestion)

	if s.refused == 0 && float64(s.peak) < .9*c.limit {
		return c.idle(s, goodCongestion, l)
	}
	c.bind(now, s)

	most := 0.0
	for _, n := range c.needs[:min(c.windows, memory)] {
		most = max(most, n)
	}
	if peak := float64(s.peak); peak > 0 && peak < .9*c.limit {
		// Who was refused had not all of the limit, but a share of it: what was needed
		// is what was let in, and says that much less of the limit.
		most *= c.limit / peak
	}
	spare := 1 - (1-tight)*between(0, (c.excess-overload)/(heavy-overload), 1)
	target := most + spare*(headroom*most+math.Sqrt(most)) + 1
	above := 1 + tolerance + 1/math.Sqrt(max(1, most))
	if c.congestion > above {
		c.hot++
	} else {
		c.hot = 0
	}
	serving := float64(s.good) >= .9*float64(s.n)

	if c.lost(now, s) {
		return Rebased
	}
	reason := c.move(now, s, l, target, above, congestion, serving)
	if paid, known := c.pays(now, s, shape, serving); known && !paid {
		return Rebased
	}
	if c.cuts.open && c.congestion < above {
		c.cuts.open = false
	}
	if !l.noProbe && now >= c.probe.next && c.probe.pressure > probed && c.excess > .1 && c.before == 0 && s.good >= 5 && c.limit > float64(l.min) {
		// To half of the need, not to a fixed few (F4), and only under pressure.
		p := &c.probe
		p.phase, p.began, p.limit, p.mean = settling, now, c.limit, c.latency
		p.until = now + duration(max(.05, 1.5*s.mean()))
		c.limit = max(float64(l.min), math.Floor(.5*min(most, c.limit)))
		return Probed
	}
	return reason
}

// idle is for a window in which the limit was not used up: the only time to learn
// the baseline for free (F1, F2, F3), and none to grow (F5).
func (c *control) idle(s *sample, congestion float64, l Law) Reason {
	if c.excess < fewAbove { // a window of an overload may be idle by chance
		demand := float64(s.n) / s.span
		if c.demand == 0 {
			c.demand = demand
		}
		c.demand += demandMemory * (demand - c.demand)
	}
	c.bound, c.cuts.open, c.known, c.before = false, false, true, 0
	if float64(s.good) < .9*float64(s.n) {
		// Much times out although there is room: this is not the time to let more in.
		c.limit = max(float64(l.min), min(c.limit, max(float64(s.peak), c.need+headroom*c.need+math.Sqrt(c.need)+1)))
		return Unused
	}
	follow := learnUp
	if congestion < 1 {
		follow = learnDown
	}
	c.rescale(1 + follow*(between(.5, congestion, 2)-1))
	initial := float64(l.initial)
	if top := max(initial, 4*float64(s.peak)); c.limit > top {
		c.limit = max(top, .9*c.limit)
	} else if c.limit < initial {
		c.limit = min(initial, c.limit+math.Sqrt(c.limit))
	}
	return Unused
}

// bind keeps account of a window in which the limit was used up.
func (c *control) bind(now time.Duration, s *sample) {
	rate := float64(s.good) / s.span
	if !c.bound {
		c.bound, c.windows, c.rate, c.probe.all = true, 0, rate, false
		switch {
		case c.probe.verified:
			c.probe.next = now + c.jittered(now, nextProbe)
		case c.demand > 0 && float64(s.n+s.refused)/s.span > 1.5*c.demand:
			c.probe.next = now + duration(demandProbe)
		default:
			c.probe.next = now + duration(firstProbe)
		}
	}
	c.rate += rateMemory * (rate - c.rate)
	c.needs[c.windows%memory] = c.need
	c.windows++
}

// move takes the limit towards the target.
func (c *control) move(now time.Duration, s *sample, l Law, target, above, congestion float64, serving bool) Reason {
	least, most := float64(l.min), float64(l.max)
	if c.before > 0 && (c.limit >= c.before || c.hot >= hotBefore) {
		c.before = 0
		c.probe.next = max(c.probe.next, now+duration(demandProbe))
	}
	calm := c.demand > 0 && float64(s.n+s.refused)/s.span <= 1.5*c.demand
	switch {
	case c.before > 0:
		// Slow start after a failure, as TCP's (Jacobson, "Congestion Avoidance and
		// Control", 1988): by halves up to where it was.
		if congestion < above {
			c.limit = min(1.5*c.limit+.5, c.before)
		}
		return Grown
	case c.congestion > above && target < c.limit:
		if serving && c.hot < hotBefore {
			return Congested
		}
		switch e := &c.cuts; {
		case !e.open:
			e.open, e.limit, e.congestion, e.at = true, c.limit, max(c.congestion, congestion), now
			e.n = 0
			c.known = true
		case serving && c.limit <= verify*e.limit:
			return Congested // the last cut has yet to pay
		}
		c.limit = max(least, cut*c.limit, target)
		return Congested
	case c.congestion < above:
		easy := 1 + (lenient-1)*between(0, (someBelow-c.excess)/(someBelow-fewAbove), 1)
		if !c.known {
			easy = lenient
		}
		top := min(easy*target, most)
		if calm {
			// No more requests than there were when there was room for all: what is
			// refused is a burst, and as high as latency allows is not too high. If it is
			// much, it is no burst.
			if top = max(top, float64(l.initial)); c.excess < someBelow && c.probe.pressure < pressed {
				top = most
			}
		}
		grow := .5*math.Sqrt(c.limit) + .5
		if !c.known { // a cold start
			grow = max(grow, .5*(top-c.limit))
		}
		if c.limit < top {
			c.limit = min(c.limit+grow, top)
		} else if c.probe.verified && c.excess > someBelow {
			c.limit = max(least, c.limit-.2*(c.limit-top))
			return Trimmed
		}
		return Grown
	}
	return Congested
}

// pays says whether latency has followed the last cut down, once that is known. If
// it has not, the backend is as slow as it is by nature, and the cut was wrong
// (F3): the limit is taken back, and the baseline is what was measured.
func (c *control) pays(now time.Duration, s *sample, shape float64, serving bool) (paid, known bool) {
	e := &c.cuts
	since := (now - e.at).Seconds()
	if !e.open || c.limit > verify*e.limit || since <= max(.2, 1.5*s.mean()) {
		e.n, e.latency, e.shape, e.squares = 0, 0, 0, 0
		return false, false
	}
	e.n += s.good
	e.latency += s.goodLatency
	e.shape += shape
	e.squares += s.squares
	enough := e.n >= 60 && e.latency*e.latency >= 40*e.squares
	if !enough && (e.n == 0 || since <= 8) {
		return false, false
	}
	congestion := e.latency / e.shape
	if serving && math.Log(e.congestion/congestion) < elasticity*math.Log(e.limit/c.limit) {
		c.rebase(now, congestion, e.limit)
		return false, true
	}
	e.limit, e.congestion, e.at, e.n = c.limit, c.congestion, now, 0
	e.latency, e.shape, e.squares = 0, 0, 0
	return true, true
}

// lost says whether less is served than at a higher limit: it is below the knee,
// and then latency is the backend's own, whatever the baseline says (F2).
func (c *control) lost(now time.Duration, s *sample) bool {
	b := &c.best
	b.windows++
	b.rate *= .998
	// The rate is a mean over some (2-w)/w windows.
	deviation := math.Sqrt(rateMemory / (2 - rateMemory) / float64(s.good))
	switch {
	case b.windows > 3 && c.rate > b.rate:
		b.rate, b.limit = c.rate, c.limit
	case b.windows > 6 && s.refused > 0 && float64(s.good) >= .9*float64(s.n) &&
		c.rate < (1-max(lost, deviations*deviation))*b.rate && c.limit < .9*b.limit:
		c.rebase(now, max(1, c.congestion), b.limit)
		b.rate, b.windows = 0, 0
		return true
	}
	return false
}

// rebase takes latency as it is for that of no queue, and has that verified soon.
func (c *control) rebase(now time.Duration, congestion, limit float64) {
	c.rescale(congestion)
	c.limit = limit
	c.congestion = 1
	c.cuts.open = false
	c.probe.verified = false
	c.probe.next = now + 2*time.Second
}

// verdict ends a probe. If about as much was served at half the need, the need was
// overrated: it was a queue. If not, latency at the lower limit is the baseline,
// and the limit is what it was.
func (c *control) verdict(now time.Duration, s *sample, l Law) Reason {
	p := &c.probe
	rate, ratio := float64(s.good)/max(s.span, 1e-3), 1.0
	if shape := c.shapes(s); shape > 0 {
		ratio = s.goodLatency / shape
	}
	c.cuts.open = false
	c.congestion = 1
	if s.latency/max(s.span, 1e-3) > spared*c.limit {
		// Those who are spared probes have taken what was kept from the others, so
		// that by Little's law nothing was tried. The next is for all to bear.
		p.all = true
		p.next = now + c.jittered(now, firstProbe)
		c.limit = p.limit
		return Restored
	}
	if s.refused > 0 && rate > .8*c.rate && c.limit > float64(l.min) {
		c.rescale(min(1, ratio))
		p.verified = rate < .93*c.rate // else the queue may be longer still
		p.next = now + 300*time.Millisecond
		if p.verified {
			p.next = now + c.jittered(now, nextProbe)
		}
		return Proven
	}
	if s.good >= 20 {
		c.rescale(math.Pow(between(.3, ratio, 3), .7))
	}
	if p.every = nextProbe; p.verified && ratio > .85 && ratio < 1.15 {
		p.every = min(2*p.every, longestProbe)
	}
	p.verified = true
	p.next = now + c.jittered(now, max(p.every, probeCost*(now-p.began).Seconds()))
	c.limit = p.limit
	return Restored
}

// stalled ends a probe in which nothing has ended for too long.
func (c *control) stalled(now, idle time.Duration) bool {
	p := &c.probe
	if p.phase == measuring || idle.Seconds() < max(stalledAfter, stalledMeans*p.mean) {
		return false
	}
	p.phase = measuring
	p.next = now + c.jittered(now, max(nextProbe, probeCost*(now-p.began).Seconds()))
	c.limit = p.limit
	c.congestion = 1
	c.cuts.open = false
	return true
}

// meet holds 95 % of the requests within the target: each late one lowers the
// limit by 1/50, each other one raises it by 5/95 of that, so that it stands still
// at one late request in twenty, whatever the distribution (the weighted up-down
// method, Kaernbach, 1991). Additive increase and multiplicative decrease, as in
// TCP: at most √limit up, and by cut down.
func (c *control) meet(s *sample, l Law) Reason {
	c.baseline = 0
	within := s.n - s.late
	step := (late*float64(within) - (1-late)*float64(s.late)) / 50
	if step < 0 {
		if within == 0 {
			c.before, c.hot = max(c.before, c.limit), 0
		} else if c.hot++; c.hot >= hotBefore {
			c.before = 0 // the backend is back, and not what it was
		}
		c.limit = max(float64(l.min), c.limit*max(cut, 1+step))
		return Late
	}
	switch {
	case c.before > 0: // what failed is over: by halves up to where it was
		if c.limit = min(1.5*c.limit+.5, c.before); c.limit == c.before {
			c.before = 0
		}
	case s.refused > 0 || float64(s.peak) >= .9*c.limit:
		c.limit = min(float64(l.max), c.limit+min(math.Sqrt(c.limit), step*c.limit))
	case c.limit < float64(l.initial):
		c.limit = min(float64(l.initial), c.limit+math.Sqrt(c.limit))
	}
	return InTime
}

// late is the share of requests that may take longer than the target.
const late = 0.05

// refusing says whether the backend refuses so much that the limit is cut: a tenth
// of what ended in the window, twice at least, and once per round trip. These cuts
// must pay, too: if the share of refusals is at the least limit about what it was
// before the first cut, it is not the load, as when one of several upstreams is dead.
// Then the limit rises again, and only twice as many say something.
func (c *control) refusing(now time.Duration, s *sample, l Law) bool {
	r := &c.refusals
	ended := s.overloaded + s.good
	share := float64(s.overloaded) / float64(ended)
	if s.overloaded < 2 || share < max(refused, 2*r.usual) {
		return false
	}
	least := c.before > 0 && c.limit <= float64(l.min)
	if (least || r.usual > 0) && ended < enoughRefusals {
		return false
	}
	if least {
		if share > unpaid*r.before {
			r.usual = share
			return false
		}
		r.before = share // that of the first cut was of a few requests
	}
	if r.at > 0 && (now-r.at).Seconds() < max(c.latency, .1) {
		return false
	}
	r.at = now
	if c.before == 0 {
		r.before = share
	}
	c.fall(cut, l)
	return true
}

// fall cuts the limit because the backend failed, whatever its latency is, and
// remembers to where it may rise fast.
func (c *control) fall(by float64, l Law) {
	if c.probe.phase != measuring {
		c.limit, c.probe.phase = c.probe.limit, measuring
	}
	c.before = max(c.before, c.limit)
	c.limit = max(float64(l.min), by*c.limit)
	c.cuts.open = false
	c.congestion = 1
}

// jittered is a time from seconds to a quarter more, so that several proxies of one
// backend do not probe it together (F12).
func (c *control) jittered(now time.Duration, seconds float64) time.Duration {
	// SplitMix64 (Steele, Lea and Flood, 2014), stirred with the time, as replicas
	// must not draw the same.
	c.random += 0x9e3779b97f4a7c15 ^ uint64(now)
	z := c.random
	z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
	z = (z ^ z>>27) * 0x94d049bb133111eb
	return duration(seconds * (1 + float64((z^z>>31)>>11)/(1<<55)))
}
