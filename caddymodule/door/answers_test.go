package door_test

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/caddyserver/caddy/v2/modules/caddyhttp"

	"github.com/herdshield/shield/caddymodule/door"
)

// An answerCase is a site, requests to it, and whether the door answers them.
type answerCase struct {
	name, more, routes string // S is the name of the shield, and Z that of its zone
	request            string
	want               bool
}

// TestAnswers compares answers at the door, byte for byte, with those of the same handlers without one.
func TestAnswers(t *testing.T) {
	const (
		page   = "GET / HTTP/1.1\r\nHost: h\r\nSec-Fetch-Mode: navigate\r\n\r\n"
		shield = `{"handler": "shield", "name": "S", "pushback": {"dither": false%s}, "zones": [{"name": "Z", "rate": 1, "per": "1h", "burst": 1%s}]%s}`
	)
	with := func(pushback, zone, more string) string {
		return fmt.Sprintf(shield, pushback, zone, more) + "," + respondOK
	}
	plain := with("", "", "")
	set := func(more string) string { return `{"handler": "headers", "response": {` + more + `}},` }
	cases := []answerCase{
		{"problem", "", route(plain), get, true},
		{"another server's headers", "", route(set(`"set": {"X-Frame-Options": ["DENY"]}`) + plain), get, true},
		{"deferred headers", "", route(set(`"deferred": true, "set": {"Access-Control-Allow-Origin": ["*"]}`) + plain), get, true},
		{"a page", "", route(plain), page, true},
		{"HEAD", "", route(plain), strings.Replace(get, "GET", "HEAD", 1), true},
		{"no body", "", route(with(`, "body": "none"`, "", "")), get, true},
		{"text", "", route(with(`, "body": "text"`, "", "")), get, true},
		{"a rewritten path", "", route(`{"handler": "rewrite", "uri": "/b"},` + plain), get, true},
		{"off", "", route(with("", "", `, "fast_reject": false`)), get, false},
		{"a header that differs", "", route(set(`"set": {"X-Id": ["{http.request.uuid}"]}`) + plain), get, false},
		{"the wait in a header", "", route(set(`"deferred": true, "set": {"X-Wait": ["{http.shield.retry_after_ms}"]}`) + plain), get, false},
		{"a cookie", "", route(set(`"set": {"Set-Cookie": ["a=b"]}`) + plain), get, false},
		{"a changed request", "", route(`{"handler": "headers", "request": {"set": {"X-More": ["1"]}}},` + plain), get, false},
		{"an encoded body", "", route(`{"handler": "encode", "encodings": {"gzip": {}}, "minimum_length": 1, "match": {"headers": {"Content-Type": ["*"]}}},` + plain),
			strings.Replace(get, "\r\n\r\n", "\r\nAccept-Encoding: gzip\r\n\r\n", 1), false},
		{"POST", "", route(plain), "POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 0\r\n\r\n", false},
		{"Shield-Retry", "", route(plain), strings.Replace(get, "\r\n\r\n", "\r\nShield-Retry: ?1\r\n\r\n", 1), false},
		{"a deadline, and a queue", "", route(with("", "", `, "concurrency": {"limit": 9}`)), strings.Replace(get, "\r\n\r\n", "\r\nX-Request-Timeout: 9\r\n\r\n", 1), false},
		{"two shields", "", route(`{"handler": "shield", "name": "oS", "zones": [{"name": "oZ", "rate": 1000}]},` + plain), get, false},
	}
	var sites []site
	for i, c := range cases {
		for _, kind := range "db" { // they share the quota
			names := strings.NewReplacer(`"S"`, fmt.Sprintf(`"%c%d"`, kind, i), `"oS"`, fmt.Sprintf(`"%co%d"`, kind, i), `"Z"`, fmt.Sprintf(`"z%d"`, i), `"oZ"`, fmt.Sprintf(`"zo%d"`, i))
			sites = append(sites, site{fmt.Sprintf("%c%d", kind, i), c.more, names.Replace(c.routes)})
		}
	}
	load(t, "", sites...)
	for i, c := range cases {
		c.compare(t, i, func(s *stage, l *pipeListener) func(n int) string {
			conn := s.dial(l)
			return func(int) string { return conn.ask(c.request) }
		})
	}
}

// compare has 25 requests answered by the i-th site without a door and with one. The answers must be the same.
func (c *answerCase) compare(t *testing.T, i int, dial func(*stage, *pipeListener) (ask func(n int) string)) {
	t.Run(c.name, func(t *testing.T) {
		name := fmt.Sprintf("d%d", i)
		play(t, func(s *stage) {
			bare := dial(s, s.serve(handlerOf(t, fmt.Sprintf("b%d", i)), false))
			behind := dial(s, s.serve(handlerOf(t, name), true))
			bare(0)
			for n := range 24 {
				want, got := bare(n), behind(n)
				if c.name != "a header that differs" && got != want || !strings.Contains(got, " 4") {
					t.Fatalf("answer %d at the door: %s\nwant %s", n, got, want)
				}
				if n%6 == 5 {
					pass(memoLife / 2)
				}
			}
		})
		if n := atDoor(t, name); n > 0 != c.want || c.want && n < 12 {
			t.Errorf("%d of 24 were rejected at the door, want %v", n, c.want)
		}
	})
}

// TestH2Answers does so over HTTP/2.
func TestH2Answers(t *testing.T) {
	trailers := newHook("trailers", func(w http.ResponseWriter, r *http.Request, next caddyhttp.Handler) error {
		if r.Header[door.NumberKey] != nil {
			t.Error("a handler sees the number of a request")
		}
		err := next.ServeHTTP(w, r)
		w.Header()[http.TrailerPrefix+"X-Sum"] = []string{"1"}
		return err
	})
	cases := []struct {
		name, before, more, method string
		headers                    []string
		want                       bool // that the door answers
	}{
		{"no body", "", "", "GET", nil, true},
		{"HEAD", "", "", "HEAD", nil, true},
		{"another server's headers", `{"handler": "headers", "response": {"add": {"Vary": ["Accept", "Origin"]}}},`, "", "GET", nil, true},
		{"deferred headers", `{"handler": "headers", "response": {"deferred": true, "set": {"Access-Control-Allow-Origin": ["*"]}}},`, "", "GET", nil, true},
		{"a body", "", "", "GET", []string{"accept", "application/json"}, false},
		{"POST", "", "", "POST", nil, false},
		{"off", "", `, "fast_reject": false`, "GET", nil, false},
		{"a header that differs", `{"handler": "headers", "response": {"set": {"X-Id": ["{http.request.uuid}"]}}},`, "", "GET", nil, false},
		{"a changed request", `{"handler": "headers", "request": {"set": {"X-More": ["1"]}}},`, "", "GET", nil, false},
		{"two shields", `{"handler": "shield", "name": "oS", "zones": [{"name": "zo", "rate": 1000}]},`, "", "GET", nil, false},
		{"trailers", trailers + ",", "", "GET", nil, false},
	}
	var sites []site
	for i, c := range cases {
		for _, kind := range "db" {
			name := fmt.Sprintf("%c%d", kind, i)
			sites = append(sites, site{name, "", route(strings.ReplaceAll(c.before, "oS", "o"+name)+overQuota(name, fmt.Sprint("z", i), c.more), respondOK)})
		}
	}
	load(t, "", sites...)
	for i, c := range cases {
		is := answerCase{name: c.name, want: c.want}
		is.compare(t, i, func(s *stage, l *pipeListener) func(int) string {
			conn := s.dialH2(l)
			return func(int) string { return conn.ask(c.method, "/", c.headers...) }
		})
	}
}
