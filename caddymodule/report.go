package caddymodule

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
	"sync"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"

	"github.com/herdshield/shield"
	"github.com/herdshield/shield/caddymodule/operate"
	"github.com/herdshield/shield/loadshed"
	"github.com/herdshield/shield/oncall"
	"github.com/herdshield/shield/pushback"
)

// reportEvery is how often it is looked for changes.
const reportEvery = time.Second

// report logs and emits what has changed, until the app is stopped. During a reload two
// apps do so at once. Each change is reported by one of them.
func (a *App) report() {
	defer close(a.stopped)
	for {
		const half = reportEvery / 2 // see oncall.Second
		select {
		case <-time.After(reportEvery - (shield.Now()+half)%reportEvery):
			a.reportOnce(shield.Now())
		case <-a.stop:
			return
		case <-a.ctx.Done(): // Caddy dropped the config without stopping it
			a.leave()
			return
		}
	}
}

func (a *App) reportOnce(now time.Duration) {
	desk.Tend(now)
	a.keeper.tend(a, now)
	if a.shares != nil {
		var said bulletin
		is := a.shares.Status()
		a.shares.Report(is, said.add)
		a.tell(zap.String("store", is.Address), said)
	}
	seq := oncall.Second(now)
	shields, _ := a.roster()
	for _, s := range shields {
		s.guard().Tick(now)
		what := s.report(now)
		a.tell(zap.String("shield", s.Name), what)
		if s.live {
			continue // it has no history: there may be a thousand, in programs without an admin endpoint
		}
		s.record.history.Observe(seq, s.reading(now).facts(nil))
		for _, n := range what {
			if n.message == limitChanged {
				s.record.history.NoteLimit(seq, n.text())
			} else if n.event != "" {
				s.record.history.Note(seq, levels[n.level], n.message+": "+n.text())
			}
		}
	}
	operate.Announce(seq)
}

// tell logs and emits the news of a zone or a shield. In events durations are in seconds. The
// time that a change takes or has taken is called "seconds" there.
func (a *App) tell(of zap.Field, all []news) {
	for _, n := range all {
		fields := slices.Concat([]zap.Field{of}, n.fields)
		a.logger.Log(n.level, n.message, fields...)
		if n.event == "" {
			continue
		}
		data := map[string]any{}
		for name, v := range valuesOf(fields) {
			if d, is := v.(time.Duration); is {
				if v = d.Seconds(); name != "period" && name != "phase" {
					name = "seconds"
				}
			}
			data[name] = v
		}
		a.events.Emit(a.ctx, n.event, data)
	}
}

// valuesOf returns the values of fields by their names.
func valuesOf(fields []zap.Field) map[string]any {
	as := zapcore.NewMapObjectEncoder()
	for _, f := range fields {
		f.AddTo(as)
	}
	return as.Fields
}

// levels are how much lines of the log matter to a person on call.
var levels = map[zapcore.Level]oncall.Level{zapcore.InfoLevel: oncall.Good, zapcore.WarnLevel: oncall.Warn}

// text returns the fields of the line in the log that are not zero, as a person reads them.
func (n *news) text() string {
	var said []string
	values := valuesOf(n.fields)
	for _, f := range n.fields {
		text := f.Key
		switch v := values[f.Key].(type) {
		case time.Duration:
			text += " " + oncall.Time(v)
		case float64:
			text += fmt.Sprintf(" %.0f", v)
		case bool:
		default:
			text += fmt.Sprint(" ", v)
		}
		if !reflect.ValueOf(values[f.Key]).IsZero() {
			said = append(said, text)
		}
	}
	return strings.Join(said, ", ")
}

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

// A backendReport remembers what has been reported of a backend. It is part of the pooled state, so that
// a reload neither starts nor ends an overload, a pause or a herd. During a reload two apps report: they
// read and remember under one lock, so that each change is news to one of them.
type backendReport struct {
	mu       sync.Mutex
	rejected reasonCounts // guarded by mu, like the rest: for want of room, and those that there would have been
	overload overload
	paused   time.Duration // since when there is a pause; 0: there is none
	pauses   uint64        // that there have been
	herd     herdReport
	limit    loadshed.Change // the last one of the limit in flight
}

// isClientsFault reports whether a client is at fault if it is rejected for a reason. Else the backend has no room.
func isClientsFault(r shield.Reason) bool {
	return r == shield.Quota || r == shield.PerClient || r == shield.Blocked
}

// quiet is how long there have been no more rejections when an overload is over. It bridges the gap between two waves of clients
// without an appointment.
const quiet = 5 * time.Second

// An overload is rejections for want of room in the backend, and the backlog that they leave. A herd of 600 clients is rejected within a
// second and returns over the next 20 s: that is one overload of 21 s, not one of 1 s and another each time a new client finds no
// room among those that return. It is logged when it begins, and when it has ended.
type overload struct {
	on          bool
	since, last time.Duration // when it began, and when a new rejection or a client that is still due was seen last
	total       uint64        // rejections since it began
}

// step adds the rejections that are new at now, by reason, and returns what is to be logged. ahead is the time until the last appointment of a
// client that was rejected for want of room; 0: none is expected.
func (o *overload) step(now time.Duration, added reasonCounts, ahead time.Duration, observe bool) (all bulletin) {
	if o.on && ahead > 0 {
		o.last = max(o.last, now) // of two apps one may have read the clock before the other
	}
	observed := zap.Bool("observed", observe)
	if added == (reasonCounts{}) {
		if o.on && now-o.last >= quiet {
			o.on = false
			all.add(zap.InfoLevel, "overload ended", "shield_overload_ended", observed, zap.Duration("lasted", o.last-o.since), zap.Uint64("rejected", o.total))
		}
		return all
	}
	begins := !o.on
	if begins {
		*o = overload{on: true, since: now}
	}
	o.last = max(o.last, now)
	var fields []zap.Field
	for _, reason := range shield.Reasons {
		if n := added[reason]; n > 0 {
			o.total += n
			fields = append(fields, zap.Uint64(reason.String(), n))
		}
	}
	if begins {
		all.add(zap.WarnLevel, "overload started", "shield_overload_started", append(fields, observed)...)
	}
	return all
}

// limitChanged is the message of a change of the limit in flight.
const limitChanged = "in-flight limit changed"

func (h *Handler) report(now time.Duration) (all bulletin) {
	r := &h.record.reported
	r.mu.Lock()
	defer r.mu.Unlock()
	stats := h.record.Stats(now)
	var added reasonCounts
	for _, reason := range shield.Reasons {
		if so := stats.Rejected[reason] + stats.Observed[reason]; !isClientsFault(reason) {
			added[reason], r.rejected[reason] = so-r.rejected[reason], so
		}
	}
	ahead := time.Duration(0)
	if stats.Open() {
		ahead = stats.Backlog
	}
	all = r.overload.step(now, added, ahead, h.force.Load().config.Observe)
	if stats.Pauses > r.pauses && r.paused == 0 {
		r.paused = max(1, now)
		all.add(zap.WarnLevel, "backend asked for a pause", "shield_backend_paused", zap.Duration("for", stats.Paused))
	}
	r.pauses = stats.Pauses
	if stats.Paused == 0 && r.paused > 0 {
		all.add(zap.InfoLevel, "backend pause ended", "shield_backend_resumed", zap.Duration("after", now-r.paused))
		r.paused = 0
	}
	if c := stats.Last; c != r.limit {
		r.limit = c
		all.add(zap.DebugLevel, limitChanged, "", zap.Stringer("reason", c.Reason), zap.Int("from", c.From),
			zap.Int("to", c.To), zap.Duration("latency", c.Latency), zap.Duration("baseline", c.Baseline))
	}
	return append(all, r.herd.step(now, stats.Herd)...)
}

// A herdReport knows which herd has been reported.
type herdReport struct {
	herd  pushback.HerdReport // as it was when it was largest
	since time.Duration
}

// step takes the detector's report at now.
func (h *herdReport) step(now time.Duration, herd pushback.HerdReport) (all bulletin) {
	fields := func(h pushback.HerdReport) []zap.Field {
		return []zap.Field{zap.Stringer("kind", h.Kind), zap.Float64("size", h.Size), zap.Duration("period", h.Period), zap.Duration("phase", h.Phase)}
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
