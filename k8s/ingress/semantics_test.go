package ingress

import (
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"testing"

	"github.com/herdshield/shield/k8s/model"
	"github.com/herdshield/shield/k8s/policy"
	"github.com/herdshield/shield/k8s/testbed/must"
	"github.com/herdshield/shield/limiter"
)

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
	before := w.controller.requests[unreadable].Load()
	if resp := raw(t, w, "CONNECT alive:443 HTTP/1.1\r\nHost: alive:443\r\n\r\n"); resp.StatusCode != 405 {
		t.Errorf("CONNECT: got %d, want 405", resp.StatusCode)
	}
	if n := w.controller.requests[unreadable].Load() - before; n != 1 {
		t.Errorf("CONNECT: counted %d times as unreadable", n)
	}
	// Nothing is known yet.
	w.controller.snapshot.Store(nil)
	before = w.controller.requests[unserved].Load()
	if resp, _ := w.get("alive", "/"); resp.StatusCode != 503 || w.controller.requests[unserved].Load()-before != 1 {
		t.Errorf("before anything is known: got %d", resp.StatusCode)
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
