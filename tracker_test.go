package shield

import (
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"
)

const (
	get       = "GET / HTTP/1.1\r\nHost: shield\r\n\r\n"
	getEvents = "GET / HTTP/1.1\r\nHost: shield\r\nAccept: text/event-stream\r\n\r\n"
	upgrade   = "GET / HTTP/1.1\r\nHost: shield\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\n"
	connect   = "CONNECT shield:80 HTTP/1.1\r\nHost: shield:80\r\n\r\n"
)

// answerWith returns a handler that answers in one way. The function that it returns is done
// at the end.
func answerWith(status int, contentType, body string) func(http.ResponseWriter, *http.Request) func() {
	return func(w http.ResponseWriter, _ *http.Request) func() {
		w.Header().Set("Content-Type", contentType)
		if status > 0 {
			w.WriteHeader(status)
		}
		_, _ = io.WriteString(w, body)
		return nil
	}
}

func hijack(w http.ResponseWriter, _ *http.Request) func() {
	conn, rw, err := http.NewResponseController(w).Hijack()
	if err != nil {
		panic(err)
	}
	_, _ = rw.WriteString("HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\n")
	_ = rw.Flush()
	return func() { conn.Close() }
}

// However a request ends, its place in flight is given back, once; and what may
// go on for hours gives it back as soon as it is known for that.
func TestPlaceIsGivenBackOnce(t *testing.T) {
	const held, free = 1, 0
	then := func(handle func(http.ResponseWriter, *http.Request) func(), cause any) func(http.ResponseWriter, *http.Request) func() {
		return func(w http.ResponseWriter, r *http.Request) func() {
			end := handle(w, r)
			return func() {
				if end != nil {
					end()
				}
				panic(cause)
			}
		}
	}
	json := answerWith(0, "application/json", "{}")
	events := answerWith(200, "text/event-stream", "data: 1\n\n")
	for _, c := range []struct {
		story     string
		request   string
		handle    func(http.ResponseWriter, *http.Request) (end func())
		meanwhile int // places held when handle is through, before end
	}{
		{"returns", get, json, held},
		{"writes nothing", get, func(http.ResponseWriter, *http.Request) func() { return nil }, held},
		{"aborts", get, then(json, http.ErrAbortHandler), held},
		{"panics", get, then(json, "on purpose"), held},
		{"is hijacked unannounced", get, hijack, held},

		{"upgrades by hijack", upgrade, hijack, free},
		{"upgrades by hijack and panics", upgrade, then(hijack, "on purpose"), free},
		{"upgrades by status", upgrade, answerWith(101, "", ""), free},
		{"upgrades by status and hijack", upgrade, func(w http.ResponseWriter, r *http.Request) func() {
			w.Header().Set("Upgrade", "echo")
			w.WriteHeader(101)
			conn, _, err := http.NewResponseController(w).Hijack()
			if err != nil {
				panic(err)
			}
			return func() { conn.Close() }
		}, free},
		{"may upgrade and does not", upgrade, json, held},
		{"may upgrade and must not", upgrade, answerWith(426, "text/plain", "no"), held},

		{"CONNECT succeeds", connect, answerWith(200, "", ""), held},

		{"events", getEvents, events, free},
		{"events, implied by what is written", getEvents, answerWith(0, "text/event-stream; charset=utf-8", "data: 1\n\n"), free},
		{"events, implied by a flush", getEvents, func(w http.ResponseWriter, _ *http.Request) func() {
			w.Header().Set("Content-Type", "text/event-stream")
			w.(http.Flusher).Flush()
			return nil
		}, free},
		{"events, copied", getEvents, func(w http.ResponseWriter, _ *http.Request) func() {
			w.Header().Set("Content-Type", "text/event-stream")
			_, _ = w.(io.ReaderFrom).ReadFrom(strings.NewReader("data: 1\n\n"))
			return nil
		}, free},
		{"events, and then aborts", getEvents, then(events, http.ErrAbortHandler), free},
		{"events, after a hint that there will be", getEvents, func(w http.ResponseWriter, r *http.Request) func() {
			w.WriteHeader(103)
			return events(w, r)
		}, free},
		{"events without an announcement", get, events, held},
		{"events or JSON: events", strings.Replace(getEvents, "text/event-stream", "application/json, text/event-stream", 1), events, held},
		{"an error instead of events", getEvents, answerWith(500, "text/plain", "no"), held},
	} {
		t.Run(c.story, func(t *testing.T) {
			g := mustNew(t, Config{Concurrency: 5}, nil)
			counts := make(chan int, 2)
			count := func() { counts <- g.backend.inFlight.InFlight() }
			guarded := g.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				end := c.handle(w, r)
				count()
				if end != nil {
					end()
				}
			}))
			addr := serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				defer count() // on every path
				guarded.ServeHTTP(w, r)
			}))
			dial(t, addr).send(c.request)
			if n := await(t, counts); n != c.meanwhile {
				t.Errorf("meanwhile %d held, want %d", n, c.meanwhile)
			}
			if n := await(t, counts); n != 0 {
				t.Errorf("afterwards %d held, want 0", n)
			}
		})
	}
}

// A recorder is a ResponseWriter that can do everything, and notes what it did.
type recorder struct {
	*httptest.ResponseRecorder
	did []string
}

func (w *recorder) note(what string) error           { w.did = append(w.did, what); return nil }
func (w *recorder) FlushError() error                { return w.note("flush") }
func (w *recorder) EnableFullDuplex() error          { return w.note("duplex") }
func (w *recorder) SetReadDeadline(time.Time) error  { return w.note("read deadline") }
func (w *recorder) SetWriteDeadline(time.Time) error { return w.note("write deadline") }
func (w *recorder) ReadFrom(r io.Reader) (int64, error) {
	_ = w.note("read from")
	return io.Copy(w.ResponseRecorder, r)
}

// All that http.ResponseController can do, it can do through a Tracker. Files are sent as its
// writer does.
func TestTrackerLetsControlsThrough(t *testing.T) {
	w := &recorder{ResponseRecorder: httptest.NewRecorder()}
	tr := new(Guard).Track(w, httptest.NewRequest("GET", "/", nil), Decision{})
	rc := http.NewResponseController(tr)
	err := errors.Join(rc.EnableFullDuplex(), rc.Flush(), rc.SetReadDeadline(time.Now()), rc.SetWriteDeadline(time.Now()))
	tr.Flush()
	n, copied := io.Copy(tr, io.LimitReader(strings.NewReader("hello"), 5))
	if err != nil || n != 5 || copied != nil || w.Body.String() != "hello" {
		t.Errorf("%v; copied %d, %v: %q", err, n, copied, w.Body)
	}
	if want := []string{"duplex", "flush", "read deadline", "write deadline", "flush", "read from"}; !slices.Equal(w.did, want) {
		t.Errorf("the writer did %q, want %q", w.did, want)
	}
}

// What may go on for hours announces itself. The Accept of an EventSource is one type, alone.
func TestAnnouncedStreams(t *testing.T) {
	for _, c := range []struct {
		method, header, value string
		may, eventSource      bool
	}{
		{"CONNECT", "Accept", "*/*", false, false},
		{"CONNECT", ":protocol", "websocket", true, false},
		{"GET", "Upgrade", "websocket", true, false},
		{"GET", "Content-Type", "text/event-stream", false, false},
		{"GET", "Accept", "*/*", false, false},
		{"GET", "Accept", "text/html, */*", false, false},
		{"GET", "Accept", "text/event-streams", true, false},
		{"GET", "Accept", "text/event-stream, */*", true, false},
		{"GET", "Accept", "text/event-stream;q=1, */*", true, false},
		{"GET", "Accept", "text/event-stream", true, true},
		{"GET", "Accept", " text/event-stream ; charset=utf-8", true, true},
		{"GET", "Accept", "Text/Event-Stream", false, true},
		{"HEAD", "Accept", "text/event-stream", true, false},
		{"POST", "Accept", "text/event-stream", true, false},
		{"POST", "Accept", "application/json, text/event-stream", true, false},
	} {
		r := &http.Request{Method: c.method, Proto: "HTTP/2.0", ProtoMajor: 2, Header: http.Header{c.header: {c.value}}}
		if may, is := MayStream(r), isEventSource(r); may != c.may || is != c.eventSource {
			t.Errorf("%+v: may stream %v, is an EventSource %v", c, may, is)
		}
	}
	if isEventSource(&http.Request{Method: "GET", Header: http.Header{"Accept": {eventStream, "application/json"}}}) {
		t.Error("two lines of Accept are taken for an EventSource")
	}
	for proto, want := range map[string]bool{"HTTP/3.0": false, "websocket": true} { // as quic-go tells them apart
		if got := MayStream(&http.Request{Method: "CONNECT", Proto: proto, ProtoMajor: 3}); got != want {
			t.Errorf("CONNECT in HTTP/3, Proto %s: %v, want %v", proto, got, want)
		}
	}
}

// A proxy that has places of its own gives them back with the Guard's: when the stream begins.
func TestTrackerThen(t *testing.T) {
	g := mustNew(t, Config{Concurrency: 1}, nil)
	r := httptest.NewRequest(http.MethodGet, "/", nil)
	r.Header.Set("Accept", "text/event-stream")
	tracker, left := g.Track(httptest.NewRecorder(), r, g.Admit(0, Request{})), 0
	tracker.Then = func() { left += g.backend.inFlight.InFlight() }
	tracker.Header().Set("Content-Type", "text/event-stream")
	tracker.WriteHeader(http.StatusOK)
	if tracker.Done(); left != 1 || g.backend.inFlight.InFlight() != 0 {
		t.Errorf("called %d times before the Guard's place was given back; want once", left)
	}
}
