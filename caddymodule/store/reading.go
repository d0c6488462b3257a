package store

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/herdshield/shield/caddymodule/adminapi"
	"github.com/herdshield/shield/internal/metrics"
	"github.com/herdshield/shield/oncall"
	"github.com/herdshield/shield/share/redis"
)

// A Reading is a store as it is at one moment.
type Reading struct {
	redis.Status
	of *Connection
}

// Read returns the Reading of now; nil of no connection.
func (c *Connection) Read() *Reading {
	if c == nil {
		return nil
	}
	return &Reading{c.Status(), c}
}

// tripOpts are those of a Connection's histogram, which Prometheus' library counts, as exchanges are few.
var tripOpts = prometheus.HistogramOpts{
	Name: metrics.Prefix + "store_rtt_seconds", Help: "How long exchanges took that were answered.",
	Buckets: []float64{.00025, .0005, .001, .002, .005, .01, .025, .05, .1, .25},
}

// Metrics are those of a store.
var Metrics = []metrics.Group[*Reading]{
	{With: "`store`", Rows: []metrics.Row[*Reading]{
		metrics.Gauge("store_up", nil, "1 while the store answers in time. Otherwise this replica uses its own part of all shared limits.",
			func(s *Reading, to metrics.Sink) { to.Flag(s.Up) }),
		metrics.Counter("store_alone_seconds_total", nil, "Time in which the store has not answered in time.",
			func(s *Reading, to metrics.Sink) { to.Set(s.Alone.Seconds()) }),
		metrics.Counter("store_exchanges_total", []string{"outcome"}, "Exchanges with the store by result: answered, slow, late, rejected or failed.",
			func(s *Reading, to metrics.Sink) { to.Outcomes(s.Outcomes) }),
		metrics.Histogram("store_rtt_seconds", nil, tripOpts.Help,
			func(s *Reading, to metrics.Sink) {
				to.Send(func(*prometheus.Desc, string) prometheus.Metric { return s.of.trips })
			}),
	}},
}

// SharedMetrics are those of each backend, and of each zone, that is shared.
var SharedMetrics = map[redis.Kind][]metrics.Group[redis.Shared]{
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

// Shown returns what the admin endpoint says of the store.
func (s *Reading) Shown() *adminapi.StoreStatus {
	if s == nil {
		return nil
	}
	return &adminapi.StoreStatus{
		Address: s.of.Address, Prefix: s.of.prefix, Up: s.Up, ForSeconds: s.For.Seconds(), AloneSeconds: s.Alone.Seconds(),
		RTTSeconds: s.Trip.Seconds(), Error: s.Error, Exchanges: s.Outcomes,
	}
}

// Sharing returns what is known of one thing that is shared, nil if it is not served.
func (s *Reading) Sharing(kind redis.Kind, name string) *oncall.Sharing {
	if s == nil {
		return nil
	}
	for _, of := range s.Shared {
		if of.Kind == kind && of.Name == name {
			return &oncall.Sharing{Unit: of.What, Replicas: of.Replicas, Alone: of.Alone, Others: of.Others}
		}
	}
	return nil
}
