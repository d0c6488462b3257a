package shield

import (
	"sync/atomic"
	"time"

	"github.com/herdshield/shield/limiter"
	"github.com/herdshield/shield/share"
)

// zone is a checked Zone and its state.
type zone struct {
	*ZoneState
	index   int // in Config.Zones and in Request.Keys
	limit   limiter.Limit
	cost    int
	maxKeys int
	shared  bool
	salt    uint64 // tells the keys of this zone from those of others
}

// A ZoneState holds the buckets of one zone's clients.
type ZoneState struct {
	name  string
	table limiter.Table
	share atomic.Pointer[share.Zone] // nil: the zone is not shared

	rejected atomic.Uint64
	observed atomic.Uint64
}

// NewZoneState returns the empty state of the zone of that name.
func NewZoneState(name string) *ZoneState { return &ZoneState{name: name} }

// ZoneStats is a snapshot of a ZoneState.
type ZoneStats struct {
	limiter.Stats
	Rejected uint64 `json:"rejected"` // requests rejected for this zone
	Observed uint64 `json:"observed"` // requests that would have been rejected for it

	Hot      int `json:"hot,omitempty"`      // keys whose tokens come from the store that replicas share
	Replicas int `json:"replicas,omitempty"` // that share the zone
	MaxKeys  int `json:"-"`                  // that can be remembered; only Guard.ZoneStats says so
}

// Stats visits every key, a few thousand at a time under one lock: it is meant
// for scrapes.
func (z *ZoneState) Stats(now time.Duration) ZoneStats {
	s := ZoneStats{Stats: z.table.Stats(now), Rejected: z.rejected.Load(), Observed: z.observed.Load()}
	if of := z.share.Load(); of != nil {
		s.Hot, s.Replicas = of.Escrow().Hot(), of.Escrow().Replicas()
	}
	return s
}

// key returns the key of a request, NoKey if the zone does not count it.
func (z *zone) key(r *Request) limiter.Key {
	if z.index >= len(r.Keys) {
		return NoKey
	}
	return r.Keys[z.index]
}

// claim asks for a request's cost of a key. If ask is not nil, the store may have it.
func (z *zone) claim(key limiter.Key, now time.Duration) (c limiter.KeyClaim, wait time.Duration, ask *share.Zone) {
	if of := z.share.Load(); of != nil {
		of.Use(now)
		c, wait, asks := of.Escrow().Claim(key, now)
		if !asks {
			of = nil
		}
		return c, wait, of
	}
	c, wait = z.table.Claim(z.limit, z.maxKeys, key, now, z.cost)
	return c, wait, nil
}

// look returns how many tokens a key has, and how long a request would have to wait.
func (z *zone) look(key limiter.Key, now time.Duration) (tokens int, wait time.Duration) {
	if of := z.share.Load(); of != nil {
		return of.Escrow().Look(key, now)
	}
	return z.table.Look(z.limit, z.maxKeys, key, now, z.cost)
}
