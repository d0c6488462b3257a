package shield

import (
	"sync/atomic"
	"time"

	"github.com/herdshield/shield/limiter"
)

// zone is a checked Zone and its state.
type zone struct {
	*ZoneState
	index   int // in Config.Zones and in Request.Keys
	limit   limiter.Limit
	cost    int
	maxKeys int
}

// A ZoneState holds the buckets of one zone's clients.
type ZoneState struct {
	name  string
	salt  uint64 // tells the keys of this zone from those of others
	table limiter.Table

	refused  atomic.Uint64
	observed atomic.Uint64
}

// NewZoneState returns the empty state of the zone of that name.
func NewZoneState(name string) *ZoneState {
	return &ZoneState{name: name, salt: uint64(limiter.KeyOf("zone " + name))}
}

// Refusals returns how many requests the zone has refused, and how many it would
// have refused.
func (z *ZoneState) Refusals() (refused, observed uint64) {
	return z.refused.Load(), z.observed.Load()
}

// ZoneStats is a snapshot of a ZoneState.
type ZoneStats struct {
	Keys     int    // clients whose bucket is not full
	Admitted uint64 // requests that were charged
	Refused  uint64 // requests refused for this zone
	Observed uint64 // requests that would have been refused for it
	Evicted  uint64 // clients forgotten before their bucket was full
	Shared   uint64 // requests admitted from a shared bucket, for want of room
}

// Stats visits every key, a few thousand at a time under one lock: it is meant
// for scrapes.
func (z *ZoneState) Stats(now time.Duration) ZoneStats {
	t := z.table.Stats()
	return ZoneStats{
		Keys: z.table.Len(now), Admitted: t.Admitted, Evicted: t.Evicted, Shared: t.Shared,
		Refused: z.refused.Load(), Observed: z.observed.Load(),
	}
}
