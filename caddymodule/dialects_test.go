package caddymodule

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/herdshield/shield"
)

// What a client understands alone it gets whatever the error routes are, and all others get the headers of theirs. Error routes
// and the listener wrapper change nothing about who may read a rejection.
func TestDialectsAndErrorRoutes(t *testing.T) {
	const site = bound + `
	shield {
		capacity 1/h burst 1
		pushback {
			respond %s
			dither off
			websocket close
			cors https://shop.example
			overload_status 529
			overload_status 420 {
				match header User-Agent hg/*
			}
		}
	}
	respond ok
	`
	for _, c := range []struct{ respond, routes string }{{"auto", ""}, {"auto", "handle_errors {\nrespond sorry\n}"}, {"error", "handle_errors {\nrespond sorry\n}"}} {
		respond, routes := c.respond, c.routes
		t.Run(respond+routes, func(t *testing.T) {
			s := serveSite(t, "{"+globalOptions+"}\n"+fmt.Sprintf(site, respond)+routes+"\n}")
			s.get("/")
			for _, c := range []struct {
				agent  string
				status int
			}{{"curl/8", 529}, {"git/2.54.0", 429}, {"hg/6.9", 420}} {
				resp := s.get("/", "User-Agent", c.agent, "Origin", "https://shop.example")
				body, _ := io.ReadAll(resp.Body)
				if resp.StatusCode != c.status || (string(body) == "sorry") != (routes != "") || resp.Header.Get("Access-Control-Allow-Origin") != "https://shop.example" ||
					!strings.Contains(resp.Header.Get("Access-Control-Expose-Headers"), "Retry-After-Ms") {
					t.Errorf("%s: %d %v %q, want %d", c.agent, resp.StatusCode, resp.Header, body, c.status)
				}
			}
			resp := s.get("/", "Accept", "text/event-stream", "Cache-Control", "no-cache", "Sec-Fetch-Mode", "cors", "Sec-Fetch-Dest", "empty", "Origin", "https://other.example")
			body, _ := io.ReadAll(resp.Body)
			if respond == "error" { // what was asked for
				if resp.StatusCode != 529 || string(body) != "sorry" {
					t.Errorf("an EventSource: %d %q, want an error", resp.StatusCode, body)
				}
				return
			}
			if resp.StatusCode != http.StatusOK || !strings.HasPrefix(string(body), "retry: ") || resp.Header.Get("Cache-Control") != "no-store" ||
				resp.Header.Get("Proxy-Status") == "" || resp.Header.Get("Access-Control-Allow-Origin") != "" || resp.Header.Get("Vary") != "Origin" {
				t.Errorf("an EventSource: %d %v %q", resp.StatusCode, resp.Header, body)
			}
			record := s.app.configured[0].record
			if n := record.Stats(shield.Now()); n.Admitted != 1 || record.durations[outcomeRejected][2].Load() == nil || record.durations[outcomeAdmitted][2].Load() == nil {
				t.Errorf("the rejection of an EventSource is not counted as one of status 2xx: %+v", n.Decisions)
			}
		})
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
