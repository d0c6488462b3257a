package loadshed

import (
	"sync"
	"sync/atomic"
	"time"
)

const (
	// MaxPause bounds for how long the backend can ask to be left alone at one time: a
	// header with a mistake in it must not be an outage.
	MaxPause = time.Minute

	// RefusalsToPause is how many times in a row the backend has to ask to be left
	// alone, and RefusalsSpan over how long at least: see Permit.LeaveAlone. A page that
	// is always closed, where others are served once per second, keeps out a tenth of those
	// with 6 s, and nearly all with 500 ms.
	RefusalsToPause = 10
	RefusalsSpan    = 6 * time.Second

	// pauseProbeInterval is how often one request is let through during a pause.
	pauseProbeInterval = time.Second
)

// A pause is backpressure from the backend: it has answered 503 with Retry-After (RFC 9110,
// section 15.6.4), and gets no requests for that time, apart from probes. The zero pause is
// over.
type pause struct {
	streak  atomic.Int64 // how many times in a row the backend has asked for it
	until   atomic.Int64
	probeAt atomic.Int64 // when the next request may be let through
	count   atomic.Uint64

	mu      sync.Mutex    // held to begin or extend a pause
	since   time.Duration // when the streak began
	resumed int64         // the until whose end resume has seen last
}

// left returns how long the pause still lasts, 0 if there is none.
func (p *pause) left(now time.Duration) time.Duration {
	if until := time.Duration(p.until.Load()); until != 0 {
		return max(0, until-now)
	}
	return 0
}

// LeaveAlone tells that the backend has asked in its answer to be left alone for a while: 503 with
// Retry-After. If it has done so ten times in a row and for six seconds, and served nothing
// between, there is a pause of that long, at most a minute.
//
// Meanwhile one request per second is let through. The first of these that is served ends
// the pause. After it an adaptive limit begins at half of what it was.
func (pl *Permit) LeaveAlone(now, wait time.Duration) {
	if wait <= 0 || pl.c == nil || pl.plan.Observe {
		return
	}
	p := &pl.c.pause
	p.mu.Lock()
	defer p.mu.Unlock()
	n := p.streak.Add(1)
	if n == 1 {
		p.since = now
	}
	// Which of several answers was sent last is not known: the longest counts.
	is, until := p.until.Load(), int64(now+min(wait, MaxPause))
	if n < RefusalsToPause || now-p.since < RefusalsSpan || until <= is {
		return
	}
	if is <= int64(now) {
		p.probeAt.Store(int64(now + pauseProbeInterval)) // before the pause is seen
		p.count.Add(1)
	}
	p.until.Store(until)
}

// Paused returns how long the backend is still left alone, 0 if it is not or if this
// request may find out whether it is back.
func (c *Concurrency) Paused(now time.Duration, pl *Permit) time.Duration {
	p := &c.pause
	wait := p.left(now)
	if wait == 0 || pl.probe { // one from the queue may be a probe already
		return 0
	}
	if at := p.probeAt.Load(); int64(now) >= at && (pl.dry || p.probeAt.CompareAndSwap(at, int64(now+pauseProbeInterval))) {
		pl.probe = true
		return 0
	}
	return wait
}

// Serves notes that the backend serves: it asks no longer to be left alone.
func (pl *Permit) Serves(now time.Duration) {
	if pl.c == nil {
		return
	}
	p := &pl.c.pause
	if p.streak.Load() == 0 {
		return
	}
	if until := p.until.Load(); until > int64(now) {
		if !pl.probe { // it was let in before
			return
		}
		p.until.CompareAndSwap(until, int64(now))
	}
	p.streak.Store(0)
}

// resume starts slowly after a pause: with half of an adaptive limit, and with the rate
// that the limit lets expect, not with the one measured before.
func (c *Concurrency) resume(now time.Duration, p *Plan) {
	until := c.pause.until.Load()
	if until == c.pause.resumed || int64(now) < until {
		return
	}
	c.pause.resumed = until
	c.throughput.done, c.throughput.time = 0, 0
	c.throughput.rate.Store(0)
	if p.Adaptive != nil {
		c.adaptive.Restart(now, c.law(p))
	}
}
