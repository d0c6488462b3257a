package caddymodule

import (
	"cmp"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/herdshield/shield"
	"github.com/herdshield/shield/caddymodule/store"
	"github.com/herdshield/shield/internal/metrics"
)

// A shieldReading is a shield as it is at one moment.
type shieldReading struct {
	*Handler
	metrics.Reading
	is  *inForce // an override may replace it meanwhile
	now time.Duration
}

func (h *Handler) reading(now time.Duration) *shieldReading {
	is := h.force.Load()
	plan := is.guard.Plan()
	return &shieldReading{h, metrics.Reading{
		Guard: is.guard, Stats: h.record.Stats(now), Concurrent: plan.Limits() || plan.PerClient > 0, Limited: h.tracks,
	}, is, now}
}

func (z *handlerZone) reading(now time.Duration) *shield.ZoneStats {
	stats := z.record.Stats(now)
	stats.MaxKeys = z.maxKeys()
	return &stats
}

// ownMetrics are those of a shield that its Guard does not know of. The others are [metrics.Shields].
var ownMetrics = []metrics.Group[*shieldReading]{
	{Topic: "Requests", Label: "shield", Rows: []metrics.Row[*shieldReading]{
		metrics.Histogram("request_duration_seconds", []string{"outcome", "code"}, durationOpts.Help,
			func(s *shieldReading, to metrics.Sink) {
				for outcome := range s.record.durations {
					for class := range s.record.durations[outcome] {
						if h := s.record.durations[outcome][class].Load(); h != nil {
							to.Send(*h)
						}
					}
				}
			}),
	}},
	{Topic: "Rejections", Label: "shield", Rows: []metrics.Row[*shieldReading]{
		metrics.Gauge("overloaded", nil, "1 during an overload. It begins with the first rejection for lack of room in the backend (any reason but quota, per_client, and blocked). It ends 5 s after the last such rejection, or 5 s after the end of the backlog if that's later.",
			func(s *shieldReading, to metrics.Sink) { to.Always().Flag(s.record.inOverload(s.now)) }),
		metrics.Counter("fast_rejects_total", []string{"protocol"}, "Fast rejects by protocol: h1 or h2. They are also in caddy_shield_requests_total.",
			func(s *shieldReading, to metrics.Sink) {
				for protocol, n := range s.record.door() {
					to.Count(n, protocol)
				}
			}),
	}},
	{Topic: "Process", Label: "shield", Rows: []metrics.Row[*shieldReading]{
		metrics.Gauge("overrides", []string{"kind"}, "Active overrides by kind: block, set, or mode.",
			func(s *shieldReading, to metrics.Sink) {
				for kind, n := range s.overrides() {
					to.Set(float64(n), kind)
				}
			}),
	}},
}

// buildMetrics are about the program.
var buildMetrics = []metrics.Group[string]{
	{Topic: "Process", Rows: []metrics.Row[string]{
		metrics.Gauge("build_info", []string{"version", "goversion"}, "Always 1. The labels are the versions of shield, or `unknown`, and of Go.",
			func(version string, to metrics.Sink) { to.Set(1, version, runtime.Version()) }),
	}},
}

var descs = metrics.Descs{}

func init() {
	metrics.Describe(descs, metrics.Prefix, metrics.Shields, nil)
	metrics.Describe(descs, metrics.Prefix, ownMetrics, nil)
	metrics.Describe(descs, metrics.Prefix, metrics.Zones, nil)
	metrics.Describe(descs, metrics.Prefix, buildMetrics, nil)
	metrics.Describe(descs, metrics.Prefix, stateMetrics, nil)
	metrics.Describe(descs, metrics.Prefix, store.Metrics, nil)
	for _, groups := range store.SharedMetrics {
		metrics.Describe(descs, metrics.Prefix, groups, nil)
	}
}

// collector implements prometheus.Collector for the shields and zones of one App.
type collector struct{ *App }

func (collector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range descs {
		ch <- d
	}
}

func (c collector) Collect(ch chan<- prometheus.Metric) {
	now := shield.Now()
	shields, zones := c.roster()
	metrics.Collect(ch, descs, buildMetrics, Version(), "", false)
	for _, s := range shields {
		r := s.reading(now)
		metrics.Collect(ch, descs, metrics.Shields, &r.Reading, s.Name, s.live)
		metrics.Collect(ch, descs, ownMetrics, r, s.Name, s.live)
	}
	for _, z := range zones {
		metrics.Collect(ch, descs, metrics.Zones, z.reading(now), z.record.shown, false)
	}
	if c.keeper != nil {
		metrics.Collect(ch, descs, stateMetrics, c.keeper, "", false)
	}
	if c.shares != nil {
		metrics.Collect(ch, descs, store.Metrics, c.shares, "", false)
		for _, of := range c.shares.Status().Shared {
			metrics.Collect(ch, descs, store.SharedMetrics[of.Kind], of, of.Name, false)
		}
	}
}

// Version is that of shield in this program, as Go has written it into it: v0.1.0, or Go's pseudo-version between
// releases, with +dirty after changes; "(devel)" without a repository, "unknown" if the build does not know it.
var Version = sync.OnceValue(func() string {
	info, _ := debug.ReadBuildInfo()
	return versionIn(cmp.Or(info, new(debug.BuildInfo)))
})

func versionIn(info *debug.BuildInfo) string {
	const path = "github.com/herdshield/shield"
	is := ""
	if info.Main.Path == path || strings.HasPrefix(info.Main.Path, path+"/") { // one of its own modules
		is = info.Main.Version
	} else if i := slices.IndexFunc(info.Deps, func(m *debug.Module) bool { return m.Path == path }); i >= 0 {
		is = info.Deps[i].Version
	}
	return cmp.Or(is, "unknown")
}
