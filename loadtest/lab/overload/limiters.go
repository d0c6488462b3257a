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

// Adaptive finds the limit by itself, and refuses who finds no room: shield's limit
// without the queue and all else.
func Adaptive(c loadshed.AdaptiveConfig) func(*World) Limiter {
	return func(w *World) Limiter { return NewAdaptive(w, c) }
}

// NewAdaptive is Adaptive, with the changes of its limit to be looked at. It panics
// if c is invalid.
func NewAdaptive(w *World, c loadshed.AdaptiveConfig) *AdaptiveLimiter {
	law, err := loadshed.NewLaw(c)
	if err != nil {
		panic(err)
	}
	return &AdaptiveLimiter{w: w, law: law}
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
func (g *gated) Done(r *Request, took time.Duration, _ loadshed.Signal, _ time.Duration) {
	g.gate.Leave(r.entered+took, took)
}
func (g *gated) Limit() int { return g.limit }

// An AdaptiveLimiter is a Gate with an Adaptive limit.
type AdaptiveLimiter struct {
	Changes []loadshed.Change // what the limit has been

	w        *World
	law      loadshed.Law
	gate     loadshed.Gate
	adaptive loadshed.Adaptive
}

func (a *AdaptiveLimiter) Admit(r *Request) {
	if a.gate.Enter(a.Limit(), a.w.now) {
		r.Enter()
		return
	}
	a.adaptive.LimitHit()
	a.adaptive.Rejected()
	r.Refuse(0)
}

func (a *AdaptiveLimiter) Gone(*Request) {}

func (a *AdaptiveLimiter) Done(r *Request, took time.Duration, o loadshed.Signal, _ time.Duration) {
	inFlight := a.gate.InFlight()
	a.gate.Leave(a.w.now, took)
	if c, ok := a.adaptive.Done(a.w.now, took, o, uint8(r.Route), inFlight, a.law); ok {
		a.Changes = append(a.Changes, c)
	}
}

func (a *AdaptiveLimiter) Limit() int { return a.adaptive.Limit(a.law) }
