package caddymodule

import (
	"cmp"
	"time"

	"github.com/herdshield/shield/caddymodule/adminapi"
	"github.com/herdshield/shield/internal/metrics"
	"github.com/herdshield/shield/share/redis"
)

// A storeReading is the store as it is at one moment.
type storeReading struct {
	redis.Status
	address string
	store   *storeConfig
}

// storeReading returns nil if there is no store.
func (a *App) storeReading() *storeReading {
	if a.storage == nil {
		return nil
	}
	return &storeReading{a.storage.Status(), a.storage.address, a.store}
}

var storeMetrics = []metrics.Group[*storeReading]{
	{With: "`store`", Rows: []metrics.Row[*storeReading]{
		metrics.Gauge("store_up", nil, "1 while the store answers in time. Otherwise this replica uses its own part of all shared limits.",
			func(s *storeReading, to metrics.Sink) { to.Flag(s.Up) }),
		metrics.Counter("store_alone_seconds_total", nil, "Time in which the store has not answered in time.",
			func(s *storeReading, to metrics.Sink) { to.Set(s.Alone.Seconds()) }),
		metrics.Counter("store_exchanges_total", []string{"kind", "outcome"}, "Exchanges with the store, plan (backends) or take (zones), by result: answered, slow, late, refused or failed.",
			func(s *storeReading, to metrics.Sink) {
				for kind, e := range s.exchanges() {
					to.Outcomes(e.Outcomes, kind)
				}
			}),
		metrics.Histogram("store_rtt_seconds", []string{"kind"}, "How long exchanges took that were answered.",
			func(s *storeReading, to metrics.Sink) {
				for kind, e := range s.exchanges() {
					trips(to, e, kind)
				}
			}),
	}},
}

// backendStoreMetrics are those of each backend that is shared.
var backendStoreMetrics = []metrics.Group[redis.Backend]{
	{Label: "shield", With: "`store`", Rows: []metrics.Row[redis.Backend]{
		metrics.Gauge("store_replicas", nil, "Replicas that share the backend, as far as this one knows.",
			func(b redis.Backend, to metrics.Sink) { to.Set(float64(b.Replicas)) }),
		metrics.Gauge("store_alone", nil, "1 while this replica does without the store, with its part of the backend's limits.",
			func(b redis.Backend, to metrics.Sink) { to.Flag(b.Alone) }),
		metrics.Gauge("store_pool_tokens", nil, "Tokens of the capacity that no replica held at the last exchange.",
			func(b redis.Backend, to metrics.Sink) { to.Set(b.Pool) }),
		metrics.Counter("store_epochs_total", nil, "Times that the store was found to know nothing of the backend, the first included.",
			func(b redis.Backend, to metrics.Sink) { to.Count(b.Epochs) }),
		metrics.Counter("store_slots_total", []string{"outcome"}, "Places in the calendar of appointments that this replica was granted, has guessed (booked without a grant) or has returned.",
			func(b redis.Backend, to metrics.Sink) {
				to.Set(b.Granted, "granted")
				to.Set(b.Guessed, "guessed")
				to.Set(b.Returned, "returned")
			}),
		metrics.Counter("store_promises_total", []string{"outcome"}, "Appointments, made or kept, that this replica has told the others, or heard of from them.",
			func(b redis.Backend, to metrics.Sink) {
				to.Outcomes(map[string]uint64{"told": b.Told, "heard": b.Heard})
			}),
		metrics.Gauge("store_differing_replicas", nil, "Replicas that define the backend in another way, and do not share it with this one.",
			func(b redis.Backend, to metrics.Sink) { to.Set(float64(differing(b.Others))) }),
	}},
}

// zoneStoreMetrics are those of each zone that is shared.
var zoneStoreMetrics = []metrics.Group[redis.Zone]{
	{Label: "zone", With: "`store`", Rows: []metrics.Row[redis.Zone]{
		metrics.Gauge("store_zone_replicas", nil, "Replicas that share the zone, as far as this one knows.",
			func(z redis.Zone, to metrics.Sink) { to.Set(float64(z.Replicas)) }),
		metrics.Gauge("store_zone_alone", nil, "1 while this replica does without the store, with its part of the quotas.",
			func(z redis.Zone, to metrics.Sink) { to.Flag(z.Alone) }),
		metrics.Gauge("store_hot_keys", nil, "Clients whose tokens come from the store, because they use much of their quota.",
			func(z redis.Zone, to metrics.Sink) { to.Set(float64(z.Hot)) }),
		metrics.Counter("store_keys_total", nil, "Clients named in exchanges with the store, counted each time.",
			func(z redis.Zone, to metrics.Sink) { to.Count(z.Keys) }),
		metrics.Gauge("store_zone_differing_replicas", nil, "Replicas that define the zone in another way, and do not share it with this one.",
			func(z redis.Zone, to metrics.Sink) { to.Set(float64(differing(z.Others))) }),
	}},
}

// differing returns how many replicas have other units.
func differing(others []redis.Unit) (n int) {
	for _, u := range others {
		n += u.Replicas
	}
	return n
}

// exchanges returns what was exchanged with the store, by kind.
func (s *storeReading) exchanges() map[string]redis.Exchanges {
	return map[string]redis.Exchanges{"plan": s.Plans, "take": s.Takes}
}

// trips takes the histogram of the trips of exchanges.
func trips(to metrics.Sink, e redis.Exchanges, kind string) {
	buckets, count := map[float64]uint64{}, uint64(0)
	for i, n := range e.Trips {
		count += n
		if i < len(redis.TripBuckets) {
			buckets[redis.TripBuckets[i].Seconds()] = count
		}
	}
	to.Buckets(count, e.Took.Seconds(), buckets, kind)
}

func (s *storeReading) status() *adminapi.StoreStatus {
	if s == nil {
		return nil
	}
	out := &adminapi.StoreStatus{
		Address: s.address, Prefix: cmp.Or(s.store.Prefix, redis.DefaultPrefix), Mode: s.Mode, Up: s.Up, ForSeconds: s.For.Seconds(), AloneSeconds: s.Alone.Seconds(),
		RTTSeconds: s.Trip.Seconds(), Error: s.Error, Exchanges: map[string]map[string]uint64{},
	}
	for kind, e := range s.exchanges() {
		out.Exchanges[kind] = e.Outcomes
	}
	return out
}

func (s *shieldEntry) sharingStatus(now time.Duration, all *storeReading) *adminapi.SharingStatus {
	if !s.config().Shared || all == nil {
		return nil
	}
	l := s.guard().Link(now)
	if l == nil {
		return nil // a newer config does not share it
	}
	out := &adminapi.SharingStatus{Unit: s.unit()}
	out.Alone, out.Replicas = l.Alone()
	for _, b := range all.Backends {
		if b.Name == s.name {
			out.Unit, out.Others = b.What, b.Others
		}
	}
	return out
}

func (z *zoneEntry) sharingStatus(all *storeReading) *adminapi.SharingStatus {
	if !z.config().Shared || all == nil {
		return nil
	}
	out := &adminapi.SharingStatus{Unit: z.unit(all.store)}
	for _, of := range all.Zones {
		if of.Name == z.record.shown {
			out.Unit, out.Replicas, out.Alone, out.Others = of.What, of.Replicas, of.Alone, of.Others
		}
	}
	return out
}
