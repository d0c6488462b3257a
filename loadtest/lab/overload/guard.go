package overload

import (
	"math"
	"time"

	"github.com/herdshield/shield"
	"github.com/herdshield/shield/limiter"
	"github.com/herdshield/shield/loadshed"
)

// sweepEvery is how often the Guard's queue is swept while anybody waits in it, as
// its own timer does.
const sweepEvery = 5 * time.Millisecond

// Shield is what an operator has who writes "concurrency adaptive" and nothing else.
func Shield(w *World) Limiter {
	return Guard(shield.Config{Adaptive: &loadshed.AdaptiveConfig{}})(w)
}

// Guard is the whole shield. It panics if c is invalid.
func Guard(c shield.Config) func(*World) Limiter {
	return func(w *World) Limiter {
		g, err := shield.New(c, nil)
		if err != nil {
			panic(err)
		}
		return &guarded{w: w, g: g}
	}
}

type guarded struct {
	w        *World
	g        *shield.Guard
	waiting  []*Request // queued, in the order of their arrival
	sweeping bool

	decided func(*shield.Decision) // for tests: sees every decision; may be nil
}

// guardedToken is what is known of a request: its description, and the decision
// while it is open.
type guardedToken struct {
	describes shield.Request
	d         shield.Decision
}

func (g *guarded) Admit(r *Request) {
	now := g.w.now
	client := limiter.Key(0x5851f42d4c957f2d ^ r.Client*0x9e3779b97f4a7c15)
	t := &guardedToken{describes: shield.Request{
		Client: client, Fingerprint: client, InFlightKey: client, Retry: r.Attempt > 0, Route: uint8(r.Route), Deadline: r.Gives,
	}}
	if i, ok := g.g.Classes().Index(r.Class); ok {
		t.describes.Class = uint8(1 + i)
	}
	r.Token = t
	t.d = g.g.Admit(now, t.describes)
	if t.d.Queued() {
		g.waiting = append(g.waiting, r)
		g.settle() // it may have displaced another
		g.sweep()
		return
	}
	g.answer(r, t)
}

// answer passes on a decision that has been made.
func (g *guarded) answer(r *Request, t *guardedToken) {
	if g.decided != nil {
		g.decided(&t.d)
	}
	if t.d.Admit {
		r.Enter()
		return
	}
	hold := t.d.Hold
	if hold == 0 {
		r.Refuse(time.Duration(t.d.Hint.Seconds) * time.Second)
		return
	}
	g.w.After(hold, func() {
		t.d.Sent()
		if !r.gone {
			r.Refuse(time.Duration(t.d.Hint.Seconds) * time.Second)
		}
	})
}

// settle looks who of those that wait has been told something.
func (g *guarded) settle() {
	for i := 0; i < len(g.waiting); i++ {
		r := g.waiting[i]
		t := r.Token.(*guardedToken)
		select {
		case verdict := <-t.d.Verdict():
			g.waiting = append(g.waiting[:i], g.waiting[i+1:]...)
			g.g.Settle(g.w.now, t.describes, &t.d, verdict)
			g.answer(r, t)
			i = -1 // others may have been told meanwhile
		default:
		}
	}
}

func (g *guarded) sweep() {
	if g.sweeping || len(g.waiting) == 0 {
		return
	}
	g.sweeping = true
	g.w.After(sweepEvery, func() {
		g.sweeping = false
		g.g.Sweep(g.w.now)
		g.settle()
		g.sweep()
	})
}

func (g *guarded) Gone(r *Request) {
	t := r.Token.(*guardedToken)
	if !t.d.Queued() {
		return // its refusal is being held back
	}
	for i := range g.waiting {
		if g.waiting[i] == r {
			g.waiting = append(g.waiting[:i], g.waiting[i+1:]...)
			break
		}
	}
	g.g.Abandon(g.w.now, &t.d)
	g.settle()
}

func (g *guarded) Done(r *Request, _ time.Duration, o loadshed.Signal, retryAfter time.Duration) {
	t := r.Token.(*guardedToken)
	outcome := shield.Served
	switch o {
	case loadshed.SignalTimedOut: // it is the client that has gone
		outcome = shield.Aborted
	case loadshed.SignalOverloaded:
		outcome = shield.Overloaded
	case loadshed.SignalNone:
		outcome = shield.Detached
	}
	t.d.Done(g.w.now, outcome)
	if retryAfter > 0 {
		g.g.Pause(g.w.now, retryAfter)
	}
	g.settle()
}

func (g *guarded) Limit() int {
	if n := g.g.Limit(); n > 0 {
		return n
	}
	return math.MaxInt32
}
