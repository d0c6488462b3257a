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
	{Topic: "Requests", Label: "shield", Rows: []Row[*Reading]{
		Counter("requests_total", []string{"outcome", "reason"}, "Requests by decision: admitted, rejected, or observed (admitted only because of observe mode). The reason names the limit: "+reasonNames()+".",
			func(s *Reading, to Sink) {
				to.Always().Count(s.Stats.Admitted, "admitted", shield.None.String())
				for _, reason := range shield.Reasons {
					to.Always().Count(s.Stats.Rejected[reason], "rejected", reason.String())
					to.Count(s.Stats.Observed[reason], "observed", reason.String())
				}
			}),
		Counter("preflights_total", nil, "CORS preflights that passed without counting against a limit. Of the other metrics, only request_duration_seconds includes them.",
			func(s *Reading, to Sink) { to.Count(s.Stats.Preflights) }),
	}},
	{Topic: "Requests", Label: "shield", With: "`class`", Has: func(s *Reading) bool { return len(s.Guard.Plan().Classes) > 1 }, Rows: []Row[*Reading]{
		Counter("class_requests_total", []string{"class", "outcome"}, "Requests by effective class and by decision: admitted, rejected, or observed.",
			func(s *Reading, to Sink) {
				for _, class := range s.Guard.ClassStats() {
					to.Outcomes(map[string]uint64{"admitted": class.Admitted, "rejected": class.Rejected, "observed": class.Observed}, class.Name)
				}
			}),
	}},
	{Topic: "Rejections", Label: "shield", Rows: []Row[*Reading]{
		Histogram("retry_after_seconds", nil, "Retry-After that rejected clients got, in seconds.",
			func(s *Reading, to Sink) { to.waits(s.Stats.RetryAfter[:]) }),
		Counter("told_never_total", nil, "Rejected clients that were asked not to retry at all, because of give_up.",
			func(s *Reading, to Sink) { to.Count(s.Stats.RetryAfter[0]) }),
		Gauge("held_rejections", nil, "Delayed rejections that haven't been sent yet. There are at most 10000.",
			func(s *Reading, to Sink) { to.Set(float64(s.Stats.Held)) }),
		Counter("lost_rejections_total", nil, "Delayed rejections that were never sent, because the client had disconnected. If more than one in 64 are lost, shield delays fewer.",
			func(s *Reading, to Sink) { to.Count(s.Stats.Lost) }),
	}},
	{Topic: "Rejected clients", Label: "shield", Rows: []Row[*Reading]{
		Gauge("clients", []string{"policy"}, "Clients that shield remembers, by kind: unknown, honors, late, hammer, early, or own. A client counts once more for each zone whose quota it exceeds.",
			func(s *Reading, to Sink) {
				for class, n := range s.Guard.Backend().Clients() {
					to.Set(float64(n), pushback.Class(class).String())
				}
			}),
		Gauge("max_clients", nil, "Clients that shield can remember.",
			func(s *Reading, to Sink) { to.Set(float64(s.Stats.MaxClients)) }),
		Counter("family_rejections_total", []string{"family"}, "Rejections with a Retry-After, by client software: browser, curl, go, python, and others seen so far, according to the User-Agent.",
			func(s *Reading, to Sink) {
				for family, f := range s.Families() {
					to.Count(f.Told, family)
				}
			}),
		Counter("family_returns_total", []string{"family", "outcome"}, "Returns of rejected clients, by client software and by outcome: kept, late (by over 1.1 s plus a quarter of the wait), or early.",
			func(s *Reading, to Sink) {
				for family, f := range s.Families() {
					to.Outcomes(map[string]uint64{"kept": f.Kept, "late": f.Late, "early": f.Early}, family)
				}
			}),
		Gauge("herd", []string{"kind"}, "1 while there is a herd of this kind: backlog (many clients arrived together) or periodic (pulses: requests arrive together at a fixed interval).",
			func(s *Reading, to Sink) {
				for _, kind := range []pushback.HerdKind{pushback.BacklogHerd, pushback.PeriodicHerd} {
					to.Flag(s.Stats.Herd.Kind == kind, kind.String())
				}
			}),
		Gauge("herd_size_requests", nil, "Size of the herd: rejected clients that have yet to return, or requests per pulse.",
			func(s *Reading, to Sink) { to.Set(s.Stats.Herd.Size) }),
	}},
	{Topic: "Rejected clients", Label: "shield", With: "`retries { tickets on }`", Has: func(s *Reading) bool { return s.Guard.Tickets() }, Rows: []Row[*Reading]{
		Counter("tickets_total", []string{"outcome"}, "Tickets from unknown clients: honored, or worthless (forged, used, too old, or issued to another client or by another shield).",
			func(s *Reading, to Sink) {
				to.Outcomes(map[string]uint64{"honored": s.Stats.Redeemed, "worthless": s.Stats.Worthless})
			}),
	}},
	{Topic: "Backend and in-flight limit", Label: "shield", With: "`concurrency`", Has: func(s *Reading) bool { return s.Concurrent }, Rows: []Row[*Reading]{
		Gauge("in_flight_requests", nil, "Permits in use. Each request in flight holds as many as its weight.",
			func(s *Reading, to Sink) { to.Always().Set(float64(s.Stats.InFlight)) }),
		Gauge("concurrency_limit_requests", nil, "In-flight limit: how many permits there are.",
			func(s *Reading, to Sink) { to.Always().Set(float64(s.Guard.Limit())) }),
		Counter("backend_failures_total", nil, "Admitted requests that failed: the backend rejected them or couldn't be reached (502, 503, or 529), or they exceeded shield's timeout.",
			func(s *Reading, to Sink) { to.Count(s.Stats.Failed) }),
		Gauge("disconnected_requests", nil, "Requests that the backend is still working on although their clients have disconnected.",
			func(s *Reading, to Sink) { to.Set(float64(s.Stats.Disconnected)) }),
	}},
	{Topic: "Backend and in-flight limit", Label: "shield", With: "`concurrency adaptive` or `slo`", Has: func(s *Reading) bool { _, adaptive := s.Guard.Plan().Most(); return adaptive > 0 }, Rows: []Row[*Reading]{
		Counter("concurrency_changes_total", []string{"reason"}, "Changes of the in-flight limit, by reason.",
			func(s *Reading, to Sink) {
				for reason, n := range s.Stats.Changes {
					to.Count(n, reason.String())
				}
			}),
		Gauge("concurrency_latency_seconds", nil, "Mean latency of the backend when the in-flight limit last changed.",
			func(s *Reading, to Sink) { to.Set(s.Stats.Last.Latency.Seconds()) }),
		Gauge("concurrency_baseline_seconds", nil, "Estimated latency without queueing in the backend, or 0 if unknown.",
			func(s *Reading, to Sink) { to.Set(s.Stats.Last.Baseline.Seconds()) }),
	}},
	{Topic: "Backend and in-flight limit", Label: "shield", With: "`queue`", Has: func(s *Reading) bool { return s.Guard.Plan().Queue.Size > 0 }, Rows: []Row[*Reading]{
		Gauge("queue_requests", nil, "Requests waiting in the queue.",
			func(s *Reading, to Sink) { to.Set(float64(s.Stats.Queue.Length)) }),
		Counter("queue_waits_total", []string{"outcome"}, "Requests that left the queue, by outcome: admitted, timeout, dropped (to make room for a higher class), or gone (the client disconnected).",
			func(s *Reading, to Sink) {
				q := s.Stats.Queue
				to.Outcomes(map[string]uint64{"admitted": q.Granted, "timeout": q.Expired, "dropped": q.Dropped, "gone": q.Gone})
			}),
		Counter("queue_wait_seconds_total", nil, "Total time that requests spent in the queue.",
			func(s *Reading, to Sink) { to.Set(s.Stats.Queue.Waited.Seconds()) }),
	}},
	{Topic: "Backend and in-flight limit", Label: "shield", With: "`capacity` or `concurrency`", Has: limited, Rows: []Row[*Reading]{
		Gauge("paused", nil, "1 during a pause that the backend asked for.",
			func(s *Reading, to Sink) { to.Flag(s.Stats.Paused > 0) }),
		Counter("pauses_total", nil, "Pauses that the backend asked for.",
			func(s *Reading, to Sink) { to.Count(s.Stats.Pauses) }),
	}},
	{Topic: "Appointments", Label: "shield", With: "`capacity` or `concurrency`", Has: limited, Rows: []Row[*Reading]{
		Counter("appointments_total", nil, "Appointments given to rejected clients.",
			func(s *Reading, to Sink) { to.Count(s.Stats.Promises.Made) }),
		Counter("appointment_outcomes_total", []string{"outcome"}, "Appointments by outcome: kept, no_show, late, early, or broken. One that's late or broken is counted twice.",
			func(s *Reading, to Sink) {
				p := s.Stats.Promises
				to.Outcomes(map[string]uint64{"kept": p.Kept, "no_show": p.NoShow, "late": p.Late, "early": s.Stats.EarlyAdmitted, "broken": s.Stats.Broken})
			}),
		Gauge("kept_ratio", nil, "Expected share of new clients that keep their first appointment, at least 0.005. Below 1, shield gives the places of missing clients to others. Returns to 1 within two minutes after a backlog clears.",
			func(s *Reading, to Sink) { to.Set(s.Stats.KeptShare) }),
		Gauge("backlog_seconds", nil, "Backlog: time until the last appointment.",
			func(s *Reading, to Sink) { to.Set(s.Stats.Backlog.Seconds()) }),
		Gauge("spare_requests_per_second", nil, "Headroom: how many rejected clients per second the backend can serve in addition to new requests.",
			func(s *Reading, to Sink) { to.Set(s.Guard.Spare()) }),
		Counter("deferrals_total", nil, "Rejections without an appointment. They ask the client to return for one.",
			func(s *Reading, to Sink) { to.Count(s.Stats.Promises.Deferred) }),
		Gauge("deferred_clients", nil, "Rejected clients without an appointment, because none is free within pushback max.",
			func(s *Reading, to Sink) { to.Set(float64(s.Stats.Deferred)) }),
	}},
}

func limited(s *Reading) bool { return s.Limited }

// Zones has the metrics of a zone.
var Zones = []Group[*shield.ZoneStats]{
	{Topic: "Zones", Label: "zone", Rows: []Row[*shield.ZoneStats]{
		Counter("zone_requests_total", []string{"outcome"}, "Requests that the zone counted, by decision: admitted, rejected by this zone, or observed.",
			func(z *shield.ZoneStats, to Sink) {
				to.Outcomes(map[string]uint64{"admitted": z.Admitted, "rejected": z.Rejected, "observed": z.Observed})
			}),
		Gauge("zone_keys", nil, "Clients that the zone remembers, because they have used some of their quota.",
			func(z *shield.ZoneStats, to Sink) { to.Set(float64(z.Keys)) }),
		Gauge("zone_max_keys", nil, "Clients that the zone can remember.",
			func(z *shield.ZoneStats, to Sink) { to.Set(float64(z.MaxKeys)) }),
		Counter("zone_evictions_total", nil, "Clients that the zone forgot before their quota had refilled. Raise max_keys.",
			func(z *shield.ZoneStats, to Sink) { to.Count(z.Evicted) }),
		Counter("zone_shared_requests_total", nil, "Requests from clients that share a bucket with others, because the zone is full. Raise max_keys.",
			func(z *shield.ZoneStats, to Sink) { to.Count(z.Shared) }),
	}},
	{Topic: "Zones", Label: "zone", With: "costs read from requests or responses", Has: func(z *shield.ZoneStats) bool { return z.Varies }, Rows: []Row[*shield.ZoneStats]{
		Counter("zone_unknown_total", nil, "Requests or responses without the expected cost or rate. What was charged up front stands.",
			func(z *shield.ZoneStats, to Sink) { to.Count(z.Unknown) }),
	}},
	{Topic: "Store", Label: "zone", With: "`store`", Has: func(z *shield.ZoneStats) bool { return z.Replicas > 0 }, Rows: []Row[*shield.ZoneStats]{
		Gauge("store_hot_keys", nil, "Clients that use much of their quota, and so draw their tokens from the store.",
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
