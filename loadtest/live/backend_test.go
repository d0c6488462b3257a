package live

import (
	"context"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/herdshield/shield/loadtest/clients"
	"github.com/herdshield/shield/loadtest/plant"
)

// calm is a backend without contention: one worker, one second of work.
var calm = BackendConfig{Config: plant.Config{Workers: 1, Queue: 100}, Service: time.Second}

func startBackend(t *testing.T, c BackendConfig) *Backend {
	t.Helper()
	b := NewBackend(c)
	t.Cleanup(b.Close)
	return b
}

// ask sends one request to b and returns the response.
func ask(ctx context.Context, b *Backend) *httptest.ResponseRecorder {
	w := httptest.NewRecorder()
	b.ServeHTTP(w, httptest.NewRequestWithContext(ctx, http.MethodGet, "/", nil))
	return w
}

func TestBackendRejectsWhenFull(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := calm
		c.Queue = 2
		b := startBackend(t, c)
		for range 3 { // one in work, two in queue
			go ask(t.Context(), b)
			synctest.Wait()
		}
		w := ask(t.Context(), b)
		if w.Code != http.StatusServiceUnavailable {
			t.Errorf("status is %d, want 503", w.Code)
		}
		if got, ok := w.Header()["Retry-After"]; ok {
			t.Errorf("Retry-After is %q, want none", got)
		}
		if s := b.Stats(); s.Rejected != 1 || s.Inside != 3 || s.Peak != 3 {
			t.Errorf("stats are %+v; want 1 rejected, 3 inside, peak 3", s)
		}
	})
}

func TestBackendCountsArrivals(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := startBackend(t, calm)
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

func TestBackendCloseReleasesEveryone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := startBackend(t, calm)
		codes := make(chan int, 3)
		for range 3 {
			go func() { codes <- ask(t.Context(), b).Code }()
		}
		synctest.Wait()
		start := time.Now()
		b.Close()
		b.Close()
		if d := time.Since(start); d != 0 {
			t.Errorf("Close took %v, want 0: work is dropped", d)
		}
		for range 3 {
			if code := <-codes; code != http.StatusServiceUnavailable {
				t.Errorf("a request that waited at Close got %d, want 503", code)
			}
		}
		if code := ask(t.Context(), b).Code; code != http.StatusServiceUnavailable {
			t.Errorf("a request after Close got %d, want 503", code)
		}
	})
}

// plain is how most programs retry: they obey Retry-After, and wait a fixed time where there
// is none. It adds no jitter of its own, so that instants are exact.
type plain struct{ delay time.Duration }

func (p plain) Next(r clients.Rejected) (time.Duration, bool) {
	if r.Hint.Seconds > 0 {
		return time.Duration(r.Hint.Seconds) * time.Second, true
	}
	return p.delay, true
}

// play runs a herd against h in a bubble.
func play(t *testing.T, c LoadConfig, h http.Handler) LoadResult {
	t.Helper()
	r := load(t, c, h).Run(t.Context())
	checkLoad(t, r)
	return r
}

// The claim of the package, in virtual time: a backend that could serve the herd in 3 s
// serves few clients, wastes its work on the others, and stays so long after the rush. The
// same herd, told when to come back, is served.
func TestBackendCollapsesUnderAHerdAndAGateSavesIt(t *testing.T) {
	herd := LoadConfig{
		Target: here, Herd: 300, Within: time.Second, Even: true, Timeout: time.Second,
		Mix: clients.All(plain{500 * time.Millisecond}), Attempts: 12, Patience: 21 * time.Second,
	}
	fragile := BackendConfig{Config: plant.Config{Workers: 6, Coherency: 1.0 / 100, Slowest: 3, Queue: 1200}, Service: 60 * time.Millisecond}
	synctest.Test(t, func(t *testing.T) {
		b := startBackend(t, fragile)
		r := play(t, herd, b)
		s := b.Stats()
		if r.All.Served > 100 || r.All.GaveUp < 200 || r.All.LastServed > 3*time.Second {
			t.Errorf("without a gate: %+v; want at most 100 served, all within 3s", r.All)
		}
		if s.Wasted < 4*s.Served {
			t.Errorf("without a gate: %d wasted, %d served; want most of the work wasted", s.Wasted, s.Served)
		}
	})
	synctest.Test(t, func(t *testing.T) {
		b := startBackend(t, fragile)
		var mu sync.Mutex
		due := time.Now() // when the next request may pass: one each 12.5 ms, 80% of capacity
		r := play(t, herd, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			mu.Lock()
			if now := time.Now(); due.After(now) {
				mu.Unlock()
				w.Header().Set("Retry-After", "1")
				w.WriteHeader(http.StatusServiceUnavailable)
				return
			} else {
				due = now.Add(12500 * time.Microsecond)
			}
			mu.Unlock()
			b.ServeHTTP(w, r)
		}))
		if r.All.Served != 300 || b.Stats().Wasted != 0 {
			t.Errorf("with a gate: %+v, %d wasted; want all 300 served, 0 wasted", r.All, b.Stats().Wasted)
		}
	})
}
