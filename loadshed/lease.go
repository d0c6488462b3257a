package loadshed

import (
	"math"
	"sync/atomic"
	"time"
)

// A lease is how many permits in flight this process may use, where several processes
// share one limit. The zero lease bounds nothing.
type lease struct {
	permits atomic.Int64  // one more than them, 0 for no bound
	until   atomic.Int64  // from then on there are none
	hits    atomic.Uint64 // requests that have found the limit reached
}

// most returns how many may be in flight at now. A lease that is over is over for good: a
// process that was frozen must not use what others have got since.
func (l *lease) most(now time.Duration) int {
	n := l.permits.Load()
	if n == 0 {
		return math.MaxInt
	}
	if l.over(now) {
		l.permits.CompareAndSwap(n, 1)
		n = 1
	}
	return int(n - 1)
}

// over reports whether there was a lease, and it has ended on its own.
func (l *lease) over(now time.Duration) bool {
	return l.permits.Load() > 0 && int64(now) >= l.until.Load()
}

// bound returns the lower of a limit and the lease, but at least 1: no limit at all is 0.
func (l *lease) bound(limit int) int {
	if n := int(l.permits.Load()); n > 0 && limit > 0 {
		return max(1, min(limit, n-1))
	}
	return limit
}

// room returns how many of a limit this process may count on.
func (l *lease) room(limit int) int {
	if n := int(l.permits.Load()); n > 0 {
		return min(limit, n-1)
	}
	return limit
}

// Grant bounds the limit: this process may have n requests in flight until an instant,
// and none from then on. Requests in flight beyond n go on, and waiting requests are let in at once. Each
// Grant replaces the one before; calls must not overlap.
func (c *Concurrency) Grant(now time.Duration, n int, until time.Duration) {
	c.lease.until.Store(int64(until))
	c.lease.permits.Store(int64(max(0, n)) + 1)
	c.queue.Wake(now, c)
}

// Ungrant ends what Grant began: the limit is the Plan's alone.
func (c *Concurrency) Ungrant() {
	c.lease.permits.Store(0)
}

// A Usage is what a process uses of a limit that it shares, and would like to use.
type Usage struct {
	InFlight int    // permits taken, those of disconnected clients too
	Waiting  int    // requests in the queue
	Hits     uint64 // requests that have found the limit reached, in all
}

// Usage returns what is in use now. It costs three atomic loads.
func (c *Concurrency) Usage() Usage {
	return Usage{c.gate.InFlight(), c.queue.Len(), c.lease.hits.Load()}
}

// hasPermit reports whether take would take a permit.
func (c *Concurrency) hasPermit(now time.Duration, limit int) bool {
	return c.gate.InFlight() < min(limit, c.lease.most(now))
}

// take takes a permit in flight below limit, and reports whether it did. A lease may be
// lowered meanwhile. Then either its count of what is in flight has the request, or the
// request sees the lease: it looks again after it was counted.
func (c *Concurrency) take(now time.Duration, limit int) bool {
	most := c.lease.most(now)
	if !c.gate.Enter(min(limit, most)) {
		return false
	}
	if least := c.lease.most(now); least < most && c.gate.InFlight() > least {
		c.gate.Detach()
		return false
	}
	return true
}

// law returns the adaptive law under the lease.
func (c *Concurrency) law(p *Plan) law {
	l := p.law
	l.Max = c.lease.bound(l.Max)
	l.Min, l.Initial = min(l.Min, l.Max), min(l.Initial, l.Max)
	return l
}
