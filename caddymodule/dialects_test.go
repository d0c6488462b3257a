package caddymodule

import (
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
	for name, routes := range map[string]string{"error routes": "handle_errors {\nrespond sorry\n}", "none": ""} {
		t.Run(name, func(t *testing.T) {
			s := serveSite(t, "{"+globalOptions+"}\n"+site+routes+"\n}")
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
			resp := s.get("/", "Accept", "text/event-stream", "Sec-Fetch-Mode", "cors", "Sec-Fetch-Dest", "empty", "Origin", "https://other.example")
			body, _ := io.ReadAll(resp.Body)
			if resp.StatusCode != http.StatusOK || !strings.HasPrefix(string(body), "retry: ") || resp.Header.Get("Cache-Control") != "no-store" ||
				resp.Header.Get("Proxy-Status") == "" || resp.Header.Get("Access-Control-Allow-Origin") != "" || resp.Header.Get("Vary") != "Origin" {
				t.Errorf("an EventSource: %d %v %q", resp.StatusCode, resp.Header, body)
			}
		})
	}
}

// WebSockets that are closed hold their connection until the client answers, so there may be only so many at once.
func TestClosedWebSocketsAreBounded(t *testing.T) {
	s := start(t, setup{handlers: `{"handler": "shield", "capacity": {"rate": 1, "per": "1h", "burst": 1}, "pushback": {"websocket": "close"}}, ` + `{"handler": "static_response", "body": "ok"}`})
	s.get("/")
	const attackers = 1100
	statuses := map[string]int{}
	for range attackers { // which do not answer the close
		w := s.dial()
		if _, err := io.WriteString(w.Conn, "GET / HTTP/1.1\r\nHost: h\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"); err != nil {
			t.Fatal(err)
		}
		line, err := w.r.ReadString('\n')
		if err != nil {
			t.Fatal(err)
		}
		statuses[strings.Fields(line)[1]]++
	}
	if statuses["101"] != 1000 || statuses["503"] != attackers-1000 {
		t.Errorf("of %d handshakes: %v", attackers, statuses)
	}
}
