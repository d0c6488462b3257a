package shield

import (
	"bufio"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
)

const eventStream = "text/event-stream"

// Streams says which responses that go on for as long as the client likes give back their
// place in flight when they begin. The request has to announce what it may get: by
// Upgrade (RFC 9110, section 7.8), as an extended CONNECT (RFC 8441), or by Accept.
type Streams string

// The values of Streams. Of an EventSource, which is a GET that accepts nothing but events,
// the client waits for news. Any other stream of events is the answer to a question, such as
// that of a language model or an MCP server, and is work until it ends.
const (
	StreamsAuto Streams = "auto" // upgrades, CONNECT and EventSources; the same as ""
	StreamsFree Streams = "free" // also all other streams of events that Accept names
	StreamsHold Streams = "hold" // none
)

// MayStream reports whether r announces that its response may go on for as long as the
// client likes. Then a Tracker is to see whether it does.
func MayStream(r *http.Request) bool {
	accepts := func(types string) bool { return strings.Contains(types, eventStream) }
	return tunnels(r) || slices.ContainsFunc(r.Header["Accept"], accepts)
}

// free reports whether the stream that r announces gives back its place when it begins.
func (s Streams) free(r *http.Request) bool {
	switch s {
	case StreamsHold:
		return false
	case StreamsFree:
		return MayStream(r)
	}
	return tunnels(r) || isEventSource(r)
}

func tunnels(r *http.Request) bool { return extendedConnect(r) || len(r.Header["Upgrade"]) > 0 }

// isEventSource reports whether r is what browsers' EventSources send: a GET that accepts
// one type (HTML standard, section 9.2.2).
func isEventSource(r *http.Request) bool {
	accept := r.Header["Accept"]
	if r.Method != http.MethodGet || len(accept) != 1 {
		return false
	}
	only, _, _ := strings.Cut(accept[0], ";")
	return strings.EqualFold(strings.TrimSpace(only), eventStream) && !strings.Contains(accept[0], ",")
}

// extendedConnect reports whether r is a CONNECT with a :protocol: net/http
// shows it as a header of HTTP/2, and quic-go as the Proto of HTTP/3. A plain
// CONNECT holds its place: any client can send one for any path.
func extendedConnect(r *http.Request) bool {
	return r.Method == http.MethodConnect &&
		(r.ProtoMajor == 2 && len(r.Header[":protocol"]) > 0 || r.ProtoMajor == 3 && r.Proto != "HTTP/3.0")
}

// A Tracker is the ResponseWriter for a request that MayStream, or whose status the Guard
// wants to know. When the connection is upgraded or the stream of events begins, it gives
// back the place in flight, or has the Guard learn from the time until then: see Streams.
type Tracker struct {
	http.ResponseWriter

	// Then is called, if it is set, just before the place in flight is given back. It is for a
	// proxy that has places of its own, and has to be set before the response begins.
	Then func()

	r      *http.Request
	body   *Body // nil: not watched
	d      Decision
	free   bool // a stream gives back its place
	status int  // of the response, once it has begun
	done   atomic.Bool
}

// Track returns a Tracker for a request that the Guard has admitted, which takes over
// its Done.
func (g *Guard) Track(w http.ResponseWriter, r *http.Request, d Decision) *Tracker {
	return &Tracker{ResponseWriter: w, r: r, d: d, free: g.streams.free(r)}
}

// Done gives back the place in flight if the request still holds it. Further
// calls do nothing.
func (t *Tracker) Done() {
	if t.done.Load() {
		return
	}
	t.DoneAs(OutcomeOf(t.r, t.body, t.status))
	// One with an exact wait in it is one client's appointment, of another shield.
	if t.status == http.StatusServiceUnavailable && t.d.HoldsPlace() && t.Header().Get("Retry-After-Ms") == "" {
		t.d.Pause(Now(), RetryAfter(t.Header().Get("Retry-After"), At(Now())))
	}
}

// DoneAs is Done for a caller that knows better than the response how the request
// has ended. Of all calls of the two the first counts.
func (t *Tracker) DoneAs(o Outcome) {
	if !t.done.CompareAndSwap(false, true) {
		return
	}
	if t.Then != nil {
		t.Then()
	}
	t.d.Done(Now(), o)
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
	if t.status != 0 || status < 200 && !switching {
		return
	}
	t.status = status
	if switching || status < 300 && (extendedConnect(t.r) || strings.HasPrefix(t.Header().Get("Content-Type"), eventStream)) {
		t.streams()
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
		t.streams()
	}
	return conn, rw, err
}

// streams notes that the response goes on from now for as long as the client likes.
func (t *Tracker) streams() {
	if t.free {
		t.d.place.Serves(Now())
		t.DoneAs(Detached)
	} else {
		t.d.place.Streams(Now())
	}
}

// Unwrap is for http.ResponseController.
func (t *Tracker) Unwrap() http.ResponseWriter { return t.ResponseWriter }
