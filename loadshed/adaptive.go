package loadshed

import (
	"cmp"
	"fmt"
	"sync"
	"sync/atomic"
	"time"
)

// AdaptiveConfig is how an operator sets an adaptive limit. Zero fields have their
// defaults.
type AdaptiveConfig struct {
	// Min and Max bound the limit, in requests in flight. Default 2 and 1000, at most
	// MaxLimit. A limit of 1 cannot be halved to see whether latency follows.
	Min, Max int

	// Initial is the limit before anything is known. Default 20, or the nearest that
	// Min and Max allow.
	Initial int

	// MaxLatency is the longest mean latency that a backend without a queue can have. A
	// backend that is always slower counts as overloaded. Default 0: no bound.
	MaxLatency time.Duration

	// Target, if positive, replaces the search for the latency without a queue: the
	// limit is the highest that serves 95 % of the requests within Target.
	Target time.Duration

	// NoProbe forbids the dips that verify the baseline. A probe costs 1 to 2 % of the
	// throughput of a backend that is overloaded for long, and nothing otherwise.
	// Without probes the limit of such a backend may drift upwards.
	NoProbe bool
}

const (
	defaultMin     = 2
	defaultMax     = 1000
	defaultInitial = 20

	// MaxLimit is the highest limit that can be set.
	MaxLimit = 100_000

	// minTarget and maxTarget bound Target and MaxLatency. Nothing behind a proxy is
	// reliably faster than 1 ms. A target that no request meets would hold the limit at
	// its minimum for ever.
	minTarget = time.Millisecond
	maxTarget = time.Minute
)

// A law is a valid AdaptiveConfig with its defaults. The zero law admits no request.
type law AdaptiveConfig

// newLaw returns the law that c describes.
func newLaw(c AdaptiveConfig) (law, error) {
	for _, f := range []struct {
		name string
		n    int
	}{{"min", c.Min}, {"max", c.Max}, {"initial", c.Initial}} {
		if f.n < 0 || f.n > MaxLimit {
			return law{}, fmt.Errorf("%s is %d; want 1 to %d", f.name, f.n, MaxLimit)
		}
	}
	for _, f := range []struct {
		name string
		d    time.Duration
	}{{"max_latency", c.MaxLatency}, {"target", c.Target}} {
		if f.d != 0 && (f.d < minTarget || f.d > maxTarget) {
			return law{}, fmt.Errorf("%s is %v; want %v to %v", f.name, f.d, minTarget, maxTarget)
		}
	}
	if c.Target > 0 && (c.MaxLatency > 0 || c.NoProbe) {
		return law{}, fmt.Errorf("target is %v, with max_latency or probe; want it alone, because it needs no baseline", c.Target)
	}
	c.Min = cmp.Or(c.Min, min(defaultMin, cmp.Or(c.Max, defaultMin)))
	c.Max = cmp.Or(c.Max, max(defaultMax, c.Min))
	if c.Min > c.Max {
		return law{}, fmt.Errorf("min is %d and max is %d; want min at most max", c.Min, c.Max)
	}
	c.Initial = cmp.Or(c.Initial, min(max(defaultInitial, c.Min), c.Max))
	if c.Initial < c.Min || c.Initial > c.Max {
		return law{}, fmt.Errorf("initial is %d; want %d to %d, from min to max", c.Initial, c.Min, c.Max)
	}
	return law(c), nil
}

// Reason is why a limit has changed.
type Reason uint8

const (
	_         Reason = iota
	Grown            // the limit was used up, without a queue
	Congested        // latency was above the baseline
	Failed           // all requests timed out
	Refusing         // the backend refused requests
	Probed           // lowered for a moment, to see whether latency follows
	Proven           // a probe has found a queue: the lower limit stays
	Restored         // the former limit is back: a probe has found no queue
	Rebased          // a lower limit brought no lower latency: the backend is slower than the baseline said
	Unused           // the limit was not used up: it returns towards the initial one
	Restarted        // a pause of the backend is over
	Late             // more than 5 % took longer than the target
	InTime           // at most 5 % took longer than the target
)

var reasons = [...]string{"", "grown", "congested", "failed", "refusing", "probed", "proven", "restored", "rebased", "unused", "restarted", "late", "in_time"}

// String returns the reason as a metric label.
func (r Reason) String() string { return reasons[r] }

// A Change is a new limit and what it was based on.
type Change struct {
	At       time.Duration
	From, To int
	Reason   Reason
	Latency  time.Duration // mean over the window; 0: nothing was measured
	Baseline time.Duration // Latency without a queue; 0: not known
}

// adaptive is an adaptive concurrency limit: it finds how many requests a backend can
// have in flight before they only wait for each other. The package comment says how.
// The zero adaptive knows nothing and is ready. It is safe for concurrent use and must
// not be copied.
type adaptive struct {
	limit   atomic.Int64 // 0: nothing is learned
	closeAt atomic.Int64 // when to look at the window next
	window  window

	mu      sync.Mutex // guards what follows; only ever tried by Done
	started time.Duration
	control control
	sample  sample // scratch
}

// Limit returns how many requests may be in flight.
func (a *adaptive) Limit(l law) int { return l.allow(a.limit.Load()) }

// allow returns the limit nearest to n that l allows, the initial one for 0.
func (l law) allow(n int64) int {
	if n == 0 {
		return l.Initial
	}
	return int(min(max(n, int64(l.Min)), int64(l.Max)))
}

// LimitHit tells that a request found the limit reached. Call it once for each such
// request, whether it is then queued or rejected.
func (a *adaptive) LimitHit() { a.window.limitHits.Add(1) }

// Rejected tells that a request that hit the limit has been rejected, at once or after
// a wait. Only then may the limit be probed: where all are let in after a moment in the
// queue, a probe would do more harm than a limit that is a little off.
func (a *adaptive) Rejected() { a.window.rejected.Add(1) }

// Done tells that a request has ended, took after it entered. A time-out counts as
// latency, since a limiter that ignores time-outs is blind in an overload, but never as
// baseline: time-outs would become what is normal. Refusals of the backend have no
// latency, as errors are fast. A client that has gone after a wait counts as a time-out
// while the limit is used up; otherwise no request waited for another, and a lower limit
// would not help.
//
// inFlight is how many were in flight just before it left.
// Done returns the change of the limit, if it is time for one.
func (a *adaptive) Done(now, took time.Duration, o Outcome, inFlight int, l law) (Change, bool) {
	if o == Aborted {
		a.window.inFlight(inFlight)
		if o = TimedOut; a.window.limitHits.Load() == 0 && 10*a.window.peak.Load() < 9*uint64(a.Limit(l)) {
			return Change{}, false
		}
	}
	switch o {
	case Served, TimedOut:
		a.window.add(took, o == TimedOut)
		if l.Target > 0 && (took > l.Target || o == TimedOut) {
			a.window.late.Add(1)
		}
	case Overloaded:
		a.window.overloaded.Add(1)
	default:
		return Change{}, false
	}
	a.window.inFlight(inFlight)
	if int64(now) < a.closeAt.Load() && o != Overloaded {
		return Change{}, false
	}
	if o == Overloaded {
		a.mu.Lock() // the last of several refusals at once may be the one that counts
	} else if !a.mu.TryLock() {
		return Change{}, false // another goroutine looks
	}
	defer a.mu.Unlock()
	return a.look(now, o == Overloaded, l)
}

// Restart tells that the backend is back after a pause. The limit is halved.
func (a *adaptive) Restart(now time.Duration, l law) (Change, bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.control.begin(l)
	a.control.fall(.5, l)
	a.window.read(&a.sample, true)
	return a.set(now, Restarted, l)
}

// Tick, a few times per second, ends a probe that does not end on its own: the only requests
// in flight take far longer than most. idle is for how long nothing has ended.
func (a *adaptive) Tick(now, idle time.Duration, l law) (Change, bool) {
	if !a.mu.TryLock() {
		return Change{}, false
	}
	defer a.mu.Unlock()
	if !a.control.abortStalledProbe(now, idle) {
		return Change{}, false
	}
	a.window.read(&a.sample, true)
	return a.set(now, Restored, l)
}

// look applies the law to the window if it is over.
func (a *adaptive) look(now time.Duration, overloaded bool, l law) (Change, bool) {
	c := &a.control
	c.begin(l)
	s := &a.sample
	if overloaded {
		a.window.read(s, false)
		if c.cutForRefusals(now, s, l) {
			a.window.read(s, true)
			return a.set(now, Refusing, l)
		}
		if int64(now) < a.closeAt.Load() {
			return Change{}, false
		}
	}
	if a.closeAt.Load() == 0 { // the first request ever
		a.window.read(s, true)
		return a.set(now, Unused, l)
	}
	a.window.read(s, false)
	s.span = (now - a.started).Seconds()
	over, again := c.over(now, s)
	if !over {
		a.closeAt.Store(int64(now + again))
		return Change{}, false
	}
	a.window.read(s, true)
	s.span = (now - a.started).Seconds()
	return a.set(now, c.step(now, s, l), l)
}

// set makes the limit of the control the one in force, and begins a window.
func (a *adaptive) set(now time.Duration, r Reason, l law) (Change, bool) {
	a.started = now
	a.closeAt.Store(int64(now + a.control.wait()))
	from := a.Limit(l)
	if r == Proven {
		from = l.allow(int64(a.control.probe.limit))
	}
	a.limit.Store(max(1, int64(a.control.limit)))
	to := a.Limit(l)
	return Change{
		At: now, From: from, To: to, Reason: r,
		Latency: duration(a.control.latency), Baseline: duration(a.control.baseline),
	}, from != to
}
