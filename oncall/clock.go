package oncall

import (
	"sync"
	"time"
)

// A Clock numbers the seconds of a process. It follows whatever calls Tick about once a
// second, so that a call a little early or late leaves out no number and uses none twice.
// The zero Clock is ready, and safe for concurrent use.
type Clock struct {
	mu      sync.Mutex
	seq     uint64        // of the present second; 0: there was none
	nominal time.Duration // when that began
	last    time.Duration // when Tick was called last
}

const (
	tick = time.Second

	// follow is by which part of the difference a Clock follows its caller, which after a
	// reload calls at another time within the second. Ours: after ten calls it has caught
	// up, and a call that is a tenth late does not count.
	follow = 4
)

// Tick returns the number of the second at now: the same as before, the next one, or a later
// one if it was not called for some time. If now goes back, seconds go on from there. now is
// the time since an epoch, from a monotonic clock.
func (c *Clock) Tick(now time.Duration) (seq uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch passed := (now - c.nominal + tick/2) / tick; {
	case c.seq == 0, now < c.nominal-tick:
		c.seq++
		c.nominal = now
	case passed > 0:
		c.seq += uint64(passed)
		c.nominal += passed * tick
		c.nominal += (now - c.nominal) / follow
	}
	c.last = now
	return c.seq
}

// Now returns the present second, 0 for none, and how long ago Tick was called last.
func (c *Clock) Now(now time.Duration) (seq uint64, ago time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.seq, max(0, now-c.last)
}
