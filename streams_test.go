package shield

import (
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/herdshield/shield/loadshed"
)

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
