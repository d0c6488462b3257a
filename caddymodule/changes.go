package caddymodule

import (
	"sync"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"

	"github.com/herdshield/shield"
	"github.com/herdshield/shield/pushback"
)

// A news is a change of a zone or a backend, to log and, if event has a name, to emit.
type news struct {
	level          zapcore.Level
	message, event string
	fields         []zap.Field
}

// A bulletin is all news of a zone or a backend at one time.
type bulletin []news

func (b *bulletin) add(level zapcore.Level, message, event string, fields ...zap.Field) {
	*b = append(*b, news{level, message, event, fields})
}

// A refusalReport and a backendReport remember what has been reported of a zone and of a
// backend. They are part of the pooled state, so that a reload neither starts nor ends an
// overload, a pause or a herd. During a reload two apps report: they read and remember
// under one lock, so that each change is news to one of them.

// A refusalReport is how many refusals have been reported, by reason.
type refusalReport struct {
	mu                sync.Mutex
	refused, observed reasonCounts // guarded by mu
}

// since returns how many refusals for a reason are new.
func (r *refusalReport) since(reason shield.Reason, refused, observed uint64) (newRefused, newObserved uint64) {
	newRefused, newObserved = refused-r.refused[reason], observed-r.observed[reason]
	r.refused[reason], r.observed[reason] = refused, observed
	return newRefused, newObserved
}

// over returns the report of refusals for which a client is at fault.
func (r *refusalReport) over(reason shield.Reason, refused, observed uint64) (all bulletin) {
	refused, observed = r.since(reason, refused, observed)
	if refused > 0 {
		all.add(zap.InfoLevel, "refused over "+reason.String(), "", zap.Uint64("requests", refused))
	}
	if observed > 0 {
		all.add(zap.InfoLevel, "would have refused over "+reason.String(), "", zap.Uint64("requests", observed))
	}
	return all
}

// report returns the refusals of the zone since its last report.
func (z *zoneRecord) report() bulletin {
	z.reported.mu.Lock()
	defer z.reported.mu.Unlock()
	refused, observed := z.Refusals()
	return z.reported.over(shield.Quota, refused, observed)
}

type backendReport struct {
	refusalReport
	overload overloadReport // guarded by mu, like the rest
	pause    pauseReport
	herd     herdReport
	limits   uint64 // changes of the limit in flight
}

func (s *shieldEntry) report(now time.Duration) (all bulletin) {
	r := &s.record.reported
	r.mu.Lock()
	defer r.mu.Unlock()
	stats := s.record.Stats(now)
	var added reasonCounts // refusals that are not the fault of their clients
	for _, reason := range shield.Reasons {
		refused, observed := stats.Refused[reason], stats.Observed[reason]
		switch {
		case !reason.ClientFault():
			refused, observed = r.since(reason, refused, observed)
			added[reason] = refused + observed
		case reason != shield.Quota: // zones report those
			all = append(all, r.over(reason, refused, observed)...)
		}
	}
	all = append(all, r.overload.step(now, added, s.config.Observe)...)
	left, times := s.record.Paused(now)
	all = append(all, r.pause.step(now, left, times)...)
	changes, next := s.record.Changes(r.limits)
	r.limits = next
	for _, c := range changes {
		all.add(zap.DebugLevel, "limit in flight changed", "", zap.Stringer("reason", c.Reason), zap.Int("from", c.From),
			zap.Int("to", c.To), zap.Duration("latency", c.Latency), zap.Duration("baseline", c.Baseline))
	}
	if s.guard.DetectsHerds() {
		all = append(all, r.herd.step(now, s.record.Herd())...)
	}
	return all
}

func (b *backendRecord) overloaded() bool {
	b.reported.mu.Lock()
	defer b.reported.mu.Unlock()
	return b.reported.overload.on
}

// overloadQuiet is how long after the last refusal an overload has ended. It bridges the gap
// between two waves of a herd whose clients were told to come back in a few seconds.
const overloadQuiet = 5 * time.Second

// An overloadReport knows whether a backend is being protected now.
type overloadReport struct {
	on          bool          // a request was refused within overloadQuiet
	since, last time.Duration // when it began, and when a new refusal was seen last
	refused     uint64        // in that time
}

// step takes the refusals that are new at now, by reason.
func (o *overloadReport) step(now time.Duration, added reasonCounts, observe bool) (all bulletin) {
	observed := zap.Bool("observed", observe)
	switch {
	case added != (reasonCounts{}):
		if !o.on {
			*o = overloadReport{on: true, since: now}
			all.add(zap.WarnLevel, "overload started", "shield_overload_started", observed)
		}
		o.last = now
		var counts []zap.Field
		for _, reason := range shield.Reasons {
			if !reason.ClientFault() {
				counts = append(counts, zap.Uint64(reason.String(), added[reason]))
				o.refused += added[reason]
			}
		}
		message := "refused in overload"
		if observe {
			message = "would have " + message
		}
		all.add(zap.WarnLevel, message, "", counts...)
	case o.on && now-o.last >= overloadQuiet:
		o.on = false
		all.add(zap.InfoLevel, "overload ended", "shield_overload_ended",
			observed, zap.Duration("lasted", o.last-o.since), zap.Uint64("refused", o.refused))
	}
	return all
}

// A pauseReport knows whether the backend's pause has been reported.
type pauseReport struct {
	on    bool
	times uint64
	since time.Duration
}

// step takes how long the pause still lasts, 0 for none, and how many there have been.
func (p *pauseReport) step(now, left time.Duration, times uint64) (all bulletin) {
	if times > p.times && !p.on {
		p.on, p.since = true, now
		all.add(zap.WarnLevel, "backend asked for a pause", "shield_backend_paused", zap.Duration("for", left))
	}
	p.times = times
	if p.on && left == 0 {
		p.on = false
		seen := now - p.since
		all.add(zap.InfoLevel, "pause of the backend ended", "shield_backend_resumed", zap.Duration("after", seen))
	}
	return all
}

// A herdReport knows which herd has been reported.
type herdReport struct {
	herd  pushback.HerdReport // as it was when it was largest
	since time.Duration
}

// step takes the detector's report at now.
func (h *herdReport) step(now time.Duration, herd pushback.HerdReport) (all bulletin) {
	fields := func(h pushback.HerdReport) []zap.Field {
		return []zap.Field{
			zap.Stringer("kind", h.Kind), zap.Float64("size", h.Size), zap.Duration("period", h.Period), zap.Duration("phase", h.Phase),
		}
	}
	if h.herd.Kind != pushback.NoHerd && (herd.Kind != h.herd.Kind || herd.Period != h.herd.Period && herd.Kind != pushback.BacklogHerd) {
		all.add(zap.InfoLevel, "herd ended", "shield_herd_ended", append(fields(h.herd), zap.Duration("lasted", now-h.since))...)
		h.herd = pushback.HerdReport{}
	}
	switch {
	case herd.Kind == pushback.NoHerd:
	case h.herd.Kind == pushback.NoHerd:
		all.add(zap.WarnLevel, "herd detected", "shield_herd_detected", fields(herd)...)
		h.herd, h.since = herd, now
	case herd.Size > h.herd.Size:
		h.herd = herd
	}
	return all
}
