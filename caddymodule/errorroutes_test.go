package caddymodule

import (
	"fmt"
	"net/http"
	"testing"

	"github.com/caddyserver/caddy/v2/modules/caddyhttp"

	"github.com/herdshield/shield"
)

// A shield in an error route rejects by itself: the error routes would lead to it again.
func TestShieldInAnErrorRouteRejects(t *testing.T) {
	fails := newHook(t, func(http.ResponseWriter, *http.Request, caddyhttp.Handler) error {
		return caddyhttp.Error(http.StatusBadGateway, nil)
	})
	for _, door := range []string{"", withDoor} {
		t.Run(door, func(t *testing.T) {
			r := start(t, setup{server: door, handlers: fails, errors: overQuota("") + `, {"handler": "static_response", "status_code": 503}`})
			if got := r.get("/a"); got.StatusCode != http.StatusServiceUnavailable {
				t.Errorf("the first error: %v", got.Status)
			}
			for range 3 {
				if got := r.get("/a"); got.StatusCode != http.StatusTooManyRequests || got.Header.Get("Retry-After") == "" {
					t.Errorf("a later one: %v %v", got.Status, got.Header)
				}
			}
			if n := r.atDoor(); n != 0 {
				t.Errorf("the listener wrapper has rejected %d requests, which might have been served without an error", n)
			}
		})
	}
}

// What an error route is served by is judged by its own responses, not by the shield before that has rejected the request, or
// whose backend was late.
func TestShieldInAnErrorRouteSeesItsBackend(t *testing.T) {
	late := newHook(t, func(_ http.ResponseWriter, r *http.Request, _ caddyhttp.Handler) error {
		NoteTimeout(r.Context())
		return caddyhttp.Error(http.StatusGatewayTimeout, shield.ErrTimeout)
	})
	const fallback = `{"handler": "shield", "name": "fallback", "timeout": "9s", "concurrency": {"limit": 9}}, `
	for _, c := range []struct {
		name, first, answers string
		failures             uint64
	}{
		{"late", late, `{"handler": "static_response"}`, 0},
		{"rejected", overQuota(""), `{"handler": "static_response", "status_code": 502}`, 0}, // which is not its backend's
		{"rejected, and late", overQuota(""), late, 2},                                       // the error routes serve their own error once more, as Caddy has it
	} {
		t.Run(c.name, func(t *testing.T) {
			r := start(t, setup{handlers: c.first, errors: fallback + c.answers})
			r.get("/a")
			r.get("/a") // over the quota
			for _, h := range r.app().configured {
				if is := h.record.Stats(shield.Now()); h.Name == "fallback" && (is.Failed != c.failures || is.InFlight != 0) {
					t.Errorf("%d failures, and %d in flight; want %d", is.Failed, is.InFlight, c.failures)
				}
			}
		})
	}
}

// But a shield before all of them is told of it, though an error route with a shield answers.
func TestShieldBeforeAnErrorRouteSeesItsBackend(t *testing.T) {
	late := newHook(t, func(_ http.ResponseWriter, r *http.Request, _ caddyhttp.Handler) error {
		NoteTimeout(r.Context())
		return caddyhttp.Error(http.StatusGatewayTimeout, shield.ErrTimeout)
	})
	const named = `{"handler": "shield", "name": %q, "timeout": "9s", "concurrency": {"limit": 9}}, `
	r := start(t, setup{handlers: fmt.Sprintf(named, "first") + `{"handler": "subroute", "routes": [{"handle": [` + late +
		`]}], "errors": {"routes": [{"handle": [` + fmt.Sprintf(named, "fallback") + `{"handler": "static_response"}]}]}}`})
	r.get("/a")
	for _, h := range r.app().configured {
		if is, want := h.record.Stats(shield.Now()).Failed, map[string]uint64{"first": 1}[h.Name]; is != want {
			t.Errorf("%s: %d failures, want %d", h.Name, is, want)
		}
	}
}
