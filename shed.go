package shield

import (
	"math"
	"sync"
	"time"

	"github.com/herdshield/shield/loadshed"
	"github.com/herdshield/shield/pushback"
)

const (
	// sweepEvery is how often those are looked for whose time in the queue is
	// over: the hasty ones wait 5 ms.
	sweepEvery = 5 * time.Millisecond

	// MaxQueue is the largest Queue.
	MaxQueue = 10_000

	// pressed is how long after somebody found no room the backend counts as
	// under pressure, so that retries are rationed and crowds are told apart.
	pressed = 2 * time.Second

	// The default timeout of the queue is seven tenths of the mean time of service,
	// within these bounds: a queue of about one round trip smooths what is random, a
	// longer one only makes everybody wait. Of 5 to 10 tenths, those are where the
	// simulated backends of loadtest/lab/overload keep the latency that is aimed at.
	queueTenths     = 7
	minQueueTimeout = 10 * time.Millisecond
	maxQueueTimeout = 200 * time.Millisecond

	// maxPause bounds for how long the backend can keep everybody away at one
	// time: a header that somebody got wrong must not be an outage.
	maxPause = time.Minute

	// longestAbort is how many mean times of service a request counts as, at most,
	// whose client has gone. Ours: enough to be seen as an overload, and few enough
	// that long polls do not outweigh what is served beside them.
	longestAbort = 8

	// RefusalsToPause is how many times in a row the backend has to ask to be left
	// alone, and refusalsSpan over how long at least: see Guard.Pause. Of four
	// upstreams one that says so is not heard in a million requests; nor is one page
	// that a client asks for many times at once, beside others that are served.
	RefusalsToPause = 10
	refusalsSpan    = 500 * time.Millisecond
)

// limitsRoom reports whether the Guard limits what is in flight.
func (g *Guard) limitsRoom() bool { return g.adaptive || g.concurrency > 0 }

// Adapts reports whether the Guard finds the limit in flight by itself. Then it
// wants to know how each request ended: see OutcomeOf.
func (g *Guard) Adapts() bool { return g.adaptive }

// Classes returns the Guard's classes: Request.Class is an index into them.
func (g *Guard) Classes() loadshed.Classes { return g.classes }

// Limit returns how many requests may be in flight now; 0 if that is not limited.
func (g *Guard) Limit() int {
	if g.adaptive {
		return g.backend.adaptive.Limit(g.law)
	}
	return g.concurrency
}

// underPressure reports whether somebody found no room of late.
func (b *Backend) underPressure(now time.Duration) bool {
	at := time.Duration(b.crowded.Load())
	return at > 0 && now-at < pressed
}

// own returns the class that a request has of itself.
func (g *Guard) own(r *Request) int {
	if r.Class == 0 {
		return g.classes.Default()
	}
	return min(int(r.Class), g.classes.Len()) - 1
}

// classOf returns the class that a request is treated as: its own; one lower if
// its client has far more in flight than its share; the last if it comes before
// its time.
func (g *Guard) classOf(now time.Duration, r *Request, v *pushback.Visit) int {
	last := g.classes.Len() - 1
	class := g.own(r)
	switch {
	case v.Standing == pushback.TooEarly && !v.NearlyDue && !v.Uncontended:
		return last
	case class+1 < last && g.crowds(now, r):
		return class + 1
	}
	return class
}

// highest reports whether a request is of the highest of several classes: it is
// tried even if its client has an appointment for something else.
func (g *Guard) highest(d *Decision) bool { return d.Class == 0 && g.classes.Len() > 1 }

// crowds reports whether a client has far more in flight than its share, while
// there is not room for all.
func (g *Guard) crowds(now time.Duration, r *Request) bool {
	b := g.backend
	return r.Client != NoKey && b.underPressure(now) &&
		loadshed.TooMany(b.clients.Count(uint64(r.Client)), b.clients.Clients(), g.Limit())
}

// rank is the place in the queue that a class has: the higher classes first, and
// within one, those first whose appointment has come.
func rank(class int, due bool) loadshed.Rank {
	r := 2 * (loadshed.Ranks/2 - 1 - min(class, loadshed.Ranks/2-1))
	if due {
		r++
	}
	return loadshed.Rank(r)
}

// classOfRank returns the class that a rank is for: of those that share the last
// ranks the lowest, so that nobody gets more than its share.
func (g *Guard) classOfRank(r loadshed.Rank) int {
	last := g.classes.Len() - 1
	if class := loadshed.Ranks/2 - 1 - int(r)/2; class < loadshed.Ranks/2-1 {
		return min(class, last)
	}
	return last
}

// admitInFlight takes a place in flight for a request, or one in the queue, or
// says why not.
func (g *Guard) admitInFlight(now time.Duration, r *Request, v *pushback.Visit, keep reserve, d *Decision) {
	b := g.backend
	if g.perClient > 0 && r.InFlightKey != NoKey {
		if b.ghosts.Len() > 0 {
			b.layGhosts(now)
		}
		if b.tenants.Enter(uint64(r.InFlightKey)) > g.perClient {
			b.tenants.Leave(uint64(r.InFlightKey))
			d.Reason, d.Wait, d.policy = PerClient, b.gate.Drain(now), len(g.zones)
			return
		}
		d.tenant = r.InFlightKey
	}
	if !g.limitsRoom() {
		d.guard = g
		return
	}
	class, limit := int(d.Class), g.Limit()
	b.shares.Seen(now, g.own(r))
	room, place := g.room(now, class), rank(class, v.Due || v.NearlyDue)
	if g.queue.Size == 0 { // else those who come on time go first in it
		room -= keep.of(limit) / 3
	}
	if class+2 >= g.classes.Len() && g.crowds(now, r) { // there is no lower class to be treated as
		room, place = min(room, max(1, limit*7/10)), rank(class+1, v.Due || v.NearlyDue)
	}
	if ahead := b.queue.Len() > 0 && b.queue.Highest() >= place; !ahead && b.enterGate(now, room) {
		d.guard = g
		return
	}
	b.crowded.Store(int64(now))
	b.adaptive.LimitHit()
	d.Reason, d.Wait = Concurrency, b.gate.Drain(now)
	if g.queue.Size > 0 && !g.observe {
		timeout := g.queue.Timeout
		switch {
		case timeout > 0:
		case g.highest(d): // it goes first, so that nobody waits for long
			timeout = maxQueueTimeout
		default:
			timeout = min(max(minQueueTimeout, b.gate.Service()*queueTenths/10), maxQueueTimeout)
		}
		if w := b.queue.Join(now, r.Deadline, place, g.queue.Size, timeout, b.gate.Service()); w != nil {
			d.queued = queuedPool.Get().(*queued)
			*d.queued = queued{w, *v}
			b.count(r, d) // or one client that fills the queue would seem to be alone
			g.wake(now)   // a place may have become free meanwhile
			return
		}
	}
	b.adaptive.Rejected()
	g.leaveTenant(d)
}

// room returns how many may be in flight for one of a class to be let in. Probes of
// the limit are for the lower of several classes to bear.
func (g *Guard) room(now time.Duration, class int) int {
	b := g.backend
	if class == 0 && g.adaptive && g.classes.Len() > 1 && b.shares.SeenBelow(now, class, g.classes) {
		return b.adaptive.Steady(g.law)
	}
	return b.shares.Room(now, class, g.Limit(), g.classes)
}

// count counts a request for crowds, once.
func (b *Backend) count(r *Request, d *Decision) {
	if r.Client != NoKey && d.counted == NoKey {
		b.clients.Enter(uint64(r.Client))
		d.counted = r.Client
	}
}

func (b *Backend) uncount(d *Decision) {
	if d.counted != NoKey {
		b.clients.Leave(uint64(d.counted))
		d.counted = NoKey
	}
}

func (g *Guard) leaveTenant(d *Decision) {
	if d.tenant != NoKey {
		g.backend.tenants.Leave(uint64(d.tenant))
		d.tenant = NoKey
	}
}

// enterGate takes a place, if need be one that a ghost has left.
func (b *Backend) enterGate(now time.Duration, room int) bool {
	if b.ghosts.Len() > 0 {
		b.layGhosts(now)
	}
	return b.gate.Enter(room, now)
}

// layGhosts gives back the places whose work is done by now that nobody waits
// for any more.
func (b *Backend) layGhosts(now time.Duration) {
	for {
		tenant, due := b.ghosts.Due(now)
		if !due {
			return
		}
		b.gate.Detach(now)
		if tenant != 0 {
			b.tenants.Leave(tenant)
		}
	}
}

// enterFromQueue takes a place for one that waits.
func (g *Guard) enterFromQueue(r loadshed.Rank) bool {
	b := g.backend
	now := time.Duration(b.wokeAt.Load())
	return b.gate.Enter(g.room(now, g.classOfRank(r)), now)
}

// wake lets those in from the queue for whom there is room. It is the latest Guard
// that says how much: a reload applies at once.
func (g *Guard) wake(now time.Duration) {
	b := g.backend
	b.wokeAt.Store(int64(now))
	b.queue.Wake(now, b.latest.Load().enter)
}

// queued is what is remembered of a request while it waits.
type queued struct {
	w     *loadshed.Waiter
	visit pushback.Visit
}

var queuedPool = sync.Pool{New: func() any { return new(queued) }}

// Queued reports whether the request waits for room in flight. Then neither Admit
// nor any other field counts until Await has returned, or Settle.
func (d *Decision) Queued() bool { return d.queued != nil }

// Verdict returns a channel on which it is said, once, that Settle can be called.
func (d *Decision) Verdict() <-chan loadshed.Verdict { return d.queued.w.C }

// Settle ends the wait of a queued request with the verdict that it was given.
// Limits that were not charged while it waited may refuse it now.
func (g *Guard) Settle(now time.Duration, r Request, d *Decision, verdict loadshed.Verdict) {
	b := g.backend
	v := d.queued.visit
	b.queue.Release(d.queued.w)
	d.leaveQueue()
	var refusing *ZoneState
	if verdict == loadshed.Granted {
		d.Reason, d.Wait, d.at = None, 0, now
		d.guard = g
		if refusing = g.admit(0, now, &r, &v, 0, d); d.Reason != None {
			d.guard = nil
			b.gate.Detach(now)
			g.wake(now)
		}
	} else {
		b.adaptive.Rejected()
	}
	if d.Reason != None {
		g.leaveTenant(d)
		b.uncount(d)
	}
	g.conclude(now, &r, &v, refusing, d)
}

// Abandon ends the wait of a queued request whose client has gone.
func (g *Guard) Abandon(now time.Duration, d *Decision) {
	if g.backend.queue.Leave(d.queued.w) == loadshed.Granted {
		g.backend.gate.Detach(now)
		g.wake(now)
	}
	g.leaveTenant(d)
	g.backend.uncount(d)
	d.leaveQueue()
}

func (d *Decision) leaveQueue() {
	*d.queued = queued{}
	queuedPool.Put(d.queued)
	d.queued = nil
}

// Sweep drops those from the queue whose time is over, and lets in those for whom
// there is room. Await has it called every few milliseconds while anybody waits;
// who calls Settle by himself has to do so, too.
func (g *Guard) Sweep(now time.Duration) {
	b := g.backend
	if b.ghosts.Len() > 0 {
		b.layGhosts(now)
	}
	b.queue.Expire(now)
	if b.queue.Len() > 0 {
		g.wake(now)
	}
}

// mayRetry reports whether a request may be tried: not a retry beyond what the
// backend has room for besides first attempts, while there is not room for all.
// Those whose time has come are no retries in this sense.
func (g *Guard) mayRetry(now time.Duration, r *Request, v *pushback.Visit) bool {
	b := g.backend
	if v.Standing == pushback.OnTime {
		return true
	}
	if !r.Retry {
		b.budget.First()
		return true
	}
	if !b.underPressure(now) {
		return true
	}
	service := g.service()
	return math.IsInf(service, 1) || b.budget.Take(now, service)
}

// Pause tells that the backend has asked to be left alone for a while: 503 with
// Retry-After. If it has done so ten times in a row and for half a second, without
// anything served between, everybody is kept away for that long, at most a minute; not sooner, since
// it may be one of several backends, or one page, that says so. One request per
// second is let through, and if that is served the pause is over. After that the
// limit in flight, if it is adaptive, begins at half of what it was.
func (g *Guard) Pause(now, wait time.Duration) {
	b := g.backend
	if g.observe || wait <= 0 {
		return
	}
	n := b.refusing.Add(1)
	if n == 1 {
		b.refusingSince.Store(int64(now))
	}
	if n >= RefusalsToPause && now-time.Duration(b.refusingSince.Load()) >= refusalsSpan || b.pause.Left(now) > 0 {
		b.pause.Set(now, wait, maxPause)
	}
}

// resume starts slowly after a pause: with half of the limit, if that is adaptive,
// and with what the limit lets expect as the rate, not with what was measured
// before. It is called with b.watch locked.
func (g *Guard) resume(now time.Duration) {
	b := g.backend
	if !b.pause.Resumed(now) {
		return
	}
	b.watch.rate = 0
	if g.adaptive {
		if c, ok := b.adaptive.Restart(now, g.law); ok {
			b.changes.add(c)
		}
	}
}

// An Outcome says how an admitted request ended.
type Outcome uint8

// The outcomes.
const (
	Served     Outcome = iota // the response is complete
	Detached                  // it says nothing, or goes on without its place in flight: an upgraded connection, a stream of events, a client that is slow itself
	Aborted                   // the client has gone before there was a response; the backend may not know
	TimedOut                  // the backend took too long
	Overloaded                // the backend says that it can not, or cannot be reached: 502, 503, 504
)

// heard notes that the backend serves.
func (d *Decision) heard(now time.Duration) {
	if d.guard == nil {
		return
	}
	b := d.guard.backend
	if b.refusing.Load() > 0 {
		b.refusing.Store(0)
	}
	if d.probe {
		b.pause.End(now)
	}
}

// Done gives back what an admitted request holds. It must be called exactly
// once for every Decision that admits, with a now from the same epoch.
func (d *Decision) Done(now time.Duration, o Outcome) {
	g := d.guard
	if g == nil {
		return
	}
	b := g.backend
	b.uncount(d)
	if o == Served {
		d.heard(now)
	}
	if !g.limitsRoom() {
		g.leaveTenant(d)
		return
	}
	took, inFlight := now-d.at, b.gate.InFlight()
	is := loadshed.SignalServed
	switch o {
	case Served:
		b.gate.Leave(now, took)
	case TimedOut:
		b.gate.Leave(now, took)
		is = loadshed.SignalTimedOut
	case Overloaded: // the time that it took says nothing
		b.gate.Detach(now)
		b.failed.Add(1)
		is = loadshed.SignalOverloaded
	case Aborted:
		// The backend works on, as a rule, for what such a request takes.
		rest := b.gate.Service() - took
		if g.adaptive && rest > 0 && b.ghosts.Keep(now+rest, uint64(d.tenant)) {
			d.tenant = NoKey // it leaves with the ghost
		} else {
			b.gate.Detach(now)
		}
		is = loadshed.SignalNone
		if rest <= 0 {
			// It has taken at least this long, and nobody knows how long it would
			// have taken. If nothing were made of that, a backend that is too slow for its
			// clients' patience would never be seen to be.
			is = loadshed.SignalAbandoned
			took = min(took, longestAbort*max(b.gate.Service(), time.Millisecond))
		}
	default:
		b.gate.Detach(now)
		is = loadshed.SignalNone
	}
	g.leaveTenant(d)
	if g.adaptive {
		if c, ok := b.adaptive.Done(now, took, is, d.route, inFlight, g.law); ok {
			b.changes.add(c)
		}
	}
	if b.queue.Len() > 0 {
		g.wake(now)
	}
}

const reasonsOfLimit = loadshed.InTime + 1

// changes remembers the last changes of the limit, and counts all by reason.
type changes struct {
	mu    sync.Mutex
	n     uint64
	last  [64]loadshed.Change
	count [reasonsOfLimit]uint64
}

func (c *changes) add(change loadshed.Change) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.last[c.n%uint64(len(c.last))] = change
	c.n++
	c.count[change.Reason]++
}

// Changes returns the changes of the limit since the one of that number, oldest
// first, as far as they are remembered: the last 64. next is what to ask with next
// time.
func (b *Backend) Changes(since uint64) (list []loadshed.Change, next uint64) {
	c := &b.changes
	c.mu.Lock()
	defer c.mu.Unlock()
	size := uint64(len(c.last))
	if c.n > size {
		since = max(since, c.n-size)
	}
	for i := since; i < c.n; i++ {
		list = append(list, c.last[i%size])
	}
	return list, c.n
}
