package caddymodule

import (
	"compress/gzip"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"

	"github.com/caddyserver/caddy/v2"
)

// What a request costs is found in the response that reverse_proxy passes on, wherever it tells it, and the client gets that byte by byte.
func TestCostsInResponses(t *testing.T) {
	const usage = `{"id": 1, "text": "not \"usage\": {\"total_tokens\": 9}", "usage": {"total_tokens": 30}}`
	backend := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/json":
			_, _ = io.WriteString(w, usage)
		case "/gzip":
			w.Header().Set("Content-Encoding", "gzip")
			z := gzip.NewWriter(w)
			_, _ = io.WriteString(z, usage)
			_ = z.Close()
		case "/stream":
			w.Header().Set("Content-Type", "text/event-stream")
			_, _ = fmt.Fprintf(w, "data: {\"usage\": null}\n\ndata: %s\n\ndata: [DONE]\n\n", usage)
		case "/header":
			w.Header().Set("X-Cost", "30")
		case "/trailer":
			w.Header().Set("Trailer", "X-Cost")
			_, _ = io.WriteString(w, "text")
			w.Header().Set("X-Cost", "30")
		case "/bytes":
			_, _ = io.WriteString(w, strings.Repeat("x", 30))
		case "/status":
			w.WriteHeader(http.StatusForbidden)
		case "/free":
			w.WriteHeader(http.StatusOK)
		case "/full":
			w.WriteHeader(http.StatusServiceUnavailable)
		}
	}))
	defer backend.Close()
	for i, c := range []struct {
		path, zone string
		left       int
	}{
		{"/json", "settle usage", 70},
		{"/json", "settle json usage.total_tokens id", 69},
		{"/gzip", "settle usage", 70},
		{"/stream", "settle usage", 70},
		{"/header", "settle header X-Cost", 70},
		{"/trailer", "settle trailer X-Cost", 70},
		{"/bytes", "settle bytes", 70},
		{"/status", "settle status 401 403\ncost 30", 70},
		{"/free", "settle status 401 403\ncost 30", 100},
		{"/free", "settle usage\ncost 5", 95}, // not found
		{"/full", "settle usage\ncost 5", 100},
		{"/json", "cost {header.X-Max}", 60},
		{"/json", "cost {header.X-None}", 99},
		{"/json", "settle usage\ncost {header.X-Max}", 70},
		{"/error", "settle status 404\ncost 30", 70},
		{"/password", "settle status 401\ncost 30", 70},
	} {
		s := serveSite(t, fmt.Sprintf(":8080 {\nshield {\nzone z%d {\nrate 100/day\nunit tokens\nheaders on\n%s\n}\n}\nerror /error 404\nbasic_auth /password {\nbob $2a$14$Zkx19XLiW6VYouLHR5NmfOFU0z2GTNmpkT/5qqR7hx4IjWJPDhjvG\n}\nreverse_proxy %s\n}\n", i, c.zone, backend.Listener.Addr()))
		response := s.get(c.path, "X-Max", "40", "Accept-Encoding", "gzip")
		body, _ := io.ReadAll(response.Body)
		if c.path == "/error" || c.path == "/password" {
			body = nil
		}
		if direct, err := http.Get(backend.URL + c.path); err != nil {
			t.Fatal(err)
		} else if want, _ := io.ReadAll(direct.Body); c.path != "/gzip" && body != nil && string(body) != string(want) {
			t.Errorf("%s: the body is %q, want %q", c.path, body, want)
		}
		if e := explained(t, "client=192.0.2.1").Shields[0].Zones[0]; e.Tokens != c.left || e.Unit != "tokens" {
			t.Errorf("%s, %q: %d %s are left, want %d", c.path, c.zone, e.Tokens, e.Unit, c.left)
		}
		if response.Header.Get("RateLimit") == "" {
			t.Errorf("%s, %q: nothing is told", c.path, c.zone)
		}
	}
}

// A response without a cost is logged once, and counted each time.
func TestUnknownCostIsLoggedOnce(t *testing.T) {
	file := filepath.Join(t.TempDir(), "log")
	s := serveSite(t, fmt.Sprintf("{\nlog {\noutput file %s\nformat json\n}\n}\n:8080 {\nshield {\nname shop\nzone mute {\nrate 100/day\nsettle usage\n}\n}\nrespond ok\n}\n", file))
	for range 3 {
		s.get("/")
	}
	if n := s.app.Status(false).Zones[0].Unknown; n != 3 {
		t.Errorf("%d unknown costs are counted, want 3", n)
	}
	wantMetrics(t, s.app, `caddy_shield_zone_unknown_total{zone="mute"} 3`)
	_ = caddy.Stop()
	lines := 0
	for _, e := range logEntries(t, file) {
		if e["logger"] == "shield" && e["zone"] == "mute" {
			lines++
		}
	}
	if lines != 1 {
		t.Errorf("%d lines are logged, want 1", lines)
	}
}

// A request that is rejected for what it costs is rejected for the same by the listener wrapper.
func TestListenerWrapperKnowsCosts(t *testing.T) {
	r := start(t, setup{server: withDoor, handlers: `{"handler": "shield", "name": "s", "zones": [{"name": "z", "rate": 100, "per": "1h", "cost": "{http.request.header.X-Cost}"}]}, {"handler": "static_response"}`})
	w, served := r.dial(), 0
	for range 60 {
		if w.send("GET / HTTP/1.1\nHost: h\nX-Cost: 60\n\n"); w.answer().StatusCode == http.StatusOK {
			served++
		}
	}
	if served != 1 || r.atDoor() < 20 {
		t.Errorf("%d of 60 requests that cost 60 of 100 are served; the wrapper has rejected %d", served, r.atDoor())
	}
}
