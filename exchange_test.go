package shield

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/iotest"
	"testing/synctest"
	"time"

	"github.com/herdshield/shield/loadshed"
	"github.com/herdshield/shield/pushback"
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

// However a request ends, its permit in flight is given back, once; and what may
// go on for hours gives it back as soon as it is known for that.
func TestPermitIsGivenBackOnce(t *testing.T) {
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
		meanwhile int // permits held when handle is through, before end
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
		t.Run(c.story, func(t *testing.T) { wantHeld(t, "", c.request, c.handle, c.meanwhile) })
	}
	post := strings.NewReplacer("GET", "POST", "\r\n\r\n", "\r\nContent-Length: 0\r\n\r\n").Replace
	for _, c := range []struct {
		policy    Streams
		request   string
		handle    func(http.ResponseWriter, *http.Request) (end func())
		meanwhile int
	}{
		{StreamsAuto, post(getEvents), events, held},
		{StreamsFree, post(getEvents), events, free},
		{StreamsFree, post(get), events, held},
		{StreamsHold, getEvents, events, held},
		{StreamsHold, upgrade, hijack, held},
	} {
		t.Run(fmt.Sprintf("streams %s, %.60q", c.policy, c.request), func(t *testing.T) { wantHeld(t, c.policy, c.request, c.handle, c.meanwhile) })
	}
}

// wantHeld serves one request, which must hold so many permits when handle is through, and none after its end.
func wantHeld(t *testing.T, streams Streams, request string, handle func(http.ResponseWriter, *http.Request) (end func()), meanwhile int) {
	g := mustNew(t, Config{Concurrency: 5, Streams: streams}, nil)
	counts := make(chan int, 2)
	count := func() { counts <- g.backend.inFlight.InFlight() }
	guarded := g.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		end := handle(w, r)
		count()
		if end != nil {
			end()
		}
	}))
	addr := serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		defer count() // on every path
		guarded.ServeHTTP(w, r)
	}))
	dial(t, addr).send(request)
	if n := await(t, counts); n != meanwhile {
		t.Errorf("meanwhile %d held, want %d", n, meanwhile)
	}
	if n := await(t, counts); n != 0 {
		t.Errorf("afterwards %d held, want 0", n)
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

// All that http.ResponseController can do, it can do through an Exchange. Files are sent as its
// writer does.
func TestExchangeLetsControlsThrough(t *testing.T) {
	w := &recorder{ResponseRecorder: httptest.NewRecorder()}
	tr, _ := mustNew(t, Config{}, nil).Begin(w, httptest.NewRequest("GET", "/", nil), new(Decision), false, 0)
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
		free, auto            bool // with which streams it gives back its permit
	}{
		{"CONNECT", "Accept", "*/*", false, false},
		{"CONNECT", ":protocol", "websocket", true, true},
		{"GET", "Upgrade", "websocket", true, true},
		{"GET", "Content-Type", "text/event-stream", false, false},
		{"GET", "Accept", "*/*", false, false},
		{"GET", "Accept", "text/html, */*", false, false},
		{"GET", "Accept", "text/event-streams", true, false},
		{"GET", "Accept", "text/event-stream, */*", true, false},
		{"GET", "Accept", "text/event-stream;q=1, */*", true, false},
		{"GET", "Accept", "text/event-stream", true, true},
		{"GET", "Accept", " text/event-stream ; charset=utf-8", true, true},
		{"GET", "Accept", "Text/Event-Stream", true, true},
		{"HEAD", "Accept", "text/event-stream", true, false},
		{"POST", "Accept", "text/event-stream", true, false},
		{"POST", "Accept", "application/json, text/event-stream", true, false},
	} {
		r := &http.Request{Method: c.method, Proto: "HTTP/2.0", ProtoMajor: 2, Header: http.Header{c.header: {c.value}}}
		if free, auto := StreamsFree.free(r), StreamsAuto.free(r); free != c.free || auto != c.auto {
			t.Errorf("%+v: given back with free %v, with auto %v", c, free, auto)
		}
	}
	if StreamsAuto.free(&http.Request{Method: "GET", Header: http.Header{"Accept": {eventStream, "application/json"}}}) {
		t.Error("two lines of Accept are taken for an EventSource")
	}
	for proto, want := range map[string]bool{"HTTP/3.0": false, "websocket": true} { // as quic-go tells them apart
		if got := StreamsFree.free(&http.Request{Method: "CONNECT", Proto: proto, ProtoMajor: 3}); got != want {
			t.Errorf("CONNECT in HTTP/3, Proto %s: %v, want %v", proto, got, want)
		}
	}
}

// hijackable is a ResponseWriter whose connection can be taken over.
type hijackable struct{ *recorder }

func (hijackable) Hijack() (net.Conn, *bufio.ReadWriter, error) { return nil, nil, nil }

// A connection that a handler has taken over has no timeout, though it was sent no 101 by the server.
func TestHijackedConnectionHasNoTimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		inBubble(t)
		x, r := mustNew(t, Config{}, nil).Begin(hijackable{&recorder{ResponseRecorder: httptest.NewRecorder()}}, httptest.NewRequest("GET", "/", nil), new(Decision), false, time.Second)
		defer x.End(Detached, 0)
		_, _, err := x.Hijack()
		if time.Sleep(time.Minute); err != nil || r.Context().Err() != nil {
			t.Errorf("%v, and after a minute its request is over: %v", err, r.Context().Err())
		}
	})
}

// Whatever happens to an exchange, and in whatever order, what it holds is given back once, at its
// end at the latest; nothing waits for it then, and no later event changes anything.
func TestEveryOrderOfEvents(t *testing.T) {
	type exchange struct {
		*Exchange
		inner *http.Request
		leave context.CancelFunc
	}
	events := map[string]func(x exchange){
		"response": func(x exchange) { x.WriteHeader(http.StatusOK) },
		"events": func(x exchange) {
			x.Header().Set("Content-Type", eventStream)
			_, _ = x.Write([]byte("data: 1\n\n"))
		},
		"upgrade": func(x exchange) { _, _, _ = x.Hijack() },
		"hang-up": func(x exchange) { x.leave() },
		"body":    func(x exchange) { go func() { _, _ = io.Copy(io.Discard, x.inner.Body) }() },
		"timeout": func(exchange) { time.Sleep(time.Second) },
		"return":  func(x exchange) { x.End(x.Result(x.Status(), x.Header().Get)) },
		"panic":   func(x exchange) { x.End(Detached, 0) },
	}
	orders := 0
	play := func(t *testing.T, disconnected Disconnected, order []string) {
		orders++
		g := mustNew(t, Config{Concurrency: 2, Disconnected: disconnected}, nil)
		other := g.Admit(Now(), Request{}) // would show if too much is given back
		ctx, leave := context.WithCancel(t.Context())
		defer leave()
		r := httptest.NewRequestWithContext(ctx, "POST", "/", iotest.ErrReader(io.ErrUnexpectedEOF))
		r.Header.Set("Accept", eventStream)
		r.Header.Set("Upgrade", "echo")
		d, given := g.Admit(Now(), Request{}), 0
		made, inner := g.Begin(hijackable{&recorder{ResponseRecorder: httptest.NewRecorder()}}, r, &d, true, time.Second/2)
		x := exchange{made, inner, leave}
		x.Then = func() { given++ }
		ended := false
		for _, event := range append(order, "return", "panic") {
			events[event](x)
			synctest.Wait()
			ended = ended || event == "return" || event == "panic"
			if held := g.backend.inFlight.InFlight() - 1; held != 1-given || ended && held != 0 || given > 1 {
				t.Fatalf("disconnected %s, %q, at %s: %d held, %d times given back", disconnected, order, event, held, given)
			}
		}
		other.Done(Now(), Served)
		if s := g.backend.Stats(Now()); s.Disconnected != 0 || s.InFlight != 0 {
			t.Fatalf("disconnected %s, %q: at the end %d requests of disconnected clients and %d in flight", disconnected, order, s.Disconnected, s.InFlight)
		}
	}
	var extend func(t *testing.T, disconnected Disconnected, order []string)
	extend = func(t *testing.T, disconnected Disconnected, order []string) {
		play(t, disconnected, order)
		for event := range events {
			if len(order) < 4 && !slices.Contains(order, event) {
				extend(t, disconnected, append(slices.Clip(order), event))
			}
		}
	}
	synctest.Test(t, func(t *testing.T) {
		inBubble(t)
		extend(t, DisconnectedKeep, nil)
		extend(t, DisconnectedFree, nil)
	})
	t.Logf("%d orders", orders)
}

// A handler that does not read the body answers at once, though its client sends none of it.
func TestAnswersBeforeTheBody(t *testing.T) {
	addr := serve(t, mustNew(t, Config{Concurrency: 5}, nil).Handler(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusUnauthorized) })))
	for _, announces := range []string{"Content-Length: 100\r\nExpect: 100-continue\r\n", "Content-Length: 1000000\r\n"} {
		c := dial(t, addr)
		_ = c.SetDeadline(time.Now().Add(promptly))
		c.send("POST / HTTP/1.1\r\nHost: shield\r\n" + announces + "\r\n")
		if resp, err := http.ReadResponse(c.r, nil); err != nil || resp.StatusCode != http.StatusUnauthorized {
			t.Errorf("%q: %v, %v", announces, resp, err)
		}
	}
}

// What a response says of the backend's load. The statuses of a shield before the backend can be set.
func TestLoadByStatusAndHeader(t *testing.T) {
	const seven = 7 * time.Second
	for _, c := range []struct {
		request, header string
		status          int
		want            Outcome
		pause           time.Duration
	}{
		{"", "", 200, Served, 0},
		{"", "Retry-After: 7", 404, Served, 0},
		{"", "Retry-After: 7", 500, Served, 0},
		{"", "Retry-After: 7", 503, Overloaded, seven},
		{"", "Retry-After: 7", 529, Overloaded, seven},
		{"", "Retry-After: 7\nRetry-After-Ms: 6400", 503, Overloaded, 0},
		{"", "", 504, TimedOut, 0},

		// It may be the client's quota, which must not close the backend for all.
		{"", "", 429, Limited, 0},
		{"", "Retry-After: 7", 429, Limited, 0},
		{"", "X-RateLimit-Remaining: 5", 429, Limited, 0},
		{"", "X-RateLimit-Remaining: 0\nRetry-After: 7", 429, Detached, 0},
		{"", `RateLimit: "minute";r=0;t=7`, 429, Detached, 0},
		{"", `RateLimit: "minute";r=4`, 429, Limited, 0},
		{"", `RateLimit-Policy: "minute";q=5;w=60`, 429, Limited, 0},
		{"", "x-llm-d-request-dropped-reason: rejected-saturated\nRetry-After: 7", 429, Limited, seven},
		{"", "x-llm-d-request-dropped-reason: evicted-priority", 429, Limited, 0},
		{"", "x-llm-d-request-dropped-reason: rejected-ttl-expired\nX-RateLimit-Remaining: 0", 429, Limited, 0},

		{"", `Proxy-Status: shield; error=http_request_denied; details="quota"`, 429, Detached, 0},
		{"", `Proxy-Status: shield; error=http_request_denied; details="per_client"`, 503, Detached, 0},
		{"", `Proxy-Status: shield; error=http_request_denied; details="blocked"`, 420, Detached, 0},
		{"", "Retry-After: 7\nProxy-Status: shield; error=http_request_denied; details=\"overload\"", 429, Overloaded, 0},
		{"", `Proxy-Status: shield; error=http_request_denied; details="overload", edge; received-status=503`, 503, Overloaded, 0},
		{"", "Retry-After: 7\nProxy-Status: edge; error=connection_limit_reached", 503, Overloaded, seven},
		{"", `Proxy-Status: shield; error=http_response_timeout`, 504, TimedOut, 0},

		{"application/grpc", "Proxy-Status: shield; error=http_request_denied; details=\"overload\"", 200, Overloaded, 0},
		{"application/grpc", "Proxy-Status: shield; error=http_request_denied; details=\"quota\"", 200, Detached, 0},
		{"application/grpc", "", 200, Served, 0},
	} {
		r, header := httptest.NewRequest("POST", "/", nil), http.Header{}
		r.Header.Set("Content-Type", c.request)
		for line := range strings.Lines(c.header) {
			name, value, _ := strings.Cut(strings.TrimSpace(line), ": ")
			header.Set(name, value)
		}
		x, _ := mustNew(t, Config{}, nil).Begin(httptest.NewRecorder(), r, new(Decision), false, 0)
		if got, pause := x.Result(c.status, header.Get); got != c.want || pause != c.pause {
			t.Errorf("%d with %q to %q: %v, pause %v; want %v, %v", c.status, c.header, c.request, got, pause, c.want, c.pause)
		}
	}
}

// How long a stream goes on says nothing of the backend: an adaptive limit learns from the
// time until it begins, also if its client breaks it off then.
func TestAdaptiveLearnsWhenStreamsBegin(t *testing.T) {
	for _, policy := range []Streams{StreamsAuto, StreamsHold} {
		synctest.Test(t, func(t *testing.T) {
			inBubble(t)
			g := mustNew(t, Config{Adaptive: &loadshed.AdaptiveConfig{}, Streams: policy, Pushback: undithered}, nil)
			h := g.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				time.Sleep(50 * ms)
				answerWith(200, "text/event-stream", "data: 1\n\n")(w, r)
				time.Sleep(3 * time.Second)
			}))
			for range 40 {
				var streams sync.WaitGroup
				for range 60 {
					time.Sleep(ms)
					streams.Go(func() {
						r := httptest.NewRequest("POST", "/", nil)
						r.Header.Set("Accept", "text/event-stream, application/json")
						answerTo(h, r)
					})
				}
				streams.Wait()
				time.Sleep(time.Second)
			}
			last := g.backend.Stats(Now()).Last
			t.Logf("streams %s: %s to %d by a latency of %v", policy, last.Reason, last.To, last.Latency)
			if last.Latency.Round(ms) != 50*ms || last.To < 20 {
				t.Errorf("streams %s: %+v; want a limit of 20 at least, by a latency of 50ms", policy, last)
			}
		})
	}
}

// frame returns an HTTP/2 frame (RFC 9113, section 4.1).
func frame(kind, flags byte, stream uint32, payload ...byte) []byte {
	f := binary.BigEndian.AppendUint32(nil, uint32(len(payload))<<8|uint32(kind))
	return append(binary.BigEndian.AppendUint32(append(f, flags), stream), payload...)
}

// Rejections that are never read, on streams of HTTP/2 whose client allows no data, end after
// a while, and so do their goroutines.
func TestRejectedStreamsThatAreNotReadEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		inBubble(t)
		const streams = 200
		g := mustNew(t, Config{Capacity: perSecond(1e-3, 1), Pushback: pushback.ResponseConfig{Body: pushback.Problem}}, nil)
		g.Admit(Now(), Request{}) // the only token
		server := &http.Server{Protocols: new(http.Protocols), Handler: g.Handler(nil)}
		server.Protocols.SetUnencryptedHTTP2(true)
		listener := newPipe()
		go func() { _ = server.Serve(listener) }()
		client, _ := listener.Dial()
		reset := 0
		go func() { // it reads all frames, and answers none
			head := make([]byte, 9)
			for {
				if _, err := io.ReadFull(client, head); err != nil {
					return
				}
				if head[3] == 3 { // RST_STREAM
					reset++
				}
				_, _ = io.CopyN(io.Discard, client, int64(head[0])<<16|int64(head[1])<<8|int64(head[2]))
			}
		}()
		send := func(b []byte) {
			if _, err := client.Write(b); err != nil {
				t.Fatal(err)
			}
		}
		send([]byte("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"))
		send(frame(4, 0, 0, 0, 4, 0, 0, 0, 0)) // SETTINGS_INITIAL_WINDOW_SIZE = 0
		for i := range uint32(streams) {
			send(frame(1, 5, 2*i+1, 0x82, 0x86, 0x84, 0x41, 1, 'x')) // GET http://x/
		}
		goroutines := func() int {
			synctest.Wait()
			return runtime.NumGoroutine()
		}
		time.Sleep(2 * time.Second) // rejections are held back
		soon := goroutines()
		time.Sleep(20 * time.Second)
		later := goroutines()
		t.Logf("%d streams: %d goroutines after 2 s, %d after 22 s; %d are reset", streams, soon, later, reset)
		// Goroutines of other tests are counted, too.
		if soon < streams || later > soon-streams*3/4 || reset != streams {
			t.Errorf("%d streams: %d goroutines after 2 s, %d after 22 s; %d are reset; want all of them to end", streams, soon, later, reset)
		}
		_ = client.Close()
		_ = server.Close()
	})
}
