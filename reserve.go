package shield

import "time"

// A reserve is what a request has to leave to others.
type reserve struct{ tokens, places int }

// placesForDue is the share of the limit in flight that is left to clients that are due,
// inverted. Places cannot be saved up as tokens can: with a third of them, a backend with as
// many workers as the limit lost a quarter, and with a twelfth little.
const placesForDue = 12

// reserveOf returns what a request has to leave to others while clients wait. One of the
// highest class has to leave nothing.
func (g *Guard) reserveOf(now time.Duration, t *try) (r reserve) {
	clients := &g.backend.clients
	switch {
	case !clients.Backlogged(now), g.plan.Highest(int(t.d.Class)):
		return r
	case t.visit.IsDue() && g.backend.link.Load() != nil:
		return r // what other replicas hold is not known well enough to leave any of it
	}
	tokens, leaves := t.visit.Reserve(clients.Doubt(), g.capacity.Burst())
	if !leaves {
		return r
	}
	return reserve{tokens, g.Limit() / placesForDue}
}
