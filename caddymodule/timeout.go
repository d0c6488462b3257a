package caddymodule

import (
	"bufio"
	"io"
	"net"
	"net/http"
	"time"

	"github.com/caddyserver/caddy/v2/modules/caddyhttp"

	"github.com/herdshield/shield"
	"github.com/herdshield/shield/pushback"
)

// maxTimeout bounds a time-out. Ours: longer ones are mistakes.
const maxTimeout = 24 * time.Hour

// timed is the handler behind a shield, with a time-out. It ends requests whose handlers obey
// their contexts, as reverse_proxy does. A response that others begin later is dropped.
type timed struct {
	caddyhttp.Handler
	limit time.Duration
}

// ServeHTTP implements caddyhttp.Handler.
func (t timed) ServeHTTP(w http.ResponseWriter, r *http.Request) (err error) {
	before, body := r.Context(), r.Body
	ctx, dog := shield.Watch(before, w, 0, t.limit, shield.Now())
	tw := &timedWriter{ResponseWriter: w, r: r, dog: dog}
	*r = *r.WithContext(ctx) // placeholders are about r
	r.Body = dog.Body(body)
	defer func() {
		late, clients := dog.Late()
		dog.Stop()
		*r = *r.WithContext(before)
		if r.Body = body; late && !clients {
			NoteTimeout(before)
		}
	}()
	err = t.Handler.ServeHTTP(tw, r)
	switch late, clients := dog.Late(); {
	case !late || tw.hijacked:
		return err
	case tw.begun: // and is not complete
		panic(http.ErrAbortHandler)
	case clients:
		w.Header().Set("Connection", "close")
		return caddyhttp.HandlerError{StatusCode: http.StatusRequestTimeout, Err: shield.ErrTimeout}
	case pushback.IsGRPC(r): // its clients do not read 504
		h := w.Header()
		h.Set("Content-Type", "application/grpc")
		h.Set("Grpc-Status", "4")
		h.Set("Grpc-Message", shield.ErrTimeout.Error())
		w.WriteHeader(http.StatusOK)
		return nil
	}
	w.Header().Set("Proxy-Status", "shield; error=http_response_timeout") // RFC 9209, section 2.3
	return caddyhttp.Error(http.StatusGatewayTimeout, shield.ErrTimeout)
}

// A timedWriter tells the Watchdog when it is the client's turn, and drops a response that
// begins too late.
type timedWriter struct {
	http.ResponseWriter
	r        *http.Request
	dog      *shield.Watchdog
	begun    bool
	hijacked bool
}

// begin reports whether the response may begin with this status, or has begun.
func (w *timedWriter) begin(status int) bool {
	if !w.begun && w.dog.Begin(w.r, status, w.Header()) {
		w.begun = status >= 200 || status == http.StatusSwitchingProtocols
		return true
	}
	return w.begun
}

// WriteHeader implements http.ResponseWriter.
func (w *timedWriter) WriteHeader(status int) {
	if w.begin(status) {
		w.ResponseWriter.WriteHeader(status)
	}
}

// Write implements http.ResponseWriter.
func (w *timedWriter) Write(b []byte) (int, error) {
	if !w.begin(http.StatusOK) {
		return 0, shield.ErrTimeout
	}
	w.dog.Reads(true)
	defer w.dog.Reads(false)
	return w.ResponseWriter.Write(b)
}

// ReadFrom implements io.ReaderFrom, so that files are still sent by the kernel. All of it is
// the client's turn.
func (w *timedWriter) ReadFrom(from io.Reader) (int64, error) {
	if !w.begin(http.StatusOK) {
		return 0, shield.ErrTimeout
	}
	w.dog.Reads(true)
	defer w.dog.Reads(false)
	return io.Copy(w.ResponseWriter, from)
}

// Flush implements http.Flusher.
func (w *timedWriter) Flush() { _ = w.FlushError() }

// FlushError is the Flush that http.ResponseController prefers.
func (w *timedWriter) FlushError() error {
	if !w.begin(http.StatusOK) {
		return shield.ErrTimeout
	}
	w.dog.Reads(true)
	defer w.dog.Reads(false)
	return http.NewResponseController(w.ResponseWriter).Flush()
}

// Hijack implements http.Hijacker. An upgraded connection has no time-out.
func (w *timedWriter) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	conn, rw, err := http.NewResponseController(w.ResponseWriter).Hijack()
	if err == nil {
		w.hijacked = true
		w.dog.Stop()
	}
	return conn, rw, err
}

// Unwrap is for http.ResponseController.
func (w *timedWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }
