package pushback

import (
	"cmp"
	"math"
	"sync/atomic"
	"time"
)

// MaxHeld bounds the rejections that are held back at one time: each keeps a
// connection waiting.
const MaxHeld = 10_000

// Appointments is all that is known of the rejected clients of one backend: when each is to
// come back ([Line]), who was told what, which rejections are held
// back, and which clients come together ([HerdReport]). The zero Appointments is ready once Resize
// has said how many clients to remember. It is safe for concurrent use and must not be copied.
//
// The operator's settings, the [Terms], are passed with every call and never kept.
type Appointments struct {
	Line
	promises promises
	used     promises // tickets, in a table of their own: a used one gives way to no promise, and would leave no room for them
	groups   groups
	herds    herds
	patience patience
	moment   moment
	ticked   time.Duration // the last Tick of a second

	within, overQuota, limited uint64 // requests within their quotas, beyond, and of those that the backend answered with 429, then

	held      atomic.Int64  // rejections that wait to be sent
	onTime    atomic.Uint64 // those that came when they were told
	broken    atomic.Uint64 // those whose slot had come, and were rejected
	early     atomic.Uint64 // clients that came too early and were admitted
	redeemed  atomic.Uint64 // tickets that made a new client as good as on time
	worthless atomic.Uint64 // tickets that were forged, foreign, used or too old
	families  [len(families)]familyCounts
}

// Terms is what the operator set: how rejections are worded, and how clients are held to
// what they were told.
type Terms struct {
	Responses *Responses
	Enforce   bool   // a client that comes too early is rejected while others wait
	Secret    []byte // signs tickets; nil: none are given

	// Wall returns the time of day at now, for tickets.
	Wall func(now time.Duration) time.Time
}

// A Caller is what there is to know of the client of a request.
type Caller struct {
	Key      uint64        // names the client; 0: it is not known, so nothing is remembered
	Precise  bool          // the client reads milliseconds, so its response need not be held
	Agent    string        // its User-Agent
	Ticket   string        // that it brings, "" for none
	ID       []byte        // names the client in tickets, the same in all replicas
	Deadline time.Duration // when the client will have given up; 0: not known
}

// Bounds returns the shortest and the longest wait that a client is told.
func (t *Terms) Bounds(c *Caller) (shortest, longest time.Duration) {
	shortest, longest = t.Responses.Bounds()
	if c.Precise && shortest == time.Second {
		shortest = 0
	}
	return shortest, longest
}

// Told is what a rejected client is told.
type Told struct {
	// Wait is how long until the client's appointment; in observe mode, until the same
	// request would be admitted if nothing else came. Hint is what the client is told
	// of it.
	Wait time.Duration
	Hint Hint

	Ticket string // the appointment, signed, if tickets are given

	// Hold is how long the rejection is to be held back before it is sent: less than a
	// second. Hint says what is right when it is sent. If it is above 0, Sent or Lost must
	// be called once.
	Hold time.Duration

	by    *Appointments // if Hold is above 0
	agent uint8
}

// Sent ends the Hold of a rejection, if it has one: it is sent.
func (d *Told) Sent() {
	if d.by != nil {
		d.by.held.Add(-1)
	}
}

// Lost ends the Hold of a rejection, if it has one, whose client has gone meanwhile.
func (d *Told) Lost() {
	if d.by != nil {
		d.by.held.Add(-1)
		d.by.patience.leaves(d.agent)
	}
}

// Tell says when to come back without a promise, or repeats one that stands: nothing is
// booked. quota: the wait is for the client's own quota, and is told in full.
func (d *Told) Tell(wait time.Duration, quota bool, t *Terms) {
	longest := t.Responses.config.Max
	if quota {
		longest = t.Responses.config.QuotaMax
	}
	d.Wait, d.Hint = wait, hint(wait, t.Responses.config.Min, longest)
}

// Resize sets how many clients are remembered, MinMaxClients to MaxMaxClients.
func (a *Appointments) Resize(maxClients int) { a.promises.resize(maxClients) }

// Arrive looks up what the client of a request was promised. rate is what the backend can
// take per second. strict: one that comes early is rejected while the line is long and others
// wait in it.
func (a *Appointments) Arrive(now time.Duration, c *Caller, t *Terms, rate float64, strict bool, v *Visit) {
	if c.Key == 0 || !a.Expects(now) && c.Ticket == "" {
		return
	}
	shortest, longest := t.Responses.Bounds()
	strict = strict && t.Enforce && a.Ahead(now) > shortest+time.Second
	if w := a.groups.find(c.Key); w != nil {
		v.Shared = true
		v.Turn, v.n = a.groups.take(now, w)
		a.groups.mu.Unlock()
	} else {
		v.found = a.promises.take(now, c.Key, a.serving())
	}
	v.Hopeless = !v.Slot && v.n > 0 && v.Number > a.serving()+longest.Seconds()/2*rate
	switch {
	case v.n == 0 || v.unheard:
	case v.early:
		v.Standing, v.Rejected = TooEarly, strict && a.waiting.Load() > int64(v.n)
	case v.Slot:
		v.Standing = Due
	default:
		v.Standing = Asks
	}
	a.redeem(now, c, t, strict, v)
	if v.n == 0 || v.Standing == NewClient {
		return
	}
	if v.OnTime() {
		a.note(Note{Key: c.Key, Turn: v.Turn, Kept: true, OnTime: true, Shared: v.Shared})
		a.onTime.Add(1)
		a.comes(now, rate, &v.Turn)
	}
	if !v.Rejected || v.kind != hammer {
		a.families[FamilyOf(c.Agent)].returned(now, v)
	}
}

// Admitted notes that a client is let in, and what it came as.
func (a *Appointments) Admitted(now time.Duration, key uint64, v *Visit) {
	switch {
	case v.Standing == TooEarly:
		a.early.Add(1)
		if a.promises.use(now, key, v.At) {
			a.giveBack(now, &v.Turn)
			a.note(Note{Key: key, Turn: v.Turn, Kept: true})
		}
		return
	case v.ready:
		a.again.Add(1)
		return
	case v.Standing == NewClient:
		a.fresh.Add(1)
	case v.Standing == Asks:
		a.giveBack(now, &v.Turn)
	}
	if !v.Shared && key != 0 && a.Expects(now) {
		rests := Turn{At: min(max(now, v.rests)+restAfter, now+maxLate), Trust: v.claims().trust}
		a.promises.put(now, key, &rests, now, isPast, v.kind)
	}
}

// claims returns what the line has to know of a client.
func (v *Visit) claims() (c claim) {
	if v.OnTime() {
		c.had = &v.Turn
	}
	if v.proven() && !v.Shared {
		c.trust = Proven
	}
	return c
}

// Reject gives a client that the backend has no capacity for its appointment.
func (a *Appointments) Reject(now time.Duration, c *Caller, v *Visit, t *Terms, s Supply, d *Told) {
	if v.Standing == TooEarly { // it is not enforced, or the line is short: the promise stands
		d.Tell(v.At-now, false, t)
		return
	}
	if v.Standing == Due {
		a.broken.Add(1)
	}
	if v.unheard && v.n >= GroupThreshold {
		a.gather(now, c.Key)
		v.Shared = true
	}
	want := v.claims()
	want.min, want.max = t.Bounds(c)
	limit := cmp.Or(t.Responses.config.GiveUp, math.MaxInt64)
	var turn Turn
	var wait time.Duration // until it is served, at last
	if v.Shared {
		turn, wait = a.promiseShared(now, c.Key, s, want, limit)
	} else {
		turn, wait = a.next(now, s, want)
	}
	if wait > limit {
		d.Wait, d.Hint = wait, Hint{Never: true}
		if turn.Slot || turn.Number > 0 { // else nobody is behind it
			a.giveBack(now, &turn)
		}
		return
	}
	a.tell(now, c, t, &turn, v.kind != hammer, d)
	if v.Shared {
		return
	}
	told := max(now+d.Hold, now+minAnswerTransit)
	if c.Key != 0 && a.promises.put(now, c.Key, &turn, told, 0, v.kind) {
		a.note(Note{Key: c.Key, Turn: turn, Told: told})
	} else {
		a.unwatched(&turn)
	}
}

// promiseShared books for one of the clients behind one key, and notes the promise if it is for within limit.
func (a *Appointments) promiseShared(now time.Duration, key uint64, s Supply, want claim, limit time.Duration) (turn Turn, wait time.Duration) {
	w := a.groups.begin(now, key)
	defer a.groups.mu.Unlock()
	a.mu.Lock()
	most := max(GroupThreshold, a.pace(s.Rate)*want.max.Seconds()/2)
	a.mu.Unlock()
	if (want.had == nil || !want.had.Slot) && float64(a.groups.promises[1]) >= most {
		want.behind = max(1, float64(a.groups.promises[0]+a.groups.promises[1])-most)
	}
	if turn, wait = a.next(now, s, want); wait <= limit {
		a.groups.put(w, &turn)
		a.note(Note{Key: key, Turn: turn, Told: now, Shared: true})
	}
	return turn, wait
}

// gather makes a group of the clients behind a key.
func (a *Appointments) gather(now time.Duration, key uint64) {
	w := a.groups.begin(now, key)
	defer a.groups.mu.Unlock()
	a.promises.each(now, key, a.serving(), func(p promise, t Turn) bool {
		if !p.has(isPast) {
			a.groups.put(w, &t)
		}
		return false
	})
}

// RejectQuota gives a client that is over its quota its appointment. It comes neither
// before the client has earned the tokens, nor before those of its earlier requests. It is no
// slot of the line: for how many there is room then is found out when they come. So it need not be hit
// by the fraction of a second. key is the client's in its zone. wait is how long it takes to earn the tokens
// for this request, and each how long for a further one.
//
// A client that has to wait for longer than an appointment can be is told the truth, and
// not remembered for it.
func (a *Appointments) RejectQuota(now time.Duration, c *Caller, key uint64, wait, each time.Duration, t *Terms, d *Told) {
	_, longest := t.Bounds(c)
	if wait > longest {
		d.Tell(wait, true, t)
		a.families[FamilyOf(c.Agent)].told.Add(1)
		return
	}
	f := a.promises.take(now, key, 0)
	from := now + wait
	switch {
	case f.unheard: // its further requests wait for their own tokens, and so for each other
		from = min(from+time.Duration(f.n)*each, now+longest)
		if f.n >= GroupThreshold {
			d.Tell(from-now, false, t)
			return
		}
	case f.early: // the promise stands
		d.Tell(max(f.At-now, wait), false, t)
		return
	}
	turn := Turn{At: from, Slot: true}
	a.tell(now, c, t, &turn, false, d)
	a.promises.put(now, key, &turn, now+minAnswerTransit, isQuota, f.kind)
}

// tell sets what a rejected client is told. Retry-After has whole seconds, and clients
// that were rejected in one moment would all come back at the same fraction of a second.
// So the response may be held back by the fraction that is missing: then the whole
// seconds hit the slot.
func (a *Appointments) tell(now time.Duration, c *Caller, t *Terms, turn *Turn, hold bool, d *Told) {
	d.Wait = turn.At - now
	d.Ticket = a.sign(c, t, turn)
	a.families[FamilyOf(c.Agent)].told.Add(1)
	fraction := d.Wait % time.Second
	if hold && t.Responses.Dither() && !c.Precise && fraction > 0 && d.Wait > time.Second && (c.Deadline == 0 || now+fraction < c.Deadline) {
		a.hold(c.Agent, fraction, d)
	}
	d.Hint = t.Responses.Hint(d.Wait - d.Hold)
}

// hold has a rejection held back for so long, if there are not too many and clients of its
// agent listen, or if it is one of a burst.
func (a *Appointments) hold(agent string, fraction time.Duration, d *Told) {
	who := agentOf(agent)
	if holds := a.patience.holds(who); !a.moment.reject() && !holds {
		return
	}
	if a.held.Add(1) > MaxHeld {
		a.held.Add(-1)
		return
	}
	d.Hold, d.by, d.agent = fraction, a, who
}

// Tick tells how many requests have come, how many of them were rejected for their clients'
// quotas, and how many the backend has answered with 429, in all. It is for one goroutine, every
// 100 ms.
func (a *Appointments) Tick(now time.Duration, arrivals, overQuota, limited uint64) {
	a.herds.tick(now, arrivals-a.onTime.Load(), a.Ahead(now))
	a.moment.tick(now)
	if now-a.ticked >= time.Second {
		within := arrivals - overQuota
		beyond := overQuota-a.overQuota > within-a.within
		full := limited > a.limited && 10*(limited-a.limited) > within-a.within
		a.ticked, a.within, a.overQuota, a.limited = now, within, overQuota, limited
		a.Line.tick(now, beyond, full)
		a.groups.tick(now)
	}
}

// Clients returns how many clients are remembered, by how they behave. It visits every
// promise: it is for scrapes.
func (a *Appointments) Clients() (n [Classes]int) {
	a.promises.all(func(p promise) { n[p.kind()]++ })
	return n
}

// AppointmentStats is a snapshot of Appointments.
type AppointmentStats struct {
	LineStats
	Broken        uint64 // clients that came when told and were rejected
	EarlyAdmitted uint64 // clients that came too early and were admitted
	Held          int    // rejections that are being held back
	Lost          uint64 // rejections whose clients have gone while they were held back
	Redeemed      uint64 // tickets that were honored for clients that were not known
	Worthless     uint64 // tickets that were forged, foreign, used or too old
	Families      [len(families)]FamilyStats
	MaxClients    int // clients that can be remembered
}

// Stats returns the counts, each read at a slightly different moment.
func (a *Appointments) Stats(now time.Duration) AppointmentStats {
	s := AppointmentStats{
		LineStats: a.Line.stats(now),
		Broken:    a.broken.Load(), EarlyAdmitted: a.early.Load(), Held: int(a.held.Load()), Lost: a.patience.lost.Load(),
		MaxClients: a.promises.sets() * ways, Redeemed: a.redeemed.Load(), Worthless: a.worthless.Load(),
	}
	for i := range s.Families {
		s.Families[i] = a.families[i].stats()
	}
	return s
}
