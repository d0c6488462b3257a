package loadshed

import (
	"sync/atomic"
	"time"
)

// pauseProbeInterval is how often one request is let through during a pause. Ours:
// enough to see within a second that the backend is back, too little to matter.
const pauseProbeInterval = time.Second

// A Pause is backpressure from the backend: it has answered 503 with Retry-After (RFC
// 9110, section 15.6.4), and gets no requests for that time, apart from probes. The
// zero Pause is over. It is safe for concurrent use.
type Pause struct {
	until   atomic.Int64
	began   atomic.Int64
	probeAt atomic.Int64 // when the next request may be let through
	told    atomic.Int64 // the until whose end Resumed has reported last
	count   atomic.Uint64
}

// End ends a pause early: a probe has been served.
func (p *Pause) End(now time.Duration) {
	if until := p.until.Load(); until > int64(now) {
		p.until.CompareAndSwap(until, int64(now))
	}
}

// Set begins a pause of wait, at most longest, or extends the present one, but not
// beyond longest after it began. A shorter wait does not shorten it: which of several
// answers was sent last is not known. A wait of 0 or less has no effect.
func (p *Pause) Set(now, wait, longest time.Duration) {
	if wait <= 0 || longest <= 0 {
		return
	}
	for {
		is := p.until.Load()
		until := int64(now + min(wait, longest))
		if is > int64(now) { // extended, but not for ever
			until = min(until, p.began.Load()+int64(longest))
		}
		if until <= is {
			return
		}
		if p.until.CompareAndSwap(is, until) {
			if is <= int64(now) {
				p.count.Add(1)
				p.began.Store(int64(now))
				p.probeAt.Store(int64(now + pauseProbeInterval))
			}
			return
		}
	}
}

// Left returns how long the pause still lasts, 0 if there is none. It is one atomic
// load.
func (p *Pause) Left(now time.Duration) time.Duration {
	until := time.Duration(p.until.Load())
	if until == 0 {
		return 0
	}
	return max(0, until-now)
}

// Probe reports whether a request may be let through during a pause, to see whether the
// backend is back: one per second, the first a second after the pause began.
func (p *Pause) Probe(now time.Duration) bool {
	at := p.probeAt.Load()
	return int64(now) >= at && p.probeAt.CompareAndSwap(at, int64(now+pauseProbeInterval))
}

// Resumed reports, once per pause, that it is over: to the first caller.
func (p *Pause) Resumed(now time.Duration) bool {
	until, told := p.until.Load(), p.told.Load()
	return until > told && int64(now) >= until && p.told.CompareAndSwap(told, until)
}

// Count returns how many pauses there have been.
func (p *Pause) Count() uint64 { return p.count.Load() }

const (
	// MaxPause bounds for how long the backend can ask to be left alone at one time: a
	// header with a mistake in it must not be an outage.
	MaxPause = time.Minute

	// RefusalsToPause is how many times in a row the backend has to ask to be left
	// alone, and RefusalsSpan over how long at least: see Concurrency.LeaveAlone. Of four
	// upstreams one that says so is not heard in a million requests; nor is one page
	// that a client asks for many times at once, beside others that are served.
	RefusalsToPause = 10
	RefusalsSpan    = 500 * time.Millisecond
)

// busyBackend counts how many times in a row a backend has asked to be left alone.
type busyBackend struct {
	streak atomic.Int64
	since  atomic.Int64 // when it did so first
}

// ask counts one more, and reports whether the backend means it.
func (b *busyBackend) ask(now time.Duration) bool {
	n := b.streak.Add(1)
	if n == 1 {
		b.since.Store(int64(now))
	}
	return n >= RefusalsToPause && now-time.Duration(b.since.Load()) >= RefusalsSpan
}

// forget begins anew: the backend has served a request.
func (b *busyBackend) forget() {
	if b.streak.Load() > 0 {
		b.streak.Store(0)
	}
}

// LeaveAlone tells that the backend has asked to be left alone for a while: 503 with
// Retry-After. If it has done so ten times in a row and for half a second, without
// anything served between, no request is let in for that long, at most a minute. It
// takes that many since one of several backends, or one page, may say so alone. One
// request per second is let through, and if that is served the pause is over. After
// that an adaptive limit begins at half of what it was.
func (c *Concurrency) LeaveAlone(now, wait time.Duration) {
	if wait <= 0 {
		return
	}
	if c.busy.ask(now) || c.pause.Left(now) > 0 {
		c.pause.Set(now, wait, MaxPause)
	}
}

// Paused returns how long the backend is still left alone, 0 if it is not or if this
// request may find out whether it is back.
func (c *Concurrency) Paused(now time.Duration, pl *Place) time.Duration {
	wait := c.pause.Left(now)
	if wait == 0 {
		return 0
	}
	if !pl.probe && !c.pause.Probe(now) { // one from the queue may be a probe already
		return wait
	}
	pl.probe = true
	return 0
}

// Pauses returns for how long the backend is still left alone, and how many times it
// has asked for that. It costs two atomic loads.
func (c *Concurrency) Pauses(now time.Duration) (left time.Duration, times uint64) {
	return c.pause.Left(now), c.pause.Count()
}

// resume starts slowly after a pause: with half of an adaptive limit, and with the rate
// that the limit lets expect, not with the one measured before.
func (c *Concurrency) resume(now time.Duration, p *Plan) {
	if !c.pause.Resumed(now) {
		return
	}
	c.throughput.forget()
	if p.adaptive {
		if change, ok := c.adaptive.Restart(now, p.law); ok {
			c.changes.add(change)
		}
	}
}
