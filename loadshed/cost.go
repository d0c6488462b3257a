package loadshed

import (
	"math/bits"
	"sync/atomic"
	"time"
)

// Routes is how many routes [costs] tells apart.
const Routes = 64

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

// costs are the mean times for which requests hold their places, by route, and by a hash
// of the client: one may ask for a slow page on the route of fast ones. By Little's law the
// requests of a client in flight are their rate times that, so a count of them is a share
// of the backend.
type costs struct{ routes, clients [Routes]meanTime }

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

// add counts a request that has held its place for so long. Clients whose requests take
// no longer than others, on average, need not be counted.
func (c *costs) add(pl *Place, took, all time.Duration) {
	c.routes[pl.route%Routes].add(took)
	if pl.client == 0 {
		return
	}
	if mean := &c.clients[bits.TrailingZeros64(pl.client)%Routes]; took > all || mean.Load() > int64(all) {
		mean.add(took)
	}
}

func (c *costs) of(route uint8) time.Duration { return time.Duration(c.routes[route%Routes].Load()) }

// costly reports whether the requests of a route or of a client hold their places for far
// longer than others, or for how long is not known.
func (c *Concurrency) costly(pl *Place) bool {
	mean, all := c.costs.of(pl.route), c.gate.Service()
	if mean > 0 && pl.client != 0 {
		mean = max(mean, time.Duration(c.costs.clients[bits.TrailingZeros64(pl.client)%Routes].Load()))
	}
	return mean == 0 || all > 0 && mean > costly*all
}

// exceedsShare reports whether a client has its share of the costly requests in flight,
// while there is not room for all. One that is alone has all.
func (c *Concurrency) exceedsShare(now time.Duration, p *Plan, e *Entrant, pl *Place) bool {
	if e.Client == 0 || !c.UnderPressure(now) || !c.costly(pl) {
		return false
	}
	n := c.crowds.Count(e.Client)
	return n >= max(1, c.Limit(p)/costlyShare) && c.gate.InFlight() > n
}
