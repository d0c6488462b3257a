package caddymodule

import (
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/herdshield/shield"
	"github.com/herdshield/shield/loadshed"
	"github.com/herdshield/shield/pushback"
)

// A metric is a row of the table of which Describe, Collect and docs/operating.md are made.
//
// Metrics are read from the state when they are scraped. Requests only add to counters.
// Label values come from the config or from fixed sets. Counters live as long as their zone
// or backend is in a config, across reloads.
type metric[S any] struct {
	name   string
	kind   string   // counter, gauge or histogram
	labels []string // after that of the shield or zone
	help   string
	read   func(S, sink)
}

// A metricGroup is the metrics that a shield or zone has under one condition.
type metricGroup[S any] struct {
	label   string // shield or zone; "": there is one of them
	with    string // the option that they need, in words; "": none
	has     func(S) bool
	metrics []metric[S]
}

const (
	counter   = "counter"
	gauge     = "gauge"
	histogram = "histogram"
)

// A shieldReading is a shield as it is at one moment.
type shieldReading struct {
	*shieldEntry
	now   time.Duration
	stats shield.BackendStats
	shed  loadshed.ConcurrencyStats
	herd  pushback.HerdReport
}

func (s *shieldEntry) reading(now time.Duration) *shieldReading {
	entry := *s
	entry.at = s.inForce() // an override may replace it meanwhile
	return &shieldReading{&entry, now, s.record.Stats(now), s.record.ShedStats(now), s.record.Herd()}
}

type zoneReading struct {
	*zoneEntry
	stats shield.ZoneStats
}

func (z *zoneEntry) reading(now time.Duration) *zoneReading {
	return &zoneReading{z, z.record.Stats(now)}
}

var shieldMetrics = []metricGroup[*shieldReading]{
	{"shield", "", func(*shieldReading) bool { return true }, []metric[*shieldReading]{
		{"caddy_shield_requests_total", counter, []string{"outcome", "reason"}, "Requests by decision: admitted, refused, or observed (admitted, but would have been refused). The reason is the limit that refused: " + reasonNames() + ".",
			func(s *shieldReading, to sink) {
				to.sparse = false
				to.count(s.stats.Admitted, "admitted", shield.None.String())
				for _, reason := range shield.Reasons {
					to.count(s.stats.Refused[reason], "refused", reason.String())
				}
				to.sparse = s.live
				for _, reason := range shield.Reasons {
					to.count(s.stats.Observed[reason], "observed", reason.String())
				}
			}},
		{"caddy_shield_request_duration_seconds", histogram, []string{"outcome", "code"}, "How long requests took, from their arrival to the end of the answer, by decision (admitted or refused) and by the status of the answer: 1xx to 5xx. That of admitted requests is known if the server has access logs, or if the shield has a capacity or concurrency and a reverse_proxy answers; else it is unknown. Upgraded connections and streams count to their end. It has native buckets, and classic ones.",
			func(s *shieldReading, to sink) {
				for outcome := range s.record.durations {
					for class := range s.record.durations[outcome] {
						if h := s.record.durations[outcome][class].Load(); h != nil {
							to.ch <- h.metric(to.desc, to.name, outcomes[outcome], statusClasses[class])
						}
					}
				}
			}},
		{"caddy_shield_overloaded", gauge, nil, "1 while requests are refused, or in observe mode would be, for any reason but quota and per_client, and for 5 s after.",
			func(s *shieldReading, to sink) { to.sparse = false; to.flag(s.record.overloaded()) }},
		{"caddy_shield_overrides", gauge, []string{"kind"}, "Changes by operators that are in force for a while, by kind: block, set, mode.",
			func(s *shieldReading, to sink) {
				for kind, n := range changes.of(s.name) {
					to.set(float64(n), kind)
				}
			}},
		{"caddy_shield_retry_after_seconds", histogram, nil, "Seconds that refused clients were told to wait.",
			func(s *shieldReading, to sink) { to.histogram(s.stats.RetryAfter[:]) }},
		{"caddy_shield_told_never_total", counter, nil, "Refused clients that were told not to come back: see give_up.",
			func(s *shieldReading, to sink) { to.count(s.stats.RetryAfter[0]) }},
		{"caddy_shield_held_refusals", gauge, nil, "Refusals that are held for less than a second before they are sent, at most 10000.",
			func(s *shieldReading, to sink) { to.set(float64(s.stats.Held)) }},
		{"caddy_shield_door_total", counter, []string{"protocol"}, "Refusals that the listener wrapper shield has answered, by protocol: h1, h2. They are also in caddy_shield_requests_total.",
			func(s *shieldReading, to sink) {
				for protocol, n := range s.record.door() {
					to.count(n, protocol)
				}
			}},
		{"caddy_shield_lost_refusals_total", counter, nil, "Refusals whose clients hung up while they were held. Where more than one in 64 is lost, fewer are held.",
			func(s *shieldReading, to sink) { to.count(s.stats.Lost) }},
		{"caddy_shield_clients", gauge, []string{"policy"}, "Remembered clients by how they retry: unknown (not back yet), honours, late, hammer, fixed, exponential, jittered, early. A client over its quota counts once more for each zone.",
			func(s *shieldReading, to sink) {
				for class, n := range s.record.Clients() {
					to.set(float64(n), pushback.Class(class).String())
				}
			}},
		{"caddy_shield_max_clients", gauge, nil, "Refused clients that can be remembered.",
			func(s *shieldReading, to sink) { to.set(float64(s.stats.MaxClients)) }},
		{"caddy_shield_family_refusals_total", counter, []string{"family"}, "Refusals with a time to come back, by client software according to its User-Agent: browser, curl, go, python and others that have been seen.",
			func(s *shieldReading, to sink) {
				for family, f := range s.families() {
					to.count(f.Told, family)
				}
			}},
		{"caddy_shield_family_returns_total", counter, []string{"family", "outcome"}, "Returns of refused clients by client software: kept (at the time that they were told), late or early.",
			func(s *shieldReading, to sink) {
				for family, f := range s.families() {
					to.outcomes(map[string]uint64{"kept": f.Kept, "late": f.Late, "early": f.Early}, family)
				}
			}},
	}},
	{"shield", "`concurrency`", (*shieldReading).concurrent, []metric[*shieldReading]{
		{"caddy_shield_in_flight_requests", gauge, nil, "Requests in flight.",
			func(s *shieldReading, to sink) { to.sparse = false; to.set(float64(s.stats.InFlight)) }},
		{"caddy_shield_concurrency_limit_requests", gauge, nil, "Requests that may be in flight now.",
			func(s *shieldReading, to sink) { to.sparse = false; to.set(float64(s.guard().Limit())) }},
		{"caddy_shield_backend_failures_total", counter, nil, "Admitted requests that the backend refused or that could not be passed to it: 502, 503.",
			func(s *shieldReading, to sink) { to.count(s.shed.Failed) }},
		{"caddy_shield_ghost_requests", gauge, nil, "Orphaned requests: the client is gone, but the request still counts as in flight, because the backend works on it.",
			func(s *shieldReading, to sink) { to.set(float64(s.shed.Orphans)) }},
	}},
	{"shield", "`concurrency adaptive` or `slo`", (*shieldReading).adaptive, []metric[*shieldReading]{
		{"caddy_shield_concurrency_changes_total", counter, []string{"reason"}, "Changes of the limit in flight, by reason.",
			func(s *shieldReading, to sink) {
				for reason, n := range s.shed.Changes {
					to.count(n, reason.String())
				}
			}},
		{"caddy_shield_concurrency_latency_seconds", gauge, nil, "Mean latency of the backend when the limit in flight last changed.",
			func(s *shieldReading, to sink) { to.set(s.shed.Last.Latency.Seconds()) }},
		{"caddy_shield_concurrency_baseline_seconds", gauge, nil, "The same without queueing in the backend, as estimated. 0: not known.",
			func(s *shieldReading, to sink) { to.set(s.shed.Last.Baseline.Seconds()) }},
	}},
	{"shield", "`queue`", func(s *shieldReading) bool { return s.guard().QueueSize() > 0 }, []metric[*shieldReading]{
		{"caddy_shield_queue_requests", gauge, nil, "Requests in the queue.",
			func(s *shieldReading, to sink) { to.set(float64(s.shed.Queue.Length)) }},
		{"caddy_shield_queue_waits_total", counter, []string{"outcome"}, "Requests that have left the queue: admitted, timeout, dropped (for one of a higher class), or gone (the client).",
			func(s *shieldReading, to sink) {
				q := s.shed.Queue
				to.outcomes(map[string]uint64{"admitted": q.Granted, "timeout": q.Expired, "dropped": q.Dropped, "gone": q.Gone})
			}},
		{"caddy_shield_queue_wait_seconds_total", counter, nil, "Total time that requests have spent in the queue.",
			func(s *shieldReading, to sink) { to.set(s.shed.Queue.Waited.Seconds()) }},
	}},
	{"shield", "`class`", func(s *shieldReading) bool { return s.config().Classes != nil }, []metric[*shieldReading]{
		{"caddy_shield_class_requests_total", counter, []string{"class", "outcome"}, "Requests by the class that they were treated as and by decision: admitted, refused or observed.",
			func(s *shieldReading, to sink) {
				for _, class := range s.guard().ClassStats() {
					to.outcomes(map[string]uint64{"admitted": class.Admitted, "refused": class.Refused, "observed": class.Observed}, class.Name)
				}
			}},
	}},
	{"shield", "`capacity` or `concurrency`", (*shieldReading).limited, []metric[*shieldReading]{
		{"caddy_shield_paused", gauge, nil, "1 during a pause that the backend has asked for.",
			func(s *shieldReading, to sink) { to.flag(s.shed.Paused > 0) }},
		{"caddy_shield_pauses_total", counter, nil, "Pauses that the backend has asked for.",
			func(s *shieldReading, to sink) { to.count(s.shed.Pauses) }},
		{"caddy_shield_backlog_seconds", gauge, nil, "Time until the last appointment.",
			func(s *shieldReading, to sink) { to.set(s.stats.Backlog.Seconds()) }},
		{"caddy_shield_deferred_clients", gauge, nil, "Refused clients without an appointment, because no time within pushback max is free.",
			func(s *shieldReading, to sink) { to.set(float64(s.stats.Deferred)) }},
		{"caddy_shield_spare_requests_per_second", gauge, nil, "Refused clients per second that the backend can serve in addition to new requests.",
			func(s *shieldReading, to sink) { to.set(s.guard().Spare()) }},
		{"caddy_shield_promises_total", counter, nil, "Appointments made.",
			func(s *shieldReading, to sink) { to.count(s.stats.Promises.Made) }},
		{"caddy_shield_promise_outcomes_total", counter, []string{"outcome"}, "Appointments by what became of them. Kept: the client came in time. No_show: it did not come within a second. Late: it came after that, counted as no_show, too. Early: it was admitted before. Broken: it came in time and was refused again.",
			func(s *shieldReading, to sink) {
				p := s.stats.Promises
				to.outcomes(map[string]uint64{"kept": p.Kept, "no_show": p.NoShow, "late": p.Late, "early": s.stats.EarlyAdmitted, "broken": s.stats.Broken})
			}},
		{"caddy_shield_deferrals_total", counter, nil, "Times that clients were told to come back for an appointment.",
			func(s *shieldReading, to sink) { to.count(s.stats.Promises.Deferred) }},
		{"caddy_shield_kept_ratio", gauge, nil, "Share of appointments for which clients are expected to come, at least 0.005. It is measured with clients that have not come back before, and late ones count as soon as they come. Without a backlog it goes back to 1 within two minutes. The rest are promised to others, too.",
			func(s *shieldReading, to sink) { to.set(s.stats.KeptShare) }},
	}},
	{"shield", "`retries { tickets on }`", func(s *shieldReading) bool { return s.guard().Tickets() }, []metric[*shieldReading]{
		{"caddy_shield_tickets_total", counter, []string{"outcome"}, "Tickets of unknown clients: honoured, or worthless (forged, of another client or shield, used or too old).",
			func(s *shieldReading, to sink) {
				to.outcomes(map[string]uint64{"honoured": s.stats.Redeemed, "worthless": s.stats.Worthless})
			}},
	}},
	{"shield", "`store`", func(s *shieldReading) bool { return s.config().Secret != nil }, []metric[*shieldReading]{
		{"caddy_shield_store_waits_total", counter, []string{"outcome"}, "Requests that waited for the store, for 25 ms at most, because this replica had no token: granted, empty (the store had none either) or timeout.",
			func(s *shieldReading, to sink) {
				w := s.stats.StoreWaits
				to.outcomes(map[string]uint64{"granted": w.Granted, "empty": w.Empty, "timeout": w.Timeout})
			}},
	}},
	{"shield", "`herd { detect on }`", func(s *shieldReading) bool { return s.guard().DetectsHerds() }, []metric[*shieldReading]{
		{"caddy_shield_herd", gauge, []string{"kind"}, "1 while there is a herd of this kind. Backlog: many clients came at once and have appointments. Periodic: requests come in pulses. Echo: clients retry at a fixed interval.",
			func(s *shieldReading, to sink) {
				for _, kind := range []pushback.HerdKind{pushback.BacklogHerd, pushback.PeriodicHerd, pushback.EchoHerd} {
					to.flag(s.herd.Kind == kind, kind.String())
				}
			}},
		{"caddy_shield_herd_size_requests", gauge, nil, "Size of the herd: the clients of a backlog, the requests in one pulse of the other kinds.",
			func(s *shieldReading, to sink) { to.set(s.herd.Size) }},
		{"caddy_shield_herd_q", gauge, []string{"period"}, "How closely arrivals follow a period, in coherent cycles: above 7 is a herd, 16 the most.",
			func(s *shieldReading, to sink) {
				for i, q := range s.herd.Q {
					to.set(q, pushback.HerdPeriods[i].String())
				}
			}},
		{"caddy_shield_herd_allan_ratio", gauge, []string{"scale"}, "Burstiness of arrivals at a time scale, relative to their last hour: above 2 is unusual.",
			func(s *shieldReading, to sink) {
				for i, ratio := range s.herd.AllanRatio {
					to.set(ratio, pushback.HerdAllanScales[i].String())
				}
			}},
		{"caddy_shield_herd_cusum", gauge, nil, "Cumulative sum of the rise of arrivals, in standard deviations: above 14 is unusual.",
			func(s *shieldReading, to sink) { to.set(s.herd.CUSUM) }},
		{"caddy_shield_herd_distinct_ratio", gauge, nil, "Clients per refusal in the last one or two minutes: about 1 in a herd, about 0 if one client hammers.",
			func(s *shieldReading, to sink) {
				to.set(min(1, float64(s.herd.Distinct)/float64(max(1, s.herd.Requests))))
			}},
	}},
}

var zoneMetrics = []metricGroup[*zoneReading]{
	{"zone", "", func(*zoneReading) bool { return true }, []metric[*zoneReading]{
		{"caddy_shield_zone_requests_total", counter, []string{"outcome"}, "Requests that the zone counted, by decision: admitted, refused by this zone, or observed.",
			func(z *zoneReading, to sink) {
				to.outcomes(map[string]uint64{"admitted": z.stats.Admitted, "refused": z.stats.Refused, "observed": z.stats.Observed})
			}},
		{"caddy_shield_zone_keys", gauge, nil, "Clients that the zone remembers because their quota is not full.",
			func(z *zoneReading, to sink) { to.set(float64(z.stats.Keys)) }},
		{"caddy_shield_zone_max_keys", gauge, nil, "Clients that the zone can remember.",
			func(z *zoneReading, to sink) { to.set(float64(z.maxKeys())) }},
		{"caddy_shield_zone_evictions_total", counter, nil, "Clients forgotten before their quota was full. Raise max_keys.",
			func(z *zoneReading, to sink) { to.count(z.stats.Evicted) }},
		{"caddy_shield_zone_shared_requests_total", counter, nil, "Requests of clients that share a bucket because the zone is full. Raise max_keys.",
			func(z *zoneReading, to sink) { to.count(z.stats.Shared) }},
	}},
}

// buildMetrics are about the program.
var buildMetrics = []metricGroup[buildReading]{
	{"", "", func(buildReading) bool { return true }, []metric[buildReading]{
		{"caddy_shield_build_info", gauge, []string{"version", "goversion"}, "1, with the version of shield, as far as the build knows it, and that of Go.",
			func(b buildReading, to sink) {
				to.ch <- prometheus.MustNewConstMetric(to.desc, prometheus.GaugeValue, 1, b.version, b.goVersion)
			}},
	}},
}

// A buildReading is what the program says of itself.
type buildReading struct{ version, goVersion string }

// build is that of this program.
var build = sync.OnceValue(func() buildReading {
	is := buildReading{"unknown", runtime.Version()}
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return is
	}
	for _, m := range append(info.Deps, &info.Main) {
		if m.Path == "github.com/herdshield/shield" && m.Version != "" {
			is.version = m.Version
		}
	}
	return is
})

// hintBuckets are the upper bounds of the histogram of waits, in seconds.
var hintBuckets = []int{1, 2, 3, 5, 8, 13, 21, 30, 45, 59}

// reasonNames lists the reasons for a refusal.
func reasonNames() string {
	var names []string
	for _, reason := range shield.Reasons {
		names = append(names, reason.String())
	}
	return strings.Join(names, ", ")
}

// families returns the client software that has been seen, by name.
func (s *shieldReading) families() map[string]pushback.FamilyStats {
	seen := map[string]pushback.FamilyStats{}
	for i, f := range s.stats.Families {
		if f != (pushback.FamilyStats{}) {
			seen[pushback.Family(i).String()] = f
		}
	}
	return seen
}

var descs = map[string]*prometheus.Desc{}

func init() {
	describe(shieldMetrics)
	describe(zoneMetrics)
	describe(buildMetrics)
	describe(storeMetrics)
	describe(backendStoreMetrics)
	describe(zoneStoreMetrics)
}

func describe[S any](groups []metricGroup[S]) {
	for _, g := range groups {
		for _, m := range g.metrics {
			descs[m.name] = prometheus.NewDesc(m.name, m.help, labels(g.label, m.labels), nil)
		}
	}
}

// labels returns the labels of a metric, or their values: first that of the group, if it has one.
func labels(first string, others []string) []string {
	if first == "" {
		return others
	}
	return append([]string{first}, others...)
}

// collector implements prometheus.Collector for the shields and zones of one App.
type collector struct{ *App }

// Describe implements prometheus.Collector.
func (collector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range descs {
		ch <- d
	}
}

// Collect implements prometheus.Collector.
func (c collector) Collect(ch chan<- prometheus.Metric) {
	now, all := shield.Now(), c.roster()
	collect(ch, buildMetrics, build(), "", false)
	for _, s := range all.shields {
		collect(ch, shieldMetrics, s.reading(now), s.name, s.live)
	}
	for _, z := range all.zones {
		collect(ch, zoneMetrics, z.reading(now), z.record.shown, false)
	}
	if s := c.storeReading(); s != nil {
		collect(ch, storeMetrics, s, "", false)
		for _, b := range s.Backends {
			collect(ch, backendStoreMetrics, b, b.Name, false)
		}
		for _, z := range s.Zones {
			collect(ch, zoneStoreMetrics, z, z.Name, false)
		}
	}
}

func collect[S any](ch chan<- prometheus.Metric, groups []metricGroup[S], reading S, name string, sparse bool) {
	for _, g := range groups {
		if !g.has(reading) {
			continue
		}
		for _, m := range g.metrics {
			m.read(reading, sink{ch, descs[m.name], m.kind, name, sparse})
		}
	}
}

// A sink takes the values of one metric of one shield or zone.
type sink struct {
	ch   chan<- prometheus.Metric
	desc *prometheus.Desc
	kind string
	name string

	// sparse leaves out what is 0: there may be a thousand Live shields, most of them idle.
	sparse bool
}

func (to sink) set(v float64, others ...string) {
	kind := prometheus.GaugeValue
	if to.kind == counter {
		kind = prometheus.CounterValue
	}
	if v != 0 || !to.sparse {
		to.ch <- prometheus.MustNewConstMetric(to.desc, kind, v, labels(to.name, others)...)
	}
}

func (to sink) count(n uint64, labels ...string) { to.set(float64(n), labels...) }

func (to sink) flag(is bool, labels ...string) {
	v := 0.0
	if is {
		v = 1
	}
	to.set(v, labels...)
}

// outcomes takes counts by the last label.
func (to sink) outcomes(counts map[string]uint64, labels ...string) {
	for outcome, n := range counts {
		to.count(n, append(labels, outcome)...)
	}
}

// histogram takes how many refused clients were told to wait for 1, 2, ... seconds. The
// clients at index 0 were told not to come back, which is no wait.
func (to sink) histogram(clients []uint64) {
	buckets := map[float64]uint64{}
	count, sum := uint64(0), uint64(0)
	for seconds := 1; seconds < len(clients); seconds++ {
		count += clients[seconds]
		sum += clients[seconds] * uint64(seconds)
		if slices.Contains(hintBuckets, seconds) {
			buckets[float64(seconds)] = count
		}
	}
	if count != 0 || !to.sparse {
		to.ch <- prometheus.MustNewConstHistogram(to.desc, count, float64(sum), buckets, to.name)
	}
}
