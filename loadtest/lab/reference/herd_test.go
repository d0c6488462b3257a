package reference

import (
	"io"
	"net/http"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/herdshield/shield/loadtest/lab/must"
	"github.com/herdshield/shield/loadtest/lab/process"
)

const (
	rate, burst = 100, 10 // of the capacity; the burst is the default

	// The most that a herd takes, of the least time, in which the rate is used up to the last request. shield
	// promises 98% of it.
	mostTime     = 1.03
	mostRequests = 2.02 // of one client
)

// A herd of each client before the real program: all are served, one after another, without a gap.
// A busy machine can make them late, so one attempt of three is enough.
func TestHerd(t *testing.T) {
	n := 500
	if os.Getenv("LONG") != "" {
		n = 1000
	}
	for _, client := range clients {
		t.Run(client.name, func(t *testing.T) {
			for range 3 {
				ratio, each := play(t, client, n)
				if t.Failed() || ratio <= mostTime && each <= mostRequests {
					return
				}
			}
			t.Errorf("want at most %v of the least time with %v requests each, at least once", mostTime, mostRequests)
		})
	}
}

// play has a herd of n served, and returns how long that took, of the least time, and the requests of each.
func play(t *testing.T, client client, n int) (ratio, each float64) {
	var mu sync.Mutex
	var last time.Time
	served := 0
	backend, stop, err := process.Serve(t.Context(), http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		last = time.Now()
		served++
		_, _ = io.WriteString(w, "hello")
	}))
	must.Do(t, err)
	defer stop()
	const limits = "shield {\n capacity 100/s\n retries {\n key {http.request.header.X-Client}\n }\n }"
	url, stop, err := process.Shield(t.Context(), program, t.TempDir(), limits, "reverse_proxy "+backend)
	must.Do(t, err)
	defer stop()

	got := client.herd(t, url, n)
	mu.Lock()
	defer mu.Unlock()
	least := time.Duration(n-burst) * time.Second / rate
	took := last.Sub(time.UnixMilli(got.Began))
	ratio, each = took.Seconds()/least.Seconds(), float64(got.Requests)/float64(n)
	t.Logf("%d clients of %d served in %v, %.3f of the least time, with %.3f requests each", got.Served, n, took, ratio, each)
	if got.Served != n || served != n {
		t.Errorf("%d clients served, %d requests at the backend; want %d", got.Served, served, n)
	}
	return ratio, each
}
