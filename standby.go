package shield

import (
	"time"

	"github.com/herdshield/shield/pushback"
)

// A reserve is what a request has to leave to others.
type reserve struct{ tokens, places int }

// placesForDue is the share of the limit in flight that is left to clients that are due,
// inverted. Places cannot be saved up as tokens can: with a third of them, a backend with as
// many workers as the limit lost a quarter, and with a twelfth little.
const placesForDue = 12

// reserveOf returns what a request has to leave to others while clients wait. One of the
// highest class has to leave nothing.
func (g *Guard) reserveOf(now time.Duration, t *try) reserve {
	clients := &g.backend.clients
	if !clients.Backlogged(now) || g.plan.Highest(int(t.d.Class)) {
		return reserve{}
	}
	share := t.visit.Reserve(clients.Doubt())
	if share == 0 {
		return reserve{}
	}
	burst := g.capacity.Burst()
	tokens := min(int(share*float64(burst)), max(burst-2, min(burst-1, 2)))
	if t.visit.Shared && t.visit.Standing == pushback.Stranger {
		tokens = max(tokens, 1) // or one that asks for much would have all of a small bucket
	}
	return reserve{tokens, g.Limit() / placesForDue}
}
