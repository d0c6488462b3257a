package caddymodule

import (
	"bufio"
	"crypto/tls"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"

	"github.com/herdshield/shield/caddymodule/clientkey"
	"github.com/herdshield/shield/limiter"
)

// request returns a request as it comes to a Caddy handler.
func request(target, clientIP string, header http.Header) *http.Request {
	r := httptest.NewRequest(http.MethodGet, target, nil)
	for name, values := range header {
		r.Header[name] = values
	}
	r = caddyhttp.PrepareRequest(r, caddy.NewReplacer(), httptest.NewRecorder(), nil)
	vars := r.Context().Value(caddyhttp.VarsCtxKey).(map[string]any)
	vars[caddyhttp.ClientIPVarKey] = clientIP
	return r
}

// Two requests have one key if and only if the template cannot tell them apart.
func TestKeys(t *testing.T) {
	tenant := func(v ...string) *http.Request { return request("/", "", http.Header{"X-Tenant": v}) }
	from := func(ip string) *http.Request { return request("/", ip, nil) }
	to := func(target string) *http.Request { return request(target, "", nil) }
	unix := from("")
	unix.RemoteAddr = "@"
	for _, c := range []struct {
		name, template string
		v4, v6         int
		a, b           *http.Request
		same           bool
	}{
		{"the default is the client's address", "", 0, 0, request("/a", "192.0.2.1", nil), request("/b", "192.0.2.1", nil), true},
		{"other addresses are other clients", "", 0, 0, from("192.0.2.1"), from("192.0.2.2"), false},
		{"an IPv6 client is its /64", "", 0, 0, from("2001:db8::1"), from("2001:db8::ffff:1"), true},
		{"and not more", "", 0, 0, from("2001:db8::1"), from("2001:db8:0:1::1"), false},
		{"prefixes can be set", "", 24, 128, from("192.0.2.1"), from("192.0.2.200"), true},
		{"for each family", "", 24, 128, from("2001:db8::1"), from("2001:db8::2"), false},
		{"IPv4 in IPv6 is IPv4", "", 0, 0, from("::ffff:192.0.2.1"), from("192.0.2.1"), true},
		{"zones of IPv6 do not count", "", 0, 0, from("fe80::1%eth0"), from("fe80::1%eth1"), true},
		{"no address at all, as on a Unix socket, is one client", "", 0, 0, from(""), from(""), true},
		{"an address is not its text", "{http.vars.client_ip}", 0, 0, from("192.0.2.1"), from("@"), false},
		{"headers", "{http.request.header.x-tenant}", 0, 0, tenant("a"), tenant("a"), true},
		{"other headers", "{http.request.header.X-Tenant}", 0, 0, tenant("a"), tenant("b"), false},
		{"absent and empty headers are one", "{http.request.header.X-Tenant}", 0, 0, to("/"), tenant(""), true},
		{"headers sent twice are none", "{http.request.header.X-Tenant}", 0, 0, tenant("a", "b"), to("/"), true},
		{"words are not joined", "{http.request.header.X-Tenant}", 0, 0, tenant("a b"), tenant("ab"), false},
		{"hosts by name only", "{http.request.host}", 0, 0, to("http://Example.com:81/"), to("http://example.com/"), true},
		{"the Host header is the host", "{http.request.header.Host}", 0, 0, to("http://a/"), to("http://b/"), false},
		{"paths", "{http.request.uri.path}", 0, 0, to("/a?x"), to("/a?y"), true},
		{"several parts", "{http.request.method} {http.vars.client_ip}", 0, 0, from("192.0.2.1"), from("192.0.2.2"), false},
		{"all others by Caddy's replacer", "{http.request.uri.query.user}", 0, 0, to("/?user=a&x=1"), to("/?user=a&x=2"), true},
		{"and they differ", "{http.request.uri.query.user}", 0, 0, to("/?user=a"), to("/?user=b"), false},
		{"the peer on a Unix socket", "{http.request.remote.host}", 0, 0, unix, unix, true},
		{"the peer's address", "{http.request.remote.host}", 0, 0, from("192.0.2.1"), from("192.0.2.2"), true},
	} {
		var v4, v6 *int
		if c.v4 > 0 {
			v4, v6 = &c.v4, &c.v6
		}
		k, err := newKeyer(c.template, v4, v6)
		if err != nil {
			t.Fatal(err)
		}
		if a, b := k.key(limiter.Hasher{}, c.a), k.key(limiter.Hasher{}, c.b); (a == b) != c.same || a == 0 { // 0 is outside of the zone
			t.Errorf("%s: same key: %v, want %v; %v", c.name, a == b, c.same, a)
		}
	}
}

func TestKeyErrors(t *testing.T) {
	for template, want := range map[string]string{
		"{http.request.header.}":           "cannot identify a client",
		"{http.request.tls.bogus}":         "cannot identify a client",
		"{http.request.host.labels.first}": "cannot identify a client",
		"{system.nope}":                    "cannot identify a client",
		"{http.request.body}":              "cannot identify a client",
		"{http.reverse_proxy.host}":        "cannot identify a client",
		"{http.{vars}.client_ip}":          "unclosed {",
		"http.vars.client_ip}":             "unexpected }",
		"{http.vars.client_ip} X-Api-Key":  `"X-Api-Key" has no placeholder`,
	} {
		if _, err := newKeyer(template, nil, nil); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("newKeyer(%q) error = %v, want one with %q", template, err, want)
		}
	}
}

// Every placeholder that a key may have is one that Caddy knows.
func TestKnownPlaceholdersAreKnownToCaddy(t *testing.T) {
	r := httptest.NewRequest(http.MethodGet, "https://www.example.com:81/a/b.txt?x=y", nil)
	r.AddCookie(&http.Cookie{Name: "x", Value: "y"})
	r.Header.Set("X", "y")
	r.TLS = &tls.ConnectionState{HandshakeComplete: true, ServerName: "www.example.com"}
	repl := caddy.NewReplacer()
	caddyhttp.PrepareRequest(r, repl, httptest.NewRecorder(), &caddyhttp.Server{})
	for _, name := range append([]string{
		"system.hostname", "system.os", "system.arch", "http.vars.client_ip", "http.request.remote.host/24", "http.request.tls.server_name",
		"http.request.cookie.x", "http.request.header.X", "http.request.host.labels.0", "http.request.uri.path.0", "http.request.uri.query.x", "http.request.orig_uri.path.0",
	}, clientkey.Exact...) {
		if strings.HasPrefix(name, "http.request.local") || strings.HasPrefix(name, "http.request.tls.client") {
			continue // needs a listener, or a client's certificate
		}
		if _, ok := repl.Get(name); !ok || !known(name) {
			t.Errorf("Caddy knows {%s}: %v; it can identify a client: %v", name, ok, known(name))
		}
	}
}

func TestKeyDoesNotAllocate(t *testing.T) {
	for _, template := range []string{"", "{http.request.method} {http.vars.client_ip} {http.request.header.X-Tenant} {http.request.host}{http.request.uri.path}"} {
		k, err := newKeyer(template, nil, nil)
		if err != nil {
			t.Fatal(err)
		}
		r := request("http://example.com/a", "2001:db8::1", http.Header{"X-Tenant": {"a"}})
		if n := testing.AllocsPerRun(1000, func() { k.key(limiter.Hasher{}, r) }); n != 0 {
			t.Errorf("key %q allocates %v times, want 0", template, n)
		}
	}
}

// A client gets no second bucket by a request that the backend would take for the same
// client's, or for one of no client.
func TestClientsCannotVaryTheirKey(t *testing.T) {
	upper := func(text string, which int) string { // another set of letters for each number
		b := []byte(text)
		for i := range b {
			if which>>i&1 == 1 && 'a' <= b[i] && b[i] <= 'z' {
				b[i] -= 'a' - 'A'
			}
		}
		return string(b)
	}
	escaped := func(text string, which int) (e string) {
		for i, c := range []byte(text) {
			if which>>i&1 == 1 {
				e += fmt.Sprintf("%%%02x", c)
			} else {
				e += string(c)
			}
		}
		return e
	}
	for _, c := range []struct {
		name, key string
		request   func(i int) string // its target and header
	}{
		{"a second line", "{http.request.header.X-Account}", func(i int) string { return fmt.Sprintf("/\nX-Account: account\nX-Account: %d", i) }},
		{"a line before", "{http.request.header.X-Account}", func(i int) string { return fmt.Sprintf("/\nX-Account: %d\nx-account: account", i) }},
		{"a line that the proxy takes off", "{http.request.header.X-Account}", func(i int) string { return fmt.Sprintf("/\nConnection: keep-alive, x-account\nX-Account: %d", i) }},
		{"upper case", "{http.request.header.X-Account}", func(i int) string { return fmt.Sprintf("/\nX-Account: %s", upper("account", i)) }},
		{"upper case of the name", "{http.request.header.X-Account}", func(i int) string { return fmt.Sprintf("/\n%s: account", upper("x-account", i)) }},
		{"folded lines", "{http.request.header.X-Account}", func(i int) string { return "/\nX-Account: account" + strings.Repeat("\n ", i) }},
		{"folded lines and spaces between words", "{http.request.header.Authorization}", func(i int) string {
			return "/\nAuthorization: Bearer " + strings.Repeat("\n ", i/2) + strings.Repeat("\t", i-i/2) + "token"
		}},
		{"a second cookie", "{http.request.cookie.account}", func(i int) string { return fmt.Sprintf("/\nCookie: account=%d; account=me", i) }},
		{"a cookie of another case", "{http.request.cookie.account}", func(i int) string { return fmt.Sprintf("/\nCookie: Account=%d; account=me", i) }},
		{"a second line of cookies", "{http.request.cookie.account}", func(i int) string { return fmt.Sprintf("/\nCookie: account=me\nCookie: account=%d", i) }},
		{"an escaped cookie", "{http.request.cookie.account}", func(i int) string { return "/\nCookie: account=" + escaped("account", i) }},
		{"cookies that the proxy takes off", "{http.request.cookie.account}", func(i int) string { return fmt.Sprintf("/\nConnection: cookie\nCookie: account=%d", i) }},
		{"a second parameter", "{http.request.uri.query.account}", func(i int) string { return fmt.Sprintf("/?account=me&account=%d", i) }},
		{"an escaped parameter", "{http.request.uri.query.account}", func(i int) string { return "/?account=" + escaped("account", i) }},
		{"upper case of the host", "{http.request.hostport}", func(i int) string { return "http://" + upper("example.com", i) + "/" }},
	} {
		k, err := newKeyer(c.key, nil, nil)
		if err != nil {
			t.Fatal(err)
		}
		names := map[string]bool{}
		for i := range 30 {
			target, header, _ := strings.Cut(c.request(i), "\n")
			text := strings.ReplaceAll(fmt.Sprintf("GET %s HTTP/1.1\nHost: example.com\n%s\n\n", target, header), "\n", "\r\n")
			r, err := http.ReadRequest(bufio.NewReader(strings.NewReader(text)))
			if err != nil {
				t.Fatalf("%s: %v", c.name, err)
			}
			names[string(k.name(nil, caddyhttp.PrepareRequest(r, caddy.NewReplacer(), httptest.NewRecorder(), nil)))] = true
		}
		if len(names) > 1 {
			t.Errorf("%s: the client has the names %q, want one", c.name, slices.Collect(maps.Keys(names)))
		}
	}
}
