package caddymodule

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"

	"github.com/herdshield/shield"
	"github.com/herdshield/shield/caddymodule/upload"
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

// Requests whose clients hang up keep their places for as long as the backend works on them,
// and reverse_proxy sees nothing of that: to it no upstream has failed.
func TestHangUps(t *testing.T) {
	const (
		limit  = 3
		whole  = "GET /slow HTTP/1.1\nHost: shield\n\n"
		second = `{"handler": "shield", "name": "t", "concurrency": {"limit": 100}},`
	)
	early := strings.Repeat("x", upload.MaxEarly) // only then the backend hears of it
	length := "POST /slow HTTP/1.1\nHost: shield\nContent-Length: 17000\n\n" + early
	chunks := fmt.Sprintf("POST /slow HTTP/1.1\nHost: shield\nTransfer-Encoding: chunked\n\n%x\n%s\n", len(early), early)
	for i, c := range []struct {
		orphans string
		most    int64
		stops   bool // what the backend does
		request string
		inner   string // a shield behind the first
	}{
		{"", limit, false, whole, ""}, {"free", 20, false, whole, ""}, {"free", limit, true, whole, ""},
		{"", limit, false, length, ""}, {"", limit, false, chunks, ""}, {"", limit, false, length, second},
	} {
		var now, most atomic.Int64
		began, done := make(chan struct{}, 20), make(chan struct{})
		name := fmt.Sprint("s", i) // a state of its own, in which no client has an appointment
		r := start(t, setup{handlers: fmt.Sprintf(`{"handler": "shield", "name": %q, "concurrency": {"limit": %d, "orphans": %q}, "queue": {"off": true}, "pushback": {"dither": false}},`, name, limit, c.orphans) + c.inner +
			proxyTo(serveBackend(t, func(w http.ResponseWriter, r *http.Request) {
				if r.URL.Path != "/slow" {
					return
				}
				most.Store(max(most.Load(), now.Add(1))) // one after another
				defer now.Add(-1)
				w.Header().Set("Connection", "close") // it does not wait for the rest of a body
				began <- struct{}{}
				gone := r.Context()
				if !c.stops {
					gone = context.Background()
				}
				select {
				case <-done:
				case <-gone.Done():
				}
			}), `, "load_balancing": {"retries": 3}, "health_checks": {"passive": {"fail_duration": "1h"}}`)})
		reached := int64(0)
		for i := range 20 { // each hangs up when the backend has its request, or it is refused
			w := r.dial()
			w.send("%s", c.request)
			refused := make(chan *http.Response, 1)
			go func() {
				if resp, err := http.ReadResponse(w.r, nil); err == nil {
					refused <- resp
				}
			}()
			select {
			case <-began:
				reached++
			case resp := <-refused:
				if resp.StatusCode != http.StatusServiceUnavailable || resp.Header.Get("Retry-After") == "" {
					t.Errorf("%q, orphans %q: status %d, want a refusal", c.request, c.orphans, resp.StatusCode)
				}
			case <-time.After(patience):
				t.Fatalf("request %d got nowhere", i)
			}
			_ = w.Close()
			if c.stops || c.orphans == "free" {
				r.drains()
			}
		}
		want := c.most
		if c.stops {
			want = 20
		}
		t.Logf("%.90q, orphans %q, the backend stops: %v: %d of 20 in the backend, %d at most", c.request, c.orphans, c.stops, reached, most.Load())
		if most.Load() > c.most || reached != want {
			t.Errorf("%.90q, orphans %q, the backend stops: %v: %d of 20 in the backend, %d at most; want %d, %d", c.request, c.orphans, c.stops, reached, most.Load(), want, c.most)
		}
		if s := r.shieldStatus(name); s.InFlight > limit {
			t.Errorf("%q, orphans %q: %d in flight", c.request, c.orphans, s.InFlight)
		}
		close(done)
		r.drains()
		eventually(t, "the backend is idle", func() bool { return now.Load() == 0 })
		var a answered
		eventually(t, "shield admits the client", func() bool { a = r.get("/"); return a.Header.Get("Retry-After") == "" })
		if a.StatusCode != http.StatusOK { // 503 without Retry-After: reverse_proxy takes the upstream for failed
			t.Errorf("%q, orphans %q, the backend stops: %v: another request: %d, want 200", c.request, c.orphans, c.stops, a.StatusCode)
		}
	}
}
