package sim

import (
	"github.com/herdshield/shield/share"
	"slices"
	"time"

	"github.com/herdshield/shield"
	"github.com/herdshield/shield/limiter"
	"github.com/herdshield/shield/loadshed"
	"github.com/herdshield/shield/pushback"
)

// A Server decides on requests. now never goes back.
type Server interface {
	Arrive(now time.Duration, r Request) Answer

	// Finish ends what the Answer with this ticket began: an admitted request, or a held
	// rejection. It is called once for each ticket that is not 0, but for those of Abandon.
	Finish(now time.Duration, ticket int32, e End)

	// Change is a reload. With restart nothing is remembered, but the tickets.
	Change(c shield.Config, restart bool) error
}

// A Queuer is a Server with all that the real Guard has: requests may wait in it for an Answer, and
// replicas may share something through a Store.
type Queuer interface {
	Server

	// Settled returns a ticket whose wait has ended, and its Answer, with the same Ticket,
	// or 0 if it is over. It is called after whatever may have ended a wait, and every few
	// milliseconds while any request waits, until it returns false.
	Settled(now time.Duration) (ticket int32, a Answer, ok bool)

	// Abandon ends the wait of a ticket whose client has gone, and the ticket.
	Abandon(now time.Duration, ticket int32)

	// KeepsDisconnected reports whether a client's permit is kept when it has hung up, until the
	// backend is done, 10 s at most, as shield.Exchange does.
	KeepsDisconnected() bool

	Link(now time.Duration) *share.Link // nil: its backend is not shared
	Zones(now time.Duration) []*share.Zone
	Tick(now time.Duration) // looks at the counters if it is time to
}

// A Gauge is a Server that limits how many requests are in flight.
type Gauge interface {
	Limit() int // 0: not now
}

// A Request is what a Server may know of a request.
type Request struct {
	Client   limiter.Key   // who asks
	Class    string        // of the request, "" for none
	Attempt  int           // 1 for the first request; few real clients say so
	Retry    bool          // the request says that it is a retry
	Precise  bool          // the client is seen to read milliseconds
	Deadline time.Duration // until when the client waits, 0 if it does not say
	U        float64       // a random number for the Server, uniform in [0, 1)
}

// An Answer is what a Server makes of a Request.
type Answer struct {
	Admit  bool
	Queued bool          // neither admitted nor rejected yet; for a Queuer only, and with a Ticket
	Status int           // of a rejection, as HTTP has it; 0 is 503
	Hint   pushback.Hint // for a rejection; the zero Hint tells nothing
	Hold   time.Duration // how long the rejection is held back
	Ticket int32         // see Server.Finish
}

// An End is how an admitted request has ended.
type End struct {
	// Outcome is Served, Overloaded, Aborted by its client, or Detached if the run has ended
	// before. Of a held rejection it is Served or Aborted.
	Outcome    shield.Outcome
	Left       time.Duration // when its client went without a response that was waited for; 0: it did not
	RetryAfter time.Duration // what a backend that is Overloaded says, 0 for nothing
	Cost       float64       // that the response tells, 0 for none
}

// A Maker returns a new Server for a config.
type Maker func(shield.Config) (Server, error)

// A Guarded is the Server that Guard makes.
type Guarded struct {
	// Decided, if set, sees every decision.
	Decided func(shield.Decision)

	*shield.Guard                   // that decides now
	State             *shield.State // which it works on
	zones             int           // of the config
	keepsDisconnected bool          // see Queuer

	open    slots[shield.Decision] // by ticket
	waiting []waiter               // in the order of their arrival
}

// waiter is a request in the Guard's queue.
type waiter struct {
	ticket  int32
	by      *shield.Guard // which let it wait
	request shield.Request
}

// Guard is the Maker of the real shield.Guard. A client is its own key in every zone.
func Guard(c shield.Config) (Server, error) {
	g := &Guarded{open: slots[shield.Decision]{of: make([]shield.Decision, 1)}} // ticket 0 is none
	if err := g.Change(c, true); err != nil {
		return nil, err
	}
	return g, nil
}

func (g *Guarded) Change(c shield.Config, restart bool) error {
	state := g.State
	if restart {
		state = new(shield.State)
	}
	next, err := shield.New(c, state)
	if err != nil {
		return err
	}
	g.Guard, g.State, g.zones = next, state, len(c.Zones)
	g.keepsDisconnected = c.Disconnected != shield.DisconnectedFree && (c.Concurrency > 0 || c.Adaptive != nil || c.PerClient > 0)
	return nil
}

func (g *Guarded) KeepsDisconnected() bool { return g.keepsDisconnected }

func (g *Guarded) Arrive(now time.Duration, r Request) Answer {
	q := shield.Request{
		Client: r.Client, InFlightKey: r.Client, Retry: r.Retry, Precise: r.Precise, Deadline: r.Deadline,
		Keys: slices.Repeat([]limiter.Key{r.Client}, g.zones),
	}
	g.Classify(&q, r.Class)
	d := g.Admit(now, q)
	if d.Queued() {
		t := g.open.put(d)
		g.waiting = append(g.waiting, waiter{t, g.Guard, q})
		return Answer{Queued: true, Ticket: t}
	}
	a := g.answer(g.Guard, &d)
	if d.Admit || d.Hold > 0 {
		a.Ticket = g.open.put(d)
	}
	return a
}

// answer returns what d says, but for the ticket, with the status of the Guard that decided.
func (g *Guarded) answer(by *shield.Guard, d *shield.Decision) Answer {
	if g.Decided != nil {
		g.Decided(*d)
	}
	a := Answer{Admit: d.Admit, Hint: d.Hint, Hold: d.Hold}
	if !d.Admit {
		a.Status = by.Responses().Status(d.Rejection())
	}
	return a
}

func (g *Guarded) Finish(now time.Duration, ticket int32, e End) {
	d := &g.open.of[ticket]
	if d.Admit {
		for zone := range g.zones {
			if e.Cost > 0 {
				g.Cost(now, d, zone, e.Cost)
			}
		}
		d.Left(e.Left)
		d.Done(now, e.Outcome)
		if e.RetryAfter > 0 {
			d.Pause(now, e.RetryAfter)
		}
	} else if e.Outcome == shield.Aborted {
		d.Lost()
	} else {
		d.Sent()
	}
	g.open.drop(ticket)
}

func (g *Guarded) Settled(now time.Duration) (ticket int32, a Answer, ok bool) {
	for i := range g.waiting {
		d := &g.open.of[g.waiting[i].ticket]
		verdict, ok := settled(now, d)
		if !ok {
			continue
		}
		w := g.leave(i)
		if w.by.Settle(now, w.request, d, verdict); d.Queued() { // now for a permit
			g.waiting = append(g.waiting, w)
			continue
		}
		a := g.answer(w.by, d)
		if d.Admit || d.Hold > 0 {
			a.Ticket = w.ticket
		} else {
			g.open.drop(w.ticket)
		}
		return w.ticket, a, true
	}
	return 0, Answer{}, false
}

// settled returns what a request was told that waits for a permit, or that one need not wait
// for the store any more.
func settled(now time.Duration, d *shield.Decision) (v loadshed.Verdict, ok bool) {
	select {
	case <-d.Awaits():
		return v, true
	case v = <-d.Verdict():
		return v, true
	default:
		return v, now >= d.Until()
	}
}

func (g *Guarded) leave(i int) waiter {
	w := g.waiting[i]
	g.waiting = slices.Delete(g.waiting, i, i+1)
	return w
}

func (g *Guarded) Abandon(now time.Duration, ticket int32) {
	if i := slices.IndexFunc(g.waiting, func(w waiter) bool { return w.ticket == ticket }); i >= 0 {
		g.leave(i).by.Abandon(now, &g.open.of[ticket])
		g.open.drop(ticket)
	}
}
