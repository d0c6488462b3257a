package shield

import (
	"bufio"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
)

const eventStream = "text/event-stream"

// MayDetach reports whether the response to r may go on for as long as the
// client likes: an upgrade (RFC 9110, section 7.8), an extended CONNECT (RFC
// 8441), or a stream of server-sent events. The request has to announce it; a
// stream without an announcement holds its place until it ends.
func MayDetach(r *http.Request) bool {
	if extendedConnect(r) || len(r.Header["Upgrade"]) > 0 {
		return true
	}
	accept := r.Header["Accept"]
	return len(accept) > 0 && strings.Contains(accept[0], eventStream)
}

// extendedConnect reports whether r is a CONNECT with a :protocol: net/http
// shows it as a header of HTTP/2, and quic-go as the Proto of HTTP/3. A plain
// CONNECT holds its place: any client can send one for any path.
func extendedConnect(r *http.Request) bool {
	return r.Method == http.MethodConnect &&
		(r.ProtoMajor == 2 && len(r.Header[":protocol"]) > 0 || r.ProtoMajor == 3 && r.Proto != "HTTP/3.0")
}

// A Tracker is the ResponseWriter for a request that MayDetach, or whose status
// the Guard wants to know. It gives back the place in flight as soon as the
// connection is upgraded or the stream of events begins.
type Tracker struct {
	http.ResponseWriter
	r       *http.Request
	body    *Body // nil: not watched
	g       *Guard
	d       Decision
	connect bool
	begun   bool
	status  int // of the response, once it has begun
	done    atomic.Bool
	mu      sync.Mutex
	then    func() // guarded by mu
}

// Track returns a Tracker for a request that the Guard has admitted, which takes over
// its Done.
func (g *Guard) Track(w http.ResponseWriter, r *http.Request, d Decision) *Tracker {
	return &Tracker{ResponseWriter: w, r: r, g: g, d: d, connect: extendedConnect(r)}
}

// Done gives back the place in flight if the request still holds it. Further
// calls do nothing.
func (t *Tracker) Done() {
	t.DoneAs(OutcomeOf(t.r, t.body, t.status))
	// One with an exact wait in it is one client's appointment, of another shield.
	if t.status == http.StatusServiceUnavailable && t.d.HoldsPlace() && t.Header().Get("Retry-After-Ms") == "" {
		t.g.Pause(Now(), RetryAfter(t.Header().Get("Retry-After"), At(Now())))
	}
}

// DoneAs is Done for a caller that knows better than the response how the request
// has ended. Of all calls of the two the first counts.
func (t *Tracker) DoneAs(o Outcome) {
	if !t.done.CompareAndSwap(false, true) {
		return
	}
	t.mu.Lock()
	then := t.then
	t.then = nil
	t.mu.Unlock()
	if then != nil {
		then()
	}
	t.d.Done(Now(), o)
}

// Before has f called just before the place in flight is given back; at once if that
// has happened. It is for a proxy that has places of its own, for each of several
// servers: f gives back the one that the request has there. Of several calls the last
// counts; nil takes f away again. It reports whether the place is still held.
func (t *Tracker) Before(f func()) (held bool) {
	t.mu.Lock()
	held = !t.done.Load()
	if held {
		t.then = f
	}
	t.mu.Unlock()
	if !held && f != nil {
		f()
	}
	return held
}

// WriteHeader implements http.ResponseWriter.
func (t *Tracker) WriteHeader(status int) {
	t.begin(status)
	t.ResponseWriter.WriteHeader(status)
}

// begin looks at the header of the response, once: at the first that is final,
// be it explicit or the 200 that a first Write or Flush implies.
func (t *Tracker) begin(status int) {
	switching := status == http.StatusSwitchingProtocols
	if t.begun || status < 200 && !switching {
		return
	}
	t.begun, t.status = true, status
	if switching || status < 300 && (t.connect || strings.HasPrefix(t.Header().Get("Content-Type"), eventStream)) {
		t.detach()
	}
}

// Write implements http.ResponseWriter.
func (t *Tracker) Write(b []byte) (int, error) {
	t.begin(http.StatusOK)
	return t.ResponseWriter.Write(b)
}

// ReadFrom implements io.ReaderFrom, so that files are still sent by the kernel.
func (t *Tracker) ReadFrom(r io.Reader) (int64, error) {
	t.begin(http.StatusOK)
	return io.Copy(t.ResponseWriter, r)
}

// Flush implements http.Flusher.
func (t *Tracker) Flush() { _ = t.FlushError() }

// FlushError is the Flush that http.ResponseController prefers.
func (t *Tracker) FlushError() error {
	t.begin(http.StatusOK)
	return http.NewResponseController(t.ResponseWriter).Flush()
}

// Hijack implements http.Hijacker.
func (t *Tracker) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	conn, rw, err := http.NewResponseController(t.ResponseWriter).Hijack()
	if err == nil {
		t.detach()
	}
	return conn, rw, err
}

// detach gives back the place of a response that goes on without it.
func (t *Tracker) detach() {
	t.d.place.Serves(Now())
	t.DoneAs(Detached)
}

// Unwrap is for http.ResponseController.
func (t *Tracker) Unwrap() http.ResponseWriter { return t.ResponseWriter }
