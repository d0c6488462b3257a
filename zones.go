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
	index int // in Config.Zones and in Request.Keys
	limit limiter.Limit
	cost  int    // tokens of a request, unless it varies
	salt  uint64 // tells the keys of this zone from those of others

	varies bool    // requests cost more or less
	scale  float64 // tokens of one unit

	Zone // with defaults
}

// A ZoneState holds the buckets of one zone's clients.
type ZoneState struct {
	name  string
	table limiter.Table
	share atomic.Pointer[share.Zone] // nil: the zone is not shared

	rejected atomic.Uint64
	observed atomic.Uint64

	learned learner
	unknown atomic.Uint64
	noted   atomic.Bool // the first unknown cost

	current atomic.Pointer[zone] // of the newest Guard in use
}

// NewZoneState returns the empty state of the zone of that name.
func NewZoneState(name string) *ZoneState { return &ZoneState{name: name} }

// ZoneStats is a snapshot of a ZoneState.
type ZoneStats struct {
	limiter.Stats
	Rejected uint64 `json:"rejected"`          // requests rejected for this zone
	Observed uint64 `json:"observed"`          // requests that would have been rejected for it
	Unknown  uint64 `json:"unknown,omitempty"` // costs and rates that were missing, or wrong

	Hot      int `json:"hot,omitempty"`      // keys whose tokens come from the store that replicas share
	Replicas int `json:"replicas,omitempty"` // that share the zone
	MaxKeys  int `json:"-"`                  // that can be remembered; only Guard.ZoneStats says so

	Varies bool `json:"-"` // whether requests or responses tell costs, of the newest Guard that has decided
}

// Stats visits every key, a few thousand at a time under one lock: it is meant
// for scrapes.
func (z *ZoneState) Stats(now time.Duration) ZoneStats {
	s := ZoneStats{Rejected: z.rejected.Load(), Observed: z.observed.Load(), Unknown: z.unknown.Load()}
	if is := z.current.Load(); is != nil {
		now, s.Varies = is.instant(now), is.varies
	}
	s.Stats = z.table.Stats(now)
	if of := z.share.Load(); of != nil {
		s.Hot, s.Replicas = of.Escrow.Hot(), of.Escrow.Replicas()
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

// claim asks for n tokens of a key. If ask is not nil, the store may have them.
func (z *zone) claim(key limiter.Key, now time.Duration, n int) (c limiter.KeyClaim, wait time.Duration, ask *share.Zone) {
	if of := z.share.Load(); of != nil {
		of.Use(now)
		c, wait, asks := of.Escrow.Claim(key, now, n)
		if !asks {
			of = nil
		}
		return c, wait, of
	}
	c, wait = z.table.Claim(z.limit, z.MaxKeys, key, z.instant(now), n)
	return c, z.reset(key, now, wait), nil
}

// look returns how many tokens a key has, and how long a request for n would have to wait.
func (z *zone) look(key limiter.Key, now time.Duration, n int) (tokens int, wait time.Duration) {
	if of := z.share.Load(); of != nil {
		return of.Escrow.Look(key, now, n)
	}
	tokens, wait = z.table.Look(z.limit, z.MaxKeys, key, z.instant(now), n)
	return tokens, z.reset(key, now, wait)
}
