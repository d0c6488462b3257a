package caddymodule

import (
	"slices"
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
			a.closeStore(shield.Now())
			return
		}
	}
}

func (a *App) reportOnce(now time.Duration) {
	a.tend(now)
	if a.storage != nil {
		var said bulletin
		a.storage.Report(said.add)
		a.tell(zap.String("store", a.storage.Address), said)
	}
	all, seq := a.roster(), oncall.Second(now)
	for _, s := range all.shields {
		if s.guard().DetectsHerds() {
			s.guard().Tick(now)
		}
		what := s.report(now)
		a.tell(zap.String("shield", s.name), what)
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
