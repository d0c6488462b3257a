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
	otherAt atomic.Int64 // the same, of clients that the backend has not refused
	told    atomic.Int64 // the until whose end Resumed has reported last
	partial atomic.Bool  // the backend serves other routes or clients meanwhile
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
			p.otherAt.Store(int64(now))
			p.partial.Store(false)
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
func (p *Pause) Probe(now time.Duration) bool { return probe(&p.probeAt, now) }

// ProbeOther is Probe for a client that the backend has not refused, which does not have
// to compete with those that it has: at once, and then one per second, too.
func (p *Pause) ProbeOther(now time.Duration) bool { return probe(&p.otherAt, now) }

func probe(next *atomic.Int64, now time.Duration) bool {
	at := next.Load()
	return int64(now) >= at && next.CompareAndSwap(at, int64(now+pauseProbeInterval))
}

// Resumed reports, once per pause, that it is over: to the first caller. A pause is not
// reported during which the backend has served others.
func (p *Pause) Resumed(now time.Duration) bool {
	until, told := p.until.Load(), p.told.Load()
	return until > told && int64(now) >= until && p.told.CompareAndSwap(told, until) && !p.partial.Load()
}

// Count returns how many pauses there have been.
func (p *Pause) Count() uint64 { return p.count.Load() }
