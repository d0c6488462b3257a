package shield

import (
	"math"
	"sync"
	"sync/atomic"
	"time"

	"github.com/herdshield/shield/limiter"
	"github.com/herdshield/shield/pushback"
)

// watch looks at what a backend's counters say, ten times per second, on the
// back of the first request that comes after each tick: no goroutine, no timer.
type watch struct {
	next atomic.Int64 // when to look again

	mu        sync.Mutex // guards what follows; taken after the calendar's, never before it
	herd      pushback.Herd
	came      uint64 // arrivals that kept no promise, up to the last tick
	back      uint64 // of them, known clients
	refused   uint64
	second    time.Duration
	arrived   uint64
	returned  uint64
	admitted  uint64
	failed    uint64
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

// Tick looks at the counters if it is time to. Admit calls it for every request,
// for the cost of an atomic load. Shells call it once per second or so, or nobody
// would notice that nothing comes.
func (g *Guard) Tick(now time.Duration) {
	b := g.backend
	w := &b.watch
	if int64(now) < w.next.Load() || !w.mu.TryLock() {
		return
	}
	w.next.Store(int64(now - now%watchEvery + watchEvery))
	room := g.hasRoom(now)
	if !room {
		b.crowded.Store(int64(now))
	}
	g.resume(now)
	if g.adaptive {
		if c, ok := b.adaptive.Tick(now, b.gate.Idle(now), g.law); ok {
			b.changes.add(c)
		}
	}
	if b.ghosts.Len() > 0 {
		b.layGhosts(now)
	}
	if g.herds {
		// Refusals count when they are sent: that is what clients react to.
		onTime := b.onTime.Load()
		came, back, refused := b.arrivals()-onTime, b.returned.Load()-onTime, b.refusals()-uint64(b.held.Load())
		w.herd.Tick(now, max(0, int(came-w.came)), max(0, int(back-w.back)), max(0, int(refused-w.refused)), b.calendar.Ahead(now))
		w.came, w.back, w.refused = came, back, refused
	}
	fresh, d := uint64(0), time.Duration(0)
	if now-w.second >= time.Second {
		fresh, d = b.eachSecond(now, g.Limit(), room)
	}
	w.mu.Unlock()
	if d > 0 {
		b.calendar.Arrived(now, d, fresh)
	}
}

// eachSecond learns how fast the backend is, at least: a backend that has room can do
// more than it does, so that what it did when it stood still is soon forgotten. It
// returns how many requests came in how long that kept no promise.
func (b *Backend) eachSecond(now time.Duration, limit int, room bool) (fresh uint64, d time.Duration) {
	w := &b.watch
	d = now - w.second
	admitted, failed := b.admitted.Load(), b.failed.Load()
	arrived := b.arrivals() - b.refused[Quota].Load() // who is over a quota does not come to the backend
	returned, saturated := b.returned.Load(), b.refused[Concurrency].Load()
	inFlight := b.gate.InFlight()
	if w.second == 0 { // the first look
		d = 0
	} else {
		fresh = uint64(max(0, int64(arrived-w.arrived)-int64(returned-w.returned)))
		done := int64(admitted-w.admitted) - int64(failed-w.failed) - int64(inFlight-w.inFlight)
		rate := float64(max(0, done)) / d.Seconds() // no completion in a second counts as well
		gain := 1 - math.Exp(-d.Seconds()/rateMemory.Seconds())
		switch {
		case saturated > w.saturated && 10*inFlight >= 9*limit && w.inFlight > 0:
			if w.rate == 0 {
				gain = 1
			}
			w.rate += gain * (rate - w.rate)
			w.rateAt = now
		case room && w.rate > 0:
			w.rate = max(w.rate, rate, min(w.rate*(1+gain), b.expected(limit)))
		}
		if now-w.rateAt > rateAge {
			w.rate = 0
		}
	}
	w.second, w.arrived, w.admitted, w.failed = now, arrived, admitted, failed
	w.returned, w.saturated, w.inFlight = returned, saturated, inFlight
	return fresh, d
}

// saw notes who was refused, for the herd detector. One that comes at the same
// moment as another may be left out: it is an estimate anyhow.
func (b *Backend) saw(client limiter.Key) {
	if w := &b.watch; client != NoKey && w.mu.TryLock() {
		w.herd.Saw(uint64(client))
		w.mu.Unlock()
	}
}

// pulse returns how many requests of a periodic herd are expected between two
// instants.
func (b *Backend) pulse(from, to time.Duration) float64 {
	b.watch.mu.Lock()
	defer b.watch.mu.Unlock()
	return b.watch.herd.Pulse(from, to)
}

// DetectsHerds reports whether the Guard looks for herds.
func (g *Guard) DetectsHerds() bool { return g.herds }

// Herd returns what is known of herds.
func (b *Backend) Herd() pushback.HerdReport {
	b.watch.mu.Lock()
	defer b.watch.mu.Unlock()
	return b.watch.herd.Report()
}

// arrivals returns how many requests have come.
func (b *Backend) arrivals() uint64 { return b.admitted.Load() + b.refusals() }

// refusals returns how many were refused, or would have been.
func (b *Backend) refusals() (n uint64) {
	for i := range b.refused {
		n += b.refused[i].Load() + b.observed[i].Load()
	}
	return n
}

// service returns how many requests per second the backend does with limit in
// flight: as measured while it was full, else as expected.
func (b *Backend) service(limit int) float64 {
	b.watch.mu.Lock()
	rate := b.watch.rate
	b.watch.mu.Unlock()
	if rate > 0 {
		return rate
	}
	return b.expected(limit)
}

// expected returns how many requests per second limit in flight are, if all of it is
// used up: by Little's law, and ten per place as long as nothing is known.
func (b *Backend) expected(limit int) float64 {
	mean := b.gate.Service()
	if mean == 0 {
		mean = 100 * time.Millisecond
	}
	return float64(limit) / mean.Seconds()
}
