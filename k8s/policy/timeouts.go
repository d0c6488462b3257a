package policy

import (
	"errors"
	"strconv"
	"time"
)

// Timeouts are how long a request may take until it is answered 504 or, if the response has
// begun, broken off. 0: any time. An upgraded connection, like a websocket, is no request any
// more, and has none of them.
type Timeouts struct {
	// Request is for all of it, from its header until the client has the response, with the
	// waits and retries on the way: the request of GEP-1742.
	Request time.Duration

	// Backend is for one attempt at an endpoint, from the dial until the response is
	// complete: the backendRequest of GEP-1742.
	Backend time.Duration

	// Response is how long the endpoint alone may be waited for: until the response begins,
	// over all attempts, and then until the next part of it comes. A pause in which the
	// client has yet to send or to read is the client's. Streams of events and gRPC calls
	// may pause for an hour once they have begun, if Response is shorter.
	Response time.Duration
}

// NoTimeout is the value of Filters.Timeouts for any time.
const NoTimeout = -1

const (
	minTimeout = time.Millisecond
	maxTimeout = 24 * time.Hour
)

const wantTimeout = "a duration from 1ms to 24h, like 60s, or off"

var timeoutForm = form[time.Duration]{
	want: wantTimeout,
	rule: "x == 'off' || x.matches('^([0-9]+([.][0-9]+)?(h|m|s|ms))+$') && duration(x) <= duration('24h')",
	page: "`1ms` to `24h`, `off`",
	parse: func(text string) (time.Duration, error) {
		d, err := ParseTimeout(text)
		return okOr(d, err == nil)
	},
}

// ParseTimeout reads a timeout. 0s and off are NoTimeout.
func ParseTimeout(text string) (time.Duration, error) {
	if text == off {
		return NoTimeout, nil
	}
	d, err := time.ParseDuration(text)
	switch {
	case err != nil || d < 0 || d > maxTimeout || d > 0 && d < minTimeout:
		return 0, errors.New("use " + wantTimeout)
	case d == 0:
		return NoTimeout, nil
	}
	return d, nil
}

// inSeconds writes a number of seconds, as ingress-nginx has it, as a duration.
func inSeconds(text string) string {
	if _, err := strconv.ParseUint(text, 10, 32); err == nil {
		text += "s"
	}
	return text
}

// Over returns the timeouts with those of defaults where there are none. None of the result
// is NoTimeout.
func (t Timeouts) Over(defaults Timeouts) Timeouts {
	over := func(d, otherwise time.Duration) time.Duration {
		if d == 0 {
			d = otherwise
		}
		return max(d, 0)
	}
	return Timeouts{over(t.Request, defaults.Request), over(t.Backend, defaults.Backend), over(t.Response, defaults.Response)}
}
