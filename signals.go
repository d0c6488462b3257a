package shield

import (
	"net/http"
	"strconv"
	"strings"
	"time"
)

// OutcomeOf returns how a request ended, by the status of the backend's
// response, 0 if there was none that is known. 502, 503 and 504 are what gateways
// say of a backend that they cannot reach, that refuses, and that is late; a 500
// or a 429 is about the request or its client, not about the backend's load.
func OutcomeOf(r *http.Request, status int) Outcome {
	switch {
	case status == http.StatusGatewayTimeout:
		return TimedOut
	case status == http.StatusBadGateway, status == http.StatusServiceUnavailable:
		return Overloaded
	case r.Context().Err() != nil:
		return Aborted
	}
	return Served
}

// RetryAfter returns how long a Retry-After field (RFC 9110, section 10.2.3)
// says to wait: seconds, or an HTTP date, which is compared with now. 0 if there is
// none or it cannot be read.
func RetryAfter(field string, now time.Time) time.Duration {
	field = strings.TrimSpace(field)
	if s, err := strconv.ParseUint(field, 10, 31); err == nil {
		return time.Duration(s) * time.Second
	}
	if at, err := http.ParseTime(field); err == nil {
		return max(0, at.Sub(now))
	}
	return 0
}
