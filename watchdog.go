package shield

import (
	"context"
	"io"
	"math"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/herdshield/shield/pushback"
)

// LongestPause is how long an exchange may pause where no timeout applies: in the middle of a
// stream of events or of a gRPC call, and while the client has yet to send or to read. Ours:
// beyond all keep-alives that are in use, and short enough that nothing is kept for ever.
const LongestPause = time.Hour

// ErrTimeout is the cause of a context that a Watchdog has ended. Proxies make 504 of it.
var ErrTimeout error = timeoutError{}

// timeoutError implements net.Error, by which proxies tell a timeout.
type timeoutError struct{}

func (timeoutError) Error() string   { return "the backend did not answer in time" }
func (timeoutError) Timeout() bool   { return true }
func (timeoutError) Temporary() bool { return true }

// A Watchdog ends an exchange with a backend that is late: at an instant, or after a pause. A
// pause lasts only while the backend alone is waited for. While the client has yet to send a
// part of its body, or to read a part of the response, it begins anew: a slow client is no
// failure of the backend. Its methods may be called at any time, by any goroutine.
//
// It has one timer, which is not reset by progress, but looks for progress when it fires.
type Watchdog struct {
	cancel     context.CancelCauseFunc
	client     http.ResponseWriter
	end, pause time.Duration // when all must be over, and the longest pause; 0: there is no such limit

	mu      sync.Mutex // guards the fields below
	timer   *time.Timer
	since   time.Duration // when the last pause began
	sends   bool          // the client has yet to send: a read of its body is pending
	reads   bool          // the client has yet to read: no part of the response is awaited
	streams bool          // the response is a stream
	late    bool          // the exchange has been ended
	clients bool          // because of the client
	stopped bool
}

// Watch returns a context for an exchange that must be over at the instant end, and whose
// backend may pause for as long, counted from the instant since at first. 0: there is no such
// limit. w is the client's. The caller must call Stop.
func Watch(ctx context.Context, w http.ResponseWriter, end, pause, since time.Duration) (context.Context, *Watchdog) {
	ctx, cancel := context.WithCancelCause(ctx)
	d := &Watchdog{cancel: cancel, client: w, end: end, pause: pause, since: since}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.timer = time.AfterFunc(d.left(Now()), d.look)
	return ctx, d
}

// left returns how much time is left until the exchange may be late. d.mu is held.
func (d *Watchdog) left(now time.Duration) time.Duration {
	left := time.Duration(math.MaxInt64)
	if d.end > 0 {
		left = d.end - now
	}
	if pause := d.pause; pause > 0 {
		if d.sends || d.reads || d.streams {
			pause = max(pause, LongestPause)
		}
		left = min(left, d.since+pause-now)
	}
	return left
}

// breakEvery is how often a client that is waited for is broken off, until Stop: the proxy may
// just be setting a deadline of its own.
const breakEvery = 50 * time.Millisecond

// judge ends the exchange if it is late, and returns how much time is left. d.mu is held.
func (d *Watchdog) judge(now time.Duration) time.Duration {
	left := d.left(now)
	if !d.late && !d.stopped && left <= 0 {
		d.late, d.clients = true, d.sends || d.reads
		d.cancel(ErrTimeout)
	}
	return left
}

// look is what the timer does.
func (d *Watchdog) look() {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.stopped {
		return
	}
	if left := d.judge(Now()); !d.late {
		if d.pause > 0 && !d.streams { // the client's turn may end, and a pause begin
			left = min(left, d.pause)
		}
		d.timer.Reset(left)
		return
	}
	if d.sends { // proxies wait for what reads the body
		_ = http.NewResponseController(d.client).SetReadDeadline(time.Unix(1, 0))
	}
	if d.reads {
		_ = http.NewResponseController(bottom(d.client)).SetWriteDeadline(time.Unix(1, 0))
	}
	d.timer.Reset(breakEvery)
}

// bottom returns the server's own writer. Its deadline may be set by any goroutine; that of Caddy's wrapper for idle clients,
// unlike the one for reads, only by the one that writes.
func bottom(w http.ResponseWriter) http.ResponseWriter {
	for {
		wrapper, ok := w.(interface{ Unwrap() http.ResponseWriter })
		if !ok {
			return w
		}
		w = wrapper.Unwrap()
	}
}

// turn notes whether it is the client's turn from now on.
func (d *Watchdog) turn(is *bool, clients bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	*is, d.since = clients, Now()
}

// Reads notes that from now on the client has to read a part of the response, or that the
// next part of it is awaited.
func (d *Watchdog) Reads(yes bool) { d.turn(&d.reads, yes) }

// Begin notes that the response has begun with this status and header, and reports whether
// that was in time. A stream of events and a gRPC call may pause for LongestPause then. An
// upgraded connection is watched no longer.
func (d *Watchdog) Begin(r *http.Request, status int, header http.Header) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	now := Now()
	if d.judge(now); d.late {
		return false
	}
	d.since = now
	switch {
	case status == http.StatusSwitchingProtocols, status < 300 && extendedConnect(r):
		d.stopped = true
		d.timer.Stop()
	case strings.HasPrefix(header.Get("Content-Type"), eventStream), strings.HasPrefix(header.Get("Content-Type"), "application/grpc"):
		d.streams = true
	}
	return true
}

// Late reports whether the exchange is late, and whether it was the client that had yet to
// send or to read then.
func (d *Watchdog) Late() (late, clients bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.judge(Now())
	return d.late, d.clients
}

// Stop ends the watch. The context stays as it is, as what is left of a response may still be
// read.
func (d *Watchdog) Stop() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.stopped = true
	d.timer.Stop()
}

// Body returns the body of the watched request: a pending read of it is the client's turn.
func (d *Watchdog) Body(body io.ReadCloser) io.ReadCloser {
	if body == nil || body == http.NoBody {
		return body
	}
	return watchedBody{body, d}
}

type watchedBody struct {
	io.ReadCloser
	dog *Watchdog
}

// ReadEarly is for [pushback.ReadEarly].
func (b watchedBody) ReadEarly() (whole, early bool) { return pushback.ReadEarly(b.ReadCloser) }

// Read implements io.Reader.
func (b watchedBody) Read(p []byte) (int, error) {
	b.dog.turn(&b.dog.sends, true)
	defer b.dog.turn(&b.dog.sends, false)
	return b.ReadCloser.Read(p)
}
