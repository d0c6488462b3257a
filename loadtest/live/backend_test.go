package live

import (
	"context"
	"net/http"
	"net/http/httptest"
	"testing"
	"testing/synctest"
	"time"

	"github.com/herdshield/shield/loadtest/plant"
)

// startBackend starts one without contention: a worker that takes a second for a request, and so many places in its queue.
func startBackend(t *testing.T, queue int) *Backend {
	t.Helper()
	b := NewBackend(BackendConfig{Config: plant.Config{Workers: 1, Queue: queue}, Service: time.Second})
	t.Cleanup(b.Close)
	return b
}

// ask sends one request to b and returns the response.
func ask(ctx context.Context, b *Backend) *httptest.ResponseRecorder {
	w := httptest.NewRecorder()
	b.ServeHTTP(w, httptest.NewRequestWithContext(ctx, http.MethodGet, "/", nil))
	return w
}

// A backend that is full rejects without a Retry-After, and one that is closed drops its work. What it does under a herd is shown by
// package demo, and tested there.
func TestBackendRejects(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := startBackend(t, 2)
		codes := make(chan int, 3)
		for range 3 { // one in work, two in queue
			go func() { codes <- ask(t.Context(), b).Code }()
		}
		synctest.Wait()
		if w := ask(t.Context(), b); w.Code != http.StatusServiceUnavailable || w.Header().Get("Retry-After") != "" {
			t.Errorf("when it is full it responds %d, %v; want 503 without Retry-After", w.Code, w.Header())
		}
		if s := b.Stats(); s.Rejected != 1 || s.Inside != 3 || s.Peak != 3 {
			t.Errorf("stats are %+v; want 1 rejected, 3 inside, peak 3", s)
		}
		start := time.Now()
		b.Close()
		b.Close()
		for range 3 {
			if code := <-codes; code != http.StatusServiceUnavailable || time.Since(start) != 0 {
				t.Errorf("a request that waited at Close got %d after %v, want 503 at once", code, time.Since(start))
			}
		}
		if code := ask(t.Context(), b).Code; code != http.StatusServiceUnavailable {
			t.Errorf("a request after Close got %d, want 503", code)
		}
	})
}

func TestBackendCountsArrivals(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := startBackend(t, 100)
		for _, n := range []int{2, 0, 3, 1, 0, 1} {
			for range n {
				go ask(t.Context(), b)
			}
			time.Sleep(700 * time.Millisecond)
		}
		if s := b.Stats(); s.Busiest != 4 {
			t.Errorf("%d in the busiest second; want 4", s.Busiest)
		}
		time.Sleep(time.Minute) // let it finish
	})
}
