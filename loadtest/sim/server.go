package sim

import (
	"time"

	"github.com/herdshield/shield"
	"github.com/herdshield/shield/limiter"
	"github.com/herdshield/shield/pushback"
)

// A Server decides on requests. now never goes back.
type Server interface {
	Arrive(now time.Duration, r Request) Answer

	// Finish ends what the Answer with this ticket began: an admitted request
	// has been served, or a held refusal is sent. It is called once for each
	// ticket that is not 0.
	Finish(now time.Duration, ticket int32)

	// Change is a reload with another config or the same. With restart nothing
	// is remembered, but the tickets.
	Change(c shield.Config, restart bool) error
}

// A Request is what a Server may know of a request.
type Request struct {
	Client  limiter.Key // who asks
	Kind    limiter.Key // what for
	Attempt int         // 1 for the first request; few real clients say so
	Precise bool        // the client is seen to read milliseconds
	U       float64     // a random number for the Server, uniform in [0, 1)
}

// An Answer is what a Server makes of a Request.
type Answer struct {
	Admit  bool
	Hint   pushback.Hint // for a refusal; the zero Hint tells nothing
	Hold   time.Duration // how long the refusal is held back
	Ticket int32         // see Server.Finish
}

// A Maker returns a new Server for a config.
type Maker func(shield.Config) (Server, error)

// guard is the real thing.
type guard struct {
	g     *shield.Guard
	state *shield.State
	keys  []limiter.Key // one per zone

	open []shield.Decision // by ticket
	free []int32           // unused tickets
}

// Guard is the Maker of the real shield.Guard. The client is its own key in
// every zone.
func Guard(c shield.Config) (Server, error) {
	g := &guard{open: make([]shield.Decision, 1)}
	if err := g.Change(c, true); err != nil {
		return nil, err
	}
	return g, nil
}

func (g *guard) Change(c shield.Config, restart bool) error {
	state := g.state
	if restart {
		state = new(shield.State)
	}
	next, err := shield.New(c, state)
	if err != nil {
		return err
	}
	g.g, g.state, g.keys = next, state, make([]limiter.Key, len(c.Zones))
	return nil
}

func (g *guard) Arrive(now time.Duration, r Request) Answer {
	for i := range g.keys {
		g.keys[i] = r.Client
	}
	d := g.g.Admit(now, shield.Request{Keys: g.keys, Client: r.Client, Kind: r.Kind, Precise: r.Precise})
	a := Answer{Admit: d.Admit, Hint: d.Hint, Hold: d.Hold}
	if !d.Admit && d.Hold == 0 {
		return a
	}
	if n := len(g.free); n > 0 {
		a.Ticket, g.free = g.free[n-1], g.free[:n-1]
	} else {
		a.Ticket = int32(len(g.open))
		g.open = append(g.open, shield.Decision{})
	}
	g.open[a.Ticket] = d
	return a
}

func (g *guard) Finish(now time.Duration, ticket int32) {
	d := &g.open[ticket]
	if d.Admit {
		d.Done(now, shield.Served)
	} else {
		d.Sent()
	}
	*d = shield.Decision{}
	g.free = append(g.free, ticket)
}
