package shield

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/herdshield/shield/loadshed"
)

// Streams of events that answer questions, as those of language models and MCP servers do,
// are work: no more of them are in the backend than the limit says. An EventSource and a
// WebSocket wait for news, and hold no permit unless the operator wants it.
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
		var in occupancy
		end := make(chan bool)
		_, addr := proxyOf(t, Config{Concurrency: limit, Queue: loadshed.QueueConfig{Size: loadshed.NoQueue}, Streams: c.policy, Pushback: undithered}, "http://"+serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			defer in.enter()()
			if r.Header.Get("Upgrade") != "" {
				defer hijack(w, r)()
			} else {
				answerWith(200, "text/event-stream", "data: 1\n\n")(w, r)
				_ = http.NewResponseController(w).Flush()
			}
			<-end
		})), new(http.Transport))
		for range asked { // one after the other
			s := dial(t, addr)
			s.send(c.request)
			s.answer()
		}
		close(end)
		t.Logf("streams %q, %s: %d of %d in the backend at most", c.policy, c.name, in.most.Load(), asked)
		if in.most.Load() != int64(c.want) {
			t.Errorf("streams %q, %s: %d in the backend, want %d", c.policy, c.name, in.most.Load(), c.want)
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
