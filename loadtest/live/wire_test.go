package live

import (
	"context"
	"errors"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/herdshield/shield/loadtest/clients"
)

// noLeak fails t if it leaves goroutines behind.
func noLeak(t *testing.T) {
	t.Helper()
	before := runtime.NumGoroutine()
	t.Cleanup(func() {
		for end := time.Now().Add(10 * time.Second); runtime.NumGoroutine() > before; runtime.Gosched() {
			if time.Now().After(end) {
				stacks := make([]byte, 1<<20)
				t.Fatalf("%d goroutines before, %d after:\n%.4000s", before, runtime.NumGoroutine(), stacks[:runtime.Stack(stacks, true)])
			}
		}
	})
}

// run runs c against a URL, over sockets, or if there is none against its Target.
func run(ctx context.Context, t *testing.T, c LoadConfig, url string) LoadResult {
	t.Helper()
	var err error
	if url != "" {
		if c.Target, err = NewTarget(ctx, url, false); err != nil {
			t.Fatal(err)
		}
	}
	l, err := NewLoad(c)
	if err != nil {
		t.Fatal(err)
	}
	r := l.Run(ctx)
	checkLoad(t, r)
	return r
}

// quiet drops the log of servers about clients that go.
var quiet = log.New(io.Discard, "", 0)

// many is a herd over sockets with long timeouts, for busy machines.
func many(n int) LoadConfig {
	return LoadConfig{
		Herd: n, Within: 20 * time.Millisecond, Mix: clients.All(clients.Fixed{Gap: 10 * time.Millisecond}),
		Timeout: time.Minute, Patience: time.Minute, Seed: 1,
	}
}

// conns counts the connections of a server: all, those that are open, and the most that were.
type conns struct {
	mu                 sync.Mutex
	opened, open, peak int
}

func (c *conns) state(_ net.Conn, s http.ConnState) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch s {
	case http.StateNew:
		c.opened++
		c.open++
		c.peak = max(c.peak, c.open)
	case http.StateClosed:
		c.open--
	}
}

// serveHTTP starts a server.
func serveHTTP(t *testing.T, secure bool, h http.Handler, c *conns) string {
	t.Helper()
	srv := httptest.NewUnstartedServer(h)
	srv.Config.ErrorLog = quiet
	srv.Config.ConnState = c.state
	if secure {
		srv.StartTLS()
	} else {
		srv.Start()
	}
	t.Cleanup(srv.Close)
	return srv.URL
}

func TestConnections(t *testing.T) {
	for _, s := range []struct {
		name        string
		change      func(*LoadConfig)
		secure      bool
		least, most int
	}{
		{"one each", func(*LoadConfig) {}, false, 40, 40},
		{"connected", func(c *LoadConfig) { c.Connected = true }, false, 40, 40},
		{"kept", func(c *LoadConfig) { c.KeepAlive = true }, false, 1, 40},
		{"over TLS", func(*LoadConfig) {}, true, 40, 40},
		{"over TLS, connected", func(c *LoadConfig) { c.Connected = true }, true, 40, 40},
	} {
		t.Run(s.name, func(t *testing.T) {
			noLeak(t)
			var opened conns
			var mu sync.Mutex
			bad := map[string]int{}
			reject := rejecting(10, 503, "")
			url := serveHTTP(t, s.secure, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				body, _ := io.ReadAll(r.Body)
				mu.Lock()
				if got := r.Proto + " " + r.Method + " " + r.Host + " " + r.Header.Get("X-Test") + " " + string(body); got != "HTTP/1.1 PUT example.test yes hello" {
					bad[got]++
				}
				mu.Unlock()
				reject(w, r)
			}), &opened)
			c := many(30)
			c.Insecure = s.secure
			c.Method, c.Body = "PUT", []byte("hello")
			c.Header = http.Header{"X-Test": {"yes"}, "Host": {"example.test"}}
			s.change(&c)
			r := run(t.Context(), t, c, url)
			if r.All.Served != 30 || r.All.Requests != 40 || r.All.Responses["503"] != 10 {
				t.Errorf("result is %+v, %s; want 30 served in 40 requests", r.All, r.Broken)
			}
			if len(bad) > 0 {
				t.Errorf("requests were %v; want HTTP/1.1 PUT example.test yes hello", bad)
			}
			opened.mu.Lock()
			n := opened.opened
			opened.mu.Unlock()
			if n < s.least || n > s.most {
				t.Errorf("%d connections; want %d to %d", n, s.least, s.most)
			}
		})
	}
}

// named is the population of one policy by its name.
func named(t *testing.T, name string) clients.Population {
	t.Helper()
	mix, err := clients.Parse(name)
	if err != nil {
		t.Fatal(err)
	}
	return mix
}

// Servers that break the protocol, or never answer.
func TestBadServers(t *testing.T) {
	answer := func(s string) func(net.Conn) {
		return func(c net.Conn) {
			c.Read(make([]byte, 4096))
			io.WriteString(c, s)
		}
	}
	hang := func(c net.Conn) { io.Copy(io.Discard, c) } // until the client goes
	for _, s := range []struct {
		name                  string
		serve                 func(net.Conn)
		timedOut, unreachable bool
	}{
		{"never answers", hang, true, false},
		{"closes at once", func(net.Conn) {}, false, true},
		{"has a body that does not come", func(c net.Conn) { answer("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nab")(c); hang(c) }, true, false},
		{"has a body that is cut off", answer("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nab"), false, true},
		{"has a header without end", func(c net.Conn) {
			c.Read(make([]byte, 4096))
			io.WriteString(c, "HTTP/1.1 200 OK\r\n")
			for err := error(nil); err == nil; {
				_, err = io.WriteString(c, "X: "+strings.Repeat("y", 1000)+"\r\n")
			}
		}, false, true},
	} {
		t.Run(s.name, func(t *testing.T) {
			noLeak(t)
			ln, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			var all sync.WaitGroup
			all.Go(func() {
				for {
					conn, err := ln.Accept()
					if errors.Is(err, net.ErrClosed) {
						return
					}
					all.Go(func() { defer conn.Close(); s.serve(conn) })
				}
			})
			defer all.Wait()
			defer ln.Close()
			c := many(5)
			c.Attempts, c.Timeout = 1, 5*time.Second
			if s.timedOut {
				c.Timeout = 50 * time.Millisecond
			}
			r := run(t.Context(), t, c, "http://"+ln.Addr().String())
			if r.All.Served > 0 || (r.All.TimedOut == 5) != s.timedOut || (r.All.Unreachable == 5) != s.unreachable {
				t.Errorf("result is %+v; %s", r.All, r.Broken)
			}
			if s.unreachable && r.Broken == "" {
				t.Error("it is not said what was wrong")
			}
		})
	}
}

func TestCertificatesAreChecked(t *testing.T) {
	noLeak(t)
	url := serveHTTP(t, true, rejecting(0, 0, ""), new(conns))
	c := many(2)
	c.Attempts = 1
	r := run(t.Context(), t, c, url)
	if r.All.Unreachable != 2 || !strings.Contains(r.Broken, "certificate") {
		t.Errorf("result is %+v, %q; want 2 that do not trust the certificate", r.All, r.Broken)
	}
}

// A stopped run leaves nothing behind, in any state.
func TestStoppedRunsLeaveNothing(t *testing.T) {
	noLeak(t)
	ctx, stop := context.WithCancel(t.Context())
	var n atomic.Int64
	url := serveHTTP(t, false, http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		if n.Add(1) == 20 {
			stop()
		}
		<-r.Context().Done()
	}), new(conns))
	c := many(50)
	c.Connected, c.HerdAfter = true, 10*time.Millisecond
	r := run(ctx, t, c, url)
	if !errors.Is(r.Stopped, ErrStopped) || r.All.Trying == 0 || r.All.CutOff != r.All.Trying || r.All.Requests != r.All.CutOff {
		t.Errorf("result is %+v, stopped %v; want some trying, all cut off", r.All, r.Stopped)
	}
}

// A host may have an address without a listener, as localhost often does.
func TestDialTriesEveryAddress(t *testing.T) {
	noLeak(t)
	url := serveHTTP(t, false, rejecting(0, 0, ""), new(conns))
	c := many(5)
	c.Target, _ = NewTarget(t.Context(), url, false)
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ln.Close()
	c.Target.Addresses = append([]netip.AddrPort{netip.MustParseAddrPort(ln.Addr().String())}, c.Target.Addresses...)
	r := run(t.Context(), t, c, "")
	if r.All.Served != 5 || r.All.Requests != 5 {
		t.Errorf("result is %+v, %s; want 5 served at once", r.All, r.Broken)
	}
}
