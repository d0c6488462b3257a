package ingress

import (
	"bufio"
	"context"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/netip"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"

	"github.com/herdshield/shield/k8s/model"
	"github.com/herdshield/shield/k8s/policy"
	"github.com/herdshield/shield/k8s/testbed/must"
	"github.com/herdshield/shield/limiter"
)

// dumping is a Model with a pod that answers with the header that it was sent.
func dumping(t *testing.T) *model.Model {
	t.Helper()
	p := serving(t, "dump", func(w http.ResponseWriter, r *http.Request) {
		r.Header.Set("Host", r.Host)
		if r.URL.Path == "/server" {
			w.Header().Set("Server", "nginx/1.27")
			w.Header().Set("Via", "1.0 inner")
		}
		w.Header().Set("Keep-Alive", "timeout=5")
		_ = json.NewEncoder(w).Encode(r.Header)
	})
	return all(origin("web", policy.Ingress{}), backend(service("web", policy.Service{}), p))
}

// seen sends these lines, after a request line for path, and returns the response and
// the header that the backend saw.
func (w *world) seen(path string, lines ...string) (answer, seen http.Header) {
	w.t.Helper()
	conn, in := w.dial()
	_, _ = io.WriteString(conn, "GET "+path+" HTTP/1.1\r\n"+strings.Join(lines, "\r\n")+"\r\n\r\n")
	resp := must.Get(http.ReadResponse(in, nil))(w.t)
	defer resp.Body.Close()
	if err := json.NewDecoder(resp.Body).Decode(&seen); err != nil {
		w.t.Fatalf("status %d: %v", resp.StatusCode, err)
	}
	return resp.Header, seen
}

// A backend gets these headers, through Caddy's server and reverse_proxy.
func TestForward(t *testing.T) {
	m := dumping(t)
	loopback := []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8"), netip.MustParsePrefix("10.0.0.0/8")}
	for _, c := range []struct {
		name    string
		trusted []netip.Prefix
		send    []string
		want    map[string]string // "": must not be there
	}{{
		name: "a client",
		send: []string{"Host: a.example.com"},
		want: map[string]string{
			"Host": "a.example.com", "X-Forwarded-For": "127.0.0.1", "X-Real-Ip": "127.0.0.1",
			"X-Forwarded-Host": "a.example.com", "X-Forwarded-Port": "80", "X-Forwarded-Proto": "http",
			"X-Forwarded-Scheme": "http", "X-Scheme": "http", "X-Original-Forwarded-For": "", "Via": "", "Accept-Encoding": "",
		},
	}, {
		name: "a client that names a port, and itself",
		send: []string{"Host: a.example.com:8443", "X-Request-ID: abc-1", "Accept-Encoding: br"},
		want: map[string]string{"Host": "a.example.com:8443", "X-Forwarded-Host": "a.example.com:8443", "X-Forwarded-Port": "8443", "X-Request-Id": "abc-1", "Accept-Encoding": "br"},
	}, {
		name: "a client that lies",
		send: []string{
			"Host: a:99999", "X-Forwarded-For: 192.0.2.1", "X-Real-IP: 192.0.2.1", "X-Forwarded-Host: evil", "X-Forwarded-Port: 1",
			"X-Forwarded-Proto: https", "X-Forwarded-Scheme: https", "X-Scheme: https", "X-Original-Forwarded-For: 192.0.2.1", "Forwarded: for=192.0.2.1",
			"Proxy: http://evil", "X-Forwarded-Prefix: /x", "X-Forwarded-Server: x", "X-Forwarded-Ssl: on", "Front-End-Https: on",
			"X-Request-ID: " + strings.Repeat("x", 129),
		},
		want: map[string]string{
			"X-Forwarded-For": "127.0.0.1", "X-Real-Ip": "127.0.0.1", "X-Forwarded-Host": "a:99999", "X-Forwarded-Port": "80",
			"X-Forwarded-Proto": "http", "X-Forwarded-Scheme": "http", "X-Scheme": "http", "X-Original-Forwarded-For": "", "Forwarded": "",
			"Proxy": "", "X-Forwarded-Prefix": "", "X-Forwarded-Server": "", "X-Forwarded-Ssl": "", "Front-End-Https": "",
		},
	}, {
		name: "a client that has fields removed by naming them in Connection",
		send: []string{"Host: a", "Connection: close, X-Real-IP, x-forwarded-for, X-Forwarded-Proto, X-Request-ID, X-Own", "X-Own: 1"},
		want: map[string]string{"X-Forwarded-For": "127.0.0.1", "X-Real-Ip": "127.0.0.1", "X-Forwarded-Proto": "http", "X-Own": "", "Connection": ""},
	}, {
		name: "behind another Caddy",
		send: []string{"Host: a", "X-Request-ID: a b", "Via: 1.1 front", "Via: 2.0 Caddy"},
		want: map[string]string{"Via": ""},
	}, {
		name: "hop by hop",
		send: []string{"Host: a", "Keep-Alive: timeout=5", "Proxy-Connection: keep-alive", "Te: trailers, gzip", "Connection: TE, close", "Proxy-Authorization: Basic eA==", "Authorization: Basic eA=="},
		want: map[string]string{"Keep-Alive": "", "Proxy-Connection": "", "Te": "trailers", "Connection": "", "Proxy-Authorization": "", "Authorization": "Basic eA=="},
	}, {
		name:    "a proxy that is trusted",
		trusted: loopback,
		send: []string{
			"Host: a", "X-Forwarded-For: 203.0.113.9, 192.0.2.1, 10.1.2.3", "X-Forwarded-Proto: HTTPS", "X-Forwarded-Host: b.example.com",
			"X-Forwarded-Port: 444", "X-Request-ID: r", "Via: 1.1 front",
		},
		want: map[string]string{
			"Host": "a", "X-Forwarded-For": "192.0.2.1", "X-Real-Ip": "192.0.2.1", "X-Original-Forwarded-For": "203.0.113.9, 192.0.2.1, 10.1.2.3",
			"X-Forwarded-Proto": "https", "X-Forwarded-Scheme": "https", "X-Scheme": "https", "X-Forwarded-Host": "b.example.com",
			"X-Forwarded-Port": "444", "X-Request-Id": "r", "Via": "1.1 front",
		},
	}, {
		name:    "a trusted proxy, and an IPv6 client",
		trusted: loopback,
		send:    []string{"Host: [2001:db8::1]", "X-Forwarded-For: 2001:db8::2", "X-Forwarded-Proto: https"},
		want:    map[string]string{"X-Forwarded-For": "2001:db8::2", "X-Real-Ip": "2001:db8::2", "X-Forwarded-Port": "443"},
	}, {
		name:    "a trusted proxy that says nothing, or nonsense",
		trusted: loopback,
		send:    []string{"Host: a", "X-Forwarded-Proto: gopher", "X-Forwarded-Port: 99999"},
		want: map[string]string{
			"X-Forwarded-For": "127.0.0.1", "X-Real-Ip": "127.0.0.1", "X-Forwarded-Proto": "http", "X-Forwarded-Port": "80",
			"X-Forwarded-Host": "a", "X-Original-Forwarded-For": "",
		},
	}, {
		name:    "another proxy than those that are trusted",
		trusted: loopback[1:],
		send:    []string{"Host: a", "X-Forwarded-For: 192.0.2.1", "X-Forwarded-Proto: https"},
		want:    map[string]string{"X-Forwarded-For": "127.0.0.1", "X-Real-Ip": "127.0.0.1", "X-Forwarded-Proto": "http", "X-Original-Forwarded-For": ""},
	}} {
		t.Run(c.name, func(t *testing.T) {
			answer, seen := newWorld(t, m, func(o *Options) { o.TrustedProxies = c.trusted }).seen("/", c.send...)
			for _, name := range slices.Sorted(maps.Keys(c.want)) {
				values, want := seen[name], c.want[name]
				if len(values) > 1 || seen.Get(name) != want || (want == "" && len(values) > 0) {
					t.Errorf("%s = %q, want %q", name, values, want)
				}
			}
			if id := seen.Get("X-Request-Id"); c.want["X-Request-Id"] == "" && !regexp.MustCompile(`^[0-9a-f]{32}$`).MatchString(id) {
				t.Errorf("X-Request-ID = %q, want 32 digits", id)
			}
			for _, name := range []string{"Server", "Via", "Keep-Alive", "X-Request-Id"} {
				if answer[name] != nil {
					t.Errorf("the response has %s: %q", name, answer[name])
				}
			}
		})
	}
}

// A backend's Server and Via are passed on, without additions of Caddy's.
func TestForwardKeepsServer(t *testing.T) {
	answer, _ := newWorld(t, dumping(t)).seen("/server", "Host: a")
	if got := answer["Server"]; !slices.Equal(got, []string{"nginx/1.27"}) {
		t.Errorf("Server = %q", got)
	}
	if got := answer["Via"]; !slices.Equal(got, []string{"1.0 inner"}) {
		t.Errorf("Via = %q", got)
	}
}

func varsContext(r *http.Request, vars map[string]any) context.Context {
	return context.WithValue(r.Context(), caddyhttp.VarsCtxKey, vars)
}

// What nobody may change or see is not in the config; fast reject is, unless the access log is to have all requests.
func TestConfig(t *testing.T) {
	o := DefaultOptions()
	config := func() string { return string(must.Get(Config(o))(t)) }
	raw := config()
	for _, no := range []string{"trusted_proxies", "proxy_protocol", "http.log.access", "issuers", `"h3"`, "read_timeout", "write_timeout"} {
		if strings.Contains(raw, no) {
			t.Errorf("%s by default: %s", no, raw)
		}
	}
	var c caddy.Config
	must.Do(t, caddy.StrictUnmarshalJSON([]byte(raw), &c))
	if !c.Admin.Disabled || *c.Admin.Config.Persist {
		t.Error("the admin endpoint is there, or the config is saved")
	}
	const door = `{"wrapper":"shield"}`
	o.ProxyProtocolFrom = []netip.Prefix{netip.MustParsePrefix("fd00::/8")}
	with := config()
	if o.AccessLog = true; strings.Count(raw, door) != 2 || !strings.Contains(with, `{"wrapper":"tls"},`+door) || strings.Contains(config(), door) || !strings.Contains(config(), accessLog) {
		t.Errorf("servers reject at the door: by default %s\nwith PROXY protocol %s\nwith access logs %s", raw, with, config())
	}
}

// With the PROXY protocol the load balancer names the client, with and without TLS; other peers cannot.
func TestProxyProtocol(t *testing.T) {
	m := dumping(t)
	for _, c := range []struct {
		name, from, header, want string
	}{
		{"from the load balancer", "127.0.0.0/8", "PROXY TCP4 192.0.2.7 127.0.0.1 40000 80\r\n", "192.0.2.7"},
		{"from it, without", "127.0.0.0/8", "", "127.0.0.1"},
		{"from elsewhere", "10.0.0.0/8", "PROXY TCP4 192.0.2.7 127.0.0.1 40000 80\r\n", ""},
		{"from elsewhere, without", "10.0.0.0/8", "", "127.0.0.1"},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newWorld(t, m, func(o *Options) { o.ProxyProtocolFrom = []netip.Prefix{netip.MustParsePrefix(c.from)} })
			plain := strings.TrimPrefix(w.base, "http://")
			for _, over := range []string{plain, w.secure} {
				conn := must.Get(net.Dial("tcp", over))(t)
				defer conn.Close()
				_ = conn.SetDeadline(time.Now().Add(10 * time.Second))
				_, _ = io.WriteString(conn, c.header)
				var rw io.ReadWriter = conn
				if over == w.secure {
					rw = tls.Client(conn, &tls.Config{InsecureSkipVerify: true})
				}
				_, err := io.WriteString(rw, "GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
				var status int
				var got http.Header
				if err == nil {
					var resp *http.Response
					if resp, err = http.ReadResponse(bufio.NewReader(rw), nil); err == nil {
						status = resp.StatusCode
						_ = json.NewDecoder(resp.Body).Decode(&got)
					}
				}
				switch {
				case c.want == "" && over == w.secure && err == nil:
					t.Errorf("%s: TLS began with a PROXY header", over)
				case c.want == "" && over == plain && status != http.StatusBadRequest:
					t.Errorf("%s: status %d, error %v; want 400", over, status, err)
				case c.want != "" && got.Get("X-Real-Ip") != c.want:
					t.Errorf("%s: client = %q, error %v; want %q", over, got.Get("X-Real-Ip"), err, c.want)
				}
			}
		})
	}
}

// upgrading is a pod that switches to any protocol that it is asked for, and says back what it is told.
func upgrading(t *testing.T) *pod {
	return serving(t, "red", func(w http.ResponseWriter, r *http.Request) {
		to := r.Header.Get("Upgrade")
		if to == "" {
			fmt.Fprint(w, "not upgraded ", r.Header.Get("Http2-Settings"))
			return
		}
		conn, rw, err := http.NewResponseController(w).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		defer conn.Close()
		fmt.Fprintf(rw, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: %s\r\n\r\n", to)
		_ = rw.Flush()
		_, _ = io.Copy(conn, rw)
	})
}

// Websockets are tunnelled, even while the process drains. Other upgrades are not: h2c
// would tunnel requests around the routes.
func TestUpgrades(t *testing.T) {
	w := newWorld(t, all(origin("web", policy.Ingress{}), backend(service("web", policy.Service{EndpointConcurrency: 1, Queue: policy.QueueOff}), upgrading(t))))
	for _, header := range []string{
		"Upgrade: h2c\r\nConnection: Upgrade, HTTP2-Settings\r\nHTTP2-Settings: AAMAAABkAAQAAP__\r\n",
		"Upgrade: h2c\r\nConnection: upgrade\r\nHTTP2-Settings: AAMAAABkAAQAAP__\r\n",
		"Upgrade: websocket, h2c\r\nConnection: Upgrade\r\n",
		"Upgrade: websocket\r\nUpgrade: h2c\r\nConnection: Upgrade\r\n",
		"Upgrade: h2c\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n",
		"Upgrade: websocket\r\n",
		"Upgrade: TLS/1.2\r\nConnection: Upgrade\r\n",
	} {
		resp := raw(t, w, "GET / HTTP/1.1\r\nHost: x\r\n"+header+"\r\n")
		b, _ := io.ReadAll(resp.Body)
		if resp.StatusCode != 200 || string(b) != "not upgraded " {
			t.Errorf("%q: got %d %q", header, resp.StatusCode, b)
		}
	}
	for _, draining := range []bool{false, true} {
		w.controller.draining.Store(draining)
		conn, in := w.dial()
		fmt.Fprint(conn, "GET / HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: WebSocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n")
		resp := must.Get(http.ReadResponse(in, nil))(t)
		if resp.StatusCode != 101 || !strings.EqualFold(resp.Header.Get("Connection"), "upgrade") {
			t.Fatalf("draining %v: got %d, Connection %q", draining, resp.StatusCode, resp.Header["Connection"])
		}
		fmt.Fprint(conn, "hello\n")
		if line, err := in.ReadString('\n'); line != "hello\n" {
			t.Errorf("draining %v: read %q, %v", draining, line, err)
		}
		// It holds no permit: there is only one.
		waitFor(t, "room", func() bool { resp, _ := w.get("x", "/"); return resp.StatusCode == 200 })
	}
}

// The ingress's own responses are readable for gRPC clients, too; each has the right outcome in
// the metrics, and keeps or closes the connection as it should.
func TestOwnAnswers(t *testing.T) {
	alive, dead := newPod(t, "alive", start), newPod(t, "dead", start)
	dead.Close()
	o := origin("web", policy.Ingress{})
	full := service("full", policy.Service{Capacity: limiter.Config{Rate: 1, Per: hour, Burst: 1}})
	to := func(host string, b *model.Backend) model.Rule {
		return model.Rule{Host: host, Path: "/", Target: model.Target{Origin: o, Backend: b}}
	}
	w := newWorld(t, &model.Model{Rules: []model.Rule{
		to("alive", backend(service("alive", policy.Service{}), alive)),
		to("dead", backend(service("dead", policy.Service{}), dead)),
		to("empty", backend(service("empty", policy.Service{}))),
		to("none", nil),
		to("full", backend(full, alive)),
	}})
	w.get("full", "/")
	for _, tt := range []struct {
		method, host, path string
		status             int
		grpc               string // its status
		counted            outcome
	}{
		{"POST", "alive", "/", 200, "", passed},
		{"POST", "dead", "/", 502, "14", broken},
		{"POST", "empty", "/", 503, "14", unserved},
		{"POST", "none", "/", 503, "14", unserved},
		{"POST", "other", "/", 404, "12", unrouted},
		{"POST", "alive", "/%2e%2e/", 400, "3", unreadable},
		{"POST", "full", "/", 503, "14", passed}, // counted by its shield
		{"HEAD", "empty", "/", 503, "", unserved},
	} {
		for _, grpc := range []bool{false, true} {
			if grpc && tt.method == "HEAD" {
				continue
			}
			header := ""
			if grpc {
				header = "Content-Type: application/grpc\r\nTE: trailers\r\n"
			}
			before := w.controller.requests[tt.counted].Load()
			resp := raw(t, w, fmt.Sprintf("%s %s HTTP/1.1\r\nHost: %s\r\n%sContent-Length: 0\r\n\r\n", tt.method, tt.path, tt.host, header))
			switch got := resp.Header.Get("Grpc-Status"); {
			case grpc && tt.grpc != "" && (resp.StatusCode != 200 || got != tt.grpc || resp.Header.Get("Content-Type") != "application/grpc"):
				t.Errorf("gRPC to %s%s: got %d, grpc-status %q; want 200, %s", tt.host, tt.path, resp.StatusCode, got, tt.grpc)
			case !grpc && (resp.StatusCode != tt.status || got != ""):
				t.Errorf("%s %s%s: got %d, grpc-status %q; want %d", tt.method, tt.host, tt.path, resp.StatusCode, got, tt.status)
			}
			if resp.Close {
				t.Errorf("%s %s%s: the connection is closed", tt.method, tt.host, tt.path)
			}
			seconds, _ := strconv.Atoi(resp.Header.Get("Retry-After"))
			if resp.StatusCode == 503 && (seconds < 1 || tt.host != "full" && seconds > 10) {
				t.Errorf("%s%s: Retry-After is %q; want some seconds", tt.host, tt.path, resp.Header.Get("Retry-After"))
			}
			if n := w.controller.requests[tt.counted].Load() - before; n != 1 {
				t.Errorf("%s%s, gRPC %v: counted %d times as %s", tt.host, tt.path, grpc, n, outcomeNames[tt.counted])
			}
		}
	}
	// A method that is not served, and a time at which nothing is known yet.
	unreadables, unserveds := w.controller.requests[unreadable].Load(), w.controller.requests[unserved].Load()
	connect := raw(t, w, "CONNECT alive:443 HTTP/1.1\r\nHost: alive:443\r\n\r\n")
	w.controller.snapshot.Store(nil)
	resp, _ := w.get("alive", "/")
	if resp.StatusCode != 503 || connect.StatusCode != 405 || w.controller.requests[unserved].Load()-unserveds != 1 || w.controller.requests[unreadable].Load()-unreadables != 1 {
		t.Errorf("before anything is known: got %d, want 503; CONNECT: got %d, want 405; each counted once", resp.StatusCode, connect.StatusCode)
	}
}

// While draining, every response closes its connection, except upgrades, which would fail.
func TestDrainingCloses(t *testing.T) {
	m := newMemory(t, limitedTo(1), func(http.ResponseWriter, *http.Request) {})
	m.draining.Store(true)
	for _, host := range []string{"x", "x/%2e%2e"} {
		usual, upgrade := m.from("192.0.2.1", host), m.from("192.0.2.1", host, "Upgrade", "websocket", "Connection", "Upgrade")
		if a, b := usual.Header.Get("Connection"), upgrade.Header.Get("Connection"); a != "close" || b != "" {
			t.Errorf("%s: Connection is %q, and of upgrades %q", host, a, b)
		}
	}
}

// Over plain HTTP a host with TLS is redirected, and any host that is to be. Requests of certificate authorities
// are neither redirected nor limited, but only under a rule for them alone, so that other requests cannot
// bypass limits. A port with two protocols is one in metrics.
func TestRedirectToTLS(t *testing.T) {
	p := newPod(t, "red", start)
	once := limiter.Config{Rate: 1, Per: hour, Burst: 1}
	o, forced := origin("web", policy.Ingress{Zones: []policy.Zone{{Name: "rate", Limit: once}}, PerClient: 1}), origin("forced", policy.Ingress{})
	o.TLSHosts, forced.ForceRedirect = []string{"x", "*.wild.example.com"}, true
	b := backend(service("solver", policy.Service{Capacity: once, EndpointConcurrency: 1, Queue: policy.QueueOff}), p)
	other := *b
	other.Protocol = model.HTTPS
	rule := func(host, path string) model.Rule {
		return model.Rule{Host: host, Path: path, Exact: path != "/", Target: model.Target{Origin: o, Backend: b}}
	}
	w := newWorld(t, &model.Model{Rules: []model.Rule{
		rule("x", acmePath+"/token"), rule("x", acmePath), rule("y", "/"), rule("x", "/"), rule("*.wild.example.com", "/"),
		{Host: "z", Path: acmePath + "s", Target: model.Target{Origin: o, Backend: b}},
		{Host: "forced", Path: "/", Target: model.Target{Origin: forced, Backend: &other}},
	}})
	for _, tt := range []struct {
		host, path string
		want       int
	}{
		{"x", acmePath + "/token", 200}, {"x", acmePath, 200}, {"x", acmePath + "/token", 200}, {"x", acmePath + "/token", 200},
		{"x", "/", 308}, {"X", "/x?y=1", 308}, {"x", acmePath + "s", 308}, {"one.wild.example.com", "/", 308}, {"forced", "/", 308},
		{"y", acmePath + "/token", 200}, // the one that is allowed
		{"y", acmePath + "/token", 429}, {"y", "/", 429}, {"z", acmePath + "s", 429},
		{"x", acmePath + "/other", 429}, // by the rule for everything
		{"x", acmePath + "/token", 200},
	} {
		resp, _ := w.get(tt.host, tt.path)
		if location := resp.Header.Get("Location"); resp.StatusCode != tt.want || tt.want == 308 && location != "https://"+tt.host+tt.path {
			t.Errorf("%s%s: got %d to %q, want %d", tt.host, tt.path, resp.StatusCode, location, tt.want)
		}
	}
	if n := len(w.controller.snapshot.Load().backends); n != 1 {
		t.Errorf("one port has %d permits in metrics", n)
	}
}
