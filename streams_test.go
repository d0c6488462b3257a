package shield

import (
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/herdshield/shield/loadshed"
)

// Streams of events that answer questions, as those of language models and MCP servers do,
// are work: no more of them are in the backend than the limit says. An EventSource and a
// WebSocket wait for news, and hold no place unless the operator wants it.
func TestStreamsInTheBackend(t *testing.T) {
	const asked, limit = 20, 4
	post := "POST / HTTP/1.1\r\nHost: shield\r\nAccept: application/json, text/event-stream\r\nContent-Length: 0\r\n\r\n"
	for _, c := range []struct {
		policy        Streams
		name, request string
		want          int
	}{
		{"", "POST", post, limit},
		{StreamsAuto, "POST for events alone", strings.Replace(post, "application/json, ", "", 1), limit},
		{"", "GET of a page or events", strings.Replace(getEvents, "text/", "text/html, text/", 1), limit},
		{"", "POST unannounced", strings.Replace(post, ", text/event-stream", "", 1), limit},
		{"", "EventSource", getEvents, asked},
		{"", "WebSocket", upgrade, asked},
		{StreamsFree, "POST", post, asked},
		{StreamsFree, "POST unannounced", strings.Replace(post, ", text/event-stream", "", 1), limit},
		{StreamsHold, "POST", post, limit},
		{StreamsHold, "EventSource", getEvents, limit},
		{StreamsHold, "WebSocket", upgrade, limit},
	} {
		var now, most atomic.Int64
		answered, end := make(chan bool, asked), make(chan bool)
		g := mustNew(t, Config{Concurrency: limit, Streams: c.policy, Pushback: undithered}, nil)
		refusing := g.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			most.Store(max(most.Load(), now.Add(1))) // one after another
			defer now.Add(-1)
			var conn net.Conn
			if r.Header.Get("Upgrade") == "" {
				answerWith(200, "text/event-stream", "data: 1\n\n")(w, r)
				_ = http.NewResponseController(w).Flush()
			} else if conn, _, _ = http.NewResponseController(w).Hijack(); conn != nil {
				defer conn.Close()
			}
			answered <- true
			<-end
		}))
		addr := serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			before := now.Load()
			refusing.ServeHTTP(w, r)
			if now.Load() == before && most.Load() == before {
				answered <- false
			}
		}))
		for range asked {
			dial(t, addr).send(c.request)
			await(t, answered)
		}
		close(end)
		t.Logf("streams %q, %s: %d of %d in the backend at most", c.policy, c.name, most.Load(), asked)
		if most.Load() != int64(c.want) {
			t.Errorf("streams %q, %s: %d in the backend, want %d", c.policy, c.name, most.Load(), c.want)
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
				var streams atomic.Int64
				for range 60 {
					streams.Add(1)
					time.Sleep(ms)
					go func() {
						defer streams.Add(-1)
						r := httptest.NewRequest("POST", "/", nil)
						r.Header.Set("Accept", "text/event-stream, application/json")
						h.ServeHTTP(httptest.NewRecorder(), r)
					}()
				}
				time.Sleep(4 * time.Second)
				if n := streams.Load(); n != 0 {
					t.Fatalf("%d go on", n)
				}
			}
			last := g.backend.ShedStats(Now()).Last
			t.Logf("streams %s: %s to %d by a latency of %v", policy, last.Reason, last.To, last.Latency)
			if last.Latency.Round(ms) != 50*ms || last.To < 20 {
				t.Errorf("streams %s: %+v; want a limit of 20 at least, by a latency of 50ms", policy, last)
			}
		})
	}
}

// The Accept of an EventSource is one type, alone.
func TestEventSource(t *testing.T) {
	for accept, want := range map[string]bool{
		"text/event-stream": true, " text/event-stream ; charset=utf-8": true, "Text/Event-Stream": true,
		"text/event-streams": false, "text/event-stream, */*": false, "*/*": false, "": false,
	} {
		for method, may := range map[string]bool{"GET": want, "POST": false, "HEAD": false} {
			r := &http.Request{Method: method, Header: http.Header{"Accept": {accept}}}
			if is := isEventSource(r); is != may {
				t.Errorf("%s, Accept: %q: %v, want %v", method, accept, is, may)
			}
		}
	}
	r := &http.Request{Method: "GET", Header: http.Header{"Accept": {eventStream, "application/json"}}}
	if isEventSource(r) {
		t.Error(fmt.Sprint(r.Header), "is taken for one")
	}
}
