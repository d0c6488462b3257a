package reference

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"

	"github.com/herdshield/shield"
	"github.com/herdshield/shield/limiter"
)

// A client that is rejected by one replica, and returns to another in which others wait, is served at once for
// the ticket that it brings.
func TestTicketsCount(t *testing.T) {
	for _, client := range clients {
		t.Run(client.name, func(t *testing.T) {
			t.Parallel()
			var replicas [2]http.Handler
			for i := range replicas {
				guard := shield.Must(shield.New(shield.Config{
					Capacity: limiter.Config{Rate: 10, Burst: 5},
					Retries:  shield.Retries{Tickets: true, Secret: []byte("the secret of both")},
					Client:   func(r *http.Request) string { return r.UserAgent() },
				}, nil))
				replicas[i] = guard.Handler(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
			}
			var visits atomic.Int64
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				n := visits.Add(1)
				replica := replicas[min(n, 2)-1]
				for i := range 20 { // others, of which 15 wait
					other := httptest.NewRequestWithContext(r.Context(), http.MethodGet, "/", nil)
					other.Header.Set("User-Agent", fmt.Sprint("other ", n, i))
					other.Header.Set("Shield-Retry", "yes")
					replica.ServeHTTP(httptest.NewRecorder(), other)
				}
				replica.ServeHTTP(w, r)
			}))
			defer server.Close()
			got := client.call(t, call{URL: server.URL, Method: http.MethodGet})
			if got.Status != http.StatusOK || visits.Load() != 2 {
				t.Errorf("%+v after %d requests, want 200 after 2", got, visits.Load())
			}
		})
	}
}
