package shield

import (
	"context"
	"errors"
	"io"
	"net/http"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/herdshield/shield/loadshed"
	"github.com/herdshield/shield/pushback"
)

// An Outcome says how an admitted request ended: see [loadshed.Outcome].
type Outcome = loadshed.Outcome

// The outcomes.
const (
	Served     = loadshed.Served
	Detached   = loadshed.Detached
	Aborted    = loadshed.Aborted
	TimedOut   = loadshed.TimedOut
	Overloaded = loadshed.Overloaded
)

// OutcomeOf returns how a request ended, by the status of the backend's
// response, 0 if there was none that is known. Gateways answer 502, 503 and 504 for a
// backend that they cannot reach, that refuses, and that is late; a 500 or a 429 is
// about the request or its client, not about the backend's load. A request whose body
// broke off, or whose client left during the response, has taken as long as the client
// liked. It says nothing of the backend, whatever status a proxy makes of it. body is
// the result of WatchBody for r, or nil.
func OutcomeOf(r *http.Request, body *Body, status int) Outcome {
	err := r.Context().Err()
	gone := errors.Is(err, context.Canceled)
	switch {
	case body != nil && body.broken.Load(), gone && status >= 200 && status < 400:
		return Detached
	case gone:
		return Aborted
	case status == http.StatusBadGateway, status == http.StatusServiceUnavailable:
		return Overloaded
	case status == http.StatusGatewayTimeout, err != nil: // the server's own deadline
		return TimedOut
	}
	return Served
}

// WatchBody watches the body of r for a premature end, so that OutcomeOf can tell a
// client that breaks off from a backend that does. It returns nil if there is no body.
func WatchBody(r *http.Request) *Body {
	if r.Body == nil || r.Body == http.NoBody {
		return nil
	}
	b := &Body{ReadCloser: r.Body}
	r.Body = b
	return b
}

// A Body is the body of a request that WatchBody watches.
type Body struct {
	io.ReadCloser
	breaks func(error) // called when it ends too early; nil for none
	broken atomic.Bool // proxies read in a goroutine of their own
	closed atomic.Bool // by a handler: what Read says after that is not the client's doing
}

// Close implements io.Closer.
func (b *Body) Close() error {
	b.closed.Store(true)
	return b.ReadCloser.Close()
}

// ReadEarly is for [pushback.ReadEarly].
func (b *Body) ReadEarly() (whole, early bool) { return pushback.ReadEarly(b.ReadCloser) }

// Read implements io.Reader.
func (b *Body) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if err == nil || err == io.EOF || b.closed.Load() {
		return n, err
	}
	b.broken.Store(true)
	if b.breaks != nil {
		b.breaks(err)
		err = context.Canceled // to proxies it is no failure of the backend
	}
	return n, err
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
