package shield

import (
	"time"

	"github.com/herdshield/shield/limiter"
	"github.com/herdshield/shield/share"
)

// Zones returns what joins the zones to those of other replicas, in the order of
// Config.Zones: through a store that a program has serve their links. It is nil for a zone
// that is not shared, by the newest Guard in use. From now on the Guard's settings count, as from its first decision.
func (g *Guard) Zones(now time.Duration) []*share.Zone {
	if !g.inUse.Load() {
		g.use(now)
	}
	list := make([]*share.Zone, len(g.order))
	for i, at := range g.order {
		list[i] = g.zones[at].share.Load()
	}
	return list
}

// shareZones has each zone shared, or not, as the Guard says. A zone with another limit is
// another one to the store: it begins with empty parts, so that no client is forgiven.
func (g *Guard) shareZones(now time.Duration) {
	for i := range g.zones {
		z := &g.zones[i]
		old := z.share.Load()
		if !z.shared {
			z.share.Store(nil)
			continue
		}
		if old != nil {
			if limit, cost := old.Escrow().Limit(); limit == z.limit && cost == z.cost {
				old.Escrow().Bound(z.maxKeys)
				continue
			}
		}
		e := limiter.NewEscrow(&z.table, z.limit, z.cost, z.maxKeys, g.replicas)
		if old != nil {
			e.Begin(now)
		}
		z.share.Store(share.NewZone(g.replica, e))
	}
}

// claim asks for a request's cost of a key. If ask is true, the store may have it.
func (z *zone) claim(key limiter.Key, now time.Duration) (c limiter.KeyClaim, wait time.Duration, ask bool) {
	if z.shared {
		if of := z.share.Load(); of != nil {
			of.Use(now)
			return of.Escrow().Claim(key, now)
		}
	}
	c, wait = z.table.Claim(z.limit, z.maxKeys, key, now, z.cost)
	return c, wait, false
}

// ask returns what a request may wait for that finds no token of a key here, nil for
// nothing. No lock of a zone may be held that comes after this one.
func (z *zone) ask(key limiter.Key, now time.Duration, ask bool) <-chan struct{} {
	of := z.share.Load()
	if !ask || of == nil {
		return nil
	}
	return of.Ask(now, key)
}
