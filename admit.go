package shield

import (
	"sync/atomic"
	"time"

	"github.com/herdshield/shield/limiter"
	"github.com/herdshield/shield/pushback"
)

// A Reason says which limit a request is over.
type Reason uint8

// The reasons.
const (
	None        Reason = iota // none: the request is admitted
	Quota                     // a zone's quota for this client
	Capacity                  // the backend's rate
	Concurrency               // the backend's room in flight
	Early                     // it came before the time that it was promised
	PerClient                 // what one client may have in flight
	RetryBudget               // it is a retry, beyond those that the backend has room for
	Pause                     // the backend has asked to be left alone

	reasons = iota
)

func (r Reason) String() string {
	return [reasons]string{"none", "quota", "capacity", "concurrency", "early", "per_client", "retry_budget", "pause"}[r]
}

// Reasons are all Reasons for a refusal.
var Reasons = [...]Reason{Quota, Capacity, Concurrency, Early, PerClient, RetryBudget, Pause}

// ClientFault reports whether the reason is the client's own doing, whatever others do.
func (r Reason) ClientFault() bool { return r == Quota || r == PerClient }

// NoKey is the key of a request in a zone that it is not in.
const NoKey limiter.Key = 0

// A Request is what a decision needs to know of a request.
type Request struct {
	// Keys names the client in each zone, in the order of Config.Zones. Zones
	// beyond its length do not count the request; neither does one whose key
	// is Outside.
	Keys []limiter.Key

	// Client names who asks, whatever the zones count by. What a client was
	// promised is remembered under it; with Outside nothing is.
	Client limiter.Key

	// Fingerprint names what is asked for: the hash of the client's key, user agent,
	// method and path, or of its Idempotency-Key. A second request of the same
	// Client and Fingerprint, soon after a refusal, is taken for a retry.
	Fingerprint limiter.Key

	// Retry: the request itself says that it is a retry. See pushback.Retry.
	Retry bool

	// Precise: the client reads milliseconds (gRPC, Shield-Retry), so its answer
	// need not be held back.
	Precise bool

	// Agent is the User-Agent: promises are counted by its family.
	Agent string

	// Ticket is the signed appointment that the client brings, "" for none, and
	// Name the bytes that name the client in it, the same in all replicas. They
	// matter only if Config.Retries.Tickets is set.
	Ticket   string
	ClientID []byte

	// Class is the request's class: 1 + its index in Guard.Classes; 0 means the
	// default one. Route is its kind of work for the backend, 0 to 63: requests that
	// take about as long as each other. See Describe.
	Class uint8
	Route uint8

	// Deadline is when the client will have given up, 0 if that is not known. It
	// is not let wait for longer.
	Deadline time.Duration

	// InFlightKey names who is counted for Config.PerClient; Outside: nobody.
	InFlightKey limiter.Key
}

// A Decision is the answer to one request.
type Decision struct {
	// Admit: the request may go on. The caller must call Done when it has
	// been served, once, on every path.
	Admit bool

	// Reason is Fits, or what the request is refused for. In observe mode it
	// is what the admitted request would have been refused for.
	Reason Reason

	// Zone is the zone that refuses for Quota, as an index into Config.Zones;
	// otherwise -1.
	Zone int

	// Wait is how long until the client's appointment; in observe mode, until
	// the same request would be admitted if nothing else came. Hint is what the
	// client is told of it.
	Wait time.Duration
	Hint pushback.Hint

	// Backlog is how far the promises to others reach, for an early warning to
	// a client that is admitted. 0: nobody waits.
	Backlog time.Duration

	// Ticket is the appointment, signed, if tickets are given; Window is how
	// long after it would do as well.
	Ticket string
	Window time.Duration

	// Hold is how long the refusal is to be held back before it is sent: less
	// than a second. Hint says what is right when it is sent. If it is above 0,
	// Sent must be called once, when the refusal is sent or its client is gone.
	Hold time.Duration

	// Class is the class that the request was treated as, an index into
	// Guard.Classes.
	Class uint8

	at      time.Duration
	held    *atomic.Int64 // if Hold is above 0
	guard   *Guard        // if the request holds a place in flight
	queued  *queued       // while it waits for one
	route   uint8
	probe   bool        // it was let through during a pause
	counted limiter.Key // whose requests in flight, or on their way there, this is one of
	tenant  limiter.Key // the same, for PerClient
	policy  int         // which of the answers' is violated, for PerClient
}

// Admit decides on a request that arrives at now, the time since the epoch of
// the Guard's State. It takes tokens and a place in flight if all limits allow
// it, and nothing otherwise: then it makes an appointment. With a Queue the
// Decision may be Queued: see Await.
func (g *Guard) Admit(now time.Duration, r Request) Decision {
	d := Decision{Reason: None, Zone: -1, at: now, route: r.Route}
	if !g.inUse.Load() {
		g.use()
	}
	g.Tick(now)
	v := g.visit(now, &r)
	if v.Rejected {
		d.Class = uint8(g.own(&r))
		g.refuseEarly(now, &r, v, &d)
		return d
	}
	d.Class = uint8(g.classOf(now, &r, &v))
	var refusing *ZoneState
	if g.barred(now, v) && !g.highest(&d) {
		d.Reason = g.scarce()
	} else {
		refusing = g.admit(0, now, &r, &v, g.reserveFor(now, &r, v, &d), &d)
	}
	if d.queued == nil {
		g.conclude(now, &r, &v, refusing, &d)
	}
	return d
}

// conclude counts a decision, and words it.
func (g *Guard) conclude(now time.Duration, r *Request, v *pushback.Visit, refusing *ZoneState, d *Decision) {
	b := g.backend
	class := g.counts[d.Class]
	d.Admit = d.Reason == None
	if d.Admit {
		b.admitted.Add(1)
		class.admitted.Add(1)
		d.Backlog = b.calendar.Ahead(now)
		if v.Promises > 0 && v.Standing != pushback.OtherRequest { // that was not what the promise is for
			b.keep(now, r.Client)
		}
		if g.limitsRoom() && b.underPressure(now) {
			b.count(r, d)
		}
		return
	}
	if g.observe {
		d.Hint = g.answers.Hint(d.Wait)
		d.Admit = true
		b.observed[d.Reason].Add(1)
		class.observed.Add(1)
		if refusing != nil {
			refusing.observed.Add(1)
		}
		return // without a place in flight: what would have been refused must not crowd out others
	}
	switch d.Reason {
	case Quota:
		refusing.refused.Add(1)
		g.appointQuota(now, r, refusing, d)
	case PerClient: // its own requests are in its way, and nobody else is
		d.Hint = g.answers.Hint(d.Wait)
	default:
		g.appoint(now, r, *v, d)
	}
	b.refuse(d)
	class.refused.Add(1)
	b.saw(r.Client)
}

// admit checks the zones from g.zones[i] on and then the backend, and charges
// them on its way back, if all of them have room. It holds the lock of each
// zone meanwhile, so that nobody sees half of a decision. All guards lock zones
// in the order of their names, so no two wait for each other.
//
// It sets d.Reason, d.Wait and d.Zone, and returns the zone that refuses: the
// one with the longest wait. The wait is the longest of all, the capacity's too.
func (g *Guard) admit(i int, now time.Duration, r *Request, v *pushback.Visit, keep reserve, d *Decision) (refusing *ZoneState) {
	for ; i < len(g.zones); i++ {
		if z := &g.zones[i]; z.index < len(r.Keys) && r.Keys[z.index] != NoKey {
			break
		}
	}
	if i == len(g.zones) {
		if d.Reason == None {
			g.admitBackend(now, r, v, keep, d)
		} else if g.hasCapacity {
			// The client's quota is not all that it has to wait for.
			claim, wait := g.backend.capacity.Claim(g.capacity, now, 1)
			claim.Release()
			d.Wait = max(d.Wait, wait)
		}
		return nil
	}
	z := &g.zones[i]
	claim, wait := z.table.Claim(z.limit, z.maxKeys, r.Keys[z.index], now, z.cost)
	if wait > d.Wait {
		d.Reason, d.Wait, d.Zone = Quota, wait, z.index
	}
	refusing = g.admit(i+1, now, r, v, keep, d)
	if d.Reason == None {
		claim.Commit()
	}
	claim.Release()
	if d.Zone == z.index {
		return z.ZoneState
	}
	return refusing
}

// admitBackend decides on a request that is within its quotas, and that has to
// keep away from a part of what there is. One that has come from the queue has its
// place already.
func (g *Guard) admitBackend(now time.Duration, r *Request, v *pushback.Visit, keep reserve, d *Decision) {
	b := g.backend
	if wait := b.pause.Left(now); wait > 0 {
		if !d.probe && !b.pause.Probe(now) { // one from the queue is a probe already
			d.Reason, d.Wait = Pause, wait
			return
		}
		d.probe = true
	}
	queued := d.guard != nil
	if !queued && (g.hasCapacity || g.limitsRoom()) && !g.mayRetry(now, r, v) {
		d.Reason, d.Wait = RetryBudget, b.gate.Drain(now)
		return
	}
	var capacity limiter.Claim
	if g.hasCapacity {
		var wait time.Duration
		if capacity, wait = b.capacity.ClaimAbove(g.capacity, now, 1, keep.of(g.capacity.Burst())); wait > 0 {
			capacity.Release()
			d.Reason, d.Wait = Capacity, wait
			b.crowded.Store(int64(now))
			return
		}
		defer capacity.Release()
	}
	if !queued && (g.perClient > 0 || g.limitsRoom()) {
		if g.admitInFlight(now, r, v, keep, d); d.Reason != None {
			return
		}
	}
	if g.hasCapacity {
		capacity.Commit()
		d.guard = g // to hear how it ends
	}
}

// HoldsPlace reports whether the request holds a place in flight, or the Guard wants
// to hear how it ends, to know when the backend is back. If not, Done
// does nothing.
func (d *Decision) HoldsPlace() bool { return d.guard != nil }

// Sent ends the Hold of a refusal.
func (d *Decision) Sent() { d.held.Add(-1) }
