package loadshed

import (
	"math"
	"sync/atomic"
	"time"
)

// maxLatencyCounted caps the latency of a request, so that the sums cannot overflow.
const maxLatencyCounted = 100 * time.Second

// squareUnit, 16 µs, lets a window hold 80 million requests of 10 s. A faster request counts
// as 0 in the sum of squares.
const squareUnit = 16

// A tally is a count and a sum of microseconds.
type tally struct{ n, us atomic.Uint64 }

// A window counts the requests that have ended since it was cleared last. All fields are
// atomic; a request that ends while the window is cleared may be lost.
type window struct {
	_          [64]byte // a cache line away from the fields that every request reads
	ok         tally
	timedOut   tally
	squares    atomic.Uint64 // of microseconds, in units of squareUnit²
	overloaded atomic.Uint64
	late       atomic.Uint64 // took longer than the target
	peak       atomic.Uint64 // most in flight: each peak is followed by an end
	limitHits  atomic.Uint64 // requests that found the limit reached
	rejected   atomic.Uint64 // those of them that were not let in after a wait either
	_          [64]byte
}

func (w *window) add(to *tally, took time.Duration, l law) {
	us := uint64(min(max(took, 0), maxLatencyCounted) / time.Microsecond)
	to.us.Add(us)
	to.n.Add(1)
	w.squares.Add((us / squareUnit) * (us / squareUnit))
	if l.Target > 0 && (took > l.Target || to == &w.timedOut) {
		w.late.Add(1)
	}
}

func (w *window) inFlight(n int) {
	for p := w.peak.Load(); uint64(n) > p && !w.peak.CompareAndSwap(p, uint64(n)); p = w.peak.Load() {
	}
}

func (w *window) clear() {
	for _, v := range [...]*atomic.Uint64{
		&w.ok.n, &w.ok.us, &w.timedOut.n, &w.timedOut.us, &w.squares, &w.overloaded, &w.late, &w.peak, &w.limitHits, &w.rejected,
	} {
		v.Store(0)
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
	limitHits   int
	rejected    int
}

// read returns what w has collected in a span.
func (w *window) read(span time.Duration) sample {
	good, us := w.ok.n.Load(), w.ok.us.Load()
	return sample{
		span: span.Seconds(),
		n:    int(good + w.timedOut.n.Load()), good: int(good),
		latency: float64(us+w.timedOut.us.Load()) / 1e6, goodLatency: float64(us) / 1e6,
		squares:    float64(w.squares.Load()) * (squareUnit * squareUnit / 1e12),
		overloaded: int(w.overloaded.Load()), late: int(w.late.Load()),
		peak: int(w.peak.Load()), limitHits: int(w.limitHits.Load()), rejected: int(w.rejected.Load()),
	}
}

// effective returns the effective sample size: how many requests of equal latency would
// say as much about the mean (Kish, "Survey Sampling", 1965). A single request that took a
// hundred times as long as the others must not decide.
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
func (s *sample) mean() float64 { return s.latency / math.Max(1, float64(s.n)) }
