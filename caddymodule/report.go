package caddymodule

import (
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"github.com/herdshield/shield"
)

const (
	// reportEvery is how often refusals are logged. One line per zone or shield says how
	// many refusals it stands for.
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
	all := a.roster()
	for _, z := range all.zones {
		refused, observed := z.record.Refusals()
		a.logRefusals("zone", z.record.shown, shield.Quota, refused, observed, &z.record.logged)
	}
	for _, s := range all.shields {
		stats := s.record.Stats(now)
		var overload reasonCounts // refusals that are not the fault of their clients
		for _, reason := range shield.Reasons {
			refused, observed := stats.Refused[reason], stats.Observed[reason]
			switch {
			case !reason.ClientFault():
				overload[reason] = refused + observed
			case reason != shield.Quota: // zones log those
				a.logRefusals("shield", s.name, reason, refused, observed, &s.record.logged)
			}
		}
		a.reportOverload(s, s.record.overload.step(now, overload))
		left, times := s.record.Paused(now)
		a.reportPause(s, s.record.pause.step(now, left, times))
		if s.adaptive() {
			a.logLimit(s)
		}
		if s.guard.DetectsHerds() {
			s.guard.Tick(now)
			a.reportHerd(s, s.record.herd.step(now, s.record.Herd()))
		}
	}
}

// logRefusals logs how many requests have been refused for a reason since the last time.
func (a *App) logRefusals(kind, name string, reason shield.Reason, refused, observed uint64, done *logged) {
	if n := newSince(refused, &done.refused[reason]); n > 0 {
		a.logger.Info("refused over "+reason.String(), zap.String(kind, name), zap.Uint64("requests", n))
	}
	if n := newSince(observed, &done.observed[reason]); n > 0 {
		a.logger.Info("would have refused over "+reason.String(), zap.String(kind, name), zap.Uint64("requests", n))
	}
}

// newSince returns how much count has grown since it was logged, and marks that as
// logged. It returns 0 for a count that was read before another app logged a later one.
func newSince(count uint64, logged *atomic.Uint64) uint64 {
	for {
		was := logged.Load()
		if count <= was {
			return 0
		}
		if logged.CompareAndSwap(was, count) {
			return count - was
		}
	}
}

func (a *App) reportOverload(s *shieldEntry, c overloadChange) {
	data := map[string]any{"shield": s.name, "observed": s.config.Observe}
	if c.started {
		a.logger.Warn("overload started", zap.String("shield", s.name), zap.Bool("observed", s.config.Observe))
		a.events.Emit(a.ctx, "shield_overload_started", data)
	}
	if c.added != (reasonCounts{}) {
		message := "refused in overload"
		if s.config.Observe {
			message = "would have refused in overload"
		}
		fields := []zap.Field{zap.String("shield", s.name)}
		for _, reason := range shield.Reasons {
			if !reason.ClientFault() {
				fields = append(fields, zap.Uint64(reason.String(), c.added[reason]))
			}
		}
		a.logger.Warn(message, fields...)
	}
	if c.ended {
		a.logger.Info("overload ended", zap.String("shield", s.name), zap.Bool("observed", s.config.Observe),
			zap.Duration("lasted", c.lasted), zap.Uint64("refused", c.refused))
		data["seconds"], data["refused"] = c.lasted.Seconds(), c.refused
		a.events.Emit(a.ctx, "shield_overload_ended", data)
	}
}

// logLimit logs how the limit in flight has changed.
func (a *App) logLimit(s *shieldEntry) {
	since := s.record.changes.Load()
	changes, next := s.record.Changes(since)
	if len(changes) == 0 || !s.record.changes.CompareAndSwap(since, next) {
		return // nothing is new, or the other app of a reload was faster
	}
	for _, c := range changes {
		if entry := a.logger.Check(zap.DebugLevel, "limit in flight changed"); entry != nil {
			entry.Write(zap.String("shield", s.name), zap.Stringer("reason", c.Reason),
				zap.Int("from", c.From), zap.Int("to", c.To),
				zap.Duration("latency", c.Latency), zap.Duration("baseline", c.Baseline))
		}
	}
}

func (a *App) reportPause(s *shieldEntry, c pauseChange) {
	if c.began {
		a.logger.Warn("backend asked for a pause", zap.String("shield", s.name), zap.Duration("for", c.left))
		a.events.Emit(a.ctx, "shield_backend_paused", map[string]any{"shield": s.name, "seconds": c.left.Seconds()})
	}
	if c.ended {
		a.logger.Info("pause of the backend ended", zap.String("shield", s.name), zap.Duration("after", c.lasted))
		a.events.Emit(a.ctx, "shield_backend_resumed", map[string]any{"shield": s.name, "seconds": c.lasted.Seconds()})
	}
}

func (a *App) reportHerd(s *shieldEntry, changes [2]herdChange) {
	for _, c := range changes {
		if !c.detected && !c.ended {
			continue
		}
		data := map[string]any{
			"shield": s.name, "kind": c.herd.Kind.String(), "size": c.herd.Size,
			"period": c.herd.Period.Seconds(), "phase": c.herd.Phase.Seconds(),
		}
		fields := []zap.Field{
			zap.String("shield", s.name), zap.Stringer("kind", c.herd.Kind), zap.Float64("size", c.herd.Size),
			zap.Duration("period", c.herd.Period), zap.Duration("phase", c.herd.Phase),
		}
		if c.detected {
			a.logger.Warn("herd detected", fields...)
			a.events.Emit(a.ctx, "shield_herd_detected", data)
		} else {
			data["seconds"] = c.lasted.Seconds()
			a.logger.Info("herd ended", append(fields, zap.Duration("lasted", c.lasted))...)
			a.events.Emit(a.ctx, "shield_herd_ended", data)
		}
	}
}
