package share

import "time"

const (
	// clockTime is after how long the store's clock is read anew, as clocks drift apart.
	clockTime = time.Minute

	// stepTime is by how much the store's clock may seem to have moved until it is believed.
	stepTime = 50 * time.Millisecond
)

// clock is the store's clock, as far as a replica knows it. The replica's own is monotonic, so
// wall clocks do not matter.
type clock struct {
	zero time.Duration // its time at the replica's 0; 0: not known
	best time.Duration // the trip by which it was read
	read time.Duration // when
}

// set takes what the clock showed, in milliseconds, during a trip from sent to now. It is
// wrong by half of the trip at most, so the fastest of a minute counts.
func (c *clock) set(now, sent time.Duration, ms int64) {
	zero, trip := time.Duration(ms)*time.Millisecond-(sent+now)/2, now-sent
	off := zero - c.zero
	moved := off > stepTime+trip/2 || off < -stepTime-trip/2 // as after a failover to another server
	if c.zero == 0 || moved || trip <= c.best || now-c.read > clockTime {
		c.zero, c.best, c.read = zero, trip, now
	}
}
