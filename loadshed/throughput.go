package loadshed

import (
	"math"
	"sync/atomic"
	"time"
)

const (
	// throughputMemory is over how long completions are averaged, and throughputAge
	// how long the average counts after the backend was saturated last.
	throughputMemory = 10 * time.Second
	throughputAge    = time.Minute

	// unknownService is the time of service as long as none is known: ten requests
	// per second for each place in flight.
	unknownService = 100 * time.Millisecond
)

// throughput measures how many requests per second a backend completes while it is
// saturated: that is what it can do.
type throughput struct {
	rate atomic.Uint64 // bits of a float64: completions per second; 0: not known

	// As of the last measurement, by one goroutine at a time.
	admitted, failed, limitHits uint64
	inFlight                    int
	measuredAt                  time.Duration // when the backend was saturated last
}

func (t *throughput) get() float64     { return math.Float64frombits(t.rate.Load()) }
func (t *throughput) set(rate float64) { t.rate.Store(math.Float64bits(rate)) }

// Measure learns what the backend completes, at least: one that has headroom could do
// more than it does, so that what it did when it stood still is soon forgotten. It is
// to be called about once per second, by one goroutine at a time. admitted is how many
// requests have been admitted in all, limitHits how many have been refused for the limit,
// d how long ago the last call was; 0 at the first.
func (c *Concurrency) Measure(now, d time.Duration, admitted, limitHits uint64, p *Plan, headroom bool) {
	t := &c.throughput
	failed, inFlight, limit := c.failed.Load(), c.gate.InFlight(), c.Limit(p)
	if d > 0 {
		known := t.get()
		done := int64(admitted-t.admitted) - int64(failed-t.failed) - int64(inFlight-t.inFlight)
		rate := float64(max(0, done)) / d.Seconds() // no completion in a second counts as well
		gain := 1 - math.Exp(-d.Seconds()/throughputMemory.Seconds())
		switch {
		case limitHits > t.limitHits && 10*inFlight >= 9*limit && t.inFlight > 0:
			if known == 0 {
				gain = 1
			}
			known += gain * (rate - known)
			t.measuredAt = now
		case headroom && known > 0:
			known = max(known, rate, min(known*(1+gain), c.expected(limit)))
		}
		if now-t.measuredAt > throughputAge {
			known = 0
		}
		t.set(known)
	}
	t.admitted, t.failed, t.limitHits, t.inFlight = admitted, failed, limitHits, inFlight
}

// Rate returns how many requests per second the backend completes with the limit of p
// in flight: as measured while it was saturated, else as Little's law has it. It is
// infinite where nothing is limited. It costs a few atomic loads.
func (c *Concurrency) Rate(p *Plan) float64 {
	limit := c.Limit(p)
	if limit == 0 {
		return math.Inf(1)
	}
	if rate := c.throughput.get(); rate > 0 {
		return rate
	}
	return c.expected(limit)
}

// expected returns how many requests per second limit in flight are if all of it is
// used, by Little's law.
func (c *Concurrency) expected(limit int) float64 {
	mean := c.gate.Service()
	if mean == 0 {
		mean = unknownService
	}
	return float64(limit) / mean.Seconds()
}
