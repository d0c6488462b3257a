package caddymodule

import (
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"github.com/herdshield/shield"
)

const (
	// reportEvery is how often refusals are logged: a line per zone and second
	// says how many it stands for.
	reportEvery = time.Second

	// overloadEnds is how long nobody must have been refused before an overload
	// has ended: long enough to bridge the gap between two waves of a herd that
	// was told to come back in a few seconds.
	overloadEnds = 5 * time.Second

	// stopPatience is how long a reload waits for the last report. Ours: a log
	// line takes microseconds, and a reload must not seem to hang.
	stopPatience = time.Second
)

// report logs and emits what has happened, until the app is stopped. During a
// reload two apps do so at once: what one has reported the other does not see.
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
		refused, observed := z.state.Refusals()
		if n := news(refused, &z.state.reported); n > 0 {
			a.logger.Info("refused over quota", zap.String("zone", z.name), zap.Uint64("requests", n))
		}
		if n := news(observed, &z.state.reportedObserved); n > 0 {
			a.logger.Info("would have refused over quota", zap.String("zone", z.name), zap.Uint64("requests", n))
		}
	}
	for _, b := range all.backends {
		s := b.state.Stats(now)
		if n := news(s.Refused[shield.PerClient], &b.state.hogs); n > 0 {
			a.logger.Info("refused over what one client may have in flight", zap.String("shield", b.name), zap.Uint64("requests", n))
		}
		if n := news(s.Observed[shield.PerClient], &b.state.wouldHog); n > 0 {
			a.logger.Info("would have refused over what one client may have in flight", zap.String("shield", b.name), zap.Uint64("requests", n))
		}
		change := b.state.overload.step(now, total{
			capacity:    s.Refused[shield.Capacity] + s.Observed[shield.Capacity],
			concurrency: s.Refused[shield.Concurrency] + s.Observed[shield.Concurrency],
			early:       s.Refused[shield.Early] + s.Observed[shield.Early],
			retried:     s.Refused[shield.RetryBudget] + s.Observed[shield.RetryBudget],
			paused:      s.Refused[shield.Pause] + s.Observed[shield.Pause],
		})
		a.reportOverload(b, change)
		left, times := b.state.Paused(now)
		a.reportPause(b, b.state.pause.step(now, left, times))
		if b.searches() {
			a.reportLimit(b)
		}
		if b.detects {
			b.guard.Tick(now)
			a.reportHerd(b, b.state.herd.step(now, b.state.Herd()))
		}
	}
}

// news returns how much of a count has not been reported yet, and takes it as
// reported. A count that was read before another app reported a later one holds
// no news.
func news(is uint64, reported *atomic.Uint64) uint64 {
	for {
		was := reported.Load()
		if is <= was {
			return 0
		}
		if reported.CompareAndSwap(was, is) {
			return is - was
		}
	}
}

func (a *App) reportOverload(b *backend, c change) {
	data := map[string]any{"shield": b.name, "observed": b.observing}
	if c.started {
		a.logger.Warn("overload started", zap.String("shield", b.name), zap.Bool("observed", b.observing))
		a.events.Emit(a.ctx, "shield_overload_started", data)
	}
	if c.new != (total{}) {
		message := "refused for want of room"
		if b.observing {
			message = "would have refused for want of room"
		}
		a.logger.Warn(message, zap.String("shield", b.name),
			zap.Uint64("capacity", c.new.capacity), zap.Uint64("concurrency", c.new.concurrency), zap.Uint64("early", c.new.early),
			zap.Uint64("retry_budget", c.new.retried), zap.Uint64("pause", c.new.paused))
	}
	if c.ended {
		a.logger.Info("overload ended", zap.String("shield", b.name), zap.Bool("observed", b.observing),
			zap.Duration("lasted", c.lasted), zap.Uint64("refused", c.refused))
		data["seconds"], data["refused"] = c.lasted.Seconds(), c.refused
		a.events.Emit(a.ctx, "shield_overload_ended", data)
	}
}

// reportLimit logs how the limit in flight has changed.
func (a *App) reportLimit(b *backend) {
	since := b.state.changes.Load()
	changes, next := b.state.Changes(since)
	if len(changes) == 0 || !b.state.changes.CompareAndSwap(since, next) {
		return // nothing new, or two apps report at once, and the other one was quicker
	}
	for _, c := range changes {
		if entry := a.logger.Check(zap.DebugLevel, "limit in flight changed"); entry != nil {
			entry.Write(zap.String("shield", b.name), zap.Stringer("reason", c.Reason),
				zap.Int("from", c.From), zap.Int("to", c.To),
				zap.Duration("latency", c.Latency), zap.Duration("baseline", c.Baseline))
		}
	}
}

// reportPause logs and emits that the backend has asked to be left alone, and that
// this is over.
func (a *App) reportPause(b *backend, c pauseChange) {
	if c.began {
		a.logger.Warn("backend asked to be left alone", zap.String("shield", b.name), zap.Duration("for", c.left))
		a.events.Emit(a.ctx, "shield_backend_paused", map[string]any{"shield": b.name, "seconds": c.left.Seconds()})
	}
	if c.ended {
		a.logger.Info("backend is asked again", zap.String("shield", b.name), zap.Duration("after", c.lasted))
		a.events.Emit(a.ctx, "shield_backend_resumed", map[string]any{"shield": b.name, "seconds": c.lasted.Seconds()})
	}
}

// pause knows whether it has been reported that a backend is left alone. It is
// part of the pooled state, so that a reload neither starts nor ends one.
type pause struct {
	mu    sync.Mutex
	on    bool // guarded by mu, like the rest
	times uint64
	since time.Duration
	seen  time.Duration
}

// pauseChange is what one step has found out.
type pauseChange struct {
	began, ended bool
	left         time.Duration // if began
	lasted       time.Duration // if ended, as far as it was seen
}

// step takes at now for how long the backend is still left alone, and how many
// times it has been.
func (p *pause) step(now, left time.Duration, times uint64) (c pauseChange) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if now < p.seen || times < p.times {
		return c // two apps report at once, and the other one was quicker
	}
	p.seen = now
	if times > p.times {
		p.times = times
		if !p.on {
			p.on, p.since = true, now
			c.began, c.left = true, left
		}
	}
	if p.on && left == 0 {
		p.on = false
		c.ended, c.lasted = true, now-p.since
	}
	return c
}

// total counts refusals for want of room since the backend's state was made. Who
// comes too early is refused for that, too: there would be room but for others. So
// is who retries too much, and who comes while the backend wants to be left alone.
type total struct{ capacity, concurrency, early, retried, paused uint64 }

func (t total) sum() uint64 { return t.capacity + t.concurrency + t.early + t.retried + t.paused }

// since returns what has been added to was; not if any count has gone back.
func (t total) since(was total) (added total, ok bool) {
	return total{
			t.capacity - was.capacity, t.concurrency - was.concurrency, t.early - was.early,
			t.retried - was.retried, t.paused - was.paused,
		},
		t.capacity >= was.capacity && t.concurrency >= was.concurrency && t.early >= was.early &&
			t.retried >= was.retried && t.paused >= was.paused
}

// overload knows whether a backend is being protected right now. It is part of
// the pooled state, so that a reload neither starts nor ends an overload.
type overload struct {
	mu    sync.Mutex
	seen  total         // guarded by mu, like the rest
	on    bool          // somebody was refused within overloadEnds
	since time.Duration // when it began
	last  time.Duration // when somebody was last seen to be refused
	begun total         // seen before it began
}

// change is what one step has found out.
type change struct {
	new            total // refusals since the last step
	started, ended bool
	lasted         time.Duration // if ended, from the first refusal to the last
	refused        uint64        // if ended, how many were refused meanwhile
}

// step takes the counts at now.
func (o *overload) step(now time.Duration, is total) (c change) {
	o.mu.Lock()
	defer o.mu.Unlock()
	added, ok := is.since(o.seen)
	if !ok {
		return c // two apps report at once, and the other one was quicker
	}
	before := o.seen
	o.seen, c.new = is, added
	switch {
	case c.new != (total{}):
		if !o.on {
			o.on, o.since, o.begun = true, now, before
			c.started = true
		}
		o.last = now
	case o.on && now-o.last >= overloadEnds:
		o.on = false
		c.ended, c.lasted = true, o.last-o.since
		c.refused = is.sum() - o.begun.sum()
	}
	return c
}

// active reports whether an overload is going on.
func (o *overload) active() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.on
}
