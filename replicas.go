package shield

import (
	"crypto/rand"
	"time"

	"github.com/herdshield/shield/limiter"
	"github.com/herdshield/shield/pushback"
	"github.com/herdshield/shield/share"
)

// processName names the process among its replicas.
var processName = rand.Text()

// Link returns what connects the backend to other replicas, through a store that your program serves it with;
// nil if the backend isn't shared, according to the newest Guard in use. From now on the Guard's settings
// apply, as from its first decision.
func (g *Guard) Link(now time.Duration) *share.Link {
	g.use(now)
	return g.backend.link.Load()
}

// share has the backend shared, or not, as the Guard says.
func (g *Guard) share(now time.Duration) {
	b := g.backend
	_, longest := g.terms.Bounds(&pushback.Caller{})
	limits := share.Limits{Capacity: g.capacity, Max: longest, Replicas: g.replicas}
	limits.InFlight, limits.Adaptive = g.plan.Most()
	switch l := b.link.Load(); {
	case !g.shared && l != nil:
		b.link.Store(nil)
		l.Unlink(now)
	case g.shared && l == nil:
		b.link.Store(share.NewLink(g.replica, share.Shared{Capacity: &b.capacity, InFlight: &b.inFlight, Clients: &b.clients}, limits, now))
	case g.shared:
		l.Set(now, limits)
	}
}

// Zones returns what connects the zones to other replicas, in the order of Config.Zones, through a store that
// your program serves their links with; nil for a zone that isn't shared, according to the newest Guard in use.
// From now on the Guard's settings apply, as from its first decision.
func (g *Guard) Zones(now time.Duration) []*share.Zone {
	g.use(now)
	list := make([]*share.Zone, len(g.zones))
	for i := range g.zones {
		list[g.zones[i].index] = g.zones[i].share.Load()
	}
	return list
}

// shareZones has each zone shared, or not, as the Guard says. A zone with another limit is
// another one to the store: it begins with empty parts, so that no client is forgiven.
func (g *Guard) shareZones(now time.Duration) {
	for i := range g.zones {
		z := &g.zones[i]
		old := z.share.Load()
		if !z.Shared {
			z.share.Store(nil)
			continue
		}
		if old != nil {
			if limit, cost := old.Escrow.Limit(); limit == z.limit && cost == z.cost {
				old.Escrow.Bound(z.MaxKeys)
				continue
			}
		}
		e := limiter.NewEscrow(&z.table, z.limit, z.cost, z.MaxKeys, g.replicas)
		if old != nil {
			e.Begin(now)
		}
		z.share.Store(share.NewZone(g.replica, e))
	}
}
