package loadshed

import (
	"sync/atomic"
	"time"
)

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
	c.throughput.set(0)
	if p.adaptive {
		if change, ok := c.adaptive.Restart(now, p.law); ok {
			c.changes.add(change)
		}
	}
}
