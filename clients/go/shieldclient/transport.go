// Package shieldclient retries HTTP requests when the server says so. A server behind shield rejects
// clients with an appointment of their own, and this client returns on time, to the millisecond.
// It needs only the standard library:
//
//	client := &http.Client{Transport: &shieldclient.Transport{}}
//
// For the rules it follows, see docs/guides/write-a-client.md in github.com/herdshield/shield.
package shieldclient

import (
	"cmp"
	"context"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// Transport repeats a request when a 429 or 503 says when to return. It gives up, returning the
// rejection with its body unread, if the server says "never" or gives no time, if the request's body
// can't be sent again because it has no GetBody, or if the time exceeds one of the limits: Attempts,
// Total, or the deadline of the request's context, which http.Client's Timeout sets, too.
//
// The zero Transport is ready to use. It is safe for concurrent use.
type Transport struct {
	Base     http.RoundTripper // sends requests; nil means http.DefaultTransport
	Attempts int               // the most requests for one, with the first; 0 means 5
	Total    time.Duration     // from the first request to the last; 0 means 2 minutes
}

// ticketName is the cookie in which shield gives a client its signed appointment.
const ticketName = "shield_retry"

// RoundTrip implements http.RoundTripper.
func (t *Transport) RoundTrip(first *http.Request) (*http.Response, error) {
	base := t.Base
	if base == nil {
		base = http.DefaultTransport
	}
	ctx := first.Context()
	end := time.Now().Add(cmp.Or(t.Total, 2*time.Minute))
	if deadline, ok := ctx.Deadline(); ok && deadline.Before(end) {
		end = deadline
	}
	r := first.Clone(ctx) // a RoundTripper leaves its request alone
	r.Header.Set("Shield-Retry", "yes")
	for attempt := 1; ; attempt++ {
		resp, err := base.RoundTrip(r)
		if err != nil {
			return nil, err
		}
		now := time.Now()
		wait, told := appointment(resp, now)
		isReplayable := first.Body == nil || first.Body == http.NoBody || first.GetBody != nil
		if !told || !isReplayable || attempt >= cmp.Or(t.Attempts, 5) || wait > end.Sub(now) {
			return resp, nil
		}
		next := r.Clone(ctx)
		if first.GetBody != nil {
			if next.Body, err = first.GetBody(); err != nil {
				return resp, nil // it cannot be sent again after all
			}
		}
		carryTicket(next, resp)
		if resp.ContentLength >= 0 && resp.ContentLength <= 16<<10 { // others can use the connection
			_, _ = io.Copy(io.Discard, resp.Body)
		}
		resp.Body.Close()
		if err := sleep(ctx, time.Until(now.Add(wait))); err != nil {
			if next.Body != nil {
				next.Body.Close()
			}
			return nil, err
		}
		r = next
	}
}

// appointment returns how long a rejection asks its client to wait, if it says so.
func appointment(resp *http.Response, now time.Time) (wait time.Duration, told bool) {
	h := resp.Header
	if resp.StatusCode != http.StatusTooManyRequests && resp.StatusCode != http.StatusServiceUnavailable ||
		strings.EqualFold(h.Get("X-Should-Retry"), "false") {
		return 0, false
	}
	if ms, err := strconv.ParseUint(h.Get("Retry-After-Ms"), 10, 43); err == nil { // 43 bits fit a Duration
		return time.Duration(ms) * time.Millisecond, true
	}
	after := h.Get("Retry-After")
	if s, err := strconv.ParseUint(after, 10, 33); err == nil {
		return time.Duration(s) * time.Second, true
	}
	at, err := http.ParseTime(after)
	if err != nil {
		return 0, false
	}
	// The date is by the server's clock. So is Date, and it is rounded down: nobody comes early.
	if date, err := http.ParseTime(h.Get("Date")); err == nil {
		now = date
	}
	return max(0, at.Sub(now)), true
}

// carryTicket has the next request bring the ticket of a rejection, in place of an earlier one. A cookie
// jar cannot: http.Client asks it before RoundTrip, and shows it only what RoundTrip returns.
func carryTicket(next *http.Request, resp *http.Response) {
	for _, ticket := range resp.Cookies() {
		if ticket.Name != ticketName {
			continue
		}
		others := next.Cookies()
		next.Header.Del("Cookie")
		for _, c := range others {
			if c.Name != ticketName {
				next.AddCookie(c)
			}
		}
		next.AddCookie(ticket)
	}
}

func sleep(ctx context.Context, wait time.Duration) error {
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
