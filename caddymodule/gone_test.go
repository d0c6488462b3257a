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
		t.Run(name, func(t *testing.T) {
			r := start(t, setup{handlers: `{"handler": "shield", ` + option + `}`})
			h := r.handler()
			serve := func(ctx context.Context, next http.HandlerFunc) int {
				w := httptest.NewRecorder()
				request := caddyhttp.PrepareRequest(httptest.NewRequestWithContext(ctx, "GET", "/", nil), caddy.NewReplacer(), w, new(caddyhttp.Server))
				err := h.ServeHTTP(w, request, caddyhttp.HandlerFunc(func(w http.ResponseWriter, r *http.Request) error {
					next(w, r)
					return nil
				}))
				if err != nil {
					t.Error(err)
				}
				return w.Code
			}
			serve(t.Context(), func(http.ResponseWriter, *http.Request) {
				ctx, cancel := context.WithCancel(t.Context())
				time.AfterFunc(20*time.Millisecond, cancel)
				if code := serve(ctx, func(http.ResponseWriter, *http.Request) { t.Error("served") }); code != shield.StatusClientGone {
					t.Errorf("status %d, want %d", code, shield.StatusClientGone)
				}
			})
			if s := r.status().Shields[0]; s.InFlight != 0 || s.Held != 0 {
				t.Errorf("%d in flight and %d held at the end", s.InFlight, s.Held)
			}
		})
	}
}

// Requests whose clients hang up keep their permits for as long as the backend works on them, unless they are free,
// and reverse_proxy sees nothing of that: to it no upstream has failed.
func TestHangUps(t *testing.T) {
	for disconnected, want := range map[string]int{"keep": 3, "free": 20} {
		r := start(t, setup{handlers: fmt.Sprintf(`{"handler": "shield", "name": %[1]q, "concurrency": {"limit": 3, "disconnected": %[1]q}, "queue": {"off": true}, "pushback": {"dither": false}},`, disconnected) +
			proxyOnWires(`, "load_balancing": {"retries": 3}, "health_checks": {"passive": {"fail_duration": "1h"}}`)})
		var began chan string
		var done chan struct{}
		backend := func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path == "/slow" {
				began <- "the backend"
				<-done
			}
		}
		r.onWires(t, new(http.Server), backend, func(r *rig) {
			began, done = make(chan string, 40), make(chan struct{})
			reached := 0
			for range 20 { // each hangs up when the backend has its request, or it is rejected
				w := r.dial()
				w.send("GET /slow HTTP/1.1\nHost: shield\n\n")
				go func() {
					if resp, err := http.ReadResponse(w.r, nil); err == nil {
						began <- resp.Status
					}
				}()
				switch at := <-began; at {
				case "the backend":
					reached++
				case "503 Service Unavailable":
				default:
					t.Errorf("status %s, want a rejection", at)
				}
				_ = w.Close()
				synctest.Wait() // at this instant: permits that are kept are given back after 10 s
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
