package caddymodule

import (
	"context"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"

	"github.com/herdshield/shield"
)

// A client that leaves while it waits, in the queue or for a refusal that is held back, is
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
