package loadshed

import "time"

// DryPlace returns the Place of a request that is not made: a Concurrency says what it would
// decide, and changes nothing.
func DryPlace() Place { return Place{dry: true} }

// hasPlace reports whether take would take a place.
func (c *Concurrency) hasPlace(now time.Duration, limit int) bool {
	return c.gate.InFlight() < min(limit, c.lease.most(now))
}

// wouldWait reports whether a request that finds no place would be Waiting or Full. Waits that
// are over are left to Sweep.
func (c *Concurrency) wouldWait(p *Plan, rank priority, pl *Place) Entry {
	s := c.queue.state.Load()
	if p.queue.Size == 0 || p.observe || int(s>>8) >= p.queue.Size && lowest(uint8(s)) >= rank {
		return Full
	}
	pl.wait = new(waiter)
	return Waiting
}

// Has reports whether Take would let a retry in.
func (b *budget) Has(now time.Duration) bool {
	return int64(now) >= b.until.Load() || b.left.Load() > 0 // minRetries are left of a new allowance
}
