package shield

import (
	"cmp"
	"math"
	"sync/atomic"
	"time"

	"github.com/herdshield/shield/limiter"
	"github.com/herdshield/shield/loadshed"
	"github.com/herdshield/shield/pushback"
)

// A Guard applies one Config. For each request it checks the client's appointment, the zones, the capacity and
// the in-flight limit, in that order. It is safe for concurrent use.
type Guard struct {
	settings
	zones   []zone // in the order of their names: see claim
	backend *Backend
	clients *pushback.Appointments // of backend, or a copy: see Explain
	classes []*classCounts
	inUse   atomic.Bool
	serial  uint64 // higher than that of any Guard made before
}

// try is one request on its way through a Guard.
type try struct {
	*Request
	d     *Decision
	wait  time.Duration // until the limits allow it, as far as they are asked
	zone  *zone         // that rejects it
	price int           // so many tokens of that
	dry   bool          // it is not made: what would be decided?

	final    bool          // it must not wait for the store that replicas share, or has: but for a token, as long as it has patience
	lacks    bool          // the backend has no token or permit for it here, and the store may have one
	patience time.Duration // how much longer it may wait for a token
}

// Admit decides on a request that arrives at now, the time since the epoch of the Guard's State. If all limits
// allow the request, Admit takes its tokens and its permit. Otherwise it takes nothing and makes an
// appointment. If the Decision is Queued, for a permit or for a token of the capacity, call Settle or Abandon
// afterwards. Most programs should call Enter, which does all of that.
func (g *Guard) Admit(now time.Duration, r Request) (d Decision) {
	b := g.backend
	if !g.inUse.Load() {
		g.use(now)
	}
	g.Tick(now)
	if l := b.link.Load(); l != nil {
		l.Look(now)
	}
	d.Zone, d.at, d.came = -1, now, now
	if r.Preflight && b.blocks.left(now, r.Client) == 0 && b.preflights.Take(g.preflights, now, 1) == 0 {
		b.preflightsPassed.Add(1)
		d.Admit, d.Class = true, uint8(g.plan.Requested(r.Class))
		return d
	}
	t := try{Request: &r, d: &d, final: g.observe}
	if g.meet(now, &t); d.Reason == None {
		g.claim(0, now, &t)
	}
	if !g.queues(now, &t) {
		g.conclude(now, &t)
	}
	return d
}

// meet asks what is known of the client of a request: is it blocked, and does it come too early?
func (g *Guard) meet(now time.Duration, t *try) {
	d, class := t.d, g.plan.Requested(t.Class)
	switch left := g.backend.blocks.left(now, t.Client); {
	case left > 0:
		d.Reason, t.wait = Blocked, left
	case t.Client != NoKey && (t.Ticket != "" || g.clients.Expects(now)):
		c := t.caller()
		g.clients.Arrive(now, &c, &g.terms, g.Rate(), !g.plan.Highest(class), &d.visit)
		if d.visit.Rejected {
			d.Reason, t.wait = Early, d.visit.At-now
		}
	}
	if d.Reason == None && d.visit.Standing == pushback.TooEarly {
		class = len(g.plan.Classes) - 1 // the last one is of those who come before their time
	}
	d.Class = uint8(class)
}

// claim checks the zones from g.zones[i] on and then the backend, and charges them on
// its way back, if all of them have room. It holds the lock of each zone meanwhile, so
// that no other request sees half of a decision. All guards lock zones in the order of
// their names, so that no two of them wait for each other. Where the store may have a token
// that is missing here, it is asked if no other zone rejects for longer.
func (g *Guard) claim(i int, now time.Duration, t *try) {
	key := NoKey
	for ; i < len(g.zones); i++ {
		if key = g.zones[i].key(t.Request); key != NoKey {
			break
		}
	}
	if key == NoKey {
		g.claimBackend(now, t)
		return
	}
	z := &g.zones[i]
	n := z.price(t.Request, key)
	claim, wait, ask := z.claim(key, now, n)
	t.over(z, n, wait)
	g.claim(i+1, now, t)
	if t.d.Reason == None || t.d.paid && !t.dry { // one that waits for the token that it has taken has taken those of its zones, too
		if claim.Commit(); z.varies {
			t.hold(z, &claim, key, n)
		}
	}
	claim.Release()
	if ask != nil && !t.final && t.zone == z { // no lock of a zone is held that comes after this one
		t.d.await(now, ask.Ask(now, key))
	}
}

// over notes how long a zone rejects. Of several the one with the longest wait is told.
func (t *try) over(z *zone, n int, wait time.Duration) {
	if wait > t.wait {
		t.d.Reason, t.wait, t.d.Zone, t.zone, t.price = Quota, wait, z.index, z, n
	}
}

// claimBackend decides on a request that is within its quotas. One that has come from
// the queue has its permit already.
func (g *Guard) claimBackend(now time.Duration, t *try) {
	b, d := g.backend, t.d
	if d.Reason != None { // its client's quota is not all that it has to wait for
		if g.hasCapacity {
			t.wait = max(t.wait, g.tokenIn(now))
		}
		return
	}
	if t.wait = b.inFlight.Paused(now, &d.permit); t.wait > 0 {
		d.Reason = Pause
		return
	}
	queued, limited := d.permit.Held(), g.plan.Limits()
	// It leaves half of the burst to others if its client's number is hopeless; and while clients wait if it is of several behind
	// one key, any of which could be the one that is due. What other replicas hold is not known well enough to have one that is due
	// leave any.
	tokens, v := 0, &d.visit
	shared := v.Shared && g.clients.Backlogged(now) && !(v.Standing == pushback.Due && b.link.Load() != nil)
	if (v.Hopeless || shared) && !queued && !g.plan.Highest(int(d.Class)) {
		tokens = g.capacity.Burst() / 2
	}
	// One that comes on time is no retry in the sense of the budget, and one that has waited has asked already.
	if t.Retry && !d.budgeted && (g.hasCapacity || limited) && !v.OnTime() {
		if d.budgeted, t.wait = b.inFlight.AdmitsRetry(now, b.link.Load().Part(g.supply())); !d.budgeted { // first attempts are counted here alone
			d.Reason = RetryBudget
			return
		}
	}
	var claim limiter.Claim
	charges := g.hasCapacity && !d.paid
	if charges {
		claim, t.wait = b.capacity.ClaimAbove(g.capacity, now, 1, tokens)
		if t.wait > 0 && (g.observe || t.dry) && claim.Lends(g.capacity, now, tokens) {
			t.wait = 0
		}
		if t.wait > 0 {
			d.Reason = Capacity
			if tokens == 0 {
				t.patience = g.patience(now, t)
			}
			t.lacks = (!t.final || t.patience > 0 && !t.dry) && claim.Misses(g.capacity, now, tokens)
			if owed, wait := claim.Owe(g.capacity, now); !t.lacks && t.patience > 0 && wait <= t.patience {
				if d.until, d.paid = cmp.Or(now+wait, 1), true; !t.dry { // 0 is no instant
					owed.Commit()
				}
			}
			claim.Release()
			if !t.dry {
				b.inFlight.NoteShortage(now)
			}
			return
		}
		defer claim.Release() // also if what follows panics
	}
	switch {
	case queued:
	case limited || g.plan.PerClient > 0:
		var is loadshed.Entry
		is, t.wait = b.inFlight.Enter(now, g.plan, &loadshed.Entrant{
			Client: uint64(t.Client), InFlight: uint64(t.InFlightKey), Class: t.Class, As: int(d.Class),
			Due: d.visit.Urgent(), Known: d.visit.First(), Last: d.visit.Hopeless, Deadline: t.Deadline, Weight: g.weigh(t.Request),
		}, &d.permit)
		switch is {
		case loadshed.ClientFull:
			d.Reason, d.policy = PerClient, len(g.zones)
		case loadshed.Waiting, loadshed.Full:
			d.Reason = Concurrency
		}
	case g.hasCapacity && !t.dry: // how it ends says whether a pause of the backend is over
		d.permit.Watch(&b.inFlight, g.plan, d.at)
	}
	if charges && d.Reason == None && !t.dry {
		claim.Commit()
	}
}

// tokenWait is how long a client that is due waits for its token at most, or as long as one is earned, up to slowestToken. Clients
// that were delayed by the same network, or the same machine, come together: at 100/s with a burst of 10, of 25 that
// come at once 10 go on, 15 wait for 10 to 150 ms, and none needs another appointment. At 2/s one waits for up to half a second.
const (
	tokenWait    = 150 * time.Millisecond
	slowestToken = time.Second
)

// patience returns how much longer a request may wait for a token: one that is due, one of the highest class while clients wait, or
// those would be in its way, and two thirds as long, 100 ms, one of a known client: those who are due go before it.
func (g *Guard) patience(now time.Duration, t *try) time.Duration {
	d, most := t.d, max(tokenWait, min(g.capacity.Interval(), slowestToken))
	due := d.visit.Standing == pushback.Due || g.plan.Highest(int(d.Class)) && g.clients.Backlogged(now)
	if g.observe || !due && !d.visit.First() {
		return 0
	}
	if !due {
		most = most * 2 / 3
	}
	ends := d.came + most
	if t.Deadline > 0 {
		ends = min(ends, t.Deadline)
	}
	return max(0, ends-now)
}

// queues reports whether a request has to wait, for the store or for a permit. It asks the store
// when no lock is held: the store's response is taken under the lock of the link, and takes others.
func (g *Guard) queues(now time.Duration, t *try) bool {
	d := t.d
	if d.until != 0 {
		return true
	}
	switch d.Reason {
	case Pause, RetryBudget, Capacity, Concurrency:
		l := g.backend.link.Load()
		if l == nil || t.final && !t.lacks {
			break
		}
		if d.Reason == Concurrency {
			l.Lacks()
		}
		if d.permit.Waits() {
			break
		}
		// A slot for its client is worth a moment, too: its response is held back anyway.
		if slot := !t.final && g.clients.Awaits(&d.visit); slot || t.lacks {
			d.await(now, l.Ask(now))
		}
	}
	return d.Queued()
}

// conclude counts a decision, and has the store told of it.
func (g *Guard) conclude(now time.Duration, t *try) {
	b, d := g.backend, t.d
	class := g.classes[d.Class]
	if !t.Retry && (g.hasCapacity || g.plan.Limits()) && !d.visit.OnTime() {
		switch d.Reason {
		case None, Capacity, PerClient, Concurrency: // it would take what is not left to retries
			b.inFlight.FirstAttempt()
		}
	}
	switch d.Admit = d.Reason == None || g.observe; {
	case d.Reason == None:
		class.admitted.Add(1)
		d.Backlog = g.clients.Ahead(now)
		g.clients.Admitted(now, uint64(t.Client), &d.visit)
	case g.observe: // it has no permit in flight: what would have been rejected must not crowd out others
		d.Tell(t.wait, d.Reason == Quota || d.Reason == Blocked, &g.terms)
		class.observed[d.Reason].Add(1)
		if t.zone != nil {
			t.zone.observed.Add(1)
		}
	default:
		g.appoint(now, t)
		class.rejected[d.Reason].Add(1)
		if t.zone != nil {
			t.zone.rejected.Add(1)
		}
		b.retryAfter[min(d.Hint.Seconds, len(b.retryAfter)-1)].Add(1)
		g.clients.Saw(uint64(t.Client))
	}
}

// appoint makes the appointment of a request that is rejected.
func (g *Guard) appoint(now time.Duration, t *try) {
	d, c, s := t.d, t.caller(), pushback.Supply{Rate: g.Rate()}
	switch d.Reason {
	case Blocked, Early, PerClient: // no other client is in its way
		d.Tell(t.wait, d.Reason == Blocked, &g.terms)
		return
	case Quota:
		z := t.zone
		key, each := uint64(z.key(t.Request))^z.salt, z.limit.Interval()*time.Duration(t.price)
		g.clients.RejectQuota(now, &c, key, t.wait, each, &g.terms, &d.Told)
		return
	case Pause: // no request is let in before
		s.Token = t.wait
	case Capacity:
		// To earn a token may take longer than all that wait. The reserve does not
		// count: it is not kept from a request that comes on time.
		if shortest, _ := g.terms.Bounds(&c); g.capacity.Interval() > shortest {
			s.Token = g.tokenIn(now)
		}
	}
	g.clients.Reject(now, &c, &d.visit, &g.terms, s, &d.Told)
}

// tokenIn returns how long it takes until the capacity has a token.
func (g *Guard) tokenIn(now time.Duration) time.Duration {
	claim, wait := g.backend.capacity.Claim(g.capacity, now, 1)
	claim.Release()
	return wait
}

// Settle ends the wait of a queued request, with the verdict it was given, or with 0 when what it Awaits has
// happened or Until has come. r must be what Admit got. Limits that weren't charged during the wait may now reject the request, and one
// that waited for the store may be queued again.
func (g *Guard) Settle(now time.Duration, r Request, d *Decision, verdict loadshed.Verdict) {
	b, answered := g.backend, d.until != 0
	t := try{Request: &r, d: d, final: true}
	d.awaits, d.until, d.at = nil, 0, now
	if answered || b.inFlight.Settle(now, g.plan, &d.permit, verdict) {
		zones := 0
		if d.Reason, d.Zone = None, -1; d.paid { // they are charged
			zones = len(g.zones)
		}
		g.claim(zones, now, &t)
	}
	if g.queues(now, &t) {
		return
	}
	if d.Reason != None {
		g.release(now, d)
	}
	g.conclude(now, &t)
}

// Abandon ends the wait of a queued request whose client disconnected.
func (g *Guard) Abandon(now time.Duration, d *Decision) {
	g.release(now, d)
	d.awaits, d.until, d.Gone, d.at = nil, 0, true, now
}

// release gives back what a request holds that has waited in vain, but for its client's quotas: or one that always hangs up had none. A
// deposit is given back, as it may be all of a quota.
func (g *Guard) release(now time.Duration, d *Decision) {
	d.settle(now, true)
	g.backend.inFlight.Reject(now, &d.permit)
	if d.paid {
		claim, _ := g.backend.capacity.Claim(g.capacity, now, -1)
		claim.Commit()
		claim.Release()
	}
}

// Rate returns how many requests per second the backend can serve; infinitely many if that is unknown.
func (g *Guard) Rate() float64 { return g.backend.link.Load().Rate(g.supply()) }

// supply returns how many requests per second were measured here, and the most that all replicas may use.
func (g *Guard) supply() (measured, most float64) {
	if most = math.Inf(1); g.hasCapacity {
		most = g.capacity.Rate()
	}
	return g.backend.inFlight.Rate(g.plan), most
}

// Spare returns how many rejected clients per second the backend can serve in addition to its other traffic; 0
// if the Guard doesn't limit the backend.
func (g *Guard) Spare() float64 {
	rate := g.Rate()
	if math.IsInf(rate, 1) {
		return 0
	}
	return g.clients.Spare(rate)
}
