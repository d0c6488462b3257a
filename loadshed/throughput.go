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

	// throughputPrior is how many seconds at the limit Little's law counts for.
	throughputPrior = 0.2

	// pressure is how much more is asked to come than a backend completes: it completes no
	// more than what comes. Without it, crawlers in a class of their own got 972 of the 1,200 that visitors left (with it 1,220).
	pressure = 1.1

	// guessedService is the time of service as long as none is known. The first requests of a herd that end are its shortest: of
	// 12 that take 100 ms on average, one ends after 8 ms. So a first time that is shorter counts as this one.
	guessedService = 100 * time.Millisecond
)

// throughput measures how many requests per second a backend completes while it is
// saturated: that is what it can do. All but rate is for one goroutine at a time.
type throughput struct {
	rate atomic.Uint64 // bits of a float64: completions per second with all of the limit; 0: not known

	// Completions while the backend was saturated, and the seconds of that, both fading. A second with half of the
	// limit, as the lease had it, is half of one.
	done, time float64

	// As of the last look.
	at        time.Duration
	completed int64
	limitHits uint64
	inFlight  int
}

// measure learns what the backend completes, from Tick to Tick, so that the idle time
// before it was saturated does not count. What one with headroom did is soon forgotten.
func (c *Concurrency) measure(now time.Duration, admitted, limitHits uint64, p *Plan, headroom bool) {
	t, limit, inFlight := &c.throughput, c.Limit(p), c.gate.InFlight()
	completed := int64(admitted) - int64(c.failed.Load()) - int64(c.gate.Requests())
	d := now - t.at
	saturated := 5*min(inFlight, t.inFlight) >= 4*limit && (limitHits > t.limitHits || c.queue.Len() > 0)
	if d > 0 && limit > 0 && (saturated || headroom) {
		fade := math.Exp(-d.Seconds() / throughputMemory.Seconds())
		t.done, t.time = t.done*fade, t.time*fade
		if saturated {
			t.done += float64(max(0, completed-t.completed))
			t.time += d.Seconds() * c.part(p)
		}
	}
	if t.time > 0 {
		t.rate.Store(math.Float64bits((t.done + throughputPrior*c.expected(p)) / (t.time + throughputPrior)))
	}
	t.at, t.completed, t.limitHits, t.inFlight = now, completed, limitHits, inFlight
}

// Rate returns how many requests per second the backend completes with this process's part of the
// limit of p in flight: as measured while it was saturated, and as Little's law has it. It is
// infinite where nothing is limited.
func (c *Concurrency) Rate(p *Plan) float64 {
	if !p.Limits() {
		return math.Inf(1)
	}
	rate := math.Float64frombits(c.throughput.rate.Load())
	if rate == 0 {
		rate = c.expected(p)
	}
	return rate * c.part(p) * pressure
}

// part returns which part of the limit this process has. One without a permit counts on a tenth of one: all together must
// not count on more than there are.
func (c *Concurrency) part(p *Plan) float64 {
	limit := c.unleased(p)
	return max(.1, float64(c.lease.room(limit))) / float64(limit)
}

// expected returns how many requests per second the limit in flight lets expect if all of
// it is used, by Little's law, with requests of the weight that those in flight have. A time of service that is not known is guessed.
func (c *Concurrency) expected(p *Plan) float64 {
	requests, permits := max(1, c.gate.Requests()), max(1, c.gate.InFlight())
	return float64(c.unleased(p)*requests) / float64(permits) / cmp.Or(c.gate.Service(), guessedService).Seconds()
}
