package loadshed

import (
	"cmp"
	"math"
	"sync/atomic"
	"time"
)

// pressureMemory is how long after a shortage the backend counts as under pressure, so that retries are rationed and clients counted.
const pressureMemory = 2 * time.Second

// A Concurrency is all that is known of one backend's requests in flight, and the newest
// [Plan], by which waiting requests are let in. The zero Concurrency is ready. It is safe for
// concurrent use and must not be copied.
type Concurrency struct {
	gate       gate
	adaptive   adaptive
	lease      lease // of a limit that several processes share
	queue      queue
	plan       atomic.Pointer[Plan]
	shares     classShares
	clients    clientCounts // requests by client: all where Plan.PerClient is set, else those of times of pressure
	budget     budget       // of retries
	pause      pause
	shortAt    atomic.Int64 // when there was a shortage last: see NoteShortage
	failed     atomic.Uint64
	limited    atomic.Uint64
	throughput throughput
}

// An Entrant is what Enter has to know of a request.
type Entrant struct {
	Client   uint64        // whose it is, 0 if that is not known
	InFlight uint64        // which client it counts for under Plan.PerClient, 0 for none
	Class    uint8         // that it asks for: 1 + its index; 0 means the default
	As       int           // the class that it is treated as: Plan.Unpaid for one that comes before its time
	Due      bool          // its client has an appointment that has come
	Known    bool          // its client was admitted not long ago: it goes before new ones
	Last     bool          // all others of its class go before it
	Weight   int           // permits that it takes, cut to the limit; 0 means 1
	Deadline time.Duration // until when its client waits, 0 if that is not known
}

// An Entry is what Enter has decided.
type Entry uint8

const (
	Entered    Entry = iota // the request has its permit
	Waiting                 // it is in the queue
	Full                    // there is no permit
	ClientFull              // its client has all that one may have
)

// Use makes p the Plan by which waiting requests are let in, if it limits them and is newest,
// or the first. Calls must not overlap.
func (c *Concurrency) Use(p *Plan, newest bool) {
	if p.Limits() && (newest || c.plan.Load() == nil) {
		c.plan.Store(p)
	}
}

// Limit returns how many permits there are now, 0 if that is not limited. A request takes one, or as many as its weight says.
func (c *Concurrency) Limit(p *Plan) int { return c.lease.bound(c.unleased(p)) }

func (c *Concurrency) unleased(p *Plan) int {
	if p.Adaptive != nil {
		return c.adaptive.Limit(p.law)
	}
	return p.Limit
}

// InFlight returns how many permits are taken.
func (c *Concurrency) InFlight() int { return c.gate.InFlight() }

// NoteShortage notes that a request found the backend busy, be it in flight or in rate.
func (c *Concurrency) NoteShortage(now time.Duration) { c.shortAt.Store(int64(now)) }

// underPressure reports whether there was a shortage within pressureMemory.
func (c *Concurrency) underPressure(now time.Duration) bool {
	at := time.Duration(c.shortAt.Load())
	return at > 0 && now-at < pressureMemory
}

// exceedsShare reports whether a client has its share of the limit in flight already: its part,
// or a quarter if there are more than four clients. One that is alone may have all. Less than
// a quarter would reject browsers, which open six connections, before a limit of 24.
func (c *Concurrency) exceedsShare(client uint64, pl *Permit, limit int) bool {
	clients := c.clients.Clients()
	if client == 0 || clients < 2 {
		return false
	}
	n := c.clients.Add(client, 0)
	if pl.client != 0 {
		n -= int(pl.counts) // this request itself
	}
	return n*min(4, clients) >= limit
}

// rank returns the rank of a request that is treated as one of a class: the higher classes first, and within one those whose
// appointment has come, those of known clients, new ones, and then those that are last.
func (e *Entrant) rank(class int) priority {
	r := 4 * (maxClasses - 1 - min(class, maxClasses-1))
	switch {
	case e.Due:
		r += 3
	case e.Known:
		r += 2
	case !e.Last:
		r++
	}
	return priority(r)
}

// classOf returns the class that a rank is for.
func (p *Plan) classOf(r priority) int { return min(maxClasses-1-int(r)/4, len(p.Classes)-1) }

// FirstAttempt counts a request that is no retry, once it is decided on.
func (c *Concurrency) FirstAttempt() { c.budget.first.Add(1) }

// AdmitsRetry reports whether a retry may be tried, given how many requests per second
// the backend can take: under pressure only as many as it can serve in addition to
// first attempts. If not, it returns how long what is in flight is expected to take.
func (c *Concurrency) AdmitsRetry(now time.Duration, rate float64) (is bool, wait time.Duration) {
	is = !c.underPressure(now) || math.IsInf(rate, 1) || c.budget.Take(now, rate)
	return is, c.gate.Drain()
}

// Enter takes a permit for a request, in flight or in the queue, or says why not; wait
// is then how long what is in flight takes to leave.
func (c *Concurrency) Enter(now time.Duration, p *Plan, e *Entrant, pl *Permit) (is Entry, wait time.Duration) {
	client, weight := e.Client, max(1, e.Weight)
	if p.PerClient > 0 {
		if client = e.InFlight; client != 0 && c.count(client, min(weight, p.PerClient), pl) > p.PerClient {
			c.uncount(pl)
			return ClientFull, c.gate.Drain()
		}
	}
	if !p.Limits() {
		pl.Watch(c, p, now)
		return Entered, 0
	}
	limit := c.Limit(p)
	weight = min(weight, limit)
	// One that needs several permits at once would let all known clients go first. Once such requests have half of the permits,
	// they wait like others, or many of them would leave nothing to light ones.
	e.Known = e.Known || weight > 1 && 2*(c.gate.InFlight()-c.gate.Requests()) < limit
	if !pl.dry {
		c.shares.saw(now, p.Requested(e.Class))
	}
	free, rank := c.shares.limitFor(now, e.As, limit, p.Classes), e.rank(e.As)
	short := c.underPressure(now)
	if short && c.exceedsShare(client, pl, limit) {
		free, rank = min(free, max(1, limit/2)), e.rank(e.As+1) // half is left to others
	}
	if ahead := c.queue.Len() > 0 && c.queue.Highest() >= rank; !ahead {
		if taken := c.take(now, free, limit, weight, pl.dry); taken > 0 {
			pl.Watch(c, p, now)
			pl.weight = int32(taken)
			if short {
				c.count(client, weight, pl)
			}
			return Entered, 0
		}
	}
	wait = c.gate.Drain()
	size := p.Queue.Size
	if weight > 1 && e.Due {
		size = max(1, size) // room is made for it, even without a queue: others would take each permit that becomes free
	}
	if pl.dry {
		if size > 0 && !p.Observe && !c.queue.full(rank, size) {
			pl.wait = new(waiter)
			return Waiting, wait
		}
		return Full, wait
	}
	c.lease.hits.Add(uint64(weight))
	c.NoteShortage(now)
	c.adaptive.limitHits.Add(int64(weight))
	if size > 0 && !p.Observe && c.join(now, p, e, rank, size, limit, weight, pl) {
		c.count(client, weight, pl) // or one client that fills the queue would seem to be alone
		return Waiting, wait
	}
	c.adaptive.rejected.Add(1)
	c.uncount(pl)
	return Full, wait
}

// join lets a request wait in the queue, and reports whether it does.
func (c *Concurrency) join(now time.Duration, p *Plan, e *Entrant, rank priority, size, limit, weight int, pl *Permit) bool {
	each := max(1, c.gate.Service()/time.Duration(limit))
	longest := max(shortestQueue, min(queuePermits*each, queueFades/each))
	waits := longest + time.Duration(weight-1)*each // until it has the others of its permits as well
	if p.Highest(e.As) {
		waits += longest // twice as long: permits that lower classes hold are free by then
	}
	if e.Due {
		waits = max(waits, dueQueue)
	}
	until := now + cmp.Or(p.Queue.Timeout, waits)
	if e.Deadline != 0 { // it has to be served by then
		until = min(until, e.Deadline-c.gate.Service())
	}
	pl.wait = c.queue.Join(now, until, rank, size, longest, weight)
	if pl.wait == nil {
		return false
	}
	c.queue.Wake(now, c) // a permit may have become free meanwhile
	return true
}

// count counts a request for its client, once, by its weight, and returns how many that has then.
func (c *Concurrency) count(client uint64, weight int, pl *Permit) int {
	if pl.dry {
		return c.clients.Add(client, 0) + weight
	}
	if client != 0 && pl.client == 0 {
		pl.client, pl.counts, pl.mine = client, int32(weight), int32(c.clients.Add(client, weight))
	}
	return int(pl.mine)
}

func (c *Concurrency) uncount(pl *Permit) {
	if pl.client != 0 {
		c.clients.Add(pl.client, -int(pl.counts))
		pl.client, pl.mine = 0, 0
	}
}

// grant takes permits for a request that waits.
func (c *Concurrency) grant(now time.Duration, r priority, weight int) (taken int) {
	p := c.plan.Load()
	limit := c.Limit(p)
	return c.take(now, c.shares.limitFor(now, p.classOf(r), limit, p.Classes), limit, weight, false)
}

// Settle ends the wait of a request with the verdict that it was given, or with 0 when its time is over, and reports
// whether it has a permit in flight now. If not, or if it is rejected for another reason
// after all, Reject has to follow.
func (c *Concurrency) Settle(now time.Duration, p *Plan, pl *Permit, v Verdict) (granted bool) {
	if v == waiting {
		v = c.queue.Leave(pl.wait, now, expired)
	}
	if v == Granted {
		pl.weight = pl.wait.weight
	}
	c.queue.Release(pl.wait)
	pl.wait = nil
	if v != Granted {
		c.adaptive.rejected.Add(1)
		return false
	}
	pl.Watch(c, p, now)
	return !c.lease.over(now) // the process was frozen, and others have its permits
}

// Reject gives back what a request holds that waits, or has waited, and is rejected or gone now.
func (c *Concurrency) Reject(now time.Duration, pl *Permit) {
	if pl.wait != nil {
		if c.queue.Leave(pl.wait, now, gone) == Granted {
			pl.c, pl.weight = c, pl.wait.weight
		}
		c.queue.Release(pl.wait)
		pl.wait = nil
	}
	if pl.c != nil {
		pl.c = nil
		c.gate.detach(int(pl.weight))
		pl.weight = 0
	}
	c.queue.Wake(now, c) // one that needed more permits than are free was in the way of others
	c.uncount(pl)
}

// Wake lets waiting requests in for which there are permits. It is to be called a few times per second while any waits: a share
// of the limit ends with time, and no request may come or end meanwhile.
func (c *Concurrency) Wake(now time.Duration) { c.queue.Wake(now, c) }

// Limited returns how many requests the backend has answered with 429.
func (c *Concurrency) Limited() uint64 { return c.limited.Load() }

// Waiting returns how many requests are in the queue.
func (c *Concurrency) Waiting() int { return c.queue.Len() }

// Tick is to be called a few times per second, by one goroutine at a time. admitted is how
// many requests have been admitted in all, limitHits how many rejected for the limit.
// spare tells that there is more of the backend's rate than is asked for. Then it has
// headroom if at most half of the limit is in flight.
func (c *Concurrency) Tick(now time.Duration, admitted, limitHits uint64, p *Plan, spare bool) {
	room := c.lease.room(c.unleased(p))
	headroom := spare && (!p.Limits() || room > 0 && 2*c.gate.InFlight() <= room)
	c.measure(now, admitted, limitHits, p, headroom)
	if !headroom {
		c.NoteShortage(now)
	}
	c.resume(now, p)
	if p.Adaptive != nil {
		c.adaptive.Tick(now, c.law(p))
	}
	c.queue.Wake(now, c) // a limit that rises, or a share, frees permits as well
}

// ConcurrencyStats is a snapshot of a Concurrency.
type ConcurrencyStats struct {
	InFlight     int // permits that are taken
	Queue        queueStats
	Paused       time.Duration // how long the backend is still left alone; 0: it is not
	Pauses       uint64
	Disconnected int    // of these, requests whose clients have gone, as far as the caller counts them
	Failed       uint64 // requests that the backend could not serve
	Clients      int    // clients with requests in flight, as far as they are counted: see Busiest
	Last         Change // the last change of the adaptive limit; At 0: there was none
	Changes      map[Reason]uint64
}

// Stats returns the counts, each read at a slightly different moment.
func (c *Concurrency) Stats(now time.Duration) ConcurrencyStats {
	s := ConcurrencyStats{
		InFlight: c.gate.InFlight(), Queue: c.queue.Stats(), Paused: c.pause.left(now), Pauses: c.pause.count.Load(),
		Failed: c.failed.Load(), Clients: c.clients.Clients(),
	}
	s.Last, s.Changes = c.adaptive.Stats()
	return s
}

// Busiest returns the n clients with the most requests in flight, in that order. All are known
// where one client may have only so many; else those that were admitted under pressure are.
func (c *Concurrency) Busiest(n int) []ClientLoad { return c.clients.Most(n) }

// InFlightOf returns how many requests of a client are in flight, as far as they are counted, by
// its key or by the one for [Plan.PerClient].
func (c *Concurrency) InFlightOf(client, inFlight uint64) int {
	return max(c.clients.Add(client, 0), c.clients.Add(inFlight, 0))
}
