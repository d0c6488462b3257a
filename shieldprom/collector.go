// Package shieldprom shows a Guard to Prometheus, for programs that use package shield without
// Caddy. Its metrics are those of the Caddy module that a Guard knows of, with the prefix
// shield_ in place of caddy_shield_, and the same labels and meanings.
package shieldprom

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/herdshield/shield"
	"github.com/herdshield/shield/internal/metrics"
)

const prefix = "shield_"

// Collector returns a prometheus.Collector for a Guard whose time is that of [shield.Now], as
// that of [shield.Guard.Handler] is. name is the label shield: programs with several Guards
// register one Collector for each, with different names. It reads the Guard's state when it
// is scraped, costs requests nothing, and is safe for concurrent use. Guards that share one
// [shield.State] have one Collector.
func Collector(guard *shield.Guard, name string) prometheus.Collector {
	c := collector{guard, metrics.Descs{}}
	always := prometheus.Labels{"shield": name}
	for _, g := range metrics.Shields {
		g.Label = "" // it is the same in all
		metrics.Describe(c.descs, prefix, []metrics.Group[*metrics.Reading]{g}, always)
	}
	metrics.Describe(c.descs, prefix, metrics.Zones, always)
	return c
}

type collector struct {
	guard *shield.Guard
	descs metrics.Descs
}

// Describe implements prometheus.Collector.
func (c collector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range c.descs {
		ch <- d
	}
}

// Collect implements prometheus.Collector.
func (c collector) Collect(ch chan<- prometheus.Metric) {
	now := shield.Now()
	metrics.Collect(ch, c.descs, metrics.Shields, metrics.Read(c.guard, now), "", false)
	for name, stats := range c.guard.ZoneStats(now) {
		metrics.Collect(ch, c.descs, metrics.Zones, &stats, name, false)
	}
}
