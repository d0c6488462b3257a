package shield

import (
	"math"
	"sync"
	"sync/atomic"
	"time"
)

// watch looks at what a backend's counters say, ten times per second, on the
// back of the first request that comes after each tick: no goroutine, no timer.
type watch struct {
	next atomic.Int64 // when to look again

	mu        sync.Mutex // guards what follows
	second    time.Duration
	arrived   uint64
	returned  uint64
	admitted  uint64
	inFlight  int
	saturated uint64
	rate      float64 // completions per second while saturated; 0: not known
	rateAt    time.Duration
}

const (
	watchEvery = 100 * time.Millisecond

	// rateMemory is over how long completions are averaged, and rateAge how long
	// the average counts after the backend was saturated last.
	rateMemory = 10 * time.Second
	rateAge    = time.Minute
)

// tick is called for every request. It costs one atomic load.
func (b *Backend) tick(now time.Duration, limit int) {
	w := &b.watch
	if int64(now) < w.next.Load() || !w.mu.TryLock() {
		return
	}
	defer w.mu.Unlock()
	w.next.Store(int64(now - now%watchEvery + watchEvery))
	if now-w.second >= time.Second {
		b.eachSecond(now, limit)
	}
}

// eachSecond learns how much comes anyhow and how fast the backend is.
func (b *Backend) eachSecond(now time.Duration, limit int) {
	w := &b.watch
	d := now - w.second
	admitted := b.admitted.Load()
	arrived := b.arrivals() - b.refused[Quota].Load() // who is over a quota does not come to the backend
	returned, saturated := b.returned.Load(), b.refused[Concurrency].Load()
	inFlight := b.gate.InFlight()
	if w.second > 0 {
		fresh := int64(arrived-w.arrived) - int64(returned-w.returned)
		b.calendar.Arrived(now, d, uint64(max(0, fresh)))
		if done := int64(admitted-w.admitted) - int64(inFlight-w.inFlight); done > 0 && saturated > w.saturated && 10*inFlight >= 9*limit {
			rate := float64(done) / d.Seconds()
			gain := 1 - math.Exp(-d.Seconds()/rateMemory.Seconds())
			if w.rate == 0 {
				gain = 1
			}
			w.rate += gain * (rate - w.rate)
			w.rateAt = now
		}
		if now-w.rateAt > rateAge {
			w.rate = 0
		}
	}
	w.second, w.arrived, w.admitted = now, arrived, admitted
	w.returned, w.saturated, w.inFlight = returned, saturated, inFlight
}

// arrivals returns how many requests have come.
func (b *Backend) arrivals() uint64 {
	n := b.admitted.Load()
	for i := range b.refused {
		n += b.refused[i].Load() + b.observed[i].Load()
	}
	return n
}

// service returns how many requests per second the backend does with limit in
// flight: as measured while it was full, else by Little's law, and one per
// second and place as long as nothing is known.
func (b *Backend) service(limit int) float64 {
	b.watch.mu.Lock()
	rate := b.watch.rate
	b.watch.mu.Unlock()
	if rate > 0 {
		return rate
	}
	mean := b.gate.Service()
	if mean == 0 {
		mean = time.Second
	}
	return float64(limit) / mean.Seconds()
}
