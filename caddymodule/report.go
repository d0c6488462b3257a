package caddymodule

import (
	"slices"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"

	"github.com/herdshield/shield"
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
	ticker := time.NewTicker(reportEvery)
	defer ticker.Stop()
	for {
		select {
		case <-ticker.C:
			a.reportOnce(shield.Now())
		case <-a.stop:
			a.reportOnce(shield.Now())
			return
		case <-a.ctx.Done(): // Caddy dropped the config without stopping it
			return
		}
	}
}

func (a *App) reportOnce(now time.Duration) {
	a.serveAll(now)
	a.warnOfSizes(now)
	if a.storage != nil {
		a.tell(zap.String("store", a.storage.address), a.storage.report())
	}
	all, seq := a.roster(), clock.Tick(now)
	for _, z := range all.zones {
		a.tell(zap.String("zone", z.record.shown), z.record.report(now))
	}
	for _, s := range all.shields {
		if s.guard().DetectsHerds() {
			s.guard().Tick(now)
		}
		what := s.report(now)
		a.tell(zap.String("shield", s.name), what)
		s.remember(now, seq, what)
	}
	histories.announce()
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
