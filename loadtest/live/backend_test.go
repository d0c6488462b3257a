package live

import (
	"context"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/herdshield/shield/loadtest/plant"
)

// calm is a backend without contention: one worker, one second of work.
var calm = BackendConfig{Config: plant.Config{Workers: 1, Queue: 100}, Service: time.Second}

func startBackend(t *testing.T, c BackendConfig) *Backend {
	t.Helper()
	b, err := NewBackend(c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(b.Close)
	return b
}

// ask sends one request to b and returns the answer.
func ask(ctx context.Context, b *Backend) *httptest.ResponseRecorder {
	w := httptest.NewRecorder()
	b.ServeHTTP(w, httptest.NewRequestWithContext(ctx, http.MethodGet, "/", nil))
	return w
}

func TestBackendServesInOrderOfArrival(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := calm
		c.Workers = 2
		b := startBackend(t, c)
		start := time.Now()
		var mu sync.Mutex
		var order []int
		var took []time.Duration
		for i := range 6 {
			go func() {
				ask(t.Context(), b)
				mu.Lock()
				defer mu.Unlock()
				order = append(order, i/2) // the two workers finish at the same instant
				took = append(took, time.Since(start))
			}()
			synctest.Wait() // it is queued before the next one comes
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		if want := []int{0, 0, 1, 1, 2, 2}; !slices.Equal(order, want) {
			t.Errorf("order of service is %v, want %v", order, want)
		}
		if want := []time.Duration{1e9, 1e9, 2e9, 2e9, 3e9, 3e9}; !slices.Equal(took, want) {
			t.Errorf("served at %v, want %v", took, want)
		}
		if s := b.Stats(); s.Served != 6 || s.Peak != 6 || s.Inside != 0 || s.Wasted != 0 {
			t.Errorf("stats are %+v; want 6 served, peak 6, 0 inside, 0 wasted", s)
		}
	})
}

func TestBackendWorksForClientsThatHaveGone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := startBackend(t, calm)
		ctx, leave := context.WithTimeout(t.Context(), time.Second/2)
		defer leave()
		for range 3 {
			go ask(ctx, b)
		}
		synctest.Wait()
		time.Sleep(600 * time.Millisecond)
		start := time.Now()
		if w := ask(t.Context(), b); w.Code != http.StatusOK {
			t.Errorf("status is %d, want 200", w.Code)
		}
		if got, want := time.Since(start), 3400*time.Millisecond; got != want {
			t.Errorf("served after %v, want %v: the work for the three gone comes first", got, want)
		}
		if s := b.Stats(); s.Served != 1 || s.Wasted != 3 {
			t.Errorf("stats are %+v; want 1 served, 3 wasted", s)
		}
	})
}

func TestBackendRefusesWhenFull(t *testing.T) {
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
		if s := b.Stats(); s.Refused != 1 || s.Inside != 3 || s.Peak != 3 {
			t.Errorf("stats are %+v; want 1 refused, 3 inside, peak 3", s)
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
		if s := b.Stats(); s.Arrived != 7 || s.Busiest != 4 {
			t.Errorf("%d arrived, busiest second %d; want 7, 4", s.Arrived, s.Busiest)
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

func TestNewBackendNamesEveryFault(t *testing.T) {
	_, err := NewBackend(BackendConfig{Service: -1})
	for _, want := range []string{
		"live: workers is 0; want 1 to 1000000",
		"service is -1ns; want more than 0",
	} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error is %v; want %q in it", err, want)
		}
	}
}
