package caddymodule

import (
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/herdshield/shield/pushback"
)

// herd knows which herd has been reported. It is part of the pooled state, so
// that a reload neither starts nor ends one.
type herd struct {
	mu    sync.Mutex
	is    pushback.HerdReport // guarded by mu, like the rest; as it was when it was largest
	since time.Duration
	seen  time.Duration
}

// herdChange is what one step has found out.
type herdChange struct {
	detected, ended bool
	herd            pushback.HerdReport // which
	lasted          time.Duration       // if ended
}

// step takes the detector's report at now.
func (h *herd) step(now time.Duration, is pushback.HerdReport) (changes [2]herdChange) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if now < h.seen {
		return // two apps report at once, and the other one was quicker
	}
	h.seen = now
	if h.is.Kind != pushback.NoHerd && (is.Kind != h.is.Kind || is.Period != h.is.Period && is.Kind != pushback.BacklogHerd) {
		changes[0] = herdChange{ended: true, herd: h.is, lasted: now - h.since}
		h.is = pushback.HerdReport{}
	}
	if is.Kind == pushback.NoHerd {
		return
	}
	if h.is.Kind == pushback.NoHerd {
		changes[1] = herdChange{detected: true, herd: is}
		h.is, h.since = is, now
	} else if is.Size > h.is.Size {
		h.is = is
	}
	return
}

// reportHerd logs and emits what has changed.
func (a *App) reportHerd(b *backend, changes [2]herdChange) {
	for _, c := range changes {
		if !c.detected && !c.ended {
			continue
		}
		data := map[string]any{
			"shield": b.name, "kind": c.herd.Kind.String(), "size": c.herd.Size,
			"period": c.herd.Period.Seconds(), "phase": c.herd.Phase.Seconds(),
		}
		fields := []zap.Field{
			zap.String("shield", b.name), zap.Stringer("kind", c.herd.Kind), zap.Float64("size", c.herd.Size),
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
