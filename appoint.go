package shield

import (
	"math"
	"time"

	"github.com/herdshield/shield/limiter"
	"github.com/herdshield/shield/pushback"
)

const (
	// maxHeld bounds the refusals that are held back at one time: each keeps a
	// connection waiting.
	maxHeld = 10_000

	// rested is how long a backend must have had room, at each look, before clients
	// are let in that come too early: a moment's luck must not make polling pay.
	rested = time.Second
)

// visit looks up what the client was promised. A client is not struck for
// coming early where nobody else has to wait, or to an idle backend.
func (g *Guard) visit(now time.Duration, r *Request) pushback.Visit {
	b := g.backend
	if r.Client == NoKey || !b.calendar.Expecting(now) && r.Ticket == "" {
		return pushback.Visit{}
	}
	var horizon time.Duration
	if g.enforce && b.calendar.Standing(now) && !b.idle(now) {
		_, horizon = g.answers.Bounds()
	}
	v := b.ledger.Visit(now, uint64(r.Client), r.kind(), horizon, b.calendar.Waiting())
	if v.Standing == pushback.OnTime {
		v.Due = !v.Deferred || b.calendar.Overdue(now, v, g.rates(r))
	}
	g.redeem(now, r, &v)
	if v.Standing != pushback.Stranger && v.Standing != pushback.OtherRequest {
		b.returned.Add(1)
		if v.Standing == pushback.OnTime {
			b.onTime.Add(1)
		}
		if !v.Rejected || !v.Hammers { // of those who come early again and again, the first time
			b.families[pushback.FamilyOf(r.Agent)].returned(v)
		}
	}
	return v
}

// kind returns what a request repeats, 0 if it says that it repeats something.
func (r *Request) kind() uint64 {
	if r.Retry {
		return 0
	}
	return uint64(r.Fingerprint)
}

func (f *familyCounts) returned(v pushback.Visit) {
	switch {
	case v.Standing == pushback.TooEarly:
		f.early.Add(1)
	case v.Late:
		f.late.Add(1)
	case v.Standing == pushback.OnTime:
		f.kept.Add(1)
	}
}

// hasRoom reports whether the backend has more room than comes to it at now: eight
// tenths of the burst, and half of the places.
func (g *Guard) hasRoom(now time.Duration) bool {
	if g.hasCapacity && 10*g.backend.capacity.Level(g.capacity, now) < 8*g.capacity.Burst() {
		return false
	}
	limit := g.Limit()
	return limit == 0 || 2*g.backend.gate.InFlight() <= limit
}

// idle reports whether the backend has had room for a while.
func (b *Backend) idle(now time.Duration) bool {
	return now-time.Duration(b.crowded.Load()) >= rested
}

// refuseEarly tells a client its promise again, at the lowest cost there is. One
// of several behind one key, whose promise is not known, is told some time.
func (g *Guard) refuseEarly(now time.Duration, r *Request, v pushback.Visit, d *Decision) {
	d.Reason = Early
	if v.Standing == pushback.Ambiguous {
		v.At = g.backend.calendar.Later(now, g.rates(r)).At
	}
	d.Wait = v.At - now
	d.Hint = g.answers.Hint(d.Wait)
	g.backend.refuse(d)
	g.backend.saw(r.Client)
}

func (b *Backend) refuse(d *Decision) {
	b.refused[d.Reason].Add(1)
	b.retryAfter[d.Hint.Seconds].Add(1)
}

// A reserve is how much of what there is a request has to leave to others: in
// tenths of the burst, and a third of that of the places in flight, since a place
// that is left free is work that is not done.
type reserve int

// reserveFor returns the reserve while a backlog stands: those who come on time
// may take the last tokens, as the highest of several classes may, deferred ones who ask again leave two tenths, or if
// it is not for them nine, strangers three, and whoever has an appointment besides
// five.
func (g *Guard) reserveFor(now time.Duration, r *Request, v pushback.Visit, d *Decision) reserve {
	switch {
	case v.Due || v.NearlyDue || v.Uncontended || g.highest(d) || !g.backend.calendar.Standing(now):
		return 0
	case v.Standing == pushback.OnTime:
		if g.backend.calendar.Chance(now, g.rates(r)) {
			return 2
		}
		return 9
	case v.Standing == pushback.OtherRequest || v.Standing == pushback.Ambiguous:
		return 5
	default:
		return 3
	}
}

func (r reserve) of(n int) int { return n * int(r) / 10 }

// barred reports whether a client is to get an appointment and no try, because it
// has one already, for something else, and others wait.
func (g *Guard) barred(now time.Duration, v pushback.Visit) bool {
	return v.Standing == pushback.OtherRequest && !v.Uncontended && g.enforce && g.backend.calendar.Standing(now) && !g.backend.idle(now)
}

// scarce returns the reason for which a backlog stands.
func (g *Guard) scarce() Reason {
	if g.hasCapacity {
		return Capacity
	}
	return Concurrency
}

// keep notes that a client with a promise has been admitted.
func (b *Backend) keep(now time.Duration, client limiter.Key) {
	v := b.ledger.Keep(now, uint64(client))
	switch {
	case v.Promises == 0:
	case v.Deferred:
		b.calendar.Leave()
	case v.Standing == pushback.OnTime:
		b.calendar.Kept(now, v.At)
	default:
		b.calendar.Forget(now, v.At)
		b.early.Add(1)
	}
}

// appoint gives a client that the backend has no room for its appointment.
func (g *Guard) appoint(now time.Duration, r *Request, v pushback.Visit, d *Decision) {
	b := g.backend
	rates := g.rates(r)
	if d.Reason == Pause { // nobody is let in before
		rates.Token = d.Wait
	}
	if d.Reason == Capacity && g.capacity.Interval() > rates.Min {
		// To earn a token may take longer than all who wait. The reserve does not
		// count: it is not kept from one who comes on time.
		claim, token := b.capacity.Claim(g.capacity, now, 1)
		claim.Release()
		rates.Token = token
	}
	var a pushback.Appointment
	place := pushback.ReplaceNone
	switch {
	case v.Standing == pushback.TooEarly: // enforcement is off: the promise stands, at no further cost
		d.Wait = v.At - now
		d.Hint = g.answers.Hint(d.Wait)
		return
	case v.Standing == pushback.OnTime && v.Due && v.Deferred:
		a, place = b.calendar.Excuse(now, rates), pushback.ReplaceOne
	case v.Standing == pushback.OnTime && v.Deferred:
		a, place = b.calendar.Rebook(now, v, rates), pushback.ReplaceOne
	case v.Standing == pushback.OnTime:
		b.broken.Add(1)
		if v.Promises > 0 {
			b.calendar.Kept(now, v.At)
		}
		a, place = b.calendar.Excuse(now, rates), pushback.ReplaceOne
	case v.Standing == pushback.Ambiguous || v.Standing == pushback.OtherRequest && v.Promises >= g.share(now, v, rates):
		a = b.calendar.Later(now, rates)
		v.Hammers = true // not worth holding a connection for: any time will do
		g.tell(now, r, v, a, d)
		return
	default:
		a = b.calendar.Book(now, rates)
	}
	if limit := g.answers.GiveUp(); limit > 0 && a.Wait > limit {
		b.forget(now, r, a, place)
		d.Wait, d.Hint = a.Wait, pushback.Hint{Never: true}
		return
	}
	g.tell(now, r, v, a, d)
	if r.Client != NoKey && b.ledger.Write(now, uint64(r.Client), uint64(r.Fingerprint), a, now+d.Hold, place) {
		return
	}
	if a.Deferred { // a stranger again when it comes
		b.calendar.Unqueue()
	} else {
		b.calendar.Unwatched(a.At)
	}
}

// forget takes back an appointment of a client that is told never to come back.
func (b *Backend) forget(now time.Duration, r *Request, a pushback.Appointment, place pushback.Replace) {
	switch {
	case !a.Deferred:
		b.calendar.Forget(now, a.At)
	case place == pushback.ReplaceNone: // its number is new, too
		b.calendar.Unqueue()
	}
	if place != pushback.ReplaceNone { // what it was promised for something else still holds
		b.ledger.Drop(uint64(r.Client))
	}
}

// appointQuota gives a client that is over its quota its appointment: not before
// it has earned the tokens, nor before those of its requests that were refused
// earlier, and in a slot of its own where the backend's rate is known, since
// others may have the same time to wait.
func (g *Guard) appointQuota(now time.Duration, r *Request, z *ZoneState, d *Decision) {
	b := g.backend
	zone := &g.zones[g.order[d.Zone]]
	key := uint64(r.Keys[d.Zone]) ^ z.salt
	v := b.ledger.Visit(now, key, r.kind(), 0, 0)
	wait, place := d.Wait, pushback.ReplaceNone
	rates := g.rates(r)
	// Each promised request will take what it costs.
	behind := min(time.Duration(v.Promises)*zone.limit.Interval()*time.Duration(zone.cost), rates.Max)
	switch v.Standing {
	case pushback.TooEarly:
		if now+wait <= v.At+50*time.Millisecond { // the promise stands
			d.Wait = v.At - now
			d.Hint = g.answers.Hint(d.Wait)
			return
		}
		place = pushback.ReplaceOne
	case pushback.OnTime: // whatever was promised for before now is done with
		place = pushback.ReplaceAll
	case pushback.OtherRequest, pushback.Ambiguous:
		wait += behind
		if v.Standing == pushback.Ambiguous || wait > rates.Max {
			d.Wait = min(wait, rates.Max)
			d.Hint = g.answers.Hint(d.Wait)
			return
		}
	}
	a := pushback.Appointment{At: now + min(wait, rates.Max)}
	if !math.IsInf(rates.Service, 1) && wait <= rates.Max {
		a = b.calendar.BookFrom(now, now+wait, rates)
	}
	if v.Promises == 0 && a.At <= now+wait {
		// Nobody is in the way of the client's own time, and nobody will be if
		// it comes at the next whole second.
		v.Hammers = true
	}
	g.tell(now, r, v, a, d)
	b.ledger.Write(now, key, uint64(r.Fingerprint), a, now+d.Hold, place)
}

// tell sets what a refused client is told. Retry-After has whole seconds, and
// clients that were refused in one moment would all come back at the same
// fraction of a second. So the answer is held back by the fraction that is
// missing: then the whole seconds hit the slot.
func (g *Guard) tell(now time.Duration, r *Request, v pushback.Visit, a pushback.Appointment, d *Decision) {
	d.Wait, d.Window = a.At-now, a.Window
	d.Hint = g.answers.Hint(d.Wait)
	d.Ticket = g.sign(now, r, a)
	g.backend.families[pushback.FamilyOf(r.Agent)].told.Add(1)
	hold := d.Wait % time.Second
	if !g.dither || r.Precise || v.Hammers || hold == 0 || d.Wait < time.Second || r.Deadline > 0 && now+hold >= r.Deadline {
		return
	}
	held := &g.backend.held
	if held.Add(1) > maxHeld {
		held.Add(-1)
		return
	}
	d.Hold, d.held = hold, held
	d.Hint = g.answers.Hint(d.Wait - hold)
}

// rates returns what the calendar has to know for a request.
func (g *Guard) rates(r *Request) pushback.Rates {
	rates := pushback.Rates{Service: g.service(), Pulse: g.pulse}
	rates.Min, rates.Max = g.answers.Bounds()
	if r.Precise && rates.Min == time.Second {
		rates.Min = 0
	}
	return rates
}

// service returns how many requests per second the backend can take: infinitely
// many if nothing is known of it.
func (g *Guard) service() float64 {
	rate := math.Inf(1)
	if g.hasCapacity {
		rate = g.capacity.Rate()
	}
	if limit := g.Limit(); limit > 0 {
		rate = min(rate, g.backend.service(limit))
	}
	return rate
}

// Spare returns how many refused clients per second can be served besides what
// comes anyhow; 0 if the Guard does not limit the backend.
func (g *Guard) Spare() float64 {
	service := g.service()
	if math.IsInf(service, 1) {
		return 0
	}
	return g.backend.calendar.Spare(service)
}

// share returns how many promises one client may have at once: a few, as one has
// who asks for several things. A crowd behind one address, whose requests all come
// before the first of them is answered, may have as many as there are slots left:
// half of the horizon, and the next crowd a quarter, but nobody takes all of it from
// the others. Those are the dynamic thresholds of shared-memory switches (Choudhury
// and Hahne, 1998).
func (g *Guard) share(now time.Duration, v pushback.Visit, r pushback.Rates) int {
	if !v.BeforeAnswer {
		return pushback.CrowdThreshold
	}
	free := (r.Max - g.backend.calendar.Ahead(now)).Seconds() * g.backend.calendar.Spare(r.Service)
	return max(pushback.CrowdThreshold, min(int(free), pushback.MaxPromises))
}
