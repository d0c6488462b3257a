package caddymodule

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"

	"github.com/herdshield/shield"
	"github.com/herdshield/shield/caddymodule/operate"
	"github.com/herdshield/shield/oncall"
)

const (
	// reportEvery is how often it is looked for changes.
	reportEvery = time.Second

	// stopTimeout is how long a reload waits for the last report. Ours: a log line takes
	// microseconds, and a reload must not seem to hang.
	stopTimeout = time.Second
)

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
			a.reportOnce(shield.Now())
			return
		case <-a.ctx.Done(): // Caddy dropped the config without stopping it
			select {
			case <-a.stop: // or has stopped it, long ago
			default:
				a.closePage()
			}
			desk.Leave(a.shares, shield.Now())
			return
		}
	}
}

func (a *App) reportOnce(now time.Duration) {
	desk.Tend(a.shares, now)
	if a.shares != nil {
		var said bulletin
		a.shares.Report(said.add)
		a.tell(zap.String("store", a.shares.Address), said)
	}
	all, seq := a.roster(), oncall.Second(now)
	for _, s := range all.shields {
		s.guard().Tick(now)
		what := s.report(now)
		a.tell(zap.String("shield", s.Name), what)
		s.remember(now, seq, what)
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
		said, data := zapcore.NewMapObjectEncoder(), map[string]any{}
		for _, f := range fields {
			f.AddTo(said)
		}
		for name, v := range said.Fields {
			switch d, ok := v.(time.Duration); {
			case !ok:
				data[name] = v
			case name == "period", name == "phase":
				data[name] = d.Seconds()
			default:
				data["seconds"] = d.Seconds()
			}
		}
		a.events.Emit(a.ctx, n.event, data)
	}
}

// remember adds the second that ends now to the history of the shield, and what the log says of it. A Live
// shield has none: there may be a thousand, in programs without an admin endpoint.
func (h *Handler) remember(now time.Duration, seq uint64, what []news) {
	if h.live {
		return
	}
	h.record.history.Observe(seq, h.reading(now).facts(nil))
	for _, n := range what {
		switch level := levels[n.level]; {
		case n.message == limitChanged:
			h.record.history.NoteLimit(seq, oncall.Plain, n.text())
		case n.event != "":
			h.record.history.Note(seq, level, n.message+": "+n.text())
		}
	}
}

// levels are how much lines of the log matter to a person on call.
var levels = map[zapcore.Level]oncall.Level{zapcore.InfoLevel: oncall.Good, zapcore.WarnLevel: oncall.Warn}

// remember notes that the config is in force.
func (a *App) remember(now time.Duration) {
	seq := oncall.Second(now)
	for _, s := range a.roster().shields {
		s.remember(now, seq, nil)
		if !s.live {
			s.record.history.Note(seq, oncall.Plain, "a config is loaded")
		}
	}
	operate.Announce(seq)
}

// text returns the fields of the line in the log that are not zero, as a person reads them.
func (n *news) text() string {
	var said []string
	for _, f := range n.fields {
		as := zapcore.NewMapObjectEncoder()
		f.AddTo(as)
		switch v := as.Fields[f.Key].(type) {
		case time.Duration:
			if v > 0 {
				said = append(said, f.Key+" "+oncall.Time(v))
			}
		case float64:
			said = append(said, fmt.Sprintf("%s %.0f", f.Key, v))
		case bool:
			if v {
				said = append(said, f.Key)
			}
		default:
			said = append(said, fmt.Sprint(f.Key, " ", v))
		}
	}
	return strings.Join(said, ", ")
}
