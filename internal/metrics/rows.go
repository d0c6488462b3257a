package metrics

import (
	"strings"
	"time"

	"github.com/herdshield/shield"
	"github.com/herdshield/shield/pushback"
)

// A Reading is a Guard as it is at one moment, and what its config says of it.
type Reading struct {
	Guard *shield.Guard
	Stats shield.BackendStats

	Concurrent bool // it has a limit in flight
	Limited    bool // it has that, or a capacity
}

func Read(g *shield.Guard, now time.Duration) *Reading {
	stats := g.Backend().Stats(now)
	return &Reading{Guard: g, Stats: stats, Concurrent: true, Limited: true}
}

// Shields has the metrics of a shield that its Guard knows of.
var Shields = []Group[*Reading]{
	{Label: "shield", Rows: []Row[*Reading]{
		Counter("requests_total", []string{"outcome", "reason"}, "Requests by decision: admitted, rejected, or observed (admitted, but would have been rejected). The reason is the limit that rejects: "+reasonNames()+".",
			func(s *Reading, to Sink) {
				to.Always().Count(s.Stats.Admitted, "admitted", shield.None.String())
				for _, reason := range shield.Reasons {
					to.Always().Count(s.Stats.Rejected[reason], "rejected", reason.String())
					to.Count(s.Stats.Observed[reason], "observed", reason.String())
				}
			}),
		Counter("preflights_total", nil, "CORS preflights that passed. No limit applies to them, and only request_duration_seconds includes them.",
			func(s *Reading, to Sink) { to.Count(s.Stats.Preflights) }),
		Histogram("retry_after_seconds", nil, "Retry-After of rejected clients, in seconds.",
			func(s *Reading, to Sink) { to.waits(s.Stats.RetryAfter[:]) }),
		Counter("told_never_total", nil, "Rejected clients asked not to retry at all: see give_up.",
			func(s *Reading, to Sink) { to.Count(s.Stats.RetryAfter[0]) }),
		Gauge("held_rejections", nil, "Rejections being delayed by up to a second, at most 10000.",
			func(s *Reading, to Sink) { to.Set(float64(s.Stats.Held)) }),
		Counter("lost_rejections_total", nil, "Delayed rejections never sent because the client had disconnected. If that happens to more than one in 64, fewer are delayed.",
			func(s *Reading, to Sink) { to.Count(s.Stats.Lost) }),
		Gauge("clients", []string{"policy"}, "Remembered clients by how they retry: unknown (not back yet), honors (on time), late, hammer (immediately), early (within two seconds), own (too early, at a time of their own).",
			func(s *Reading, to Sink) {
				for class, n := range s.Guard.Backend().Clients() {
					to.Set(float64(n), pushback.Class(class).String())
				}
			}),
		Gauge("herd", []string{"kind"}, "1 while there is a herd of this kind: backlog (many arrived together) or periodic (requests in pulses).",
			func(s *Reading, to Sink) {
				for _, kind := range []pushback.HerdKind{pushback.BacklogHerd, pushback.PeriodicHerd} {
					to.Flag(s.Stats.Herd.Kind == kind, kind.String())
				}
			}),
		Gauge("herd_size_requests", nil, "Size of the herd: rejected clients yet to return, or requests per pulse.",
			func(s *Reading, to Sink) { to.Set(s.Stats.Herd.Size) }),
		Gauge("max_clients", nil, "Clients the shield can remember.",
			func(s *Reading, to Sink) { to.Set(float64(s.Stats.MaxClients)) }),
		Counter("family_rejections_total", []string{"family"}, "Rejections with a Retry-After, by client software according to the User-Agent: browser, curl, go, python, and others seen so far.",
			func(s *Reading, to Sink) {
				for family, f := range s.Families() {
					to.Count(f.Told, family)
				}
			}),
		Counter("family_returns_total", []string{"family", "outcome"}, "Returns of rejected clients by client software: kept (on time), late, or early.",
			func(s *Reading, to Sink) {
				for family, f := range s.Families() {
					to.Outcomes(map[string]uint64{"kept": f.Kept, "late": f.Late, "early": f.Early}, family)
				}
			}),
	}},
	{Label: "shield", With: "`concurrency`", Has: func(s *Reading) bool { return s.Concurrent }, Rows: []Row[*Reading]{
		Gauge("in_flight_requests", nil, "Permits in use: requests in flight, each counted by its weight.",
			func(s *Reading, to Sink) { to.Always().Set(float64(s.Stats.InFlight)) }),
		Gauge("concurrency_limit_requests", nil, "The in-flight limit: permits available in total.",
			func(s *Reading, to Sink) { to.Always().Set(float64(s.Guard.Limit())) }),
		Counter("backend_failures_total", nil, "Admitted requests that the backend rejected or that did not reach it: 502, 503.",
			func(s *Reading, to Sink) { to.Count(s.Stats.Failed) }),
		Gauge("disconnected_requests", nil, "Requests in flight whose client has disconnected while the backend is still working on them.",
			func(s *Reading, to Sink) { to.Set(float64(s.Stats.Disconnected)) }),
	}},
	{Label: "shield", With: "`concurrency adaptive` or `slo`", Has: func(s *Reading) bool { _, adaptive := s.Guard.Plan().Most(); return adaptive > 0 }, Rows: []Row[*Reading]{
		Counter("concurrency_changes_total", []string{"reason"}, "Changes of the in-flight limit, by reason.",
			func(s *Reading, to Sink) {
				for reason, n := range s.Stats.Changes {
					to.Count(n, reason.String())
				}
			}),
		Gauge("concurrency_latency_seconds", nil, "Mean latency of the backend at the last change of the in-flight limit.",
			func(s *Reading, to Sink) { to.Set(s.Stats.Last.Latency.Seconds()) }),
		Gauge("concurrency_baseline_seconds", nil, "Estimated latency without queueing in the backend. 0: unknown.",
			func(s *Reading, to Sink) { to.Set(s.Stats.Last.Baseline.Seconds()) }),
	}},
	{Label: "shield", With: "`queue`", Has: func(s *Reading) bool { return s.Guard.Plan().QueueSize() > 0 }, Rows: []Row[*Reading]{
		Gauge("queue_requests", nil, "Requests in the queue.",
			func(s *Reading, to Sink) { to.Set(float64(s.Stats.Queue.Length)) }),
		Counter("queue_waits_total", []string{"outcome"}, "Requests that left the queue: admitted, timeout, dropped (for one of a higher class), or gone (the client disconnected).",
			func(s *Reading, to Sink) {
				q := s.Stats.Queue
				to.Outcomes(map[string]uint64{"admitted": q.Granted, "timeout": q.Expired, "dropped": q.Dropped, "gone": q.Gone})
			}),
		Counter("queue_wait_seconds_total", nil, "Total time spent in the queue.",
			func(s *Reading, to Sink) { to.Set(s.Stats.Queue.Waited.Seconds()) }),
	}},
	{Label: "shield", With: "`class`", Has: func(s *Reading) bool { return s.Guard.Plan().Classes().Len() > 1 }, Rows: []Row[*Reading]{
		Counter("class_requests_total", []string{"class", "outcome"}, "Requests by the class they were treated as, and by decision: admitted, rejected, or observed.",
			func(s *Reading, to Sink) {
				for _, class := range s.Guard.ClassStats() {
					to.Outcomes(map[string]uint64{"admitted": class.Admitted, "rejected": class.Rejected, "observed": class.Observed}, class.Name)
				}
			}),
	}},
	{Label: "shield", With: "`capacity` or `concurrency`", Has: func(s *Reading) bool { return s.Limited }, Rows: []Row[*Reading]{
		Gauge("paused", nil, "1 during a pause that the backend asked for.",
			func(s *Reading, to Sink) { to.Flag(s.Stats.Paused > 0) }),
		Counter("pauses_total", nil, "Pauses that the backend asked for.",
			func(s *Reading, to Sink) { to.Count(s.Stats.Pauses) }),
		Gauge("backlog_seconds", nil, "Time until the last appointment.",
			func(s *Reading, to Sink) { to.Set(s.Stats.Backlog.Seconds()) }),
		Gauge("deferred_clients", nil, "Rejected clients without an appointment, because none is free within pushback max.",
			func(s *Reading, to Sink) { to.Set(float64(s.Stats.Deferred)) }),
		Gauge("spare_requests_per_second", nil, "Headroom: rejected clients per second that the backend can serve in addition to new requests.",
			func(s *Reading, to Sink) { to.Set(s.Guard.Spare()) }),
		Counter("appointments_total", nil, "Appointments made.",
			func(s *Reading, to Sink) { to.Count(s.Stats.Promises.Made) }),
		Counter("appointment_outcomes_total", []string{"outcome"}, "Appointments by outcome: kept (on time), no_show (not within a second), late (after that), early (admitted before it), or broken (on time, but rejected again).",
			func(s *Reading, to Sink) {
				p := s.Stats.Promises
				to.Outcomes(map[string]uint64{"kept": p.Kept, "no_show": p.NoShow, "late": p.Late, "early": s.Stats.EarlyAdmitted, "broken": s.Stats.Broken})
			}),
		Counter("deferrals_total", nil, "Rejections without an appointment, asking the client to return for one.",
			func(s *Reading, to Sink) { to.Count(s.Stats.Promises.Deferred) }),
		Gauge("kept_ratio", nil, "Share of appointments that clients are expected to keep, at least 0.005.",
			func(s *Reading, to Sink) { to.Set(s.Stats.KeptShare) }),
	}},
	{Label: "shield", With: "`retries { tickets on }`", Has: func(s *Reading) bool { return s.Guard.Tickets() }, Rows: []Row[*Reading]{
		Counter("tickets_total", []string{"outcome"}, "Tickets from unknown clients: honored, or worthless (forged, used, too old, or from another client or shield).",
			func(s *Reading, to Sink) {
				to.Outcomes(map[string]uint64{"honored": s.Stats.Redeemed, "worthless": s.Stats.Worthless})
			}),
	}},
}

// Zones has the metrics of a zone.
var Zones = []Group[*shield.ZoneStats]{
	{Label: "zone", Rows: []Row[*shield.ZoneStats]{
		Counter("zone_requests_total", []string{"outcome"}, "Requests counted by the zone, by decision: admitted, rejected by this zone, or observed.",
			func(z *shield.ZoneStats, to Sink) {
				to.Outcomes(map[string]uint64{"admitted": z.Admitted, "rejected": z.Rejected, "observed": z.Observed})
			}),
		Gauge("zone_keys", nil, "Clients remembered for having used some of their quota.",
			func(z *shield.ZoneStats, to Sink) { to.Set(float64(z.Keys)) }),
		Gauge("zone_max_keys", nil, "Clients the zone can remember.",
			func(z *shield.ZoneStats, to Sink) { to.Set(float64(z.MaxKeys)) }),
		Counter("zone_evictions_total", nil, "Clients forgotten before their quota was full. Raise max_keys.",
			func(z *shield.ZoneStats, to Sink) { to.Count(z.Evicted) }),
		Counter("zone_shared_requests_total", nil, "Requests from clients that share a bucket because the zone is full. Raise max_keys.",
			func(z *shield.ZoneStats, to Sink) { to.Count(z.Shared) }),
	}},
	{Label: "zone", With: "costs read from requests or responses", Has: func(z *shield.ZoneStats) bool { return z.Varies }, Rows: []Row[*shield.ZoneStats]{
		Counter("zone_unknown_total", nil, "Requests or responses without the expected cost or rate. What was charged up front stands.",
			func(z *shield.ZoneStats, to Sink) { to.Count(z.Unknown) }),
	}},
	{Label: "zone", With: "`store`", Has: func(z *shield.ZoneStats) bool { return z.Replicas > 0 }, Rows: []Row[*shield.ZoneStats]{
		Gauge("store_hot_keys", nil, "Clients that use much of their quota and draw tokens from the store.",
			func(z *shield.ZoneStats, to Sink) { to.Set(float64(z.Hot)) }),
	}},
}

// HintBuckets are the upper bounds of the histogram of waits, in seconds.
var HintBuckets = []int{1, 2, 3, 5, 8, 13, 21, 30, 45, 59}

func reasonNames() string {
	var names []string
	for _, reason := range shield.Reasons {
		names = append(names, reason.String())
	}
	return strings.Join(names, ", ")
}

// Families returns the client software that has been seen, by name.
func (s *Reading) Families() map[string]pushback.FamilyStats {
	seen := map[string]pushback.FamilyStats{}
	for i, f := range s.Stats.Families {
		if f != (pushback.FamilyStats{}) {
			seen[pushback.Family(i).String()] = f
		}
	}
	return seen
}
