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
		began := is <= int64(now)
		if began { // before it is seen
			p.began.Store(int64(now))
			p.probeAt.Store(int64(now + pauseProbeInterval))
		}
		if p.until.CompareAndSwap(is, until) {
			if began {
				p.count.Add(1)
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
