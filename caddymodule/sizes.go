package caddymodule

import (
	"time"

	"go.uber.org/zap"

	"github.com/herdshield/shield/limiter"
)

const (
	// capacityBurst is how much burst a capacity should have for each replica. Each holds
	// an eighth to a quarter of that, and with less than one token most requests wait for the
	// store.
	capacityBurst = 8

	// zoneBurst is the same for a zone, in requests. A replica counts a client alone
	// within half of its part: with less than two requests each client that sends several
	// costs commands.
	zoneBurst = 4
)

// warnOfSizes warns of bursts that are small for so many replicas: once, and again if there
// are more.
func (a *App) warnOfSizes(now time.Duration) {
	if a.storage == nil {
		return
	}
	all := a.roster()
	for _, s := range all.shields {
		if s.config().Shared && s.config().Capacity.Rate > 0 {
			replicas := 1 // if a newer config does not share it
			if l := s.guard().Link(now); l != nil {
				_, replicas = l.Alone(now)
			}
			a.warnOfBurst(&s.record.sharing, rateStatus(s.config().Capacity, limiter.NewCapacity).Burst, capacityBurst, replicas, zap.String("shield", s.name))
		}
	}
	for _, z := range all.zones {
		if z.config().Shared {
			replicas := 1
			if l := z.guard().Zones(now)[z.index]; l != nil {
				_, replicas = l.Alone(now)
			}
			a.warnOfBurst(&z.record.sharing, rateStatus(z.config().Limit, limiter.New).Burst, zoneBurst*max(1, z.config().Cost), replicas, zap.String("zone", z.record.shown))
		}
	}
}

func (a *App) warnOfBurst(p *post, burst, each, replicas int, of zap.Field) {
	if burst < each*replicas && p.grown(replicas) {
		a.logger.Warn("the burst is small for so many replicas, so that many requests wait for the store",
			of, zap.Int("burst", burst), zap.Int("replicas", replicas), zap.Int("want", each*replicas))
	}
}

// grown reports whether there are more replicas than any warning was about.
func (p *post) grown(replicas int) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	more := replicas > p.warned
	p.warned = max(p.warned, replicas)
	return more
}
