package shield

import (
	"math"
	"sync"
	"sync/atomic"
	"time"

	"github.com/herdshield/shield/limiter"
	"github.com/herdshield/shield/loadshed"
	"github.com/herdshield/shield/pushback"
)

// A Guard applies one Config: for each request it asks the clients' appointments, the
// zones, the capacity and the backend's requests in flight in turn. It is safe for
// concurrent use.
type Guard struct {
	settings
	zones   []zone // in the order of their names: see claim
	order   []int  // where in zones each of Config.Zones is
	backend *Backend
	classes []*classCounts
	inUse   atomic.Bool
	serial  uint64 // higher than that of any Guard made before
}

// try is one request on its way through a Guard.
type try struct {
	*Request
	d *Decision
	reserve
	visit pushback.Visit
	wait  time.Duration // until the limits allow it, as far as they are asked
	trip                // to the store
}

// Admit decides on a request that arrives at now, the time since the epoch of
// the Guard's State. It takes tokens and a place in flight if all limits allow
// it, and nothing otherwise: then it makes an appointment. With a Queue the
// Decision may be Queued: then Settle or Abandon has to follow. See Enter.
func (g *Guard) Admit(now time.Duration, r Request) (d Decision) {
	b := g.backend
	d.Zone, d.at = -1, now
	if !g.inUse.Load() {
		g.use(now)
	}
	g.Tick(now)
	g.lookAtStore(now)
	if left := b.blocks.left(now, r.Client); left > 0 {
		g.block(&r, &d, left)
		return d
	}

	// Is its client known, and does it come too early?
	t := try{Request: &r, d: &d, trip: trip{made: g.observe}}
	if r.Client != NoKey && (r.Ticket != "" || b.clients.Expects(now)) {
		g.arrive(now, &t)
	}
	if t.visit.Rejected {
		d.Reason, d.Class = Early, uint8(g.plan.Requested(r.Class))
		d.Told.Tell(t.visit.At-now, false, &g.terms)
		g.refuse(&r, &d)
		return d
	}
	d.Class = uint8(b.inFlight.Classify(g.plan, r.Class, t.visit.IsEarly()))

	// Do all limits allow it?
	t.reserve = g.reserveOf(now, &t)
	refusing := g.claim(0, now, &t)
	g.awaitShare(&t)
	if !t.queued() {
		g.conclude(now, &t, refusing)
	}
	return d
}

// arrive asks what the client of a request was promised.
func (g *Guard) arrive(now time.Duration, t *try) {
	clients, c, v := &g.backend.clients, t.caller(), &t.visit
	clients.Arrive(now, &c, &g.terms, g.Rate(), !g.plan.Highest(g.plan.Requested(t.Class)), v)
}

// claim checks the zones from g.zones[i] on and then the backend, and charges them on
// its way back, if all of them have room. It holds the lock of each zone meanwhile, so
// that no other request sees half of a decision. All guards lock zones in the order of
// their names, so that no two of them wait for each other.
//
// It sets Reason and Zone of the decision, and the wait. It returns the zone that refuses: the
// one with the longest wait. The wait is the longest of all, the capacity's too.
func (g *Guard) claim(i int, now time.Duration, t *try) (refusing *ZoneState) {
	d := t.d
	for ; i < len(g.zones); i++ {
		if z := &g.zones[i]; z.index < len(t.Keys) && t.Keys[z.index] != NoKey {
			break
		}
	}
	if i == len(g.zones) {
		if d.Reason == None {
			g.claimBackend(now, t)
		} else if g.hasCapacity {
			// The client's quota is not all that it has to wait for.
			t.wait = max(t.wait, g.tokenIn(now))
		}
		return nil
	}
	z := &g.zones[i]
	claim, wait, ask := z.claim(t.Keys[z.index], now)
	if wait > t.wait {
		d.Reason, t.wait, d.Zone = Quota, wait, z.index
	}
	refusing = g.claim(i+1, now, t)
	if d.Reason == None {
		claim.Commit()
	}
	claim.Release()
	if wait > 0 {
		t.refused(z.ask(t.Keys[z.index], now, ask && !t.made))
	}
	if d.Zone == z.index {
		return z.ZoneState
	}
	return refusing
}

// claimBackend decides on a request that is within its quotas. One that has come from
// the queue has its place already.
func (g *Guard) claimBackend(now time.Duration, t *try) {
	b, d := g.backend, t.d
	if wait := b.inFlight.Paused(now, &d.place); wait > 0 {
		d.Reason, t.wait = Pause, wait
		return
	}
	queued := d.place.Held()
	if !queued && !t.back && !g.admitsRetry(now, t) {
		d.Reason, t.wait = RetryBudget, b.inFlight.Drain(now)
		return
	}
	var capacity limiter.Claim
	if g.hasCapacity {
		var wait time.Duration
		if capacity, wait = b.capacity.ClaimAbove(g.capacity, now, 1, t.tokens); wait > 0 {
			d.Reason, t.wait = Capacity, wait
			t.refused(g.askStore(now, t, capacity))
			b.inFlight.NoteShortage(now)
			return
		}
		defer capacity.Release()
	}
	if !queued && (g.plan.PerClient() > 0 || g.plan.Limits()) {
		if d.Reason, t.wait = g.enter(now, t); d.Reason != None {
			return
		}
	}
	if g.hasCapacity {
		capacity.Commit()
		d.place.Watch(&b.inFlight, g.plan, d.at)
	}
}

// admitsRetry reports whether the retry budget, if the backend is limited, has room for
// the request. One that comes on time is no retry in this sense.
func (g *Guard) admitsRetry(now time.Duration, t *try) bool {
	switch {
	case !g.hasCapacity && !g.plan.Limits(), t.visit.OnTime():
		return true
	case !t.Retry:
		g.backend.inFlight.FirstAttempt()
		return true
	}
	return g.backend.inFlight.AdmitsRetry(now, g.Rate())
}

// enter asks for a place in flight.
func (g *Guard) enter(now time.Duration, t *try) (Reason, time.Duration) {
	b := g.backend
	is, wait := b.inFlight.Enter(now, g.plan, &loadshed.Entrant{
		Client: uint64(t.Client), InFlight: uint64(t.InFlightKey), Class: t.Class, As: int(t.d.Class),
		Due: t.visit.IsDue(), Reserve: t.places, Deadline: t.Deadline,
	}, &t.d.place)
	switch is {
	case loadshed.Entered:
		return None, 0
	case loadshed.ClientFull:
		t.d.policy = len(g.zones)
		return PerClient, wait
	case loadshed.Waiting:
	default:
		g.lacksPlace(t)
	}
	return Concurrency, wait
}

// conclude counts a decision, and has the store told of it.
func (g *Guard) conclude(now time.Duration, t *try, refusing *ZoneState) {
	b, d := g.backend, t.d
	class := g.classes[d.Class]
	switch d.Admit = d.Reason == None; {
	case d.Admit:
		class.admitted.Add(1)
		d.Backlog = b.clients.Ahead(now)
		b.clients.Admitted(now, uint64(t.Client), &t.visit)
	case g.observe: // it has no place in flight: what would have been refused must not crowd out others
		d.Admit = true
		d.Told.Tell(t.wait, d.Reason == Quota, &g.terms)
		class.observed[d.Reason].Add(1)
		if refusing != nil {
			refusing.observed.Add(1)
		}
	default:
		g.appoint(now, t, refusing)
	}
	if l := b.link.Load(); l != nil {
		l.Nudge()
	}
}

// appoint makes the appointment of a request that is refused.
func (g *Guard) appoint(now time.Duration, t *try, refusing *ZoneState) {
	b, d, c := g.backend, t.d, t.caller()
	switch d.Reason {
	case Quota:
		refusing.refused.Add(1)
		zone := &g.zones[g.order[d.Zone]]
		key, each := uint64(t.Keys[d.Zone])^zone.salt, zone.limit.Interval()*time.Duration(zone.cost)
		b.clients.RefuseQuota(now, &c, key, t.wait, each, &g.terms, pushback.Supply{Rate: g.Rate()}, &d.Told)
	case PerClient: // its own requests are in its way, and no other client's
		d.Told.Tell(t.wait, false, &g.terms)
	default:
		b.clients.Refuse(now, &c, &t.visit, &g.terms, g.shortage(now, t, &c), &d.Told)
	}
	g.refuse(t.Request, d)
}

// refuse counts a refusal that has been worded.
func (g *Guard) refuse(r *Request, d *Decision) {
	b := g.backend
	g.classes[d.Class].refused[d.Reason].Add(1)
	b.retryAfter[min(d.Hint.Seconds, len(b.retryAfter)-1)].Add(1)
	b.clients.Saw(uint64(r.Client))
}

// Settle ends the wait of a queued request with the verdict that it was given, or when
// what it Awaits has happened. r must be what Admit was given. Limits that were not charged
// while it waited may refuse it now. One that has waited for the store may be queued again.
func (g *Guard) Settle(now time.Duration, r Request, d *Decision, verdict loadshed.Verdict) {
	b := g.backend
	t := try{Request: &r, visit: *d.visit, d: d}
	answered := d.awaits != nil
	d.leaveQueue()
	d.at = now
	if answered {
		t.made, t.back, d.Reason, d.Zone = true, true, None, -1
		t.reserve = g.reserveOf(now, &t)
		if refusing := g.claim(0, now, &t); !t.queued() {
			g.conclude(now, &t, refusing)
		}
		return
	}
	var refusing *ZoneState
	if b.inFlight.Settle(now, g.plan, &d.place, verdict) {
		d.Reason, t.wait = None, 0
		refusing = g.claim(0, now, &t)
	}
	if d.Reason != None {
		b.inFlight.Refuse(now, &d.place)
	}
	g.conclude(now, &t, refusing)
}

// Abandon ends the wait of a queued request whose client has gone.
func (g *Guard) Abandon(now time.Duration, d *Decision) {
	if d.awaits == nil {
		g.backend.inFlight.Abandon(now, &d.place)
	}
	d.leaveQueue()
	d.Gone, d.at = true, now
}

// visits are those of queued requests.
var visits = sync.Pool{New: func() any { return new(pushback.Visit) }}

func (d *Decision) leaveQueue() {
	*d.visit = pushback.Visit{}
	visits.Put(d.visit)
	d.visit, d.awaits = nil, nil
}

// Sweep ends the waits in the queue whose time is over, and lets in requests for which
// there are places. While any request is Queued it is to be called every few
// milliseconds; Enter sees to that.
func (g *Guard) Sweep(now time.Duration) { g.backend.inFlight.Sweep(now) }

// Pause tells that the backend has asked to be left alone for a while, by any client: see
// [loadshed.Concurrency.LeaveAlone]. If it did so in an answer, see [Decision.Pause].
func (g *Guard) Pause(now, wait time.Duration) {
	if !g.observe {
		g.backend.inFlight.LeaveAlone(now, wait)
	}
}

// hasHeadroom reports whether the backend has more of everything than it is asked for
// at now: eight tenths of the burst, and half of the places.
func (g *Guard) hasHeadroom(now time.Duration) bool {
	if g.hasCapacity && 10*g.backend.capacity.Level(g.capacity, now) < 8*g.capacity.Burst() {
		return false
	}
	return g.backend.inFlight.HasHeadroom(g.plan)
}

// Rate returns how many requests per second the backend can take: infinitely many if
// nothing is known of it.
func (g *Guard) Rate() float64 {
	most := math.Inf(1)
	if g.hasCapacity {
		most = g.capacity.Rate()
	}
	return g.backend.link.Load().Rate(g.backend.inFlight.Rate(g.plan), most)
}

// Spare returns how many refused clients per second can be served beside what comes
// anyway; 0 if the Guard does not limit the backend.
func (g *Guard) Spare() float64 {
	rate := g.Rate()
	if math.IsInf(rate, 1) {
		return 0
	}
	return g.backend.clients.Spare(rate)
}

// shortage returns what the backend can spare for a request that the backend refuses, with how long there
// will be nothing for any request.
func (g *Guard) shortage(now time.Duration, t *try, c *pushback.Caller) pushback.Supply {
	s := pushback.Supply{Rate: g.Rate()}
	shortest, _ := g.terms.Bounds(c)
	switch {
	case t.d.Reason == Pause: // no request is let in before
		s.Token = t.wait
	case t.d.Reason == Capacity && g.capacity.Interval() > shortest:
		// To earn a token may take longer than all that wait. The reserve does not
		// count: it is not kept from a request that comes on time.
		s.Token = g.tokenIn(now)
	}
	return s
}

// tokenIn returns how long it takes until the capacity has a token.
func (g *Guard) tokenIn(now time.Duration) time.Duration {
	claim, wait := g.backend.capacity.Claim(g.capacity, now, 1)
	claim.Release()
	return wait
}
