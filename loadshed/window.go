package loadshed

import (
	"sync/atomic"
	"time"
)

// maxLatencyCounted caps the latency of a request, so that the sums cannot overflow.
const maxLatencyCounted = 100 * time.Second

// A tally is a count and a sum of microseconds.
type tally struct{ n, us atomic.Uint64 }

// squareUnit is the unit of the sum of squares: 16 µs, so that it holds 80 million
// requests of 10 s. A faster request counts as 0. This makes the effective sample size
// of very fast requests too large, never too small.
const squareUnit = 16

// A window counts the requests that have ended since it was taken last. All fields are
// atomic; a request that ends while the window is taken is counted in either.
type window struct {
	_          [64]byte // a cache line away from the fields that every request reads
	ok         tally
	timedOut   tally
	squares    atomic.Uint64
	overloaded atomic.Uint64
	late       atomic.Uint64 // took longer than the target
	peak       atomic.Uint64 // most in flight: each peak is followed by an end
	limitHits  atomic.Uint64
	rejected   atomic.Uint64
	_          [64]byte
}

func (w *window) add(took time.Duration, timedOut bool) {
	us := uint64(min(max(took, 0), maxLatencyCounted) / time.Microsecond)
	to := &w.ok
	if timedOut {
		to = &w.timedOut
	}
	to.us.Add(us)
	to.n.Add(1)
	w.squares.Add((us / squareUnit) * (us / squareUnit))
}

func (w *window) inFlight(n int) {
	for p := w.peak.Load(); uint64(n) > p && !w.peak.CompareAndSwap(p, uint64(n)); p = w.peak.Load() {
	}
}

// A sample is the content of a window. Times are in seconds.
type sample struct {
	span        float64 // how long it was collected
	n, good     int     // ended with a latency; of these, not timed out
	latency     float64 // sum over n
	goodLatency float64 // sum over good
	squares     float64
	overloaded  int
	late        int
	peak        int
	limitHits   int // requests that found the limit reached
	rejected    int // those of them that were not let in after a wait either
}

// read copies w to s. With take, w is empty afterwards.
func (w *window) read(s *sample, take bool) {
	load := func(v *atomic.Uint64) uint64 {
		if take {
			return v.Swap(0)
		}
		return v.Load()
	}
	*s = sample{}
	s.good, s.goodLatency = int(load(&w.ok.n)), float64(load(&w.ok.us))/1e6
	s.n, s.latency = s.good+int(load(&w.timedOut.n)), s.goodLatency+float64(load(&w.timedOut.us))/1e6
	s.squares = float64(load(&w.squares)) * (squareUnit * squareUnit / 1e12)
	s.overloaded = int(load(&w.overloaded))
	s.late = int(load(&w.late))
	s.peak = int(load(&w.peak))
	s.limitHits = int(load(&w.limitHits))
	s.rejected = int(load(&w.rejected))
}

// effective returns the effective sample size: how many requests of equal latency would
// say as much about the mean (Kish, "Survey Sampling", 1965), (Σx)²/Σx². A single
// request that took a hundred times as long as the others must not decide.
func (s *sample) effective() float64 {
	if s.squares == 0 {
		return float64(s.n)
	}
	return min(float64(s.n), s.latency*s.latency/s.squares)
}

// serving reports whether next to all that ended did so in time.
func (s *sample) serving() bool { return float64(s.good) >= nextToAll*float64(s.n) }

// usedUp reports whether the requests needed all of limit.
func (s *sample) usedUp(limit float64) bool {
	return s.limitHits > 0 || float64(s.peak) >= nextToAll*limit
}

// mean returns the mean latency, 0 if nothing has ended.
func (s *sample) mean() float64 {
	if s.n == 0 {
		return 0
	}
	return s.latency / float64(s.n)
}
