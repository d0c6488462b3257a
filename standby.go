package shield

import (
	"time"

	"github.com/herdshield/shield/loadshed"
	"github.com/herdshield/shield/pushback"
)

// scarcity is the burst or limit below which there is too little to leave any of it to
// others. With two tokens, one client that asks for nine things took 0.85 of a backend that
// deferred clients waited for; with three, 0.2.
const scarcity = 3

// look has the backend's Standby learn what is lost. arrivals is how many requests have
// come in all. It is called with the ticker locked.
func (g *Guard) look(now time.Duration, arrivals uint64) {
	b := g.backend
	b.standby.Look(now, loadshed.Demand{
		Rate: g.Rate(), Limit: g.Limit(), OnTime: b.clients.OnTime(), Arrivals: arrivals,
		Backlogged: b.clients.Backlogged(now), Unused: g.leaves(now, 1), Scarce: g.scarce(),
	})
}

// spares reports, at little cost, whether there may be something for a request on
// standby: what the backend loses is more than acceptable. Where there is too little for
// any of it to be left aside, the backend must have had headroom for a second.
func (g *Guard) spares(now time.Duration) bool {
	b := g.backend
	if b.standby.Lossy() {
		return g.leaves(now, b.standby.Tokens())
	}
	return g.scarce() && b.inFlight.Idle(now)
}

// scarce reports whether there is too little for any of it to be left to others.
func (g *Guard) scarce() bool {
	limit := g.Limit()
	return limit > 0 && limit < scarcity || g.hasCapacity && g.capacity.Burst() < scarcity
}

// leaves reports whether the backend has more than those requests want that are not on
// standby: a place, and one of so many tokens that are all that a full bucket has.
func (g *Guard) leaves(now time.Duration, tokens int) bool {
	b := g.backend
	if limit := g.Limit(); limit > 0 && b.inFlight.InFlight() >= limit-b.standby.Places(true) {
		return false
	}
	return !g.hasCapacity || b.capacity.Level(g.capacity, now) > g.capacity.Burst()-tokens
}

// A reserve is what a request has to leave to others.
type reserve struct{ tokens, places int }

// reserveOf returns what a request has to leave to others while a backlog stands. Tokens
// can be saved up. Places cannot, so only as many are left free as others want in the
// next moment.
func (g *Guard) reserveOf(now time.Duration, t *try) reserve {
	s, burst := &g.backend.standby, g.capacity.Burst()
	if pushback.Simple {
		share := g.backend.clients.Core.Reserve(&t.visit)
		if share == 0 {
			return reserve{}
		}
		return reserve{min(int(share*float64(burst)), max(burst-2, min(burst-1, 2))), g.Limit() / 12}
	}
	if t.visit.Standby {
		return reserve{max(0, burst-s.Tokens()), s.Places(true)}
	}
	// Strangers are doubted for the sake of clients that do come back, if any do.
	tenths, places := t.visit.Reserve(g.backend.clients.Doubt()*min(1, 2*s.DueShare())), s.Places(false)
	if t.visit.Draws() {
		c := t.caller()
		drawn, ok := g.backend.clients.Drawn(now, &c, &g.terms, g.supply())
		if !ok { // it leaves three tokens at least, or clients on standby would go before it
			return reserve{max(0, min(burst*tenths/10, burst-3)), max(places, g.Limit()*3/10)}
		}
		tenths = drawn
	}
	if tenths == 0 {
		return reserve{}
	}
	if t.visit.Pass {
		places /= 2
	}
	return reserve{min(burst*tenths/10, max(burst-2, min(burst-1, 2))), places}
}
