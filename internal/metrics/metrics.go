// Package metrics has the metrics of a Guard for Prometheus, as tables of rows. The Caddy module
// and package shieldprom show the same ones, each with a prefix of its own.
package metrics

import (
	"slices"

	"github.com/prometheus/client_golang/prometheus"
)

// Prefix is that of all metrics. They live as long as their zone or backend is in a config,
// across reloads.
const Prefix = "caddy_shield_"

// A Row is a metric of what a reading S is of: a row of the table of which collectors and
// docs/reference/metrics-logs-events.md are made.
//
// Metrics are read from the state when they are scraped. Requests only add to counters.
// Label values come from the config or from fixed sets.
type Row[S any] struct {
	Name   string   // after the prefix
	Kind   string   // counter, gauge or histogram
	Labels []string // after that of the group
	Help   string
	Read   func(S, Sink)
}

// A Group is the metrics that a shield or zone has under one condition.
type Group[S any] struct {
	Topic string       // the heading above them in docs/reference/metrics-logs-events.md
	Label string       // shield or zone; "": there is one of them
	With  string       // the option that they need, in words; "": none
	Has   func(S) bool // nil: always
	Rows  []Row[S]
}

// Counter returns the row of a metric that only grows.
func Counter[S any](name string, labels []string, help string, read func(S, Sink)) Row[S] {
	return Row[S]{name, "counter", labels, help, read}
}

// Gauge returns the row of a metric that goes up and down.
func Gauge[S any](name string, labels []string, help string, read func(S, Sink)) Row[S] {
	return Row[S]{name, "gauge", labels, help, read}
}

// Histogram returns the row of a distribution.
func Histogram[S any](name string, labels []string, help string, read func(S, Sink)) Row[S] {
	return Row[S]{name, "histogram", labels, help, read}
}

// Descs are descriptions of metrics, by name.
type Descs map[string]*prometheus.Desc

// Describe adds the descriptions of groups of metrics.
func Describe[S any](to Descs, prefix string, groups []Group[S], always prometheus.Labels) {
	for _, g := range groups {
		for _, m := range g.Rows {
			to[m.Name] = prometheus.NewDesc(prefix+m.Name, m.Help, AllLabels(g.Label, m.Labels), always)
		}
	}
}

// AllLabels returns the labels of a metric, or their values: first that of the group, if it has one.
func AllLabels(first string, others []string) []string {
	if first == "" {
		return others
	}
	return append([]string{first}, others...)
}

// Collect sends the metrics of one shield or zone. name is the value of the label of the groups.
// sparse leaves out what is 0: there may be a thousand shields, most of them idle.
func Collect[S any](ch chan<- prometheus.Metric, descs Descs, groups []Group[S], reading S, name string, sparse bool) {
	for _, g := range groups {
		if g.Has != nil && !g.Has(reading) {
			continue
		}
		for _, m := range g.Rows {
			m.Read(reading, Sink{ch, descs[m.Name], m.Kind, name, sparse})
		}
	}
}

// A Sink takes the values of one metric of one shield or zone.
type Sink struct {
	ch     chan<- prometheus.Metric
	desc   *prometheus.Desc
	kind   string
	name   string
	sparse bool
}

// Always returns a Sink that sends zeros, too.
func (to Sink) Always() Sink {
	to.sparse = false
	return to
}

func (to Sink) Set(v float64, others ...string) {
	kind := prometheus.GaugeValue
	if to.kind == "counter" {
		kind = prometheus.CounterValue
	}
	if v != 0 || !to.sparse {
		to.ch <- prometheus.MustNewConstMetric(to.desc, kind, v, AllLabels(to.name, others)...)
	}
}

func (to Sink) Count(n uint64, labels ...string) { to.Set(float64(n), labels...) }

// Flag takes what is or is not.
func (to Sink) Flag(is bool, labels ...string) {
	v := 0.0
	if is {
		v = 1
	}
	to.Set(v, labels...)
}

// Outcomes takes counts by the last label.
func (to Sink) Outcomes(counts map[string]uint64, labels ...string) {
	for outcome, n := range counts {
		to.Count(n, append(labels, outcome)...)
	}
}

// Send takes a metric that has its labels already.
func (to Sink) Send(m prometheus.Metric) { to.ch <- m }

// waits takes how many rejected clients were told to wait for 1, 2, ... seconds. The
// clients at index 0 were told not to come back, which is no wait.
func (to Sink) waits(clients []uint64) {
	buckets := map[float64]uint64{}
	count, sum := uint64(0), uint64(0)
	for seconds := 1; seconds < len(clients); seconds++ {
		count += clients[seconds]
		sum += clients[seconds] * uint64(seconds)
		if slices.Contains(HintBuckets, seconds) {
			buckets[float64(seconds)] = count
		}
	}
	if count != 0 || !to.sparse {
		to.ch <- prometheus.MustNewConstHistogram(to.desc, count, float64(sum), buckets, AllLabels(to.name, nil)...)
	}
}
