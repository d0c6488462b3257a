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
	request            string // with %d where they differ
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
		{"an error as for others", "", route(with(`, "respond": "error"`, "", "")), get, false},
		{"POST", "", route(plain), "POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 0\r\n\r\n", false},
		{"Shield-Retry", "", route(plain), strings.Replace(get, "\r\n\r\n", "\r\nShield-Retry: ?1\r\n\r\n", 1), false},
		{"a deadline, and a queue", "", route(with("", "", `, "concurrency": {"limit": 9}`)), strings.Replace(get, "\r\n\r\n", "\r\nX-Request-Timeout: 9\r\n\r\n", 1), false},
		{"two shields", "", route(`{"handler": "shield", "name": "oS", "zones": [{"name": "oZ", "rate": 1000}]},` + plain), get, false},
	}
	for _, c := range ruleCases(with) {
		c.name = "rule: " + c.name
		c.request = "GET /%d?q=%[1]d HTTP/1.1\r\nHost: h\r\nUser-Agent: test %[1]d\r\nX-Request-Id: %[1]d\r\n" + c.request + "\r\n"
		cases = append(cases, c)
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
			return func(n int) string {
				if !strings.Contains(c.request, "%") {
					return conn.ask(c.request)
				}
				return conn.ask(fmt.Sprintf(c.request, n))
			}
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

// ruleCases say where the door answers requests that all differ: where nothing but the address and the host
// decides. Their request is headers only.
func ruleCases(with func(pushback, zone, more string) string) []answerCase {
	plain := with("", "", "")
	onHost := func(host, handlers string) string {
		return `{"match": [{"host": ["` + host + `"]}], "handle": [{"handler": "subroute", "routes": [` + route(handlers) + `]}], "terminal": true}`
	}
	inRoutes := `{"handler": "subroute", "routes": [` + route(`{"handler": "vars", "root": "/srv"}`) + `,` +
		route(`{"handler": "headers", "response": {"deferred": true, "add": {"A": ["b"]}}}`) + `,` + route(plain) + `]}`
	return []answerCase{
		{"a shield alone", "", route(plain), "", true},
		{"a site", "", onHost("h", plain), "", true},
		{"paths of another site before", "", `{"match": [{"host": ["other"], "path": ["/x"]}], "handle": [` + respondOK + `]},` + route(plain), "", true},
		{"the key of address and host", "", route(with("", `, "key": "{http.vars.client_ip} {http.request.host}"`, "")), "", true},
		{"proxies elsewhere", `"trusted_proxies": {"source": "static", "ranges": ["192.0.2.0/24"]},`, route(plain), "X-Forwarded-For: 192.0.2.%[1]d\r\n", true},
		{"a browser", "", route(plain), "Accept: text/html\r\nSec-Fetch-Mode: navigate\r\nCookie: a=%[1]d\r\n", true},
		{"a page that may read it", "", route(with(`, "cors": ["https://a.example", "https://b.example"]`, "", "")), "Origin: https://b.example\r\n", true},
		{"a page that may not", "", route(with(`, "cors": ["https://a.example"]`, "", "")), "Origin: https://b.example\r\n", true},
		{"headers and a root in routes before", "", `{"match": [{"host": ["h"]}], "handle": [` + inRoutes + `]}`, "", true},

		{"the key of a header", "", route(with("", `, "key": "{http.request.header.X-Key}"`, "")), "X-Key: a\r\n", false},
		{"the key of appointments", "", route(with("", "", `, "retries": {"key": "{http.request.header.X-Key}"}`)), "", false},
		{"the key of requests in flight", "", route(with("", "", `, "concurrency": {"limit": 10, "per": {"key": "{http.request.header.X-Key}", "limit": 5}}`)), "", false},
		{"the key of the body", "", route(with("", `, "key": "{shield.json.user}"`, "")), "", false},
		{"a cost that the request says", "", route(with("", `, "cost": "{http.request.header.X-Cost}"`, "")), "", false},
		{"a rate that the request says", "", route(with("", `, "rate_from": "{http.request.header.X-Rate}", "min_rate": 1`, "")), "", false},
		{"a zone for some requests", "", route(with("", `, "match": [{"path": ["/*"]}]`, "")), "", false},
		{"classes", "", route(with("", "", `, "concurrency": {"limit": 10}, "classes": [{"name": "critical", "match": [{"path": ["/x"]}]}]`)), "", false},
		{"a placeholder in headers before", "", route(`{"handler": "headers", "response": {"set": {"A": ["{http.request.header.X}"]}}},` + plain), "", false},
		{"headers of requests before", "", route(`{"handler": "headers", "request": {"set": {"A": ["b"]}}, "response": {"set": {"A": ["b"]}}},` + plain), "", false},
		{"vars before", "", route(`{"handler": "vars", "client_ip": "192.0.2.1"},` + plain), "", false},
		{"a path around in a site", "", onHost("h", `{"handler": "subroute", "routes": [{"match": [{"path": ["/*"]}], "handle": [`+plain+`]}]}`), "", false},
		{"a host from the query", "", `{"match": [{"host": ["{http.request.uri.query.h}", "h"]}], "handle": [` + plain + `]}`, "", false},
		{"two shields", "", route(`{"handler": "shield", "name": "oS", "zones": [{"name": "oZ", "rate": 10000}]},` + plain), "", false},
		{"a proxy", `"trusted_proxies": {"source": "static", "ranges": ["127.0.0.0/8"]},`, route(plain), "", false},
		{"names that hide others", `"expected_underscore_headers": ["x_key"],`, route(plain), "", false},
		{"error routes", `"errors": {"routes": [{"handle": [{"handler": "static_response", "status_code": 429}]}]},`, route(plain), "", false},
		{"a deadline", "", route(plain), "X-Request-Timeout: 9%[1]d\r\n", false},
		{"a key of the same attempt", "", route(plain), "Idempotency-Key: %[1]d\r\n", false},
		{"a name with a dot", "", route(plain), "X.Y: %[1]d\r\n", false},
	}
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
