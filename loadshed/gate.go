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
	service  atomic.Int64 // mean time of service, an EWMA in nanoseconds; 0 before the first completion
}

// Enter takes a permit if fewer than limit are taken, and reports whether it did. Each
// successful Enter needs one Leave or one Detach.
func (g *gate) Enter(limit int) bool {
	for {
		n := g.inFlight.Load()
		if n >= int64(limit) {
			return false
		}
		if g.inFlight.CompareAndSwap(n, n+1) {
			return true
		}
	}
}

// Leave gives back the permit of a request that has been served, and took so long.
func (g *gate) Leave(took time.Duration) {
	g.Detach()
	// A weight of 1/16 follows a change and smooths over an odd one; a far longer one than the
	// mean, such as a download, would dominate for long. One that loses a race is dropped.
	const weight, longest = 16, 64
	old, is := g.service.Load(), max(1, int64(took))
	if old > 0 {
		is = max(1, old+(min(is, longest*old)-old)/weight)
	}
	if is != old {
		g.service.CompareAndSwap(old, is)
	}
}

// Detach gives back the permit of a request that continues without one, as an upgraded
// connection does, or has no meaningful time of service.
func (g *gate) Detach() { g.inFlight.Add(-1) }

// InFlight returns how many permits are taken.
func (g *gate) InFlight() int { return int(g.inFlight.Load()) }

// Service returns the mean time of service, 0 before the first completion.
func (g *gate) Service() time.Duration { return time.Duration(g.service.Load()) }

// Drain returns in how long the requests in flight are expected to have left: by Little's
// law one mean time of service. Before any is known it is the least that Retry-After can say.
func (g *gate) Drain() time.Duration { return cmp.Or(g.Service(), time.Second) }
