package ingress

import (
	"bytes"
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"regexp"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/caddyserver/caddy/v2/modules/caddyhttp"

	"github.com/herdshield/shield/k8s/model"
	"github.com/herdshield/shield/k8s/policy"
	"github.com/herdshield/shield/k8s/testbed/must"
)

func filtered(o *model.Origin, b *model.Backend, f *policy.Filters) *model.Model {
	m := all(o, b)
	m.Rules[0].Filters = f
	return m
}

// Limits see the path of the client, the backend gets the other one.
func TestRewrite(t *testing.T) {
	p := newPod(t, "red", start)
	limited := origin("web", policy.Ingress{
		Key: "{http.request.uri.path}", Zones: hourly(1),
	})
	m := filtered(limited, backend(service("one", policy.Service{}), p), new(policy.Filters))
	m.Rules[0].Path, m.Rules[0].Pattern = "/api/(.*)", regexp.MustCompile("(?i)^(?:/api/(.*))")
	m.Rules[0].Rewrite = &model.Rewrite{Pattern: m.Rules[0].Pattern, To: "/v2/$1"}
	w := newWorld(t, m)
	for _, c := range []struct {
		path, body string
		status     int
	}{
		{"/api/a?x=y", "red HTTP/1.1 /v2/a", 200}, {"/API/b%20c", "red HTTP/1.1 /v2/b c", 200}, {"/api/a", "", 429},
		{"/other", "404 no Ingress has this host and path\n", 404}, {"/api/%2e%2e/admin", "", 400},
	} {
		resp, body := w.get("a", c.path)
		if resp.StatusCode != c.status || c.body != "" && body != c.body {
			t.Errorf("%s is answered %d %q, want %d %q", c.path, resp.StatusCode, body, c.status, c.body)
		}
	}
	if n := p.served.Load(); n != 2 {
		t.Errorf("the backend has got %d requests, want 2", n)
	}
}

// A body that is too large is 413: at once if its length is known, else when it grows over the
// limit. Neither is a failure of the backend, and the permit is free again.
func TestBodySize(t *testing.T) {
	p := newPod(t, "red", start)
	read := p.Config.Handler
	var got atomic.Int64
	p.Config.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		n, _ := io.Copy(io.Discard, r.Body)
		got.Store(n)
		read.ServeHTTP(w, r)
	})
	limits := policy.Service{EndpointConcurrency: 1, Queue: policy.QueueOff}
	quota := policy.Ingress{Zones: hourly(5)}
	small := func(n int64) *policy.Filters { return &policy.Filters{BodySize: n} }
	for _, c := range []struct {
		name    string
		filters *policy.Filters
		nginx   bool
		size    int64
		chunked bool
		status  int
	}{
		{"at the limit", small(100), false, 100, false, 200}, {"one more", small(100), false, 101, false, 413},
		{"chunked", small(100), false, 100, true, 200}, {"chunked, one more", small(100), false, 101, true, 413},
		{"chunked, more than is read early", small(1 << 20), false, 1<<20 + 1, true, 413},
		{"chunked, at that limit", small(1 << 20), false, 1 << 20, true, 200}, {"no limit", small(policy.NoBodySize), true, 2 << 20, false, 200},
		{"ingress-nginx's default", nil, true, 1<<20 + 1, false, 413}, {"ingress-nginx's default, chunked", nil, true, 1<<20 + 1, true, 413},
		{"the default", nil, false, 1<<20 + 1, true, 200}, {"another default", small(0), true, 1<<20 + 1, true, 413},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newWorld(t, filtered(origin("web", quota), backend(service("one", limits), p), c.filters))
			w.controller.config.NginxAnnotations = c.nginx
			send := func(n int64, chunked bool) int {
				body := io.Reader(bytes.NewReader(make([]byte, n)))
				if chunked {
					body = struct{ io.Reader }{body}
				}
				resp, _ := w.send(http.MethodPost, "a", "/", body)
				return resp.StatusCode
			}
			for range 4 { // of 5 that the quota lets through
				if status := send(c.size, c.chunked); status != c.status {
					t.Fatalf("a body of %d bytes is answered %d, want %d", c.size, status, c.status)
				}
			}
			if c.status == 200 && got.Load() != c.size {
				t.Errorf("the backend has read %d bytes, want %d", got.Load(), c.size)
			}
			if status := send(1, false); status != 200 {
				t.Errorf("the next request is answered %d", status)
			}
			m := w.metrics()
			if n := m["shield_ingress_requests_total{broken}"]; n != 0 {
				t.Errorf("the backend is blamed for %v requests", n)
			}
		})
	}
	// A length that is known takes no quota.
	w := newWorld(t, filtered(origin("web", quota), backend(service("one", limits), p), small(10)))
	for i := range 10 {
		if resp, _ := w.send(http.MethodPost, "a", "/", bytes.NewReader(make([]byte, 11))); resp.StatusCode != 413 {
			t.Errorf("request %d of 11 bytes is answered %d", i, resp.StatusCode)
		}
	}
}

// Redirects are answered before limits, and without a backend.
func TestRedirects(t *testing.T) {
	reject := policy.Ingress{Zones: hourly(1)}
	for _, c := range []struct {
		filters    policy.Filters
		path, want string // the status, and where to
	}{
		{policy.Filters{Redirect: "https://b/$request_uri", RedirectCode: 301}, "/x?y=%0A", "301 https://b/x?y=%0A"},
		{policy.Filters{Redirect: "https://b/new", RedirectCode: 302}, "//evil.example", "302 https://b/new"},
		{policy.Filters{RedirectHost: "www.a"}, "/x?y", "308 http://www.a/x?y"}, {policy.Filters{AppRoot: "/app"}, "/", "302 http://a/app"},
		{policy.Filters{AppRoot: "/app"}, "/?", "302 http://a/app"}, {policy.Filters{AppRoot: "/app"}, "/x", "503 "},
	} {
		w := newWorld(t, filtered(origin("web", reject), nil, &c.filters))
		for range 3 {
			resp, _ := w.get("a", c.path)
			if got := fmt.Sprint(resp.StatusCode, " ", resp.Header.Get("Location")); got != c.want {
				t.Errorf("%+v: %s is answered %s, want %s", c.filters, c.path, got, c.want)
			}
		}
	}
}

// The field is on answers over TLS alone, for hosts of the Ingress.
func TestHSTS(t *testing.T) {
	o := origin("web", policy.Ingress{})
	o.TLSHosts, o.NoRedirect = []string{"a"}, true
	passage := &passage{origin: o}
	f := &policy.Filters{HSTS: policy.NginxHSTS}
	for _, c := range []struct {
		host string
		tls  *tls.ConnectionState
		want int
	}{{"a", new(tls.ConnectionState), 1}, {"b", new(tls.ConnectionState), 0}, {"a", nil, 0}} {
		r := httptest.NewRequest(http.MethodGet, "http://"+c.host+"/", nil)
		r = r.WithContext(context.WithValue(r.Context(), caddyhttp.VarsCtxKey, map[string]any{}))
		if r.TLS = c.tls; len(passage.extra(httptest.NewRecorder(), r, f)["Strict-Transport-Security"]) != c.want {
			t.Errorf("%+v: there should be %d", c, c.want)
		}
	}
}

// A web page of another site can read answers, shield's rejections and when to retry included.
func TestCORS(t *testing.T) {
	p := newPod(t, "red", start)
	answer := p.Config.Handler
	p.Config.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Access-Control-Allow-Origin", "https://backend.test")
		w.Header().Set("Vary", "Accept")
		answer.ServeHTTP(w, r)
	})
	once := policy.Ingress{Zones: hourly(1)}
	cors := must.Get(policy.ParseFilters(map[string]string{
		policy.Prefix + "enable-cors": "true", policy.Prefix + "cors-allow-origin": "https://a.test, https://*.b.test:8443",
		policy.Prefix + "cors-expose-headers": "X-Id", policy.Prefix + "response-headers": "X-Frame-Options: DENY",
	}, false, nil))(t)
	w := newWorld(t, filtered(origin("web", once), backend(service("one", policy.Service{}), p), cors))
	for _, c := range []struct {
		method, origin string
		status         int
		allowed, vary  string
	}{
		{"OPTIONS", "https://a.test", 204, "https://a.test", "[Origin]"},
		{"OPTIONS", "https://x.b.test:8443", 204, "https://x.b.test:8443", "[Origin]"},
		{"GET", "https://A.test", 200, "https://A.test", "[Origin Accept]"}, {"GET", "https://a.test", 429, "https://a.test", "[Origin]"},
		{"GET", "https://x.y.b.test:8443", 429, "", "[Origin]"}, {"GET", "https://evil.test/.b.test:8443", 429, "", "[Origin]"},
		{"OPTIONS", "https://a.test.evil", 429, "", "[Origin]"}, {"OPTIONS", "https://a.test", 204, "https://a.test", "[Origin]"},
	} {
		resp, _ := w.send(c.method, "a", "/", nil, "Origin", c.origin)
		h := resp.Header
		if resp.StatusCode != c.status || strings.Join(h["Access-Control-Allow-Origin"], ", ") != c.allowed || fmt.Sprint(h["Vary"]) != c.vary {
			t.Errorf("%s from %s is answered %d %v", c.method, c.origin, resp.StatusCode, h)
		}
		if c.allowed != "" && h.Get("Access-Control-Expose-Headers") != "X-Id, Retry-After, Retry-After-Ms, RateLimit, RateLimit-Policy, Proxy-Status, X-Should-Retry" {
			t.Errorf("%s from %s: readable are %q", c.method, c.origin, h.Get("Access-Control-Expose-Headers"))
		}
		if fmt.Sprint(h["X-Frame-Options"]) != "[DENY]" {
			t.Errorf("%s from %s: X-Frame-Options is %q", c.method, c.origin, h["X-Frame-Options"])
		}
	}
}

// The backend gets another Host, and still learns what clients asked for.
func TestBackendHeaders(t *testing.T) {
	got := make(chan *http.Request, 1)
	p := serving(t, "red", func(w http.ResponseWriter, r *http.Request) {
		got <- r
		w.Header().Set("X-Powered-By", "red")
		w.Header().Set("Link", "theirs")
	})
	f := must.Get(policy.ParseFilters(map[string]string{
		policy.NginxPrefix + "upstream-vhost": "app.internal", policy.NginxPrefix + "x-forwarded-prefix": "/app",
		policy.Prefix + "response-headers": "x-powered-by:\nLink: a\nLink: b\n",
	}, true, nil))(t)
	w := newWorld(t, filtered(origin("web", policy.Ingress{}), backend(service("one", policy.Service{}), p), f))
	resp, _ := w.get("a.test", "/", "X-Forwarded-Prefix", "/forged")
	r := <-got
	if r.Host != "app.internal" || r.Header.Get("X-Forwarded-Host") != "a.test" || fmt.Sprint(r.Header["X-Forwarded-Prefix"]) != "[/app]" {
		t.Errorf("the backend gets Host %s, %v", r.Host, r.Header)
	}
	if h := resp.Header; h["X-Powered-By"] != nil || fmt.Sprint(h["Link"]) != "[a b]" {
		t.Errorf("the client gets %v", h)
	}
}

// Addresses that an Ingress does not serve get 403, a closed Ingress 503; challenges of
// certificate authorities are answered by rules for them alone.
func TestGuards(t *testing.T) {
	guarded, open := &policy.Filters{}, &policy.Filters{}
	for value, f := range map[string]*policy.Filters{"192.0.2.0/24": guarded, "nonsense": open} {
		parsed, _ := policy.ParseFilters(map[string]string{policy.NginxPrefix + "whitelist-source-range": value, policy.Prefix + "denylist-source-range": "192.0.2.66"}, true, nil)
		*f = *parsed
	}
	b := placed(policy.Service{}, 1)
	is, acme := origin("web", policy.Ingress{}), acmePath+"/token"
	m := newMemory(t, &model.Model{Rules: []model.Rule{
		{Host: "a.example.com", Path: "/", Target: model.Target{Origin: is, Backend: b, Filters: guarded}},
		{Host: "a.example.com", Path: "/wrong", Target: model.Target{Origin: is, Backend: b, Filters: open}},
		{Host: "a.example.com", Path: "/closed", Target: model.Target{Origin: is, Backend: b, Closed: "no guard"}},
		{Host: "a.example.com", Path: acme, Exact: true, Target: model.Target{Origin: is, Backend: b, Filters: guarded, Closed: "no guard"}},
		{Host: "a.example.com", Path: acme + ".*|/more", Pattern: regexp.MustCompile("^(?:" + acme + ".*|/more)"), Target: model.Target{Origin: is, Backend: b, Filters: guarded}},
	}}, ok)
	for _, tt := range []struct {
		client, path string
		want         int
	}{
		{"192.0.2.1", "/", 200}, {"[::ffff:192.0.2.1]", "/", 200}, {"192.0.3.1", "/", 403}, {"[2001:db8::1]", "/", 403}, {"192.0.2.66", "/", 403},
		{"192.0.2.1", "/wrong", 403}, {"192.0.2.1", "/closed/x", 503}, {"198.51.100.1", acme, 200},
		{"198.51.100.1", "/more", 403}, {"198.51.100.1", acme + "s", 403}, {"192.0.2.1", "/more", 200},
	} {
		if got := m.from(tt.client, "a.example.com"+tt.path).StatusCode; got != tt.want {
			t.Errorf("%s from %s: %d, want %d", tt.path, tt.client, got, tt.want)
		}
	}
}

// Only what the authentication lets in reaches the backend; limits come before it.
func TestAuth(t *testing.T) {
	got := make(chan http.Header, 1)
	p := serving(t, "red", func(_ http.ResponseWriter, r *http.Request) { got <- r.Header.Clone() })
	var asked atomic.Int64
	auth := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked.Add(1)
		if r.Method != http.MethodGet || r.Header.Get("X-Original-Method") != "POST" || r.Header.Get("X-Original-Url") != "http://a.test/x?y=z" ||
			r.Header.Get("X-Real-Ip") != "127.0.0.1" || r.ContentLength != 0 {
			t.Errorf("the question is %s %v", r.Method, r.Header)
		}
		w.Header().Set("X-User", r.Header.Get("Cookie"))
		w.Header().Set("Www-Authenticate", "Basic")
		w.Header().Set("Set-Cookie", "s=1")
		status := 500
		_, _ = fmt.Sscan(r.Header.Get("Cookie"), &status)
		w.WriteHeader(status)
	}))
	defer auth.Close()
	gone := httptest.NewServer(nil)
	gone.Close()
	few := func(n int) policy.Ingress { return policy.Ingress{Zones: hourly(n)} }
	before := mayAsk
	defer func() { mayAsk = before }()
	for _, c := range []struct {
		name   string
		auth   policy.Auth
		cookie string // the status of the response
		may    bool   // ask the loopback address
		want   string // status, Location, challenge
	}{
		{"let in", policy.Auth{URL: auth.URL}, "202", true, "200  "}, {"not known", policy.Auth{URL: auth.URL}, "401", true, "401  Basic"},
		{"not allowed", policy.Auth{URL: auth.URL}, "403", true, "403  Basic"},
		{"sign in", policy.Auth{URL: auth.URL, Signin: "https://$host/start"}, "401", true, "302 https://a.test/start?rd=http%3A%2F%2Fa.test%2Fx%3Fy%3Dz "},
		{"sign in, as manifests do", policy.Auth{URL: auth.URL, Signin: "https://b/?rd=$escaped_request_uri"}, "401", true, "302 https://b/?rd=%2Fx%3Fy%3Dz "},
		{"sign in, as authentik says", policy.Auth{URL: auth.URL, Signin: "https://b/start?rd=$scheme://$http_host$request_uri"}, "401", true, "302 https://b/start?rd=http://a.test/x?y=z "},
		{"an error", policy.Auth{URL: auth.URL}, "500", true, "503  "},
		{"a redirect is not followed", policy.Auth{URL: auth.URL}, "302", true, "503  "}, {"down", policy.Auth{URL: gone.URL}, "200", true, "503  "},
		{"wrong annotations", policy.Auth{}, "200", true, "503  "}, {"the pod itself", policy.Auth{URL: auth.URL}, "200", false, "503  "},
	} {
		t.Run(c.name, func(t *testing.T) {
			authTransport.CloseIdleConnections()
			if mayAsk = before; c.may {
				mayAsk = func(netip.Addr) bool { return true }
			}
			asked.Store(0)
			w := newWorld(t, filtered(origin("web", few(1)), backend(service("one", policy.Service{EndpointConcurrency: 1}), p),
				&policy.Filters{Auth: &policy.Auth{URL: c.auth.URL, Signin: c.auth.Signin, Headers: []string{"X-User"}}}))
			resp, _ := w.send(http.MethodPost, "a.test", "/x?y=z", nil, "Cookie", c.cookie, "X-User", "forged")
			if s := fmt.Sprint(resp.StatusCode, " ", resp.Header.Get("Location"), " ", resp.Header.Get("Www-Authenticate")); s != c.want {
				t.Errorf("the response is %q, want %q", s, c.want)
			}
			select {
			case h := <-got:
				if resp.StatusCode != 200 || fmt.Sprint(h["X-User"]) != "["+c.cookie+"]" || resp.Header.Get("Set-Cookie") != "s=1" {
					t.Errorf("the backend gets %v, the client %v", h, resp.Header)
				}
			default:
				if resp.StatusCode == 200 {
					t.Error("the backend was not asked")
				}
			}
			n := asked.Load()
			if resp, _ := w.send(http.MethodPost, "a.test", "/x?y=z", nil); resp.StatusCode != 429 || asked.Load() != n {
				t.Errorf("the next request is answered %d, and %d questions were asked", resp.StatusCode, asked.Load())
			}
		})
	}
	mayAsk = func(netip.Addr) bool { return true }
	w := newWorld(t, filtered(origin("web", few(9)), backend(service("one", policy.Service{}), p), &policy.Filters{Auth: &policy.Auth{URL: auth.URL}}))
	if resp, _ := w.get("a.test", "/", asking, "1"); resp.StatusCode != 503 {
		t.Errorf("a question that leads to a question is answered %d", resp.StatusCode)
	}
}

func TestMayAsk(t *testing.T) {
	for address, want := range map[string]bool{
		"127.0.0.1": false, "::1": false, "169.254.169.254": false, "fe80::1": false, "0.0.0.0": false, "::": false, "224.0.0.1": false,
		"::ffff:169.254.169.254": false, "fe80::a9fe:a9fe%eth0": false, "fd00:ec2::254": false, "fd20:ce::254": false, "fd00:42::42": false,
		"168.63.129.16": false, "::ffff:168.63.129.16": false, "100.100.100.200": false, "192.0.0.192": false,
		"64:ff9b::a9fe:a9fe": false, "64:ff9b::7f00:1": false, "64:ff9b::a83f:8110": false, "64:ff9b:1::a9fe:a9fe": false, "2002:a9fe:a9fe::": false, "::169.254.169.254": false,
		"10.0.0.1": true, "fd00::1": true, "192.0.2.1": true, "64:ff9b::c000:201": true, "100.64.0.1": true, "fd00:10:96::1": true,
	} {
		if got := mayAsk(netip.MustParseAddr(address)); got != want {
			t.Errorf("%s: %v, want %v", address, got, want)
		}
	}
}

// A client does not choose who is asked by a host that a wildcard matches.
func TestAuthHost(t *testing.T) {
	before := mayAsk
	defer func() { mayAsk = before }()
	mayAsk = func(a netip.Addr) bool {
		t.Errorf("%v was asked", a)
		return false
	}
	for _, host := range []string{"localhost/.example.com", "localhost?.example.com", "localhost#.example.com", "x@localhost/.example.com"} {
		r := httptest.NewRequest(http.MethodGet, "/", nil)
		r.Host = host
		if _, err := ask(r, &policy.Auth{URL: "http://$host/auth"}, "http", "/"); err == nil {
			t.Errorf("for %s there is a response", host)
		}
	}
}
