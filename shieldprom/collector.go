// Package shieldprom shows a Guard to Prometheus, for programs that use package shield without
// Caddy. Its metrics are those of the Caddy module that a Guard knows of, with the prefix
// shield_ in place of caddy_shield_, and the same labels and meanings.
package shieldprom

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/herdshield/shield"
)

// Collector returns a prometheus.Collector for a Guard whose time is that of [shield.Now], as
// that of [shield.Guard.Handler] is. name is the label shield: programs with several Guards
// register one Collector for each, with different names. It reads the Guard's state when it
// is scraped, costs requests nothing, and is safe for concurrent use. Guards that share one
// [shield.State] have one Collector.
func Collector(guard *shield.Guard, name string) prometheus.Collector {
	return collector{guard, prometheus.Labels{"shield": name}}
}

type collector struct {
	guard *shield.Guard
	label prometheus.Labels
}

// A reading is a Guard as it is at one moment.
type reading struct {
	guard *shield.Guard
	stats shield.BackendStats
	zones map[string]shield.ZoneStats
}

// A metric is a row of the table of which Describe and Collect are made. The row of
// docs/operating.md has the same words.
type metric struct {
	name   string
	kind   prometheus.ValueType
	labels []string // besides shield
	help   string
	read   func(*reading, func(v float64, labels ...string))
}

var metrics = []metric{
	{"shield_requests_total", prometheus.CounterValue, []string{"outcome", "reason"}, "Requests by decision: admitted, refused, or observed (admitted, but would have been refused). The reason is the limit that refused: quota, capacity, concurrency, early, per_client, retry_budget, pause, blocked.",
		func(r *reading, to func(float64, ...string)) {
			to(float64(r.stats.Admitted), "admitted", shield.None.String())
			for _, reason := range shield.Reasons {
				to(float64(r.stats.Refused[reason]), "refused", reason.String())
				to(float64(r.stats.Observed[reason]), "observed", reason.String())
			}
		}},
	{"shield_in_flight_requests", prometheus.GaugeValue, nil, "Requests in flight.",
		func(r *reading, to func(float64, ...string)) { to(float64(r.stats.InFlight)) }},
	{"shield_concurrency_limit_requests", prometheus.GaugeValue, nil, "Requests that may be in flight now.",
		func(r *reading, to func(float64, ...string)) { to(float64(r.guard.Limit())) }},
	{"shield_held_refusals", prometheus.GaugeValue, nil, "Refusals that are held for less than a second before they are sent, at most 10000.",
		func(r *reading, to func(float64, ...string)) { to(float64(r.stats.Held)) }},
	{"shield_backlog_seconds", prometheus.GaugeValue, nil, "Time until the last appointment.",
		func(r *reading, to func(float64, ...string)) { to(r.stats.Backlog.Seconds()) }},
	{"shield_deferred_clients", prometheus.GaugeValue, nil, "Refused clients without an appointment, because no time within pushback max is free.",
		func(r *reading, to func(float64, ...string)) { to(float64(r.stats.Deferred)) }},
	{"shield_spare_requests_per_second", prometheus.GaugeValue, nil, "Refused clients per second that the backend can serve in addition to new requests.",
		func(r *reading, to func(float64, ...string)) { to(r.guard.Spare()) }},
	{"shield_promises_total", prometheus.CounterValue, nil, "Appointments made.",
		func(r *reading, to func(float64, ...string)) { to(float64(r.stats.Promises.Made)) }},
	{"shield_promise_outcomes_total", prometheus.CounterValue, []string{"outcome"}, "Appointments by what became of them. Kept: the client came in time. No_show: it did not come within a second. Late: it came after that, counted as no_show, too. Early: it was admitted before. Broken: it came in time and was refused again.",
		func(r *reading, to func(float64, ...string)) {
			p := r.stats.Promises
			to(float64(p.Kept), "kept")
			to(float64(p.NoShow), "no_show")
			to(float64(p.Late), "late")
			to(float64(r.stats.EarlyAdmitted), "early")
			to(float64(r.stats.Broken), "broken")
		}},
	{"shield_zone_requests_total", prometheus.CounterValue, []string{"zone", "outcome"}, "Requests that the zone counted, by decision: admitted, refused by this zone, or observed.",
		func(r *reading, to func(float64, ...string)) {
			for name, z := range r.zones {
				to(float64(z.Admitted), name, "admitted")
				to(float64(z.Refused), name, "refused")
				to(float64(z.Observed), name, "observed")
			}
		}},
	{"shield_zone_keys", prometheus.GaugeValue, []string{"zone"}, "Clients that the zone remembers because their quota is not full.",
		func(r *reading, to func(float64, ...string)) {
			for name, z := range r.zones {
				to(float64(z.Keys), name)
			}
		}},
	{"shield_zone_evictions_total", prometheus.CounterValue, []string{"zone"}, "Clients forgotten before their quota was full. Raise max_keys.",
		func(r *reading, to func(float64, ...string)) {
			for name, z := range r.zones {
				to(float64(z.Evicted), name)
			}
		}},
}

func (c collector) desc(m *metric) *prometheus.Desc {
	return prometheus.NewDesc(m.name, m.help, m.labels, c.label)
}

// Describe implements prometheus.Collector.
func (c collector) Describe(ch chan<- *prometheus.Desc) {
	for i := range metrics {
		ch <- c.desc(&metrics[i])
	}
}

// Collect implements prometheus.Collector.
func (c collector) Collect(ch chan<- prometheus.Metric) {
	now := shield.Now()
	r := &reading{c.guard, c.guard.Backend().Stats(now), c.guard.ZoneStats(now)}
	for i := range metrics {
		m := &metrics[i]
		desc := c.desc(m)
		m.read(r, func(v float64, labels ...string) { ch <- prometheus.MustNewConstMetric(desc, m.kind, v, labels...) })
	}
}
