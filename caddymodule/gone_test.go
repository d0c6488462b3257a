package caddymodule

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"testing"
	"testing/synctest"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"

	"github.com/herdshield/shield"
)

// A client that leaves while it waits, in the queue or for a rejection that is held back, is
// a 499 in the access log, and holds nothing afterwards.
func TestGoneClients(t *testing.T) {
	for name, option := range map[string]string{
		"in the queue":     `"concurrency": {"limit": 1}, "queue": {"size": 5, "timeout": "1m"}`,
		"while it is held": `"capacity": {"rate": 40, "per": "1m", "burst": 1}`,
	} {
		release := make(chan bool)
		work := newHook(t, func(_ http.ResponseWriter, r *http.Request, _ caddyhttp.Handler) error { <-release; return nil })
		r := start(t, setup{handlers: `{"handler": "shield", "name": "s", ` + option + `},` + work})
		h := r.handler()
		first := make(chan int)
		go func() { first <- r.get("/").StatusCode }()
		eventually(t, "the first is admitted", func() bool { return r.stats().Admitted == 1 })
		ctx, cancel := context.WithCancel(request("/", "192.0.2.2", nil).Context())
		time.AfterFunc(20*time.Millisecond, cancel)
		w := httptest.NewRecorder()
		if err := h.ServeHTTP(w, request("/", "192.0.2.2", nil).WithContext(ctx), nil); err != nil || w.Code != shield.StatusClientGone {
			t.Errorf("%s: status %d, %v; want %d", name, w.Code, err, shield.StatusClientGone)
		}
		close(release)
		if status := <-first; status != http.StatusOK {
			t.Errorf("%s: the first gets %d", name, status)
		}
		r.drains()
		if held := r.stats().Held; held != 0 {
			t.Errorf("%s: %d held at the end", name, held)
		}
		_ = caddy.Stop()
	}
}

// Requests whose clients hang up keep their permits for as long as the backend works on them, unless they are free,
// and reverse_proxy sees nothing of that: to it no upstream has failed.
func TestHangUps(t *testing.T) {
	for disconnected, want := range map[string]int{"keep": 3, "free": 20} {
		r := start(t, setup{handlers: fmt.Sprintf(`{"handler": "shield", "name": %[1]q, "concurrency": {"limit": 3, "disconnected": %[1]q}, "queue": {"off": true}, "pushback": {"dither": false}},`, disconnected) +
			proxyOnWires(`, "load_balancing": {"retries": 3}, "health_checks": {"passive": {"fail_duration": "1h"}}`)})
		var done chan struct{}
		reached := 0
		backend := func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path == "/slow" {
				reached++
				<-done
			}
		}
		r.onWires(t, new(http.Server), backend, func(r *rig) {
			done = make(chan struct{})
			for range 20 { // each hangs up when the backend has its request, or it is rejected
				w := r.dial()
				w.send("GET /slow HTTP/1.1\nHost: shield\n\n")
				synctest.Wait() // at this instant: permits that are kept are given back after 10 s
				_ = w.Close()
				synctest.Wait()
			}
			if reached != want {
				t.Errorf("disconnected %q: %d of 20 in the backend, want %d", disconnected, reached, want)
			}
			close(done)
			r.drains()
			pass(time.Minute)                // or it is too early
			r.wantStatus(http.StatusOK, "/") // not 503: reverse_proxy would take the upstream for failed
		})
	}
}
