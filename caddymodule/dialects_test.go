package caddymodule

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
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
		})
	}
}
