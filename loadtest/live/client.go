package live

import (
	"context"
	"math/rand/v2"
	"net"
	"net/http"
	"time"

	"github.com/herdshield/shield/loadtest/clients"
	"github.com/herdshield/shield/pushback"
)

type verdict int

const (
	served verdict = iota // it has its response
	retry                 // it tries again after a wait
	gaveUp                // it leaves without a response
	cutOff                // none: the run was stopped while the attempt was in flight, and its outcome is unknown
)

type client struct {
	load   *Load
	start  time.Time // of the run
	index  int       // among all that come
	isHerd bool
	share  int
	random *rand.Rand
	due    time.Duration // when it comes, since start
	spares chan net.Conn // connections for the first attempt; nil: none
}

// live runs c until it is served or gives up. When ctx ends, its attempt is cut off. No
// attempt begins after going has ended, which enough does.
func (c *client) live(ctx, going context.Context, enough context.CancelCauseFunc) {
	l := c.load
	due, gap := c.due, time.Duration(0)
	for n := 1; ; n++ {
		began := time.Since(c.start)
		if !l.begin(c, n > 1, began) {
			enough(ErrRequests)
			return
		}
		attempt, cancel := context.WithTimeout(ctx, l.cfg.Timeout)
		if n == 1 {
			attempt = context.WithValue(attempt, sparesKey{}, c.spares)
		}
		r := l.send(attempt, c)
		cancel()
		e := end{reply: r, due: due, began: began, ended: time.Since(c.start), firstTime: c.due}
		if ctx.Err() != nil && r.status < 0 {
			e.verdict = cutOff
		} else {
			e.verdict, gap = c.decide(r, n, gap, e.ended-c.due)
		}
		l.record(c, e)
		due = e.ended + gap
		if e.verdict != retry || !wait(going, due-time.Since(c.start)) {
			return
		}
	}
}

// decide returns what c does after attempt number n, and for retry how long it waits. gap
// is its wait before that attempt. elapsed is the time since its first attempt was due.
func (c *client) decide(r reply, n int, gap, elapsed time.Duration) (verdict, time.Duration) {
	cfg := &c.load.cfg
	policy := cfg.Mix[c.share].Policy
	if r.status >= 200 && r.status < 300 {
		return served, 0
	}
	hint, ask := asks(policy, r.status, r.hint)
	if n == cfg.Attempts || !ask {
		return gaveUp, 0
	}
	budget := &c.load.begun[c.share]
	after, again := policy.Next(clients.Rejected{
		Attempt: n, Hint: hint, Gap: gap, Elapsed: elapsed, U: c.random.Float64(),
		Status: r.status, Retries: budget.retries.Load(), Requests: budget.requests.Load(),
	})
	if !again || after > cfg.Patience-elapsed { // not elapsed+after, which may overflow
		return gaveUp, 0
	}
	budget.retries.Add(1) // at the decision, because all clients of a herd decide before the first of them comes back
	return retry, max(after, 0)
}

// asks reports whether p decides after a failure, and returns the part of the hint that it
// may know. A clients.Client defines which failures it retries and in which responses it
// obeys a hint. Other policies decide after failures that may be temporary, and know the
// hints of 429 (RFC 6585, section 4) and 503.
func asks(p clients.Policy, status int, hint pushback.Hint) (pushback.Hint, bool) {
	if decides(p) {
		return hint, true
	}
	if status != http.StatusTooManyRequests && status != http.StatusServiceUnavailable {
		hint = pushback.Hint{}
	}
	return hint, mayRetry(status)
}

func decides(p clients.Policy) bool {
	switch p := p.(type) {
	case clients.Client:
		return true
	case clients.Named:
		return decides(p.Policy)
	case clients.MaxAttempts:
		return decides(p.Policy)
	case clients.Budgeted:
		return decides(p.Policy)
	}
	return false
}

// mayRetry reports whether a failure may be temporary. An error of the request is not.
func mayRetry(status int) bool {
	switch status {
	case clients.NoAnswer, clients.NoConnection,
		http.StatusRequestTimeout, http.StatusTooEarly, http.StatusTooManyRequests:
		return true
	case http.StatusNotImplemented, http.StatusHTTPVersionNotSupported:
		return false
	}
	return status >= 500
}

// wait returns true after d, or false as soon as ctx ends.
func wait(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return ctx.Err() == nil
	case <-ctx.Done():
		return false
	}
}
