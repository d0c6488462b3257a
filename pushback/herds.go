package pushback

import (
	"sync"
	"time"
)

// herds is the [Herd] of one backend, and the counts that its ticks are differences of.
type herds struct {
	mu      sync.Mutex // guards what follows; taken after the calendar's, never before it
	herd    Herd
	came    uint64 // arrivals that kept no promise, up to the last tick
	back    uint64 // of them, known clients
	refused uint64
}

// pulse returns how many requests of a periodic herd are expected between two instants.
func (h *herds) pulse(from, to time.Duration) float64 {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.herd.Pulse(from, to)
}

// Saw notes whose request was refused, for the herd detector. One that comes at the same
// moment as another may be left out: it is an estimate anyway. Client 0 is none.
func (a *Appointments) Saw(client uint64) {
	if h := &a.herds; client != 0 && h.mu.TryLock() {
		h.herd.Saw(client)
		h.mu.Unlock()
	}
}

// tick takes how many requests have come and how many of them were refused, in all.
func (h *herds) tick(now time.Duration, arrivals, refusals uint64, a *Appointments) {
	h.mu.Lock()
	defer h.mu.Unlock()
	// Refusals count when they are sent: that is what clients react to.
	onTime := a.onTime.Load()
	came, back, refused := arrivals-onTime, a.returned.Load()-onTime, refusals-uint64(a.held.Load())
	h.herd.Tick(now, max(0, int(came-h.came)), max(0, int(back-h.back)), max(0, int(refused-h.refused)), a.calendar.Ahead(now))
	h.came, h.back, h.refused = came, back, refused
}

// Herd returns what is known of herds.
func (a *Appointments) Herd() HerdReport {
	a.herds.mu.Lock()
	defer a.herds.mu.Unlock()
	return a.herds.herd.Report()
}
