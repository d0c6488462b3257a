package loadshed

import (
	"cmp"
	"sync/atomic"
	"time"
)

// A gate counts requests in flight. The zero gate is empty and ready. It is
// safe for concurrent use and must not be copied.
type gate struct {
	inFlight atomic.Int64
	service  meanTime     // 0 before the first completion
	movedAt  atomic.Int64 // the last departure, or the entry into an empty gate
}

// Enter takes a place if fewer than limit are taken, and reports whether it did. Each
// successful Enter needs one Leave or one Detach.
func (g *gate) Enter(limit int, now time.Duration) bool {
	for {
		n := g.inFlight.Load()
		if n >= int64(limit) {
			return false
		}
		if g.inFlight.CompareAndSwap(n, n+1) {
			if n == 0 {
				g.movedAt.Store(int64(now))
			}
			return true
		}
	}
}

// Leave gives back the place of a request that entered took ago and has been served.
func (g *gate) Leave(now, took time.Duration) {
	g.Detach(now)
	// A far longer one than the mean, such as a download, would dominate Drain for long.
	const longest = 64
	if mean := g.Service(); mean > 0 {
		took = min(took, longest*mean)
	}
	g.service.add(took)
}

// Detach gives back the place of a request that continues without one, as an upgraded
// connection does, or has no meaningful time of service.
func (g *gate) Detach(now time.Duration) {
	g.inFlight.Add(-1)
	g.movedAt.Store(int64(now))
}

// InFlight returns how many places are taken.
func (g *gate) InFlight() int { return int(g.inFlight.Load()) }

// Service returns the mean time of service, 0 before the first completion.
func (g *gate) Service() time.Duration { return time.Duration(g.service.Load()) }

// unknownDrain is what Drain returns before any request has been served: the least that
// Retry-After can say. The time that the first requests have taken so far would be a
// guess near zero, and would bring all clients back at once.
const unknownDrain = time.Second

// Drain returns in how long the requests in flight at now are expected to have left. By
// Little's law that is one mean time of service. When nothing has left for longer than
// that, the backend is slower than it was, and the time since is the better estimate.
func (g *gate) Drain(now time.Duration) time.Duration {
	service := cmp.Or(g.Service(), unknownDrain)
	if g.InFlight() == 0 {
		return service
	}
	return max(service, now-time.Duration(g.movedAt.Load()))
}

// A meanTime is an exponentially weighted moving average (EWMA) of nanoseconds: 16 of them
// follow a change and smooth over an odd one. One that loses a race is dropped.
type meanTime struct{ atomic.Int64 }

func (m *meanTime) add(took time.Duration) {
	old := m.Load()
	now := int64(took)
	if old > 0 {
		now = old + (now-old)/16
	}
	if now = max(1, now); now != old {
		m.CompareAndSwap(old, now)
	}
}
