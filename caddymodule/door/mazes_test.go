package door_test

import (
	"fmt"
	"math/rand/v2"
	"regexp"
	"strings"
	"testing"
)

// A maze makes random configurations, of which some have a shield that decides by the address
// alone.
type maze struct {
	*rand.Rand
	name    string // begins the names of all shields
	shields int
}

func (m *maze) one(of ...string) string { return of[m.IntN(len(of))] }

func (m *maze) list(n int, of func() string) string {
	var all []string
	for range n {
		all = append(all, of())
	}
	return strings.Join(all, ",")
}

func (m *maze) routes(depth int) string {
	return m.list(1+m.IntN(3), func() string { return m.route(depth) })
}

func (m *maze) route(depth int) string {
	matchers := m.list(max(0, m.IntN(4)-1), func() string {
		return m.one(`{"host": ["h"]}`, `{"host": ["h"]}`, `{"host": ["h"]}`, `{"host": ["h", "a.test"]}`, `{"host": ["h", "a.test"]}`, `{"host": ["c.test"]}`,
			`{"host": ["c.test"]}`, `{"host": ["c.test"], "path": ["/a*"]}`, `{"host": ["*.test"]}`, `{"host": ["b.test"]}`, `{"path": ["/a*"]}`, `{"method": ["GET"]}`,
			`{"header": {"X-Key": ["1"]}}`, `{"query": {"q": ["1"]}}`, `{"not": [{"host": ["h"]}]}`, `{"not": [{"path": ["/a*"]}]}`,
			`{"host": ["h"], "path": ["/b*"]}`, `{"host": ["a.test"], "path": ["/b*"]}`, `{"host": ["{http.request.header.X-Key}", "h"]}`, `{"client_ip": {"ranges": ["192.0.2.0/24"]}}`)
	})
	if matchers != "" {
		matchers = `"match": [` + matchers + `],`
	}
	more := m.one(``, ``, ``, `, "terminal": true`, `, "group": "g"`)
	handlers := m.list(max(m.IntN(5)-1, 1), func() string { return m.handler(depth) })
	if m.IntN(20) == 0 {
		handlers = ""
	}
	return `{` + matchers + `"handle": [` + handlers + `]` + more + `}`
}

func (m *maze) handler(depth int) string {
	switch k := m.IntN(20); {
	case k < 10 || k < 15 && depth == 0:
		return m.shield()
	case k < 15:
		return `{"handler": "subroute", "routes": [` + m.routes(depth-1) + `]}`
	case k < 17:
		return fmt.Sprintf(`{"handler": "static_response", "status_code": 2%02d, "body": "ok"}`, m.IntN(3))
	}
	return m.one(`{"handler": "headers", "response": {"set": {"A": ["{http.request.uri.path}"]}}}`, `{"handler": "headers", "response": {"set": {"A": ["b"]}}}`,
		`{"handler": "headers", "request": {"set": {"X-Key": ["1"]}}}`, `{"handler": "rewrite", "uri": "/c"}`, `{"handler": "vars", "client_ip": "192.0.2.1"}`,
		`{"handler": "vars", "client_ip": "{http.request.header.X-Key}"}`, `{"handler": "error", "status_code": 404}`, `{"handler": "encode", "encodings": {"gzip": {}}}`)
}

func (m *maze) shield() string {
	m.shields++
	zone := func(i int) string {
		key := m.one("{http.vars.client_ip}", "{http.vars.client_ip}", "{http.vars.client_ip}", "{http.vars.client_ip}", "{http.request.remote.host}",
			"{http.vars.client_ip} {http.request.host}", "{http.request.header.X-Key}", "{http.request.cookie.c} {http.vars.client_ip}")
		match := m.one("", "", "", "", "", "", `, "match": [{"path": ["/a*"]}]`)
		return fmt.Sprintf(`{"name": "%s-%d-%d", "rate": 1, "per": "1h", "burst": %d, "key": %q%s}`, m.name, m.shields, i, 1+m.IntN(9), key, match)
	}
	zones := zone(0)
	if m.IntN(4) == 0 {
		zones += "," + zone(1)
	}
	more := m.one("", "", "", "", "", `, "retries": {"key": "{http.request.header.X-Key}"}`, `, "retries": {"tickets": true}`,
		`, "concurrency": {"limit": 9}, "classes": [{"name": "critical", "match": [{"path": ["/a*"]}]}]`)
	return fmt.Sprintf(`{"handler": "shield", "name": "%s-%d", "pushback": {"dither": false%s}, "zones": [%s]%s}`, m.name, m.shields, m.one("", "", `, "respond": "error"`), zones, more)
}

// request returns one that is like those before, and different.
func (m *maze) request(n int) string {
	if m.IntN(3) > 0 {
		return fmt.Sprintf("GET /%s%d?q=%d HTTP/1.1\r\nHost: h\r\nX-Id: %d\r\n\r\n", m.one("", "", "a", "b"), n, m.IntN(2), n)
	}
	var b strings.Builder
	fmt.Fprintf(&b, "%s %s%d%s HTTP/1.1\r\nHost: %s\r\n", m.one("GET", "GET", "HEAD", "OPTIONS", "DELETE"), m.one("/", "/a", "/b", "/%61", "//a", "/a/../b", "http://b.test/"), n,
		m.one("", "?q=1"), m.one("h", "h", "a.test", "b.test", "H", "h:80"))
	for range m.IntN(3) {
		b.WriteString(m.one("X-Key: 1", "X-Key: 2", "X-Forwarded-For: 192.0.2.7", "Accept: text/html", "Sec-Fetch-Mode: cors", "Cookie: c=1", "User-Agent: x", "X_Key: 1",
			"X-Shield-Class: critical", "Connection: keep-alive", "X-Retry-Counter: 2", "Idempotency-Key: 1", "Shield-Retry: ?1", "Content-Length: 0", "Accept-Encoding: gzip") + "\r\n")
	}
	return b.String() + "\r\n"
}

// TestMazes compares the answers of a server with a door to those of one without, for
// random configurations: no rule may reject what the handlers would not.
func TestMazes(t *testing.T) {
	var sites []site
	mazes := max(1, *streams/10)
	for i := range mazes {
		for _, kind := range []string{"d", "b"} {
			m := maze{Rand: random(i, 4), name: fmt.Sprint(kind, i)}
			more := m.one("", "", `"trusted_proxies": {"source": "static", "ranges": ["127.0.0.0/8"]},`, `"trusted_proxies": {"source": "static", "ranges": ["192.0.2.0/24"]},`) +
				m.one("", "", "", "", "", `"expected_underscore_headers": ["x_key"],`, `"errors": {"routes": [{"handle": [`+respondOK+`]}]},`)
			sites = append(sites, site{m.name, more, m.routes(2)})
		}
	}
	load(t, "", sites...)
	own := regexp.MustCompile(`after=[\d.]*|shield_retry=[^;]*|"[db]\d+-`) // what each answer has of its own
	play(t, func(s *stage) {
		for i := range mazes {
			doorSite, bareSite := s.serve(handlerOf(t, fmt.Sprint("d", i)), true), s.serve(handlerOf(t, fmt.Sprint("b", i)), false)
			var door, bare *client
			m := maze{Rand: random(i, 5)}
			for n := range 60 {
				if n%30 == 0 {
					door, bare = s.dial(doorSite), s.dial(bareSite)
				}
				request := m.request(n)
				got, want := own.ReplaceAllString(door.ask(request), "-"), own.ReplaceAllString(bare.ask(request), "-")
				if got != want {
					t.Fatalf("maze %d, request %d: %q is answered\n%s\nwant\n%s\n%s", i, n, request, got, want, sites[2*i].routes)
				}
			}
		}
	})
	all, ruled := 0, 0
	for _, is := range situations(t) {
		if n := int(is.FastReject["h1"]); n > 0 {
			all, ruled = all+n, ruled+1
		}
	}
	t.Logf("%d rejections at the doors of %d of %d mazes", all, ruled, mazes)
	if ruled == 0 {
		t.Error("there were no rules")
	}
}
