package ingress

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"sync/atomic"
	"testing"

	"github.com/herdshield/shield/k8s/policy"
)

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
