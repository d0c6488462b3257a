package loadshed

import (
	"cmp"
	"fmt"
	"sync"
	"sync/atomic"
	"time"
)

// AdaptiveConfig configures an adaptive limit. Zero fields mean their defaults.
type AdaptiveConfig struct {
	// Min and Max bound the limit, in requests in flight. They default to 2 and 1000, and are at most MaxLimit.
	// Min isn't 1 because a limit of 1 can't be halved to see whether latency follows.
	Min, Max int

	// Initial is the limit to start with. It defaults to 20, or the nearest value within Min and Max.
	Initial int

	// Target, if positive, replaces the search for the latency without a queue: the limit is the highest one
	// that serves 95% of the requests within Target.
	Target time.Duration
}

const (
	defaultMin     = 2
	defaultMax     = 1000
	defaultInitial = 20

	// MaxLimit is the highest limit that can be set.
	MaxLimit = 100_000

	// minTarget and maxTarget bound Target. Nothing behind a proxy is reliably faster than 1 ms.
	minTarget = time.Millisecond
	maxTarget = time.Minute
)

// A law is a valid AdaptiveConfig with its defaults. The zero law admits no request.
type law AdaptiveConfig

func newLaw(c AdaptiveConfig) (law, error) {
	for _, f := range []struct {
		name string
		n    int
	}{{"min", c.Min}, {"max", c.Max}, {"initial", c.Initial}} {
		if f.n < 0 || f.n > MaxLimit {
			return law{}, fmt.Errorf("%s is %d; use 1 to %d", f.name, f.n, MaxLimit)
		}
	}
	if c.Target != 0 && (c.Target < minTarget || c.Target > maxTarget) {
		return law{}, fmt.Errorf("target is %v; use %v to %v", c.Target, minTarget, maxTarget)
	}
	c.Min = cmp.Or(c.Min, min(defaultMin, cmp.Or(c.Max, defaultMin)))
	c.Max = cmp.Or(c.Max, max(defaultMax, c.Min))
	if c.Min > c.Max {
		return law{}, fmt.Errorf("min is %d and max is %d; min must be at most max", c.Min, c.Max)
	}
	c.Initial = cmp.Or(c.Initial, min(max(defaultInitial, c.Min), c.Max))
	if c.Initial < c.Min || c.Initial > c.Max {
		return law{}, fmt.Errorf("initial is %d; use %d to %d, from min to max", c.Initial, c.Min, c.Max)
	}
	return law(c), nil
}

// Reason is why a limit has changed.
type Reason uint8

const (
	_         Reason = iota
	grown            // the limit was used up, without a queue
	Congested        // latency was above the baseline
	Failed           // all requests timed out
	refusing         // the backend refused requests
	Probed           // lowered for a moment, to see whether latency follows, or whether 429s of the backend end
	Proven           // a probe has found a queue, or that 429s mean an overload: the lower limit stays
	restored         // the former limit is back: a probe has found neither, or the backend refuses as much at the least limit
	rebased          // a lower limit brought no lower latency: the backend is slower than the baseline said
	unused           // the limit was not used up: it returns towards the initial one
	restarted        // a pause of the backend is over
	late             // more than 5% took longer than the target
	inTime           // at most 5% took longer than the target
)

var reasons = [...]string{"", "grown", "congested", "failed", "rejecting", "probed", "proven", "restored", "rebased", "unused", "restarted", "late", "in_time"}

// String returns the reason as a metric label.
func (r Reason) String() string { return reasons[r] }

// Reasons returns all reasons for a Change of an adaptive limit.
func Reasons() (all []Reason) {
	for r := range reasons[1:] {
		all = append(all, Reason(r+1))
	}
	return all
}

// A Change is a new limit and what it was based on.
type Change struct {
	At       time.Duration
	From, To int
	Reason   Reason
	Latency  time.Duration // mean over the window; 0: nothing was measured
	Baseline time.Duration // Latency without a queue; 0: not known
}

// adaptive is an adaptive concurrency limit: see the package comment. The zero adaptive knows
// nothing and is ready. It is safe for concurrent use and must not be copied.
type adaptive struct {
	limit               atomic.Int64 // 0: nothing is learned
	limitHits, rejected atomic.Int64 // in this window: see sample
	_                   [64]byte     // every request reads those

	mu      sync.Mutex // guards what follows
	started time.Duration
	closeAt time.Duration // when to look at the window next
	sample  sample
	control control
	last    Change
	count   [len(reasons)]uint64
}

// Limit returns how many requests may be in flight.
func (a *adaptive) Limit(l law) int {
	if n := a.limit.Load(); n > 0 {
		return int(min(max(n, int64(l.Min)), int64(l.Max)))
	}
	return l.Initial
}

// Done tells that a request has ended, took after it entered; inFlight is how many were in
// flight just before, and weight how many permits it had, as many as it counts for. It moves the limit if it is time for that. patience is how long its client
// has waited if it went before the response came, or 0.
//
// A timeout counts as latency, but never as baseline. Refusals of the backend and 429s have no
// latency, as errors are fast. A client that has gone after a wait counts while the limit is used
// up; otherwise no request waited for another. It is served, unless nearly all are gone: see [control.step].
func (a *adaptive) Done(now, took, patience time.Duration, o Outcome, inFlight, weight int, l law) {
	if o == Detached {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	s, c := &a.sample, &a.control
	if o == Served && c.baseline > 0 && patience.Seconds() > c.baseline {
		s.gone += weight
	}
	if o == Served || o == Limited {
		c.crowd.seen.answered(o, max(0, took.Seconds()), inFlight)
	}
	s.peak = max(s.peak, inFlight)
	s.limitHits, s.rejected = int(a.limitHits.Load()), int(a.rejected.Load())
	if o == Aborted && !s.usedUp(float64(a.Limit(l))) {
		return
	}
	switch {
	case o == Overloaded:
		s.overloaded += weight
	case o == Limited:
		s.limited += weight
	case o == Aborted && l.Target == 0:
		s.gone += weight
		s.add(weight, max(0, took.Seconds()), false, l)
	default:
		s.add(weight, max(0, took.Seconds()), o != Served, l)
	}
	if now < a.closeAt {
		return
	}
	c.begin(l)
	if a.closeAt == 0 { // the first request ever
		a.set(now, unused, l)
		return
	}
	a.look(now, l)
}

// look looks whether the window is over, and moves the limit if it is.
func (a *adaptive) look(now time.Duration, l law) {
	s, c := &a.sample, &a.control
	s.span = (now - a.started).Seconds()
	if over, again := c.over(now, s); !over {
		a.closeAt = now + again
		return
	}
	r := c.step(now, s, l)
	if c.crowd.limit > 0 && now < c.crowd.until {
		c.limit = min(c.limit, c.crowd.limit)
	}
	a.set(now, r, l)
}

// Restart tells that the backend is back after a pause. The limit is halved.
func (a *adaptive) Restart(now time.Duration, l law) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.control.begin(l)
	a.control.fall(.5, l)
	a.set(now, restarted, l)
}

// Tick, a few times per second, ends a probe in which nothing ends any more.
func (a *adaptive) Tick(now time.Duration, l law) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.control.probe.phase != measuring {
		a.look(now, l)
	}
}

// set makes the limit of the control the one in force, and begins a window.
func (a *adaptive) set(now time.Duration, r Reason, l law) {
	c := &a.control
	a.limitHits.Store(0)
	a.rejected.Store(0)
	a.sample, a.started, a.closeAt = sample{}, now, now+time.Millisecond
	from := a.Limit(l)
	if r == Proven {
		from = int(c.probe.limit)
	}
	a.limit.Store(max(1, int64(c.limit)))
	if to := a.Limit(l); from != to {
		a.last = Change{now, from, to, r, duration(c.latency), duration(c.baseline)}
		a.count[r]++
	}
}

// Stats returns the last change, and how many there were for each reason.
func (a *adaptive) Stats() (last Change, count map[Reason]uint64) {
	a.mu.Lock()
	defer a.mu.Unlock()
	count = map[Reason]uint64{}
	for _, r := range Reasons() {
		count[r] = a.count[r]
	}
	return a.last, count
}
