package caddymodule

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/caddyserver/caddy/v2"
)

// What a client understands alone it gets whatever the error routes are, and all others get the headers of theirs. Error routes
// change nothing about who may read a rejection.
func TestDialectsAndErrorRoutes(t *testing.T) {
	const site = bound + `
	shield {
		capacity 1/h burst 1
		pushback {
			dither off
			cors https://shop.example
			overload_status 529
		}
	}
	respond ok
	%s
}`
	for _, routes := range []string{"", "handle_errors {\nrespond sorry\n}"} {
		s := serveSite(t, "{"+globalOptions+"}\n"+fmt.Sprintf(site, routes))
		s.get("/")
		for agent, status := range map[string]int{"curl/8": 529, "git/2.54.0": 429} {
			resp := s.get("/", "User-Agent", agent, "Origin", "https://shop.example")
			body, _ := io.ReadAll(resp.Body)
			if resp.StatusCode != status || (string(body) == "sorry") != (routes != "") || resp.Header.Get("Access-Control-Allow-Origin") != "https://shop.example" ||
				!strings.Contains(resp.Header.Get("Access-Control-Expose-Headers"), "Retry-After-Ms") {
				t.Errorf("%s, %s: %d %v %q, want %d", routes, agent, resp.StatusCode, resp.Header, body, status)
			}
		}
		resp := s.get("/", "Accept", "text/event-stream", "Cache-Control", "no-cache", "Sec-Fetch-Mode", "cors", "Sec-Fetch-Dest", "empty", "Origin", "https://other.example")
		body, _ := io.ReadAll(resp.Body)
		record := s.app.configured[0].record
		if resp.StatusCode != http.StatusOK || !strings.HasPrefix(string(body), "retry: ") || resp.Header.Get("Cache-Control") != "no-store" ||
			resp.Header.Get("Proxy-Status") == "" || resp.Header.Get("Access-Control-Allow-Origin") != "" || resp.Header.Get("Vary") != "Origin" || record.durations[outcomeRejected][2].Load() == nil {
			t.Errorf("an EventSource: %d %v %q; want a rejection that is counted as one of status 2xx", resp.StatusCode, resp.Header, body)
		}
		_ = caddy.Stop()
	}
}

// An EventSource forgets what it was told before, whatever limits it has passed.
func TestAdmittedEventSourceIsTheUsualOne(t *testing.T) {
	for _, limit := range []string{`"zones": [{"name": "z", "rate": 9}]`, `"capacity": {"rate": 9}`} {
		r := start(t, setup{handlers: `{"handler": "shield", ` + limit + `}, {"handler": "static_response", "headers": {"Content-Type": ["text/event-stream"]}, "body": "data: 1\n\n"}`})
		resp := r.get("/", "Accept", "text/event-stream", "Cache-Control", "no-cache", "User-Agent", "Mozilla/5.0")
		if body := resp.body; body != "retry: 3000\n\ndata: 1\n\n" {
			t.Errorf("%s: %q", limit, body)
		}
		if body := r.get("/", "Accept", "text/event-stream").body; body != "data: 1\n\n" {
			t.Errorf("%s: another client gets %q", limit, body)
		}
	}
}
