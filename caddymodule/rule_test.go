package caddymodule

import (
	"bufio"
	"crypto/tls"
	"fmt"
	"math"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/herdshield/shield"
)

// atAnyDoor returns how many refusals the door has answered, of all shields.
func (r *rig) atAnyDoor() (n uint64) {
	for _, s := range r.app().configured.shields {
		n += s.record.atDoor.Load()
	}
	return n
}

// TestRules says where the door answers requests that all differ: where nothing but the address
// and the host decides.
func TestRules(t *testing.T) {
	const (
		shield  = `{"handler": "shield", "name": "s", "pushback": {"dither": false}, "zones": [{"name": "z", "rate": 1, "per": "1h", "burst": 1%s}]%s}`
		subject = "GET /%d?q=%d HTTP/1.1\r\nHost: h\r\nUser-Agent: test %d\r\nX-Request-Id: %d\r\n%s\r\n"
	)
	with := func(zone, more string) string { return fmt.Sprintf(shield, zone, more) + "," + respondOK }
	plain := with("", "")
	route := func(handlers string) string { return `{"handle": [` + handlers + `]}` }
	onHost := func(host, handlers string) string {
		return `{"match": [{"host": ["` + host + `"]}], "handle": [{"handler": "subroute", "routes": [` + route(handlers) + `]}], "terminal": true}`
	}
	limits := `, "concurrency": {"limit": 10, "per": {"key": "{http.vars.client_ip}", "limit": 5}}, "capacity": {"rate": 1000}`
	for _, c := range []struct {
		name, server, routes, headers string
		want                          bool // that the door answers
	}{
		{"a shield alone", "", route(plain), "", true},
		{"a site", "", onHost("h", plain), "", true},
		{"another site before", "", onHost("other", respondOK) + "," + onHost("h", plain), "", true},
		{"paths of another site before", "", `{"match": [{"host": ["other"], "path": ["/x"]}], "handle": [` + respondOK + `]},` + route(plain), "", true},
		{"all limits", "", route(with("", limits)), "", true},
		{"the key of the remote host", "", route(with(`, "key": "{http.request.remote.host}"`, "")), "", true},
		{"the key of address and host", "", route(with(`, "key": "{http.vars.client_ip} {http.request.host}"`, "")), "", true},
		{"proxies elsewhere", `"trusted_proxies": {"source": "static", "ranges": ["192.0.2.0/24"]},`, route(plain), "X-Forwarded-For: 192.0.2.%d\r\n", true},
		{"a browser", "", route(plain), "Accept: text/html\r\nSec-Fetch-Mode: navigate\r\nCookie: a=%d\r\n", true},

		{"off", "", route(with("", `, "door": false`)), "", false},
		{"the key of a header", "", route(with(`, "key": "{http.request.header.X-Key}"`, "")), "X-Key: a\r\n", false},
		{"the key of the path", "", route(with(`, "key": "{http.vars.client_ip} {http.request.uri.path.5}"`, "")), "", false},
		{"the key of a cookie", "", route(with(`, "key": "{http.request.cookie.a}"`, "")), "Cookie: a=b\r\n", false},
		{"the key of appointments", "", route(with("", `, "retries": {"key": "{http.request.header.X-Key}"}`)), "", false},
		{"the key of requests in flight", "", route(with("", `, "concurrency": {"limit": 10, "per": {"key": "{http.request.header.X-Key}", "limit": 5}}`)), "", false},
		{"a zone for some requests", "", route(with(`, "match": [{"path": ["/*"]}]`, "")), "", false},
		{"another zone for some requests", "", route(with(`}, {"name": "y", "rate": 1000, "match": [{"path": ["/x"]}]`, "")), "", false},
		{"another zone's key", "", route(with(`}, {"name": "y", "rate": 1000, "key": "{http.request.header.X-Key}"`, "")), "", false},
		{"classes", "", route(with("", `, "concurrency": {"limit": 10}, "classes": [{"name": "critical", "match": [{"path": ["/x"]}]}]`)), "", false},
		{"tickets", "", route(with("", `, "retries": {"tickets": true}`)), "Cookie: shield_retry=%d\r\n", false},
		{"headers before", "", route(`{"handler": "headers", "response": {"set": {"A": ["b"]}, "delete": ["Server"]}},` + plain), "", true},
		{"headers and a root in routes before", "", onHost("h", `{"handler": "subroute", "routes": [`+route(`{"handler": "vars", "root": "/srv"}`)+`,`+route(`{"handler": "headers", "response": {"deferred": true, "add": {"A": ["b"]}}}`)+`,`+route(plain)+`]}`), "", true},
		{"a placeholder in headers before", "", route(`{"handler": "headers", "response": {"set": {"A": ["{http.request.header.X}"]}}},` + plain), "", false},
		{"headers of some answers before", "", route(`{"handler": "headers", "response": {"require": {"status_code": [4]}, "set": {"A": ["b"]}}},` + plain), "", false},
		{"headers of requests before", "", route(`{"handler": "headers", "request": {"set": {"A": ["b"]}}, "response": {"set": {"A": ["b"]}}},` + plain), "", false},
		{"headers in a group before", "", `{"group": "g", "handle": [{"handler": "headers", "response": {"set": {"A": ["b"]}}}]},` + `{"group": "g", "handle": [` + respondOK + `]},` + route(plain), "", false},
		{"a handler before", "", route(`{"handler": "encode", "encodings": {"gzip": {}}},` + plain), "", false},
		{"a rewrite before", "", route(`{"handler": "rewrite", "strip_path_prefix": "/x"},` + plain), "", false},
		{"vars before", "", route(`{"handler": "vars", "client_ip": "192.0.2.1"},` + plain), "", false},
		{"a route before", "", `{"match": [{"path": ["/x"]}], "handle": [` + respondOK + `], "terminal": true},` + route(plain), "", false},
		{"a route without handlers before", "", `{"match": [{"host": ["h"]}]},` + route(plain), "", false},
		{"a path around", "", `{"match": [{"path": ["/*"]}], "handle": [` + plain + `]}`, "", false},
		{"a path around in a site", "", onHost("h", `{"handler": "subroute", "routes": [{"match": [{"path": ["/*"]}], "handle": [`+plain+`]}]}`), "", false},
		{"a path of this site before", "", `{"match": [{"host": ["h"], "path": ["/x"]}], "handle": [` + respondOK + `]},` + route(plain), "", false},
		{"a path or a host", "", `{"match": [{"path": ["/*"]}, {"host": ["h"]}], "handle": [` + plain + `]}`, "", false},
		{"a host that is not", "", `{"match": [{"not": [{"host": ["other"]}]}], "handle": [` + plain + `]}`, "", false},
		{"a host from the query", "", `{"match": [{"host": ["{http.request.uri.query.h}", "h"]}], "handle": [` + plain + `]}`, "", false},
		{"two shields", "", route(`{"handler": "shield", "name": "o", "zones": [{"name": "zo", "rate": 10000}]},` + plain), "", false},
		{"a proxy", `"trusted_proxies": {"source": "static", "ranges": ["127.0.0.0/8"]},`, route(plain), "", false},
		{"names that hide others", `"expected_underscore_headers": ["x_key"],`, route(plain), "", false},
		{"error routes", `"errors": {"routes": [{"handle": [{"handler": "static_response", "status_code": 429}]}]},`, route(plain), "", false},
		{"a deadline", "", route(plain), "X-Request-Timeout: 9%d\r\n", false},
		{"retries", "", route(plain), "X-Retry-Counter: %d\r\n", false},
		{"Shield-Retry", "", route(plain), "Shield-Retry: ?1\r\n", false},
		{"a key of its own", "", route(plain), "Idempotency-Key: %d\r\n", false},
		{"the end of the connection", "", route(plain), "Keep-Alive: 1\r\nConnection: foo\r\n", false},
		{"a name with a dot", "", route(plain), "X.Y: %d\r\n", false},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := start(t, setup{server: withDoor + c.server, routes: c.routes})
			w, want := r.dial(), ""
			for i := range 20 {
				headers := strings.ReplaceAll(c.headers, "%d", fmt.Sprint(i))
				answer := w.exchange(fmt.Sprintf(subject, i, i, i, i, headers))
				if got := unchanging(answer); i == 1 {
					want = got
				} else if c.want && i > 1 && got != want {
					t.Fatalf("answer %d: %s\nwant %s", i, got, want)
				}
			}
			if n := r.atAnyDoor(); n > 0 != c.want || c.want && n < 10 {
				t.Errorf("%d of 20 were refused at the door, want %v", n, c.want)
			}
		})
	}
}

// TestRulesOfHosts has several sites with limits of their own behind one door.
func TestRulesOfHosts(t *testing.T) {
	site := func(host string, burst int) string {
		return fmt.Sprintf(`{"match": [{"host": [%q]}], "terminal": true, "handle": [{"handler": "subroute", "routes": [{"handle": [
			{"handler": "shield", "name": %q, "pushback": {"dither": false}, "zones": [{"name": %q, "rate": 1, "per": "1h", "burst": %d}]}, %s]}]}]}`, host, host, host, burst, respondOK)
	}
	r := start(t, setup{server: withDoor, routes: site("a.test", 1) + "," + site("b.test", 30) + `,{"handle": [` + respondOK + `]}`})
	w, ok := r.dial(), map[string]int{}
	for i := range 300 {
		host := []string{"a.test", "b.test", "c.test"}[i%3]
		answer := w.exchange(fmt.Sprintf("GET /%d HTTP/1.1\r\nHost: %s\r\n\r\n", i, host))
		if strings.Contains(answer, " 200 ") {
			ok[host]++
		} else if !strings.Contains(answer, `"`+strings.TrimSuffix(host, ".test")) && !strings.Contains(answer, host) {
			t.Fatalf("%s is answered %s", host, answer)
		}
	}
	if ok["a.test"] != 1 || ok["b.test"] != 30 || ok["c.test"] != 100 {
		t.Errorf("admitted were %v; want 1, 30 and all of 100", ok)
	}
	t.Logf("%d of 169 refusals were at the door", r.atAnyDoor())
}

// TestRulesTellAnswersApart has clients with different answers behind one address.
func TestRulesTellAnswersApart(t *testing.T) {
	r := start(t, setup{server: withDoor, handlers: overQuota(`, "pushback": {"dither": false}`) + "," + respondOK})
	kinds := []string{
		"GET /%d HTTP/1.1\r\nHost: h\r\n\r\n", "HEAD /%d HTTP/1.1\r\nHost: h\r\n\r\n", "OPTIONS /%d HTTP/1.1\r\nHost: h\r\n\r\n", "GET /%d HTTP/1.1\r\nHost: h\r\nAccept: text/html\r\n\r\n",
		"GET /%d HTTP/1.1\r\nHost: h\r\nSec-Fetch-Mode: cors\r\nAccept: text/html\r\n\r\n", "GET /%d HTTP/1.1\r\nHost: h\r\nAccept: application/json\r\n\r\n",
		"GET /%d HTTP/1.1\r\nHost: h\r\nAccept: */*\r\nContent-Type: application/grpc\r\n\r\n", "GET /%d HTTP/1.1\r\nHost: h\r\nX-Envoy-Attempt-Count: 1\r\n\r\n",
		"POST /%d HTTP/1.1\r\nHost: h\r\nContent-Length: 0\r\n\r\n", "GET /%d HTTP/1.1\r\nHost: h\r\nShield-Retry: ?1\r\n\r\n",
	}
	w, want := r.dial(), make([]string, len(kinds))
	w.exchange(fmt.Sprintf(kinds[0], 1000))
	for i := range 400 {
		kind := i % len(kinds)
		if i%3 == 0 {
			kind = i / 7 % len(kinds)
		}
		got := unchanging(w.exchange(fmt.Sprintf(kinds[kind], i)))
		if want[kind] == "" {
			want[kind] = got
		}
		if got != want[kind] && kind != 6 && kind != 9 { // gRPC and Shield-Retry have numbers of their own
			t.Fatalf("answer %d: %s\nwant %s", i, got, want[kind])
		}
	}
	if n := r.atDoor(); n < 100 {
		t.Errorf("%d of 400 were refused at the door", n)
	}
}

// TestRulesOfConnections says on which connections a rule counts.
func TestRulesOfConnections(t *testing.T) {
	cert := newCertificate(t)
	differ := func(r *rig, w *wire, n int) (at uint64) {
		before := r.atDoor()
		for i := range n {
			w.exchange(fmt.Sprintf("GET /%d HTTP/1.1\r\nHost: h\r\n\r\n", i))
		}
		return r.atDoor() - before
	}
	t.Run("new ones", func(t *testing.T) {
		r := start(t, setup{server: withDoor, handlers: overQuota(`, "pushback": {"dither": false}`) + "," + respondOK})
		sum := uint64(0)
		for range 20 {
			w := r.dial()
			sum += differ(r, w, 1)
			_ = w.Close()
		}
		if sum < 10 {
			t.Errorf("%d of 20 were refused at the door", sum)
		}
	})
	t.Run("TLS", func(t *testing.T) {
		r := start(t, setup{apps: cert.apps, server: cert.server + withDoor, handlers: overQuota(`, "pushback": {"dither": false}`) + "," + respondOK})
		for range 2 {
			conn, err := tls.Dial("tcp", r.addr, cert.trust)
			if err != nil {
				t.Fatal(err)
			}
			if n := differ(r, &wire{t, conn, bufio.NewReader(conn)}, 20); n < 10 || n > 17 {
				t.Errorf("%d of 20 were refused at the door, want 10 to 17", n)
			}
			_ = conn.Close()
		}
	})
	t.Run("PROXY protocol", func(t *testing.T) {
		server := strings.Replace(withDoor, "[", `[{"wrapper": "proxy_protocol", "allow": ["127.0.0.0/8"], "fallback_policy": "REQUIRE"},`, 1)
		r := start(t, setup{server: server, handlers: overQuota(`, "pushback": {"dither": false}`) + "," + respondOK})
		for _, client := range []string{"192.0.2.1", "192.0.2.2"} {
			w := r.dial()
			w.send("PROXY TCP4 %s 127.0.0.1 1234 80\n", client)
			if first := w.exchange("GET /first HTTP/1.1\r\nHost: h\r\n\r\n"); !strings.Contains(first, " 200 ") {
				t.Errorf("%s is answered %q, though it is a new client", client, first)
			}
			if n := differ(r, w, 20); n < 10 {
				t.Errorf("%d of 20 were refused at the door", n)
			}
		}
	})
	t.Run("after a reload", func(t *testing.T) {
		r := start(t, setup{server: withDoor, handlers: overQuota(`, "pushback": {"dither": false}`) + "," + respondOK})
		differ(r, r.dial(), 20)
		r.load(setup{server: withDoor, handlers: respondOK})
		for i := range 5 {
			if got := r.get(fmt.Sprintf("/%d", i), "Connection", "close"); got.StatusCode != http.StatusOK {
				t.Errorf("it is answered %d", got.StatusCode)
			}
		}
	})
}

// TestRuleAsks says what the Guard is asked by a rule, and for which requests.
func TestRuleAsks(t *testing.T) {
	const other = "HEAD /b/c?d HTTP/1.1\r\nHost: h\r\nUser-Agent: other\r\n\r\n"
	now, guard := shield.Now(), shield.Must(shield.New(shield.Config{}, nil))
	c := newDoorConn(changingConn{}, new(memos))
	head, _ := parseStrict([]byte(strings.Replace(get, "GET", "HEAD", 1)))
	shape := head.appendShape(nil)
	m := &memo{origin: c.origin, head: shape, sum: c.origin.sum(shape), h: &Handler{atDoor: new(atDoor)}, since: now, until: now + time.Hour, proven: true}
	m.h.use(&inForce{guard: guard})
	m.q.Class = 7
	c.memos.keep(m)
	c.memos.warmUp(c.origin.remote, now)
	r, err := http.ReadRequest(bufio.NewReader(strings.NewReader(other)))
	if err != nil {
		t.Fatal(err)
	}
	want := guard.Describe(r)
	found, q, _ := c.find([]byte(other))
	if found != m || q.Class != 7 || q.Agent != want.Agent {
		t.Errorf("the Guard is asked %+v by %p, want %+v by %p", q, found, want, m)
	}
	if found, _, _ := c.find(shape); found != nil {
		t.Error("a shape is taken for a request")
	}
	if found, _, _ := c.find([]byte(get)); found != nil {
		t.Error("GET is taken for HEAD")
	}
	if found, _ := c.rule([]byte(other), m.until); found != nil {
		t.Error("a rule counts after its time")
	}
	m.h.atDoor.forget(math.MaxInt64)
	if found, _, _ := c.find([]byte(other)); found != nil {
		t.Error("a rule counts after its handler")
	}
}
