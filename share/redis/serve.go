package redis

import (
	"context"
	"errors"
	"os"
	"time"

	"github.com/redis/rueidis"

	"github.com/herdshield/shield/share"
)

// A link is the state machine whose exchanges a Client carries: share.Link, or one like
// it. A is what it asks, B the answer.
type link[A, B any] interface {
	Due(now time.Duration) (A, bool)           // the exchange that is to be sent now
	Heard(now, sent time.Duration, answer B)   // its answer
	Missed(now time.Duration)                  // it has none, and will not have
	Next(now time.Duration) (at time.Duration) // when to call Due again at the latest
}

// serve carries the exchanges of one link, one at a time, until ctx is done. A token in
// wake makes it look at once whether one is due.
func serve[A, B any](ctx context.Context, c *Client, l link[A, B], wake <-chan struct{}, exchange func(A) (B, error), count *exchanges) {
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
			answer, err := exchange(ask)
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

// note tells the health of what became of an exchange.
func (c *Client) note(sent, now time.Duration, err error) outcome {
	trip := now - sent
	switch {
	case err == nil && trip <= share.MaxTrip:
		c.silent.Store(false)
		c.heard(sent, now)
		return inTime
	case err == nil && trip <= patience:
		c.silent.Store(false)
		c.missed(sent, now, tooLate(trip))
		return slow
	case err == nil || errors.Is(err, context.DeadlineExceeded) || errors.Is(err, os.ErrDeadlineExceeded):
		c.silent.Store(true)
		c.missed(sent, now, errSilent)
		return late
	}
	c.missed(sent, now, err)
	if _, replied := rueidis.IsRedisErr(err); replied {
		return refused
	}
	return failed
}
