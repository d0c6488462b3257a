package redis

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"github.com/herdshield/shield/share"
)

// lostAfter is how long no exchange of any link was answered in time until the store
// counts as lost. Links work alone long before: this is about what an operator is told.
const lostAfter = time.Second

// health says whether the store answers in time.
type health struct {
	mu    sync.Mutex
	up    bool
	since time.Duration // of up, or of the last answer before
	lost  bool          // told, and not back yet
	alone time.Duration // in all, until since
	why   error         // of the last exchange that failed
	trip  time.Duration // of the last exchange that was answered
}

func (h *health) begin(now time.Duration) { h.since = now }

// answered notes an answer to what was sent then, and returns for how long the store was
// lost until now, if it was.
func (h *health) answered(sent, now time.Duration) (away time.Duration, back bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.trip = now - sent
	away, back = now-h.since, h.lost
	if !h.up {
		h.alone += away
		h.up, h.since = true, now
	}
	h.lost, h.why = false, nil
	return away, back
}

// failed notes that what was sent then was not answered in time, and returns why the store is lost, if it is from now on.
func (h *health) failed(sent, now time.Duration, err error) (lost error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.why = err
	if h.up {
		h.up, h.since = false, sent
	}
	if h.lost || now-h.since < lostAfter {
		return nil
	}
	h.lost = true
	return err
}

// tooLate is the error of an answer that took too long to be of use.
func tooLate(trip time.Duration) error {
	return fmt.Errorf("an answer took %v; want at most %v", trip.Round(time.Millisecond), share.MaxTrip)
}

// heard and missed tell the shell.
func (c *Client) heard(sent, now time.Duration) {
	if away, back := c.health.answered(sent, now); back && c.shell.Back != nil {
		c.shell.Back(away)
	}
}

func (c *Client) missed(sent, now time.Duration, err error) {
	if lost := c.health.failed(sent, now, err); lost != nil && c.shell.Lost != nil {
		c.shell.Lost(lost)
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
	case err == nil && trip <= share.GiveUp:
		c.silent.Store(false)
		c.missed(sent, now, tooLate(trip))
		return slow
	case err == nil || errors.Is(err, context.DeadlineExceeded) || errors.Is(err, os.ErrDeadlineExceeded):
		c.silent.Store(true)
		c.missed(sent, now, errSilent)
		return late
	}
	c.missed(sent, now, err)
	if _, ok := replied(err); ok {
		return refused
	}
	return failed
}
