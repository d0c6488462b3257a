package pushback

import (
	"math"
	"sync/atomic"
	"time"
)

// MaxHeld bounds the refusals that are held back at one time: each keeps a
// connection waiting.
const MaxHeld = 10_000

// repeatSlack is how much later than promised a client's quota may be free for the
// promise to stand. Ours: less than a client notices.
const repeatSlack = 50 * time.Millisecond

// Appointments is all that is known of the refused clients of one backend: the promise to
// each ([Ledger]), how many come at which time ([Calendar]), which tickets are used, which
// refusals are held back, and which clients come together ([Herd]). The zero
// Appointments is ready once Resize has said how many clients to remember. It is safe
// for concurrent use and must not be copied.
//
// The operator's settings, the [Terms], are passed with every call and never kept.
type Appointments struct {
	calendar Calendar
	ledger   Ledger
	crowds   crowds
	Core     Core
	signers  signers
	herds    herds
	news     news // for other replicas

	second struct { // as of the last Tick of a second
		at         time.Duration
		unpromised int64 // arrivals at the backend that kept no promise
		overQuota  uint64
	}

	patience  patience
	moment    moment
	held      atomic.Int64  // refusals that wait to be sent
	returned  atomic.Uint64 // arrivals of clients that had a promise
	onTime    atomic.Uint64 // those of them whose time had come
	broken    atomic.Uint64 // clients that came when they were told and were refused
	early     atomic.Uint64 // clients that came too early and were admitted
	redeemed  atomic.Uint64 // tickets that made a stranger as good as on time
	worthless atomic.Uint64 // tickets that were forged, foreign, used or too old
	families  [Families]familyCounts
}

// Terms is what the operator set: how refusals are worded, and how clients are held to
// what they were told.
type Terms struct {
	Answers *Answers
	Enforce bool   // a client that comes too early is refused while others wait
	Secret  []byte // signs tickets; nil: none are given
	Herds   bool   // room is left for herds that come periodically

	// Wall returns the time of day at now, for tickets.
	Wall func(now time.Duration) time.Time
}

// A Caller is what there is to know of the client of a request.
type Caller struct {
	Key         uint64        // names the client; 0: it is not known, so nothing is remembered
	Fingerprint uint64        // of the request: see Ledger.Visit
	Repeats     bool          // the request says itself that it is a retry
	Precise     bool          // the client reads milliseconds, so its answer need not be held
	Agent       string        // its User-Agent
	Ticket      string        // that it brings, "" for none
	ID          []byte        // names the client in tickets, the same in all replicas
	Deadline    time.Duration // when the client will have given up; 0: not known
}

// kind returns what a request repeats, 0 if it says that it repeats something.
func (c *Caller) kind() uint64 {
	if c.Repeats {
		return 0
	}
	return c.Fingerprint
}

// Supply is what the backend can spare, as far as its calendar has to know.
type Supply struct {
	Rate  float64       // requests per second that the backend can take; +Inf: not known
	Token time.Duration // until there is a token for any request
	Burst float64       // how many requests at once
}

func (s Supply) two() Supply2 { return Supply2{s.Rate, s.Burst} }

// Bounds returns the shortest and the longest wait that a client is told.
func (t *Terms) Bounds(c *Caller) (shortest, longest time.Duration) {
	shortest, longest = t.Answers.Bounds()
	if c.Precise && shortest == time.Second {
		shortest = 0
	}
	return shortest, longest
}

// rates returns what the calendar has to know for a request.
func (a *Appointments) rates(c *Caller, t *Terms, s Supply) Rates {
	r := Rates{Rate: s.Rate, Token: s.Token}
	r.Min, r.Max = t.Bounds(c)
	if t.Herds {
		r.Pulse = a.herds.pulse
	}
	return r
}

// Told is what a refused client is told.
type Told struct {
	// Wait is how long until the client's appointment; in observe mode, until the same
	// request would be admitted if nothing else came. Hint is what the client is told
	// of it.
	Wait time.Duration
	Hint Hint

	Ticket string        // the appointment, signed, if tickets are given
	Window time.Duration // how long after it would do as well

	// Hold is how long the refusal is to be held back before it is sent: less than a
	// second. Hint says what is right when it is sent. If it is above 0, Sent or Lost must
	// be called once.
	Hold time.Duration

	by  *Appointments // if Hold is above 0
	who listener
}

// Sent ends the Hold of a refusal, if it has one: it is sent.
func (d *Told) Sent() {
	if d.by != nil {
		d.by.held.Add(-1)
		d.by.patience.heard(d.who, d.Hold)
	}
}

// Lost ends the Hold of a refusal, if it has one, whose client has gone meanwhile.
func (d *Told) Lost() {
	if d.by != nil {
		d.by.held.Add(-1)
		d.by.patience.leaves(d.who)
	}
}

// Tell says when to come back without a promise, or repeats one that stands: nothing is
// booked. quota: the wait is for the client's own quota, and is told in full.
func (d *Told) Tell(wait time.Duration, quota bool, t *Terms) {
	d.Wait = wait
	if d.Hint = t.Answers.Hint(wait); quota {
		d.Hint = t.Answers.QuotaHint(wait)
	}
}

// Resize sets how many clients are remembered: see [Ledger.Resize].
func (a *Appointments) Resize(maxClients int) {
	if Simple {
		a.Core.turns.sets.Store(int64(maxClients+ways-1) / ways)
		return
	}
	a.ledger.Resize(maxClients)
}

// Expects reports whether any client may come back that was told to.
func (a *Appointments) Expects(now time.Duration) bool {
	if Simple {
		last := time.Duration(a.Core.line.last.Load())
		return last > 0 && now < last+maxLate
	}
	return a.calendar.Expecting(now)
}

// Backlogged reports whether any client is promised a time after now.
func (a *Appointments) Backlogged(now time.Duration) bool {
	if Simple {
		return a.Core.line.Standing(now)
	}
	return a.calendar.Backlogged(now)
}

// Ahead returns how far the promises reach.
func (a *Appointments) Ahead(now time.Duration) time.Duration {
	if Simple {
		return max(0, time.Duration(a.Core.line.last.Load())-now)
	}
	return a.calendar.Ahead(now)
}

// Doubt returns how little newcomers are trusted to come back when they are told, 0 to 1: 1
// in a flood of strangers that ask once.
func (a *Appointments) Doubt() float64 { return a.calendar.Doubt() }

// Spare returns how many refused clients per second a backend can serve beside what
// comes anyway, if it can take service per second.
func (a *Appointments) Spare(service float64) float64 { return a.calendar.Spare(service) }

// Arrive looks up what the client of a request was promised. It is on Standby, or
// rejected for coming early, only while others wait. So is one of a crowd that wants more
// than its share. Of a deferred client that is OnTime it has to be asked whether it is
// Overdue.
func (a *Appointments) Arrive(now time.Duration, c *Caller, t *Terms, s Supply, v *Visit) {
	if Simple {
		if c.Key == 0 {
			return
		}
		a.Core.Arrive(now, c.Key, s.two(), v)
		v.Rejected = v.Rejected && t.Enforce
		a.redeem(now, c, t, v.Rejected, v)
		if v.Standing != Stranger {
			a.returned.Add(1)
			if v.Standing == OnTime {
				a.onTime.Add(1)
			}
		}
		return
	}
	if c.Key == 0 || !a.calendar.Expecting(now) && c.Ticket == "" {
		return
	}
	strict := t.Enforce && a.calendar.Backlogged(now)
	var horizon time.Duration
	if strict {
		_, horizon = t.Answers.Bounds()
	}
	if w, m := a.crowds.of(now, c.Key); w != nil {
		w.take(now, strict, v)
		m.Unlock()
		if v.Promises > 0 {
			a.news.add(Note{Key: c.Key, Crowd: true, Kept: true, OnTime: v.Standing == OnTime, Promise: uint8(v.promise), At: v.At, Trust: v.Trust, Deferred: v.Deferred})
		}
	} else {
		*v = a.ledger.Visit(now, c.Key, c.kind(), horizon, a.calendar.Waiting())
	}
	v.Due = v.Standing == OnTime && !v.Deferred
	a.redeem(now, c, t, strict, v)
	v.Standby = v.Rejected || strict && !v.Uncontended && (v.Standing == OtherRequest || v.Standing == Ambiguous || v.Excess && !v.Due)
	if v.Promises > 0 && v.Crowd || v.Standing != Stranger && v.Standing != OtherRequest {
		a.returned.Add(1)
		if v.Standing == OnTime {
			a.onTime.Add(1)
		}
		if !v.Rejected || !v.Hammers { // of clients that come early again and again, the first time
			a.families[FamilyOf(c.Agent)].returned(v)
		}
	}
}

// Overdue finds out whether the number of a deferred client that is OnTime has come.
func (a *Appointments) Overdue(now time.Duration, c *Caller, t *Terms, s Supply, v *Visit) {
	v.Due = a.calendar.Overdue(now, *v, a.rates(c, t, s))
}

// Drawn draws whether a deferred client may take what others need not, and returns its
// Reserve then.
func (a *Appointments) Drawn(now time.Duration, c *Caller, t *Terms, s Supply) (reserve int, ok bool) {
	return reserveOfChance, a.calendar.Chance(now, a.rates(c, t, s))
}

// Promised returns how many appointments a client has that it has not come for.
func (a *Appointments) Promised(now time.Duration, client uint64) int {
	_, r, m := a.ledger.known(client)
	if r == nil {
		return 0
	}
	defer m.Unlock()
	return r.outstanding(now)
}

// Forget forgets what a client was promised; it is a stranger when it comes.
func (a *Appointments) Forget(client uint64) { a.ledger.Drop(client) }

// Keep notes that a client with a promise has been admitted, as which it came.
func (a *Appointments) Keep(now time.Duration, client uint64, came *Visit) {
	if Simple {
		a.Core.Admitted(now, client, came)
		return
	}
	v := *came
	if !v.Crowd {
		v = a.ledger.Keep(now, client)
	}
	if v.Promises > 0 && !v.Crowd {
		a.news.add(Note{Key: client, Kept: true, OnTime: v.Standing == OnTime, At: v.At, Trust: v.Trust, Deferred: v.Deferred})
	}
	switch {
	case v.Promises == 0 || v.promise == ask:
	case v.Deferred:
		a.calendar.Leave()
	case v.Standing == OnTime:
		a.calendar.Kept(now, v.At, v.Trust)
	default:
		a.calendar.Forget(now, v.At, v.Trust)
		a.early.Add(1)
	}
}

// Pass notes that a client has been admitted that had a pass: see Visit.
func (a *Appointments) Pass(now time.Duration, client uint64) {
	if a.calendar.Backlogged(now) {
		a.ledger.UsePass(now, client)
	}
}

// RefuseEarly tells a client its promise again, at the lowest cost there is; one that is
// Ambiguous what Sometime says.
func (a *Appointments) RefuseEarly(now time.Duration, v *Visit, t *Terms, d *Told) {
	d.Tell(v.At-now, false, t)
}

// Sometime sets the promise of a client that is Ambiguous, so that it is not known, to a
// time that is as good as any.
func (a *Appointments) Sometime(now time.Duration, c *Caller, t *Terms, s Supply, v *Visit) {
	v.At = a.calendar.Later(now, a.rates(c, t, s)).At
}

// Refuse gives a client that the backend has no capacity for its appointment.
func (a *Appointments) Refuse(now time.Duration, c *Caller, v *Visit, t *Terms, s Supply, d *Told) {
	if Simple {
		r := a.rates(c, t, s)
		p := a.Core.Refuse(now, c.Key, v, s.two(), r.Min, r.Max, r.Token)
		if v.Due {
			a.broken.Add(1)
		}
		if t.tooLong(&p, d) {
			return
		}
		a.tell(now, c, t, p, !v.Hammers, d)
		a.Core.Write(now, c.Key, v, &p, now+d.Hold)
		return
	}
	if v.Standing == TooEarly { // enforcement is off
		d.Tell(v.At-now, false, t)
		return
	}
	rates := a.rates(c, t, s)
	if v.BeforeAnswer && v.Promises >= CrowdThreshold {
		a.crowds.begin(now, c.Key, v)
		a.ledger.Drop(c.Key)
		*v = Visit{Crowd: true}
	}
	if v.Crowd && v.Standing != Ambiguous {
		a.refuseOne(now, c, v, t, rates, d)
		return
	}
	if v.Standing == Ambiguous || v.Standing == OtherRequest && (!v.BeforeAnswer || v.Promises >= CrowdThreshold) {
		// Any time will do: it is not worth holding a connection for.
		if p := a.calendar.Later(now, rates); !t.tooLong(&p, d) {
			a.tell(now, c, t, p, false, d)
		}
		return
	}
	p, replace := a.book(now, v, rates)
	if t.tooLong(&p, d) {
		a.forget(now, c.Key, p, replace)
		return
	}
	a.tell(now, c, t, p, !v.Hammers, d)
	if c.Key != 0 && a.ledger.Write(now, c.Key, c.Fingerprint, p, now+d.Hold, replace) {
		a.news.add(Note{
			Key: c.Key, Fingerprint: uint8(c.Fingerprint), At: p.At, Trust: p.Trust, Deferred: p.Deferred, Number: uint32(p.Number),
			Told: now + d.Hold, Replace: replace,
		})
		return
	}
	if p.Deferred { // a stranger again when it comes
		a.calendar.Unqueue()
	} else {
		a.calendar.Unwatched(p)
	}
}

// tooLong tells a client never to come back that would wait for longer than GiveUp.
func (t *Terms) tooLong(p *Appointment, d *Told) bool {
	if limit := t.Answers.config.GiveUp; limit == 0 || p.Wait <= limit {
		return false
	}
	d.Wait, d.Hint = p.Wait, Hint{Never: true}
	return true
}

// book returns the next appointment of a client, and which of its promises it replaces.
func (a *Appointments) book(now time.Duration, v *Visit, r Rates) (Appointment, Replace) {
	switch {
	case v.Standing != OnTime:
		return a.calendar.Book(now, r, v.Trust), ReplaceNone
	case v.Deferred && !v.Due:
		return a.calendar.Rebook(now, *v, r), ReplaceOne
	case !v.Deferred:
		a.broken.Add(1)
		if v.Promises > 0 {
			a.calendar.Kept(now, v.At, v.Trust)
		}
	}
	return a.calendar.Excuse(now, r, Proven), ReplaceOne
}

// forget takes back an appointment of a client that is told never to come back.
func (a *Appointments) forget(now time.Duration, client uint64, p Appointment, replace Replace) {
	switch {
	case !p.Deferred:
		a.calendar.Forget(now, p.At, p.Trust)
	case replace == ReplaceNone: // its number is new, too
		a.calendar.Unqueue()
	}
	if replace != ReplaceNone { // what it was promised for something else still holds
		a.ledger.Drop(client)
	}
}

// RefuseQuota gives a client that is over its quota its appointment. It comes neither
// before the client has earned the tokens, nor before those of its earlier requests. Where
// the backend's rate is known the appointment has a slot of its own, since other clients
// may have the same time to wait. key is the client's in its zone. wait is how long it takes
// to earn the tokens for this request, and each how long for a further one.
//
// A client that has to wait for longer than an appointment can be is told the truth, and
// not remembered for it.
func (a *Appointments) RefuseQuota(now time.Duration, c *Caller, key uint64, wait, each time.Duration, t *Terms, s Supply, d *Told) {
	if _, longest := t.Answers.Bounds(); wait > longest {
		d.Wait, d.Hint = wait, t.Answers.QuotaHint(wait)
		a.families[FamilyOf(c.Agent)].told.Add(1)
		return
	}
	if Simple {
		a.refuseQuota(now, c, key, wait, each, t, s, d)
		return
	}
	v := a.ledger.Visit(now, key, c.kind(), 0, 0)
	replace := ReplaceNone
	rates := a.rates(c, t, s)
	switch v.Standing {
	case TooEarly:
		if now+wait <= v.At+repeatSlack { // the promise stands
			d.Tell(v.At-now, false, t)
			return
		}
		replace = ReplaceOne
	case OnTime: // whatever was promised for before now is done with
		replace = ReplaceAll
	case OtherRequest, Ambiguous:
		wait += min(time.Duration(v.Promises)*each, rates.Max)
		if v.Standing == Ambiguous || wait > rates.Max {
			d.Tell(min(wait, rates.Max), false, t)
			return
		}
	}
	// One slot for each client: its further requests wait for their own tokens, and so for
	// each other.
	one := v.Standing != OtherRequest && v.Promises <= 1
	p := Appointment{At: now + min(wait, rates.Max)}
	if !one {
		p.At = max(p.At, v.At)
	}
	if one && !math.IsInf(rates.Rate, 1) && wait <= rates.Max {
		p = a.calendar.BookFrom(now, now+wait, rates)
	}
	// If no other client is in the way of its own time, none will be if it comes at the
	// next whole second.
	alone := v.Promises == 0 && p.At <= now+wait
	a.tell(now, c, t, p, !v.Hammers && !alone, d)
	a.ledger.Write(now, key, c.Fingerprint, p, now+d.Hold, replace)
}

// tell sets what a refused client is told. Retry-After has whole seconds, and clients
// that were refused in one moment would all come back at the same fraction of a second.
// So the answer may be held back by the fraction that is missing: then the whole
// seconds hit the slot.
func (a *Appointments) tell(now time.Duration, c *Caller, t *Terms, p Appointment, hold bool, d *Told) {
	d.Wait, d.Window = p.At-now, p.Window
	d.Ticket = a.sign(now, c, t, p)
	family := FamilyOf(c.Agent)
	a.families[family].told.Add(1)
	fraction := d.Wait % time.Second
	if hold && t.Answers.Dither() && !c.Precise && fraction > 0 && d.Wait > time.Second && (c.Deadline == 0 || now+fraction < c.Deadline) {
		a.hold(listenerOf(c.Key, c.Agent, family), fraction, d)
	}
	d.Hint = t.Answers.Hint(d.Wait - d.Hold)
}

// hold has a refusal held back for so long, if there are not too many and its client
// listens, as far as that is known.
func (a *Appointments) hold(who listener, fraction time.Duration, d *Told) {
	if holds := a.patience.holds(who, fraction); !a.moment.refuse() && !holds {
		return
	}
	if a.held.Add(1) > MaxHeld {
		a.held.Add(-1)
		return
	}
	d.Hold, d.by, d.who = fraction, a, who
}

// Tick tells how many requests have come, how many of them were refused, and how many of
// those for their clients' quotas, in all. It is for one goroutine, every 100 ms.
func (a *Appointments) Tick(now time.Duration, arrivals, refusals, overQuota uint64, t *Terms) {
	if t.Herds {
		a.herds.tick(now, arrivals, refusals, a)
	}
	a.moment.tick(now)
	s := &a.second
	d := now - s.at
	if d < time.Second {
		return
	}
	// Requests over a quota do not come to the backend.
	if Simple {
		if s.at > 0 {
			a.Core.line.Tick(d, Supply2{inf, 1})
		}
		s.at = now
		return
	}
	unpromised := int64(arrivals - overQuota - a.returned.Load())
	if s.at > 0 {
		a.calendar.Arrived(now, d, uint64(max(0, unpromised-s.unpromised)), overQuota-s.overQuota)
	}
	s.at, s.unpromised, s.overQuota = now, unpromised, overQuota
}

// OnTime returns how many clients have come that had a promise, when they were told.
func (a *Appointments) OnTime() uint64 { return a.onTime.Load() }

// Clients returns how many clients are remembered, by how they behave: see [Ledger.Clients].
func (a *Appointments) Clients() [Classes]int { return a.ledger.Clients() }

// AppointmentStats is a snapshot of Appointments.
type AppointmentStats struct {
	CalendarStats
	Broken        uint64 // clients that came when told and were refused
	EarlyAdmitted uint64 // clients that came too early and were admitted
	Held          int    // refusals that are being held back
	Lost          uint64 // refusals whose clients have gone while they were held back
	Redeemed      uint64 // tickets that were honoured for clients that were not known
	Worthless     uint64 // tickets that were forged, foreign, used or too old
	Families      [Families]FamilyStats
	MaxClients    int // clients that can be remembered
}

// Stats returns the counts, each read at a slightly different moment.
func (a *Appointments) Stats(now time.Duration) AppointmentStats {
	s := AppointmentStats{
		CalendarStats: a.calendar.Stats(now),
		Broken:        a.broken.Load(), EarlyAdmitted: a.early.Load(), Held: int(a.held.Load()), Lost: a.patience.lost.Load(),
		MaxClients: a.ledger.MaxClients(), Redeemed: a.redeemed.Load(), Worthless: a.worthless.Load(),
	}
	if Simple {
		a.Core.stats(&s.CalendarStats)
	}
	for i := range s.Families {
		s.Families[i] = a.families[i].stats()
	}
	return s
}
