package caddymodule

import (
	"cmp"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/herdshield/shield/caddymodule/adminapi"
	"github.com/herdshield/shield/internal/metrics"
	"github.com/herdshield/shield/share/redis"
)

// A storeReading is the store as it is at one moment.
type storeReading struct {
	redis.Status
	record *storeRecord
	store  *storeConfig
}

// storeReading returns nil if there is no store.
func (a *App) storeReading() *storeReading {
	if a.storage == nil {
		return nil
	}
	return &storeReading{a.storage.Status(), a.storage, a.store}
}

// tripOpts are those of a storeRecord's histogram, which Prometheus' library counts, as exchanges are few.
var tripOpts = prometheus.HistogramOpts{
	Name: prefix + "store_rtt_seconds", Help: "How long exchanges took that were answered.",
	Buckets: []float64{.00025, .0005, .001, .002, .005, .01, .025, .05, .1, .25},
}

var storeMetrics = []metrics.Group[*storeReading]{
	{With: "`store`", Rows: []metrics.Row[*storeReading]{
		metrics.Gauge("store_up", nil, "1 while the store answers in time. Otherwise this replica uses its own part of all shared limits.",
			func(s *storeReading, to metrics.Sink) { to.Flag(s.Up) }),
		metrics.Counter("store_alone_seconds_total", nil, "Time in which the store has not answered in time.",
			func(s *storeReading, to metrics.Sink) { to.Set(s.Alone.Seconds()) }),
		metrics.Counter("store_exchanges_total", []string{"outcome"}, "Exchanges with the store by result: answered, slow, late, refused or failed.",
			func(s *storeReading, to metrics.Sink) { to.Outcomes(s.Outcomes) }),
		metrics.Histogram("store_rtt_seconds", nil, tripOpts.Help,
			func(s *storeReading, to metrics.Sink) {
				to.Send(func(*prometheus.Desc, string) prometheus.Metric { return s.record.trips })
			}),
	}},
}

// sharedMetrics are those of each backend, and of each zone, that is shared.
var sharedMetrics = map[redis.Kind][]metrics.Group[redis.Shared]{
	redis.Backend: metricsOfShared("shield", "store_", "backend"),
	redis.Zone:    metricsOfShared("zone", "store_zone_", "zone"),
}

func metricsOfShared(label, prefix, what string) []metrics.Group[redis.Shared] {
	return []metrics.Group[redis.Shared]{{Label: label, With: "`store`", Rows: []metrics.Row[redis.Shared]{
		metrics.Gauge(prefix+"replicas", nil, "Replicas that share the "+what+", as far as this one knows.",
			func(s redis.Shared, to metrics.Sink) { to.Set(float64(s.Replicas)) }),
		metrics.Gauge(prefix+"alone", nil, "1 while this replica does without the store, with its part of the limits of the "+what+".",
			func(s redis.Shared, to metrics.Sink) { to.Flag(s.Alone) }),
		metrics.Gauge(prefix+"differing_replicas", nil, "Replicas that define the "+what+" in another way, and do not share it with this one.",
			func(s redis.Shared, to metrics.Sink) {
				n := 0
				for _, u := range s.Others {
					n += u.Replicas
				}
				to.Set(float64(n))
			}),
	}}}
}

func (s *storeReading) status() *adminapi.StoreStatus {
	if s == nil {
		return nil
	}
	return &adminapi.StoreStatus{
		Address: s.record.address, Prefix: cmp.Or(s.store.Prefix, redis.DefaultPrefix), Up: s.Up, ForSeconds: s.For.Seconds(), AloneSeconds: s.Alone.Seconds(),
		RTTSeconds: s.Trip.Seconds(), Error: s.Error, Exchanges: s.Outcomes,
	}
}

// sharing returns what is known of one thing that is shared. unit says how it is defined, if it is not served yet.
func (s *storeReading) sharing(kind redis.Kind, name, unit string) *adminapi.SharingStatus {
	for _, of := range s.Shared {
		if of.Kind == kind && of.Name == name {
			return &adminapi.SharingStatus{Unit: of.What, Replicas: of.Replicas, Alone: of.Alone, Others: of.Others}
		}
	}
	return &adminapi.SharingStatus{Unit: unit, Alone: true}
}

func (s *shieldEntry) sharingStatus(now time.Duration, all *storeReading) *adminapi.SharingStatus {
	if !s.config().Shared || all == nil || s.guard().Link(now) == nil { // a newer config does not share it
		return nil
	}
	return all.sharing(redis.Backend, s.name, s.unit())
}

func (z *zoneEntry) sharingStatus(all *storeReading) *adminapi.SharingStatus {
	if !z.config().Shared || all == nil {
		return nil
	}
	return all.sharing(redis.Zone, z.record.shown, z.unit(all.store))
}
