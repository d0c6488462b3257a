package caddymodule

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
)

const timeLimit = 100 * time.Millisecond

// behindTimeout plays a story of a shield with a timeout before a backend, in virtual time if that speaks HTTP/1.
func behindTimeout(t *testing.T, more string, h2 bool, serve http.HandlerFunc, story func(r *rig)) {
	shielded := fmt.Sprintf(`{"handler": "shield", "timeout": "%v", %s},`, timeLimit, more)
	if !h2 {
		start(t, setup{handlers: shielded + proxyOnWires(`, "load_balancing": {"retries": 3}`)}).onWires(t, new(http.Server), serve, story)
		return
	}
	story(start(t, setup{
		server:   `"protocols": ["h1", "h2", "h2c"],`,
		handlers: shielded + proxyTo(h2cBackend(t, serve), `, "transport": {"protocol": "http", "versions": ["h2c", "2"]}`),
	}))
}

// stuck waits until the request is given up; any path but /stuck is answered.
func stuck(w http.ResponseWriter, r *http.Request) {
	_, _ = io.Copy(io.Discard, r.Body) // or it would not see that it is given up
	if r.URL.Path == "/stuck" {
		<-r.Context().Done()
	}
}

// limitFalls has requests time out, four at once, until the limit is below 6, with which it began:
// it is looked at when 25 have ended.
func limitFalls(r *rig, ask func()) {
	r.Helper()
	g := r.handler().guard()
	for round := 0; g.Limit() >= 6; round++ {
		if round == 20 {
			r.Fatal("the limit is 6, as in the beginning")
		}
		var all sync.WaitGroup
		for range 4 {
			all.Go(ask)
		}
		all.Wait()
	}
}

// Requests that are never answered end in 504 over all protocols of backends, free their
// permits, and lower a limit that is found. With observe they go on.
func TestTimeoutFreesPermits(t *testing.T) {
	for _, c := range []struct {
		more string
		h2   bool
	}{{`"concurrency": {"limit": 4}`, false}, {`"concurrency": {"limit": 4}`, true}, {`"concurrency": {"adaptive": true, "initial": 6}`, false}, {`"capacity": {"rate": 1000}`, true}} {
		behindTimeout(t, c.more, c.h2, stuck, func(r *rig) {
			answers, began, most := make(chan answered), time.Now(), timeLimit
			if c.h2 {
				most = timeLimit + patience // of a machine that may be busy
			}
			for range 4 {
				go func() { answers <- r.get("/stuck") }()
			}
			for range 4 {
				if got := receive(r, "a response", answers); got.StatusCode != http.StatusGatewayTimeout || got.Header.Get("Proxy-Status") != "shield; error=http_response_timeout" {
					t.Errorf("%s: %d %v; want 504 and that the backend is late", c.more, got.StatusCode, got.Header)
				}
			}
			if took := time.Since(began); took < timeLimit || took > most {
				t.Errorf("%s: it took %v, want %v", c.more, took, timeLimit)
			}
			eventually(r, "a healthy request is answered", func() bool { return r.get("/").StatusCode == http.StatusOK })
			if strings.Contains(c.more, "adaptive") {
				limitFalls(r, func() { r.get("/stuck") })
			}
		})
	}
	behindTimeout(t, `"mode": "observe", "concurrency": {"limit": 4}`, false, func(http.ResponseWriter, *http.Request) { pass(2 * timeLimit) }, func(r *rig) {
		r.wantStatus(http.StatusOK, "/")
	})
}

// A response that a shield breaks off is the backend's failure for the shield before it, too.
func TestTimeoutBehindAShield(t *testing.T) {
	inner := fmt.Sprintf(`{"handler": "shield", "name": "inner", "timeout": "%v", "concurrency": {"limit": 9}},`, timeLimit)
	r := start(t, setup{handlers: shed(`"concurrency": {"adaptive": true}`) + inner + proxyOnWires("")})
	r.onWires(t, new(http.Server), func(w http.ResponseWriter, r *http.Request) {
		_ = http.NewResponseController(w).Flush()
		<-r.Context().Done()
	}, func(r *rig) {
		if got, err := answer(r.client.Get("http://" + r.addr)); err == nil {
			t.Errorf("the response is complete: %+v", got)
		}
		r.drains()
		if n := r.shieldStatus("s").Failures; n != 1 {
			t.Errorf("%d failures, want 1", n)
		}
	})
}

// An upgraded connection has no timeout, and gRPC clients are told of one in their own words.
func TestTimeoutOfOtherProtocols(t *testing.T) {
	const limit = `"concurrency": {"limit": 4}`
	behindTimeout(t, limit, false, echoSocket, func(r *rig) {
		conn := r.dial()
		conn.send(upgrade, 0)
		if switched := conn.head(); switched.StatusCode != http.StatusSwitchingProtocols {
			t.Fatalf("response %+v", switched)
		}
		pass(2 * timeLimit)
		conn.echoes("hello")
		_ = conn.Close()
	})
	behindTimeout(t, limit, true, stuck, func(r *rig) {
		r.h2c()
		got, err := answer(r.client.Post("http://"+r.addr+"/stuck", "application/grpc", strings.NewReader("x")))
		if err != nil || got.StatusCode != http.StatusOK || got.Header.Get("Grpc-Status") != "4" {
			t.Errorf("%v: status %d, gRPC status %q; want 200 and 4", err, got.StatusCode, got.Header.Get("Grpc-Status"))
		}
	})
}

// A Transport that still dials for a request that has ended in 504 reads its variables: to
// write them then would end the program.
func TestTimeoutWhileTheTransportDials(t *testing.T) {
	r := request("/", "192.0.2.1", nil)
	vars := r.Context().Value(caddyhttp.VarsCtxKey).(map[string]any)
	before := len(vars)
	if NoteTimeout(r.Context()); len(vars) != before {
		t.Errorf("a timeout writes the variables of the request: %v", vars)
	}
}
