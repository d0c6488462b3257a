package redis

import (
	"context"
	"time"
)

// A link is the state machine whose exchanges a Client carries: share.Link, or one like
// it. A is what it asks, B the answer.
type link[A, B any] interface {
	OnWake(wake func())                        // sets what says that Due should be called
	Due(now time.Duration) (A, bool)           // the exchange that is to be sent now
	Heard(now, sent time.Duration, answer B)   // its answer
	Missed(now time.Duration)                  // it has none, and will not have
	Next(now time.Duration) (at time.Duration) // when to call Due again at the latest
}

// start serves a link in a goroutine of its own, and returns what ends that. An exchange
// that is on its way then is given up.
func start[A, B any](c *Client, l link[A, B], exchange func(context.Context, A) (B, error), count *exchanges) (stop func()) {
	ctx, cancel := context.WithCancel(c.ctx)
	ended := make(chan struct{})
	c.done.Go(func() {
		defer close(ended)
		serve(ctx, c, l, exchange, count)
	})
	return func() {
		cancel()
		<-ended
	}
}

// bye tells the store that a replica ends. It waits no longer than for any answer.
func bye[A, B any](c *Client, l link[A, B], exchange func(context.Context, A) (B, error)) {
	leaving, ok := l.(interface {
		Bye(now time.Duration) (A, bool)
	})
	if !ok {
		return
	}
	if ask, ok := leaving.Bye(c.shell.Now()); ok {
		_, _ = exchange(c.wire, ask) // nothing is left to be done without an answer
	}
}

// serve carries the exchanges of one link, one at a time, until ctx is done.
func serve[A, B any](ctx context.Context, c *Client, l link[A, B], exchange func(context.Context, A) (B, error), count *exchanges) {
	wake := make(chan struct{}, 1)
	l.OnWake(func() {
		select {
		case wake <- struct{}{}:
		default:
		}
	})
	defer bye(c, l, exchange)
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-wake:
		case <-timer.C:
		}
		now := c.shell.Now()
		for ask, due := l.Due(now); due && ctx.Err() == nil; ask, due = l.Due(now) {
			sent := now
			answer, err := exchange(ctx, ask)
			if now = c.shell.Now(); ctx.Err() != nil {
				return
			}
			outcome := c.note(sent, now, err)
			count.add(outcome, now-sent)
			if outcome == inTime || outcome == slow {
				l.Heard(now, sent, answer)
			} else {
				l.Missed(now)
			}
		}
		timer.Reset(max(0, l.Next(now)-now))
	}
}
