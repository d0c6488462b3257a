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
	refused, observed reasonCounts                    // guarded by mu, like the rest
	faults            [len(reasonCounts{})][2]episode // refusals for which a client is at fault: refused, and observed
}

// since returns how many refusals for a reason are new.
func (r *refusalReport) since(reason shield.Reason, refused, observed uint64) (newRefused, newObserved uint64) {
	newRefused, newObserved = refused-r.refused[reason], observed-r.observed[reason]
	r.refused[reason], r.observed[reason] = refused, observed
	return newRefused, newObserved
}

// faultQuiet is how long after the last such refusal an episode of them has ended. Ours: a
// client that is over its quota now and then has one line a minute, not two each time.
const faultQuiet = time.Minute

// over returns the report of refusals for which a client is at fault.
func (r *refusalReport) over(now time.Duration, reason shield.Reason, refused, observed uint64) (all bulletin) {
	refused, observed = r.since(reason, refused, observed)
	for i, c := range [2]struct {
		requests             uint64
		began, lasted, ended string
	}{
		{refused, "refusing over ", "still refusing over ", "no longer refusing over "},
		{observed, "would refuse over ", "would still refuse over ", "would no longer refuse over "},
	} {
		var added reasonCounts
		added[reason] = c.requests
		e := &r.faults[reason][i]
		switch turn, requests := e.step(now, added, faultQuiet); turn {
		case began:
			all.add(zap.InfoLevel, c.began+reason.String(), "", zap.Uint64("requests", requests[reason]))
		case lasted:
			all.add(zap.InfoLevel, c.lasted+reason.String(), "", zap.Uint64("requests", requests[reason]))
		case ended:
			all.add(zap.InfoLevel, c.ended+reason.String(), "", zap.Uint64("requests", e.total), zap.Duration("lasted", e.last-e.since))
		}
	}
	return all
}

// report returns what is new of the zone's refusals.
func (z *zoneRecord) report(now time.Duration) bulletin {
	z.reported.mu.Lock()
	defer z.reported.mu.Unlock()
	refused, observed := z.Refusals()
	return z.reported.over(now, shield.Quota, refused, observed)
}

// remindEvery is how often an episode is logged while it lasts. Ours: the log shows the present
// rate, and a day of it has 1,440 lines.
const remindEvery = time.Minute

// An episode is a time in which requests are refused, or would be. It is logged when it begins,
// once a minute, and when it has ended, so that a flood does not fill the disk.
type episode struct {
	on          bool
	since, last time.Duration // when it began, and when a new refusal was seen last
	total       uint64        // refusals since it began
	logged      time.Duration // when it was logged last
	unlogged    reasonCounts  // refusals since then
}

// A turn is what is to be logged of an episode.
type turn int

const (
	nothing turn = iota
	began
	lasted
	ended
)

// step adds the refusals that are new at now, by reason, and returns what is to be logged, with the
// refusals since the line before. The episode ends when there was none for as long as quiet.
func (e *episode) step(now time.Duration, added reasonCounts, quiet time.Duration) (turn, reasonCounts) {
	isNew := added != (reasonCounts{})
	begins := isNew && !e.on
	if begins {
		*e = episode{on: true, since: now}
	}
	if isNew {
		e.last = max(e.last, now) // of two apps one may have read the clock before the other
		for reason, n := range added {
			e.unlogged[reason] += n
			e.total += n
		}
	}
	switch {
	case begins:
		return began, e.log(now)
	case e.on && now-e.last >= quiet:
		e.on = false
		return ended, reasonCounts{}
	case isNew && now-e.logged >= remindEvery:
		return lasted, e.log(now)
	}
	return nothing, reasonCounts{}
}

func (e *episode) log(now time.Duration) reasonCounts {
	requests := e.unlogged
	e.logged, e.unlogged = now, reasonCounts{}
	return requests
}

type backendReport struct {
	refusalReport
	overload episode // guarded by mu, like the rest
	pause    pauseReport
	herd     herdReport
	limits   uint64 // changes of the limit in flight
}

// limitChanged is the message of a change of the limit in flight.
const limitChanged = "limit in flight changed"

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
			all = append(all, r.over(now, reason, refused, observed)...)
		}
	}
	all = append(all, overloadNews(&r.overload, now, added, s.config().Observe)...)
	all = append(all, r.pause.step(now, stats.Paused, stats.Pauses)...)
	changes, next := s.record.Changes(r.limits)
	r.limits = next
	for _, c := range changes {
		all.add(zap.DebugLevel, limitChanged, "", zap.Stringer("reason", c.Reason), zap.Int("from", c.From),
			zap.Int("to", c.To), zap.Duration("latency", c.Latency), zap.Duration("baseline", c.Baseline))
	}
	if s.guard().DetectsHerds() {
		all = append(all, r.herd.step(now, stats.Herd)...)
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

// overloadNews returns the report of refusals for want of room in the backend.
func overloadNews(e *episode, now time.Duration, added reasonCounts, observe bool) (all bulletin) {
	observed := zap.Bool("observed", observe)
	turn, requests := e.step(now, added, overloadQuiet)
	var byReason []zap.Field
	for _, reason := range shield.Reasons {
		if n := requests[reason]; n > 0 {
			byReason = append(byReason, zap.Uint64(reason.String(), n))
		}
	}
	switch turn {
	case began:
		all.add(zap.WarnLevel, "overload started", "shield_overload_started", append(byReason, observed)...)
	case lasted:
		all.add(zap.WarnLevel, "overload goes on", "", append(byReason, observed)...)
	case ended:
		all.add(zap.InfoLevel, "overload ended", "shield_overload_ended",
			observed, zap.Duration("lasted", e.last-e.since), zap.Uint64("refused", e.total))
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
