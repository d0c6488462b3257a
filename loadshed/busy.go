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

// busyBackend counts how many times in a row a backend has asked to be left alone, and
// knows which requests it has answered so. Two of one route, or of one client, are told
// apart by nothing else; so are those that share one of 64 bits.
type busyBackend struct {
	streak  atomic.Int64
	since   atomic.Int64 // when it did so first
	routes  atomic.Uint64
	clients atomic.Uint64
	others  atomic.Int64 // clients refused during the pause that were not refused before it
}

// ask counts one more, and reports whether the backend means it.
func (b *busyBackend) ask(now time.Duration, routes, clients uint64) bool {
	n := b.streak.Add(1)
	if n == 1 {
		b.since.Store(int64(now))
		b.routes.Store(0)
		b.clients.Store(0)
		b.others.Store(0)
	}
	b.routes.Or(routes)
	b.clients.Or(clients)
	return n >= RefusalsToPause && now-time.Duration(b.since.Load()) >= RefusalsSpan
}

// LeaveAlone tells that the backend has asked to be left alone for a while: 503 with
// Retry-After. If it has done so ten times in a row and for half a second, and
// served nothing between, there is a pause of that long, at most a minute. It
// takes that many since one of several backends, or one page, may say so alone.
//
// For the same reason the pause is for routes that the backend has refused, and others
// join them when it refuses them, too. So do clients: those that it has not refused find out
// for themselves, until it has refused ten of them, as many as began the pause. Of all
// others, one request per second is let through. The first of these or of such a client
// that is served ends the pause. After it an adaptive limit begins at half of what it was.
func (c *Concurrency) LeaveAlone(now, wait time.Duration) {
	c.leaveAlone(now, wait, ^uint64(0), ^uint64(0))
}

// LeaveAlone is that of the backend's Concurrency, told in the answer to this request.
func (pl *Place) LeaveAlone(now, wait time.Duration) {
	if pl.c == nil || pl.plan.observe {
		return
	}
	if b := &pl.c.busy; pl.probe && pl.asker&^b.clients.Load() != 0 {
		b.others.Add(1)
	}
	pl.c.leaveAlone(now, wait, 1<<(pl.route%Routes), pl.asker)
}

func (c *Concurrency) leaveAlone(now, wait time.Duration, routes, clients uint64) {
	if wait <= 0 {
		return
	}
	if c.busy.ask(now, routes, clients) || c.pause.Left(now) > 0 {
		c.pause.Set(now, wait, MaxPause)
	}
}

// Paused returns how long the backend is still left alone, 0 if it is not or if this
// request may find out whether it is back.
func (c *Concurrency) Paused(now time.Duration, client uint64, route uint8, pl *Place) time.Duration {
	pl.route = route
	if client != 0 {
		pl.asker = 1 << (client % 64)
	}
	wait, b := c.pause.Left(now), &c.busy
	switch {
	case wait == 0, pl.probe, b.routes.Load()>>(route%Routes)&1 == 0: // one from the queue may be a probe already
		return 0
	case pl.asker&^b.clients.Load() != 0 && b.others.Load() < RefusalsToPause, c.pause.Probe(now):
		pl.probe = true
		return 0
	}
	return wait
}

// Serves notes that the backend serves: it asks no longer to be left alone, unless what it
// serves is another route than those that it refuses.
func (pl *Place) Serves(now time.Duration) {
	c := pl.c
	if c == nil || c.busy.streak.Load() == 0 {
		return
	}
	if c.pause.Left(now) > 0 {
		if !pl.probe {
			return
		}
		c.pause.End(now)
	}
	c.busy.streak.Store(0)
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
		c.changes.add(c.adaptive.Restart(now, c.law(p)))
	}
}
