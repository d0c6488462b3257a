package shield

import (
	"math"
	"sync/atomic"
	"time"
)

// Load returns how loaded the backend is: the part of its limits in use, from 0 to 1, taking the fullest one.
// Queued requests count like those in flight, and every second until the last appointment of a rejected client
// adds 1. So the load is above 1 while requests or clients wait.
//
// With 20 permits, 10 requests in flight are a load of 0.5. 20 in flight and 10 in the queue are 1.5, and with
// appointments for the next 3 s they are 4.5. With a capacity of 100/s, 80 admitted requests per second are
// 0.8.
//
// The load is 0 if nothing limits the backend. If replicas share the backend, it is about this one and its
// part. A Guard in observe mode doesn't make anyone wait.
func (g *Guard) Load(now time.Duration) (load float64) {
	b := g.backend
	g.Tick(now)
	if limit := g.Limit(); limit > 0 {
		u := b.inFlight.Usage()
		load = float64(u.InFlight+u.Waiting) / float64(limit)
	}
	if g.hasCapacity {
		load = max(load, min(1, b.pace.PerSecond()/b.link.Load().Part(math.Inf(1), g.capacity.Rate())))
	}
	return load + g.clients.Ahead(now).Seconds()
}

// A pace is how many requests per second were admitted of late: a mean in which those of a second ago count a third of those of now.
type pace struct {
	mean atomic.Uint64 // bits of a float64

	// As of the last look, which is for one goroutine at a time.
	at       time.Duration
	admitted uint64
}

// PerSecond returns the mean as of the last look.
func (p *pace) PerSecond() float64 { return math.Float64frombits(p.mean.Load()) }

// Look takes how many requests have been admitted in all.
func (p *pace) Look(now time.Duration, admitted uint64) {
	if d := (now - p.at).Seconds(); d > 0 {
		fade := math.Exp(-d)
		p.mean.Store(math.Float64bits(fade*p.PerSecond() + (1-fade)*float64(admitted-p.admitted)/d))
		p.at, p.admitted = now, admitted
	}
}
