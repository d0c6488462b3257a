package caddymodule

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/herdshield/shield"
	"github.com/herdshield/shield/pushback"
)

// Metrics are read from the state when they are scraped; requests do nothing
// for them but add to counters. Labels come from the config, or from fixed
// sets. Counters live as long as the zone or backend is in some config, across reloads.
var (
	descRequests = desc("requests_total", "Requests by what was decided: admitted, refused, or observed (admitted, but would have been refused), and for what reason.", "shield", "outcome", "reason")
	descInFlight = desc("in_flight_requests", "Requests that hold a place in flight.", "shield")
	descLimit    = desc("concurrency_limit_requests", "Requests that may be in flight at once.", "shield")
	descChanges  = desc("concurrency_changes_total", "Changes of the limit in flight, by what they were made for; where it is adaptive.", "shield", "reason")
	descLatency  = desc("concurrency_latency_seconds", "Mean time of service when the limit in flight was last changed; where it is adaptive.", "shield")
	descBaseline = desc("concurrency_baseline_seconds", "What that would have been if nothing had waited in the backend, as far as it is known; where the limit in flight is adaptive.", "shield")
	descGhosts   = desc("ghost_requests", "Requests whose clients have gone, and whose places are kept while the backend probably works on.", "shield")
	descQueue    = desc("queue_requests", "Requests that wait for a place in flight.", "shield")
	descWaits    = desc("queue_waits_total", "Requests that have waited for a place in flight: admitted, timeout, dropped (for one of a higher class), or gone (the client).", "shield", "outcome")
	descWaited   = desc("queue_wait_seconds_total", "Time that they have waited, in total.", "shield")
	descClass    = desc("class_requests_total", "Requests by class and by what was decided: admitted, refused, or observed (admitted, but would have been refused).", "shield", "class", "outcome")
	descPaused   = desc("paused", "1 while the backend is left alone because it has asked for that.", "shield")
	descPauses   = desc("pauses_total", "Times that the backend has asked to be left alone.", "shield")
	descFailed   = desc("backend_failures_total", "Admitted requests that the backend refused, or that could not be passed to it: 502, 503.", "shield")
	descOverload = desc("overloaded", "1 while requests are being refused for anything but what their client has used up, and for 5 s after.", "shield")
	descHints    = desc("retry_after_seconds", "What refused clients were told to wait.", "shield")
	descNever    = desc("told_never_total", "Refused clients that were told not to come back.", "shield")
	descHeld     = desc("held_refusals", "Refusals that are held back, for less than a second, before they are sent.", "shield")

	descBacklog   = desc("backlog_seconds", "How far ahead the last promised time is.", "shield")
	descDeferred  = desc("deferred_clients", "Clients that wait for a promise, because no time within the horizon is free.", "shield")
	descSpare     = desc("spare_requests_per_second", "How many refused clients per second the backend can take besides what comes anyhow.", "shield")
	descPromises  = desc("promises_total", "Times that were promised to refused clients.", "shield")
	descOutcomes  = desc("promise_outcomes_total", "What became of promises: kept, no_show (not come for in time), late (come for after that; counted as no_show, too), early (admitted before), or broken (come for in time, and refused again).", "shield", "outcome")
	descDeferrals = desc("deferrals_total", "Times that clients were told to ask again for a promise.", "shield")
	descKept      = desc("kept_ratio", "How many of the promised times are expected to be kept, of 1, as learnt from the last ones.", "shield")

	descClients    = desc("clients", "Refused clients that are remembered, by how they retry.", "shield", "policy")
	descMaxClients = desc("max_clients", "Refused clients that can be remembered.", "shield")
	descTickets    = desc("tickets_total", "Tickets of clients that were not known: honoured, or worthless.", "shield", "outcome")
	descTold       = desc("family_refusals_total", "Refusals with a time to come back, by family of client software.", "shield", "family")
	descReturns    = desc("family_returns_total", "Returns of refused clients, kept (at the time that they were told), late or early, by family of client software.", "shield", "family", "outcome")

	descHerd     = desc("herd", "1 while a herd of this kind is there: backlog (many came at once, and have appointments), periodic, or echo (clients that come at an interval of their own).", "shield", "kind")
	descHerdSize = desc("herd_size_requests", "How large the herd is: of a backlog its clients, of others the requests of one pulse.", "shield")
	descHerdQ    = desc("herd_q", "How much the arrivals follow a period, in coherent cycles: above 7 is a herd, 16 the most.", "shield", "period")
	descAllan    = desc("herd_allan_ratio", "How bursty the arrivals are at a scale of time, in terms of their last hour: above 2 is unusual.", "shield", "scale")
	descChange   = desc("herd_cusum", "How much the arrivals have risen, in standard deviations summed up: above 14 is unusual.", "shield")
	descDistinct = desc("herd_distinct_ratio", "Clients refused in the last one or two minutes, of 1 per refusal: about 1 in a herd, about 0 where one hammers.", "shield")

	descZoneRequests = desc("zone_requests_total", "Requests that a zone counted, by what was decided: admitted, refused for this zone, or observed.", "zone", "outcome")
	descKeys         = desc("zone_keys", "Clients that a zone remembers because their quota is not whole.", "zone")
	descMaxKeys      = desc("zone_max_keys", "Clients that a zone can remember.", "zone")
	descEvictions    = desc("zone_evictions_total", "Clients that a zone forgot for want of room before their quota was whole.", "zone")
	descShared       = desc("zone_shared_requests_total", "Requests of clients that found no room in a zone, and share a bucket.", "zone")

	descs = []*prometheus.Desc{
		descRequests, descInFlight, descLimit, descChanges, descLatency, descBaseline, descGhosts,
		descQueue, descWaits, descWaited, descClass, descPaused, descPauses, descFailed,
		descOverload, descHints, descNever, descHeld,
		descBacklog, descDeferred, descSpare, descPromises, descOutcomes, descDeferrals, descKept,
		descClients, descMaxClients, descTickets, descTold, descReturns,
		descHerd, descHerdSize, descHerdQ, descAllan, descChange, descDistinct,
		descZoneRequests, descKeys, descMaxKeys, descEvictions, descShared,
	}
)

// hintBuckets are the upper bounds of the histogram of waits, in seconds.
var hintBuckets = []int{1, 2, 3, 5, 8, 13, 21, 30, 45, 59}

func desc(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc(prometheus.BuildFQName("caddy", "shield", name), help, labels, nil)
}

// collector implements prometheus.Collector for the handlers of one config.
type collector struct{ *App }

// Describe implements prometheus.Collector.
func (collector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range descs {
		ch <- d
	}
}

// Collect implements prometheus.Collector.
func (c collector) Collect(ch chan<- prometheus.Metric) {
	counter := func(d *prometheus.Desc, v uint64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(v), labels...)
	}
	gauge := func(d *prometheus.Desc, v float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
	}
	all := c.roster()
	for _, b := range all.backends {
		s := b.state.Stats(shield.Now())
		counter(descRequests, s.Admitted, b.name, "admitted", shield.None.String())
		for _, reason := range shield.Reasons {
			counter(descRequests, s.Refused[reason], b.name, "refused", reason.String())
		}
		if b.concurrency != nil {
			gauge(descInFlight, float64(s.InFlight), b.name)
			gauge(descLimit, float64(b.guard.Limit()), b.name)
		}
		overloaded := 0.0
		if b.state.overload.active() {
			overloaded = 1
		}
		gauge(descOverload, overloaded, b.name)

		counter, gauge := counter, gauge
		if b.live {
			// There may be a thousand of them, most of which do nothing: what is 0 is
			// left out of the rest.
			anyCount, anyGauge := counter, gauge
			counter = func(d *prometheus.Desc, v uint64, labels ...string) {
				if v != 0 {
					anyCount(d, v, labels...)
				}
			}
			gauge = func(d *prometheus.Desc, v float64, labels ...string) {
				if v != 0 {
					anyGauge(d, v, labels...)
				}
			}
		}
		for _, reason := range shield.Reasons {
			counter(descRequests, s.Observed[reason], b.name, "observed", reason.String())
		}
		c.collectShed(ch, counter, gauge, b)
		if h := hints(s, b.name); h != nil {
			ch <- h
		} else if !b.live {
			ch <- prometheus.MustNewConstHistogram(descHints, 0, 0, emptyHints, b.name)
		}
		counter(descNever, s.RetryAfter[0], b.name)
		gauge(descHeld, float64(s.Held), b.name)
		if b.limited() {
			gauge(descBacklog, s.Backlog.Seconds(), b.name)
			gauge(descDeferred, float64(s.Deferred), b.name)
			gauge(descSpare, b.guard.Spare(), b.name)
			counter(descPromises, s.Promises.Made, b.name)
			counter(descOutcomes, s.Promises.Kept, b.name, "kept")
			counter(descOutcomes, s.Promises.NoShow, b.name, "no_show")
			counter(descOutcomes, s.Promises.Late, b.name, "late")
			counter(descOutcomes, s.EarlyAdmitted, b.name, "early")
			counter(descOutcomes, s.Broken, b.name, "broken")
			counter(descDeferrals, s.Promises.Deferred, b.name)
			gauge(descKept, s.KeptShare, b.name)
		}
		for class, n := range b.state.Clients() {
			gauge(descClients, float64(n), b.name, pushback.Class(class).String())
		}
		gauge(descMaxClients, float64(s.MaxClients), b.name)
		if b.tickets {
			counter(descTickets, s.Redeemed, b.name, "honoured")
			counter(descTickets, s.Worthless, b.name, "worthless")
		}
		if b.detects {
			collectHerd(gauge, b.name, b.state.Herd())
		}
		for i, f := range s.Families {
			if f == (shield.FamilyStats{}) {
				continue // most of them: there are many, and few meet in one place
			}
			family := pushback.Family(i).String()
			counter(descTold, f.Told, b.name, family)
			counter(descReturns, f.Kept, b.name, family, "kept")
			counter(descReturns, f.Late, b.name, family, "late")
			counter(descReturns, f.Early, b.name, family, "early")
		}
	}
	for _, z := range all.zones {
		s := z.state.Stats(shield.Now())
		counter(descZoneRequests, s.Admitted, z.name, "admitted")
		counter(descZoneRequests, s.Refused, z.name, "refused")
		counter(descZoneRequests, s.Observed, z.name, "observed")
		gauge(descKeys, float64(s.Keys), z.name)
		gauge(descMaxKeys, float64(z.maxKeys()), z.name)
		counter(descEvictions, s.Evicted, z.name)
		counter(descShared, s.Shared, z.name)
	}
}

// collectShed collects what is done to find, keep and share the room in flight.
func (collector) collectShed(ch chan<- prometheus.Metric, counter func(*prometheus.Desc, uint64, ...string), gauge func(*prometheus.Desc, float64, ...string), b *backend) {
	s := b.state.ShedStats(shield.Now())
	if b.searches() {
		for reason, n := range s.Changes {
			counter(descChanges, n, b.name, reason.String())
		}
		gauge(descLatency, s.Last.Latency.Seconds(), b.name)
		gauge(descBaseline, s.Last.Baseline.Seconds(), b.name)
		gauge(descGhosts, float64(s.Ghosts), b.name)
	}
	if b.guard.QueueSize() > 0 {
		gauge(descQueue, float64(s.Queue.Length), b.name)
		counter(descWaits, s.Queue.Granted, b.name, "admitted")
		counter(descWaits, s.Queue.Expired, b.name, "timeout")
		counter(descWaits, s.Queue.Dropped, b.name, "dropped")
		counter(descWaits, s.Queue.Gone, b.name, "gone")
		ch <- prometheus.MustNewConstMetric(descWaited, prometheus.CounterValue, s.Queue.Waited.Seconds(), b.name)
	}
	if b.classes {
		for _, class := range b.guard.ClassStats() {
			counter(descClass, class.Admitted, b.name, class.Name, "admitted")
			counter(descClass, class.Refused, b.name, class.Name, "refused")
			counter(descClass, class.Observed, b.name, class.Name, "observed")
		}
	}
	if b.limited() {
		paused := 0.0
		if s.Paused > 0 {
			paused = 1
		}
		gauge(descPaused, paused, b.name)
		counter(descPauses, s.Pauses, b.name)
	}
	if b.concurrency != nil {
		counter(descFailed, s.Failed, b.name)
	}
}

func collectHerd(gauge func(*prometheus.Desc, float64, ...string), name string, h pushback.HerdReport) {
	for _, kind := range []pushback.HerdKind{pushback.BacklogHerd, pushback.PeriodicHerd, pushback.EchoHerd} {
		is := 0.0
		if h.Kind == kind {
			is = 1
		}
		gauge(descHerd, is, name, kind.String())
	}
	gauge(descHerdSize, h.Size, name)
	for i, q := range h.Q {
		gauge(descHerdQ, q, name, pushback.HerdPeriods[i].String())
	}
	for i, ratio := range h.AllanRatio {
		gauge(descAllan, ratio, name, pushback.HerdAllanScales[i].String())
	}
	gauge(descChange, h.CUSUM, name)
	distinct := 0.0
	if h.Requests > 0 {
		distinct = min(1, float64(h.Distinct)/float64(h.Requests))
	}
	gauge(descDistinct, distinct, name)
}

// emptyHints is the histogram of no refusals.
var emptyHints = func() map[float64]uint64 {
	buckets := map[float64]uint64{}
	for _, seconds := range hintBuckets {
		buckets[float64(seconds)] = 0
	}
	return buckets
}()

// hints returns what refused clients were told; nil if nobody was told anything.
func hints(s shield.BackendStats, name string) prometheus.Metric {
	buckets := map[float64]uint64{}
	count, sum, next := uint64(0), uint64(0), 0
	for seconds, n := range s.RetryAfter {
		if seconds == 0 {
			continue // never: that is no wait
		}
		count += n
		sum += n * uint64(seconds)
		if seconds == hintBuckets[next] {
			buckets[float64(seconds)] = count
			next = min(next+1, len(hintBuckets)-1)
		}
	}
	if count == 0 {
		return nil
	}
	return prometheus.MustNewConstHistogram(descHints, count, float64(sum), buckets, name)
}
