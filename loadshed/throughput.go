package loadshed

import (
	"cmp"
	"math"
	"sync/atomic"
	"time"
)

const (
	// throughputMemory is over how long completions are averaged.
	throughputMemory = 10 * time.Second

	// throughputPrior is how much time at the limit Little's law counts for. Ours: its mean
	// time of service is that of 16 requests, so it is soon worse than what is measured.
	throughputPrior = 200 * time.Millisecond

	// pressure is how much more is asked to come than a backend completes. It completes no
	// more than what comes: an adaptive limit that no request reaches does not grow, and
	// a place in flight that stands empty cannot be saved up. A tenth keeps the limit used, and
	// costs one client in twenty another request.
	pressure = 1.1

	// unknownService is the time of service as long as none is known: ten requests
	// per second for each place in flight.
	unknownService = 100 * time.Millisecond
)

// throughput measures how many requests per second a backend completes while it is
// saturated: that is what it can do.
type throughput struct {
	rate atomic.Uint64 // bits of a float64: completions per second; 0: not known

	// Completions while the backend was saturated, and the seconds of that, both fading.
	// By one goroutine at a time, as all that follows.
	done, time float64

	// As of the last look.
	at        time.Duration
	completed int64
	limitHits uint64
	inFlight  int
}

// forget drops what is known.
func (t *throughput) forget() {
	t.done, t.time = 0, 0
	t.rate.Store(0)
}

// measure learns what the backend completes, from Tick to Tick, so that the idle time
// before it was saturated does not count. One that has headroom could do more than it
// does: what it did when it stood still is soon forgotten.
func (c *Concurrency) measure(now time.Duration, admitted, limitHits uint64, p *Plan, headroom bool) {
	t, limit := &c.throughput, c.Limit(p)
	inFlight := c.gate.InFlight()
	completed := int64(admitted) - int64(c.failed.Load()) - int64(inFlight)
	d := now - t.at
	fade := math.Exp(-d.Seconds() / throughputMemory.Seconds())
	switch {
	case d <= 0 || limit == 0:
	case 5*min(inFlight, t.inFlight) >= 4*limit && (limitHits > t.limitHits || c.queue.Len() > 0):
		t.done = t.done*fade + float64(max(0, completed-t.completed))
		t.time = t.time*fade + d.Seconds()
	case headroom:
		t.done, t.time = t.done*fade, t.time*fade
	}
	if t.time > 0 {
		prior := throughputPrior.Seconds()
		t.rate.Store(math.Float64bits((t.done + prior*c.expected(p)) / (t.time + prior)))
	}
	t.at, t.completed, t.limitHits, t.inFlight = now, completed, limitHits, inFlight
}

// Rate returns how many requests per second the backend completes with the limit of p
// in flight: as measured while it was saturated, and as Little's law has it. It is
// infinite where nothing is limited.
func (c *Concurrency) Rate(p *Plan) float64 {
	limit := c.Limit(p)
	if limit == 0 {
		return math.Inf(1)
	}
	rate := math.Float64frombits(c.throughput.rate.Load())
	if rate == 0 || !p.adaptive && c.lease.places.Load() > 0 { // measured with another lease
		rate = c.expected(p)
	}
	return rate * pressure
}

// leastRoom is how many places a process without any counts on, where it shares them. Ours:
// all processes together must not count on more than there are.
const leastRoom = 0.1

// expected returns how many requests per second the limit in flight lets expect if all of
// it is used, by Little's law.
func (c *Concurrency) expected(p *Plan) float64 {
	limit := float64(c.Limit(p))
	if !p.adaptive {
		limit = max(leastRoom, float64(c.lease.room(p.limit)))
	}
	return limit / cmp.Or(c.gate.Service(), unknownService).Seconds()
}
