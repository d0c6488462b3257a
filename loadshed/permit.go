package loadshed

import (
	"cmp"
	"math"
	"sync/atomic"
	"time"
)

// This file has what stands for a permit in flight: a Permit is what one request holds, a gate counts all that are taken,
// and a lease bounds them where several processes share a limit.

// A Permit is what one request holds of a Concurrency. The zero Permit holds nothing.
type Permit struct {
	c      *Concurrency // nil: it holds nothing
	plan   *Plan
	at     time.Duration // since when
	wait   *waiter       // while it is in the queue
	client uint64        // that it is counted for, 0 if it is not
	begun  time.Duration // when the response began to stream; 0: it does not
	left   time.Duration // when its client went without a response; 0: it did not
	counts int32         // for how many requests of that
	weight int32         // permits in flight that it has, 0 for none
	mine   int32         // requests that the client has in flight with this one, of those that are counted
	probe  bool          // it finds out whether a pause is over
	dry    bool          // see DryPermit
}

// DryPermit returns the Permit of a request that is not made: a Concurrency says what it would
// decide, and changes nothing.
func DryPermit() Permit { return Permit{dry: true} }

// ClientLoad returns how many requests the client of this one had in flight when it was counted, itself
// included; nothing if it was not: see [Concurrency.Busiest].
func (pl *Permit) ClientLoad() ClientLoad { return ClientLoad{pl.client, int(pl.mine)} }

// Held reports whether there is anything that Leave gives back, or has to hear.
func (pl *Permit) Held() bool { return pl.c != nil }

// Waits reports whether the request is in the queue.
func (pl *Permit) Waits() bool { return pl.wait != nil }

// Verdict returns a channel that receives one verdict on a request that Waits; nil if it does not.
func (pl *Permit) Verdict() <-chan Verdict {
	if pl.wait == nil {
		return nil
	}
	return pl.wait.told
}

// Until returns when the time of a request that Waits is over; 0 if it does not wait.
func (pl *Permit) Until() time.Duration {
	if pl.wait == nil {
		return 0
	}
	return pl.wait.until
}

// Watch has the Permit hear how its request ends, though it takes no permit in flight.
func (pl *Permit) Watch(c *Concurrency, p *Plan, now time.Duration) {
	pl.c, pl.plan, pl.at = c, p, now
}

// An Outcome says how an admitted request ended.
type Outcome uint8

const (
	Served     Outcome = iota // the response is complete; 4xx and 500, too, are no sign of overload
	Detached                  // it says nothing, or goes on without its permit in flight: an upgraded connection, a stream of events, a client that is slow itself
	Aborted                   // the client has gone before there was a response
	TimedOut                  // the backend took too long
	Overloaded                // the backend says that it cannot, or cannot be reached: 502, 503
	Limited                   // too many requests, of its client or of all: 429, RESOURCE_EXHAUSTED
)

// Streams notes that the response has begun, and goes on for as long as the client likes:
// what comes after that is not the backend's time.
func (pl *Permit) Streams(now time.Duration) {
	pl.Serves(now)
	pl.begun = now
}

// Left notes that the client has gone before there was a response, which is waited for.
func (pl *Permit) Left(now time.Duration) { pl.left = now }

// Leave gives back what a request holds. It is to be called once for each Permit that
// is Held, when the request has ended.
func (pl *Permit) Leave(now time.Duration, o Outcome) {
	c, p := pl.c, pl.plan
	if c == nil {
		return
	}
	if o == Served {
		pl.Serves(now)
	}
	defer c.uncount(pl)
	switch o {
	case Limited:
		c.limited.Add(1)
	case Overloaded:
		c.failed.Add(1)
	}
	if !p.Limits() {
		return
	}
	took, service, inFlight, weight := now-pl.at, c.gate.Service(), c.gate.InFlight(), int(pl.weight)
	c.gate.detach(weight)
	if o == Served || o == TimedOut {
		c.gate.Took(took)
	}
	if p.Adaptive != nil {
		switch streamed := pl.begun > 0; {
		case streamed && (o == Served || o == Detached || o == Aborted):
			o, took = Served, pl.begun-pl.at
		case o == Aborted && took < service:
			o = Detached // or clients that hang up at once would make the backend seem fast
		case o == Aborted:
			// How long it would have taken is not known. Eight times the mean do not outweigh requests beside long polls.
			took = min(took, 8*max(service, time.Millisecond))
		}
		c.adaptive.Done(now, took, max(0, pl.left-pl.at), o, inFlight, weight, c.law(p))
	}
	c.queue.Wake(now, c)
}

// A gate counts requests in flight and the permits that they have: as many each as its weight says. The zero gate is empty and ready.
// It is safe for concurrent use and must not be copied.
type gate struct {
	taken   atomic.Int64 // requests<<32 | permits
	service atomic.Int64 // mean time of service, an EWMA in nanoseconds; 0 before the first completion
}

const oneRequest = 1 << 32

// Took tells how long a request took that has been served. A weight of 1/16 follows a change and smooths over an odd one; a far
// longer one than the mean, such as a download, would dominate for long. One that loses a race is dropped.
func (g *gate) Took(took time.Duration) {
	const weight, longest = 16, 64
	old, is := g.service.Load(), max(1, int64(took))
	if old == 0 {
		is = max(is, int64(guessedService))
	} else {
		is = max(1, old+(min(is, longest*old)-old)/weight)
	}
	if is != old {
		g.service.CompareAndSwap(old, is)
	}
}

// detach gives back the permits of a request.
func (g *gate) detach(weight int) { g.taken.Add(-oneRequest - int64(weight)) }

// InFlight returns how many permits are taken.
func (g *gate) InFlight() int { return int(uint32(g.taken.Load())) }

// Requests returns how many requests have them.
func (g *gate) Requests() int { return int(g.taken.Load() >> 32) }

// Service returns the mean time of service, 0 before the first completion.
func (g *gate) Service() time.Duration { return time.Duration(g.service.Load()) }

// Drain returns in how long the requests in flight are expected to have left: by Little's
// law one mean time of service. Before any is known it is the least that Retry-After can say.
func (g *gate) Drain() time.Duration { return cmp.Or(g.Service(), time.Second) }

// A lease is how many permits in flight this process may use, where several processes
// share one limit. The zero lease bounds nothing.
type lease struct {
	permits atomic.Int64  // one more than them, 0 for no bound
	until   atomic.Int64  // from then on there are none
	hits    atomic.Uint64 // permits that requests have not found, as the limit was reached
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
	if limit == 0 {
		return 0
	}
	return max(1, l.room(limit))
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
func (c *Concurrency) Ungrant(now time.Duration) {
	c.lease.permits.Store(0)
	c.queue.Wake(now, c)
}

// A Usage is what a process uses of a limit that it shares, and would like to use.
type Usage struct {
	InFlight int    // permits taken, those of disconnected clients too
	Waiting  int    // that requests in the queue wait for
	Hits     uint64 // that requests have not found, as the limit was reached, in all
}

// Usage returns what is in use now. It costs four atomic loads.
func (c *Concurrency) Usage() Usage {
	return Usage{c.gate.InFlight(), c.queue.Len() + int(c.queue.extra.Load()), c.lease.hits.Load()}
}

// take takes permits in flight where fewer than free are taken, and returns how many it took: the weight, or what limit or the lease
// has if that is less. One that weighs more than free has room if nothing else is in flight. If it is dry, it only looks whether it
// could. A lease may be lowered meanwhile. Then either its count of what is in flight has the request, or the
// request sees the lease: it looks again after it was counted.
func (c *Concurrency) take(now time.Duration, free, limit, weight int, dry bool) (taken int) {
	most := c.lease.most(now)
	if weight > 1 {
		weight = min(weight, limit, max(1, most))
	}
	free = min(free, most)
	for {
		n := c.gate.taken.Load()
		if int(uint32(n))+max(1, min(weight, free)) > free {
			return 0
		}
		if dry {
			return weight
		}
		if c.gate.taken.CompareAndSwap(n, n+oneRequest+int64(weight)) {
			break
		}
	}
	if least := c.lease.most(now); least < most && c.gate.InFlight() > least {
		c.gate.detach(weight)
		return 0
	}
	return weight
}

// law returns the adaptive law under the lease.
func (c *Concurrency) law(p *Plan) law {
	l := p.law
	l.Max = c.lease.bound(l.Max)
	l.Min, l.Initial = min(l.Min, l.Max), min(l.Initial, l.Max)
	return l
}
