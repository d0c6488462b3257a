package loadshed

import (
	"sync/atomic"
	"time"
)

const (
	// costly is how many times as long as the mean a kind of request holds its place that
	// is shared out. Ours: four times the mean is four times the backend for as many
	// requests, and what all clients ask for is never that much above it.
	costly = 4

	// costlyShare is the part of the limit, inverted, that one client may have of costly
	// requests while there is not room for all. Ours: with more than a quarter, clients
	// beside one that asks for a slow page wait longer; with less they gain little.
	costlyShare = 4
)

// costs are the mean times for which requests hold their places, by route. By Little's law
// a count of those that a client has in flight is a share of the backend.
type costs [Routes]atomic.Int64

// add follows as Gate.Leave does. A sample that loses a race is dropped.
func (c *costs) add(route uint8, took time.Duration) {
	mean := &c[route%Routes]
	old := mean.Load()
	now := int64(took)
	if old > 0 {
		now = old + (now-old)/16
	}
	if now = max(1, now); now != old {
		mean.CompareAndSwap(old, now)
	}
}

func (c *costs) of(route uint8) time.Duration { return time.Duration(c[route%Routes].Load()) }

// costly reports whether requests of a route hold their places for far longer than
// others, or for how long is not known.
func (c *Concurrency) costly(route uint8) bool {
	mean, all := c.costs.of(route), c.gate.Service()
	return mean == 0 || all > 0 && mean > costly*all
}

// exceedsShare reports whether a client has its share of the costly requests in flight,
// while there is not room for all. One that is alone has all.
func (c *Concurrency) exceedsShare(now time.Duration, p *Plan, e *Entrant, pl *Place) bool {
	if e.Client == 0 || !c.UnderPressure(now) || !c.costly(pl.route) {
		return false
	}
	n := c.crowds.Count(e.Client)
	return n >= max(1, c.Limit(p)/costlyShare) && c.gate.InFlight() > n
}
