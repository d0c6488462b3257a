package overload

import (
	"math"
	"time"

	"github.com/herdshield/shield/loadshed"
)

// None lets everybody in.
func None(*World) Limiter { return &gated{limit: math.MaxInt32} }

// Fixed lets n in at a time.
func Fixed(n int) func(*World) Limiter {
	return func(*World) Limiter { return &gated{limit: n} }
}

// Adaptive finds the limit by itself, and refuses who finds no room.
func Adaptive(c loadshed.Config) func(*World) Limiter {
	return func(w *World) Limiter { return NewAdaptive(w, c, 0) }
}

// Queued finds the limit by itself, and has a queue of QueueLength before it, in
// which nobody waits longer than a request takes, 10 to 200 ms.
func Queued(c loadshed.Config) func(*World) Limiter {
	return func(w *World) Limiter { return NewAdaptive(w, c, QueueLength) }
}

// QueueLength is how many may wait in the default queue.
const QueueLength = 64

// NewAdaptive returns an AdaptiveLimiter with a queue of the given length. It
// panics if c is invalid.
func NewAdaptive(w *World, c loadshed.Config, queue int) *AdaptiveLimiter {
	law, err := loadshed.NewLaw(c)
	if err != nil {
		panic(err)
	}
	return &AdaptiveLimiter{w: w, law: law, length: queue}
}

type gated struct {
	gate  loadshed.Gate
	limit int
}

func (g *gated) Admit(r *Request) {
	if g.gate.Enter(g.limit, r.Arrived) {
		r.Enter()
	} else {
		r.Refuse(0)
	}
}
func (g *gated) Gone(*Request) {}
func (g *gated) Done(r *Request, took time.Duration, _ loadshed.Outcome, _ time.Duration) {
	g.gate.Leave(r.entered+took, took)
}
func (g *gated) Limit() int { return g.limit }

// An AdaptiveLimiter is a Gate with an Adaptive limit, and a Queue before it.
type AdaptiveLimiter struct {
	Changes []loadshed.Change // what the limit has been

	w        *World
	law      loadshed.Law
	length   int
	gate     loadshed.Gate
	adaptive loadshed.Adaptive
	queue    loadshed.Queue
	waiting  []waiting
	expires  time.Duration // when the queue is to be looked at, 0: not
}

type waiting struct {
	r *Request
	w *loadshed.Waiter
}

func (a *AdaptiveLimiter) Admit(r *Request) {
	now := a.w.now
	if a.queue.Len() == 0 && a.gate.Enter(a.Limit(), now) {
		r.Enter()
		return
	}
	a.adaptive.Refused()
	if a.length > 0 {
		service := a.gate.Service()
		patience := min(max(service, 10*time.Millisecond), 200*time.Millisecond)
		if w := a.queue.Join(now, r.Gives, 0, a.length, patience, service); w != nil {
			a.waiting = append(a.waiting, waiting{r, w})
			a.wake()
			return
		}
	}
	r.Refuse(0)
}

// wake lets in who waits, as far as there is room, and asks to be called when the
// next has waited long enough.
func (a *AdaptiveLimiter) wake() {
	if a.length == 0 {
		return
	}
	now := a.w.now
	a.queue.Wake(now, func(loadshed.Rank) bool { return a.gate.Enter(a.Limit(), now) })
	next := a.queue.Expire(now)
	if next > 0 && (a.expires <= now || next < a.expires) {
		a.expires = next
		a.w.At(next, a.wake)
	}
	still := a.waiting[:0]
	var answered []waiting
	var verdicts []loadshed.Verdict
	for _, x := range a.waiting {
		select {
		case v := <-x.w.C:
			answered, verdicts = append(answered, x), append(verdicts, v)
			a.queue.Release(x.w)
		default:
			still = append(still, x)
		}
	}
	clear(a.waiting[len(still):])
	a.waiting = still
	for i, x := range answered {
		if verdicts[i] == loadshed.Granted {
			x.r.Enter()
		} else {
			x.r.Refuse(0)
		}
	}
}

func (a *AdaptiveLimiter) Gone(r *Request) {
	for i, x := range a.waiting {
		if x.r == r {
			a.waiting = append(a.waiting[:i], a.waiting[i+1:]...)
			a.queue.Leave(x.w) // its verdict would have been read at once
			return
		}
	}
}

func (a *AdaptiveLimiter) Done(r *Request, took time.Duration, o loadshed.Outcome, _ time.Duration) {
	inFlight := a.gate.InFlight()
	a.gate.Leave(a.w.now, took)
	if c, ok := a.adaptive.Done(a.w.now, took, o, uint8(r.Route), inFlight, a.law); ok {
		a.Changes = append(a.Changes, c)
	}
	a.wake()
}

func (a *AdaptiveLimiter) Limit() int { return a.adaptive.Limit(a.law) }
