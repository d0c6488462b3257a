package main

import (
	"context"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// TestMost lets requests overlap by two, and one client go away.
func TestMost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &backend{pod: "p", serviceTime: 30 * time.Millisecond}
		var all sync.WaitGroup
		depths := make([]string, 4)
		for i := range depths {
			all.Go(func() {
				time.Sleep(time.Duration(i) * 20 * time.Millisecond)
				w := httptest.NewRecorder()
				b.ServeHTTP(w, httptest.NewRequest("POST", "/any", strings.NewReader("body")))
				depths[i] = w.Header().Get("X-Backend-In-Flight")
			})
		}
		all.Wait()
		if got := strings.Join(depths, " "); got != "1 2 2 2" {
			t.Errorf("in flight, as told: %s; want 1 2 2 2", got)
		}

		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		start := time.Now()
		b.ServeHTTP(httptest.NewRecorder(), httptest.NewRequestWithContext(ctx, "GET", "/?ms=5000", nil))
		if took := time.Since(start); took != time.Second {
			t.Errorf("a client that went away after 1s held the backend for %v", took)
		}
		want := stats{Pod: "p", Most: 2, Requests: 5, Broken: 1}
		if got := b.seen(true); got != want {
			t.Errorf("seen %+v; want %+v", got, want)
		}
		if got := b.seen(false); got != (stats{Pod: "p"}) {
			t.Errorf("seen anew %+v; want nothing", got)
		}
	})
}
