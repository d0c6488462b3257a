package live

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

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

// run runs c against a URL, over sockets.
func run(t *testing.T, c LoadConfig, url string) LoadResult {
	t.Helper()
	var err error
	if c.Target, err = NewTarget(t.Context(), url, false); err != nil {
		t.Fatal(err)
	}
	l, err := NewLoad(c)
	if err != nil {
		t.Fatal(err)
	}
	r := l.Run(t.Context())
	checkLoad(t, r)
	return r
}

// quiet drops the log of servers about clients that go.
var quiet = log.New(io.Discard, "", 0)

// many is a herd over sockets with long time-outs, for busy machines.
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

// serveHTTP starts a server with all protocols of http.Server.
func serveHTTP(t *testing.T, secure bool, h http.Handler, c *conns) string {
	t.Helper()
	srv := httptest.NewUnstartedServer(h)
	srv.Config.ErrorLog = quiet
	srv.Config.Protocols = new(http.Protocols)
	srv.Config.Protocols.SetHTTP1(true)
	srv.Config.Protocols.SetHTTP2(true)
	srv.Config.Protocols.SetUnencryptedHTTP2(true)
	srv.Config.ConnState = c.state
	srv.EnableHTTP2 = secure
	if secure {
		srv.StartTLS()
	} else {
		srv.Start()
	}
	t.Cleanup(srv.Close)
	return srv.URL
}

func TestEveryHTTP(t *testing.T) {
	for _, s := range []struct {
		name        string
		change      func(*LoadConfig)
		secure      bool
		major       int
		least, most int // connections: of HTTP/2, at one time
	}{
		{"h1", func(*LoadConfig) {}, false, 1, 120, 120},
		{"h1, connected", func(c *LoadConfig) { c.Connected = true }, false, 1, 120, 120},
		{"h1, kept", func(c *LoadConfig) { c.KeepAlive = true }, false, 1, 1, 120},
		{"h1 over TLS", func(*LoadConfig) {}, true, 1, 120, 120},
		{"h1 over TLS, connected", func(c *LoadConfig) { c.Connected = true }, true, 1, 120, 120},
		{"h2", func(c *LoadConfig) { c.Proto, c.Connections = H2, 4 }, true, 2, 4, 4},
		{"h2, connected", func(c *LoadConfig) { c.Proto, c.Connected = H2, true }, true, 2, defaultConnections, defaultConnections},
		{"h2c", func(c *LoadConfig) { c.Proto, c.Connections = H2C, 1 }, false, 2, 1, 1},
	} {
		t.Run(s.name, func(t *testing.T) {
			noLeak(t)
			var opened conns
			var mu sync.Mutex
			bad := map[string]int{}
			refuse := refusing(20, 503, "")
			url := serveHTTP(t, s.secure, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				body, _ := io.ReadAll(r.Body)
				mu.Lock()
				if got := r.Proto + " " + r.Method + " " + r.Host + " " + r.Header.Get("X-Test") + " " + string(body); r.ProtoMajor != s.major || !strings.HasSuffix(got, " PUT example.test yes hello") {
					bad[got]++
				}
				mu.Unlock()
				refuse(w, r)
			}), &opened)
			c := many(100)
			c.Insecure = s.secure
			c.Method, c.Body = "PUT", []byte("hello")
			c.Header = http.Header{"X-Test": {"yes"}, "Host": {"example.test"}}
			s.change(&c)
			r := run(t, c, url)
			if r.All.Served != 100 || r.All.Requests != 120 || r.All.Answers["503"] != 20 {
				t.Errorf("result is %+v, %s; want 100 served in 120 requests", r.All, r.Broken)
			}
			if len(bad) > 0 {
				t.Errorf("requests were %v; want HTTP/%d PUT example.test yes hello", bad, s.major)
			}
			// A server closes an HTTP/2 connection whose first frame is 2 s late, as on a
			// busy machine.
			opened.mu.Lock()
			n := opened.opened
			if s.major == 2 {
				n = opened.peak
			}
			opened.mu.Unlock()
			if n < s.least || n > s.most {
				t.Errorf("%d connections; want %d to %d", n, s.least, s.most)
			}
		})
	}
}

// A server that allows few requests on a connection gets more connections, and no request
// waits for another in this process.
func TestFullH2ConnectionsAreJoinedByOthers(t *testing.T) {
	noLeak(t)
	const n, most = 250, 100
	var opened, inside atomic.Int64
	all := make(chan struct{})
	srv := httptest.NewUnstartedServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		if inside.Add(1) == n {
			close(all)
		}
		select {
		case <-all:
		case <-r.Context().Done():
		}
	}))
	startH2C(t, srv, most, &opened)
	c := many(n)
	c.Proto, c.Connections, c.Connected, c.Attempts = H2C, 1, true, 1
	if r := run(t, c, srv.URL); r.All.Served != n {
		t.Errorf("%d served of %d: %+v %s", r.All.Served, n, r.All, r.Broken)
	}
	if opened.Load() != 3 {
		t.Errorf("%d connections; want 3, for %d requests at once, %d on each", opened.Load(), n, most)
	}
}

// startH2C starts a server of HTTP/2 without TLS, with at most so many streams on each
// connection, and counts the connections.
func startH2C(t *testing.T, srv *httptest.Server, most int, opened *atomic.Int64) {
	srv.Config.Protocols = new(http.Protocols)
	srv.Config.Protocols.SetUnencryptedHTTP2(true)
	srv.Config.HTTP2 = &http.HTTP2Config{MaxConcurrentStreams: most}
	srv.Config.ConnState = func(_ net.Conn, s http.ConnState) {
		if s == http.StateNew {
			opened.Add(1)
		}
	}
	srv.Start()
	t.Cleanup(srv.Close)
}

// Calls of gRPC wait for room in their connection, as in the libraries of gRPC.
func TestGRPCWaitsInAFullConnection(t *testing.T) {
	noLeak(t)
	const n, most = 50, 10
	var opened, inside, peak atomic.Int64
	srv := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if now := inside.Add(1); now > peak.Load() {
			peak.Store(now)
		}
		io.Copy(io.Discard, r.Body)
		time.Sleep(5 * time.Millisecond)
		inside.Add(-1)
		if r.Method != http.MethodPost || r.URL.Path != HealthCheck || r.Header.Get("Grpc-Timeout") == "" {
			w.WriteHeader(http.StatusBadRequest)
		}
		w.Header().Set("Content-Type", "application/grpc")
		w.Header().Set("Grpc-Status", "0")
	}))
	startH2C(t, srv, most, &opened)
	c := many(n)
	c.Proto, c.Connections, c.Connected, c.Attempts = GRPC, 1, true, 1
	if r := run(t, c, srv.URL); r.All.Served != n || opened.Load() != 1 || peak.Load() > most {
		r.All.Waits = nil
		t.Errorf("%d served of %d on %d connections, %d at once: %+v %s", r.All.Served, n, opened.Load(), peak.Load(), r.All, r.Broken)
	}
}

// grpcServer refuses its first calls as shield does, and then is healthy.
func grpcServer(t *testing.T, refuse int64, code codes.Code, md metadata.MD) string {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var left atomic.Int64
	left.Store(refuse)
	s := grpc.NewServer(grpc.UnaryInterceptor(func(ctx context.Context, req any, _ *grpc.UnaryServerInfo, h grpc.UnaryHandler) (any, error) {
		if left.Add(-1) >= 0 {
			grpc.SetTrailer(ctx, md)
			return nil, status.Error(code, "not now")
		}
		if got := metadata.ValueFromIncomingContext(ctx, "x-forwarded-for"); len(got) != 1 || !strings.HasPrefix(got[0], "10.0.0.") {
			return nil, status.Errorf(codes.InvalidArgument, "x-forwarded-for is %q", got)
		}
		return h(ctx, req)
	}))
	healthpb.RegisterHealthServer(s, health.NewServer())
	go s.Serve(ln)
	t.Cleanup(s.Stop)
	return "http://" + ln.Addr().String()
}

func TestGRPC(t *testing.T) {
	for _, s := range []struct {
		name     string
		code     codes.Code
		md       metadata.MD
		refuse   int64
		served   int
		answered string
		told     time.Duration
	}{
		{"told when", codes.Unavailable, metadata.Pairs("grpc-retry-pushback-ms", "70"), 5, 20, "Unavailable", 70 * time.Millisecond},
		{"a quota", codes.ResourceExhausted, nil, 5, 20, "ResourceExhausted", 0},
		{"told never", codes.Unavailable, metadata.Pairs("grpc-retry-pushback-ms", "-1"), 5, 15, "Unavailable", 0},
		{"wrong", codes.PermissionDenied, nil, 5, 15, "PermissionDenied", 0},
	} {
		t.Run(s.name, func(t *testing.T) {
			noLeak(t)
			url := grpcServer(t, s.refuse, s.code, s.md)
			c := many(20)
			c.Proto, c.Mix, c.Connections = GRPC, clients.All(obedient{}), 2
			c.FirstAddress = netip.MustParseAddr("10.0.0.1")
			r := run(t, c, url)
			if r.All.Served != s.served || r.All.Answers[s.answered] != int(s.refuse) || r.All.Answers["OK"] != s.served {
				t.Errorf("result is %+v, %s; want %d served and %d %s", r.All, r.Broken, s.served, s.refuse, s.answered)
			}
			if r.All.Told.Max != s.told {
				t.Errorf("told %v, want %v", r.All.Told.Max, s.told)
			}
		})
	}
}

// obedient obeys a hint in milliseconds, and otherwise retries after 10 ms.
type obedient struct{}

func (obedient) Next(r clients.Refused) (time.Duration, bool) {
	return max(10*time.Millisecond, time.Duration(r.Hint.Ms)*time.Millisecond), !r.Hint.Never
}

// grpc-go retries UNAVAILABLE, and not DEADLINE_EXCEEDED.
func TestGRPCDeadlines(t *testing.T) {
	noLeak(t)
	for _, s := range []struct {
		policy   string
		code     codes.Code
		requests int
	}{
		{"grpc-go", codes.Unavailable, 2}, {"grpc-go", codes.DeadlineExceeded, 1}, {"grpc-go", codes.Internal, 1}, {"grpc-go", codes.ResourceExhausted, 1},
		{"try-n-times", codes.DeadlineExceeded, 2}, // other clients take it for a time-out, and retry
	} {
		c := many(1)
		c.Proto, c.Mix = GRPC, named(t, s.policy)
		c.FirstAddress = netip.MustParseAddr("10.0.0.1")
		r := run(t, c, grpcServer(t, 1, s.code, nil))
		if r.All.Requests != s.requests || r.All.Answers[s.code.String()] != 1 || r.All.TimedOut != 0 {
			t.Errorf("%s after %v: %+v; want %d requests", s.policy, s.code, r.All, s.requests)
		}
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

// Policies behave as their libraries after every status.
func TestPoliciesMeetEveryStatus(t *testing.T) {
	const far = 20 * time.Second // a machine that is busy
	var all sync.WaitGroup
	defer all.Wait()
	for _, s := range []struct {
		policy      string
		status      int
		retryAfter  string
		requests    int
		least, most time.Duration // between the first and the second
	}{
		{"client-go", 500, "1", 2, time.Second, far},
		{"client-go", 500, "", 1, 0, 0},
		{"client-go", 404, "1", 1, 0, 0},
		{"urllib3", 413, "1", 2, time.Second, far},
		{"urllib3", 413, "", 1, 0, 0},
		{"urllib3", 500, "1", 1, 0, 0},
		{"stripe-go", 409, "", 2, 500 * time.Millisecond, far},
		{"stripe-go", 429, "1", 1, 0, 0},
		{"undici", 500, "2", 2, 2 * time.Second, far},
		{"undici", 404, "1", 1, 0, 0},
		{"got", 500, "2", 2, 2 * time.Second, far},
		{"got", 413, "1", 2, time.Second, far},
		{"got", 413, "", 1, 0, 0},
		{"curl", 408, "2", 2, 2 * time.Second, far},
		{"curl", 501, "1", 1, 0, 0},
		{"ky", 413, "1", 2, time.Second, far},
		{"ky", 500, "60", 2, 300 * time.Millisecond, far}, // which it obeys in a 413, 429 or 503
		{"go-retryablehttp", 500, "60", 2, time.Second, far},
		{"go-retryablehttp", 501, "", 1, 0, 0},
		{"openai", 409, "2", 2, 2 * time.Second, far},
		{"aws-sdk-go", 429, "1", 1, 0, 0},
		{"aws-sdk-go", 501, "", 1, 0, 0},
		{"clojure", 404, "", 2, time.Second, far},
		{"clojure", 302, "", 2, time.Second, far},
		{"clojure-predicate", 500, "", 1, 0, 0},
		{"google-analytics", 403, "", 2, time.Second, far},
		{"google-analytics", 502, "", 1, 0, 0},
		{"google-http-java-client*3", 501, "", 2, 250 * time.Millisecond, far},
		// Policies that do not define which failures they retry do so after temporary
		// ones, and obey a 429 or a 503.
		{"exact", 503, "2", 2, 2 * time.Second, far},
		{"exact", 500, "60", 2, 0, far},
		{"exact", 404, "1", 1, 0, 0},
		{"google-sre", 501, "", 1, 0, 0},
		{"server-timing", 429, "2", 2, 2 * time.Second, far},
		{"server-timing", 500, "60", 2, time.Second, far},
	} {
		all.Go(func() { // all at once: they only wait
			what := fmt.Sprintf("%s, after %d and Retry-After %q", s.policy, s.status, s.retryAfter)
			var mu sync.Mutex
			var came []time.Time
			srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				mu.Lock()
				defer mu.Unlock()
				if came = append(came, time.Now()); len(came) > 1 {
					return
				}
				if s.retryAfter != "" {
					w.Header().Set("Retry-After", s.retryAfter)
				}
				w.WriteHeader(s.status)
			}))
			defer srv.Close()
			c := many(1)
			c.Within, c.Patience = 0, far
			var err1, err2, err3 error
			c.Mix, err1 = clients.Parse(s.policy)
			c.Target, err2 = NewTarget(t.Context(), srv.URL, false)
			l, err3 := NewLoad(c)
			if err := errors.Join(err1, err2, err3); err != nil {
				t.Errorf("%s: %v", what, err)
				return
			}
			r := l.Run(t.Context())
			checkLoad(t, r)
			mu.Lock()
			defer mu.Unlock()
			if len(came) != s.requests || r.All.Served != s.requests-1 {
				t.Errorf("%s: %d requests, %+v; want %d", what, len(came), r.All, s.requests)
			} else if s.requests > 1 {
				if gap := came[1].Sub(came[0]); gap < s.least || gap > s.most {
					t.Errorf("%s: came again after %v; want %v to %v", what, gap, s.least, s.most)
				}
			}
		})
	}
}

// Clients at the highest rate there is come late by no more than the grace, or not
// at all.
func TestRunsEndInTime(t *testing.T) {
	noLeak(t)
	url := serveHTTP(t, false, refusing(0, 0, ""), new(conns))
	c := many(0)
	// 10,000 clients: of 50,000 so many start together that they starve the loop that
	// starts them.
	c.Rate, c.Duration, c.Timeout, c.Patience, c.Even = MaxRate, time.Second/10, time.Second/2, 0, true
	r := run(t, c, url)
	t.Logf("took %v: %d came and %d did not, %.0f per second", r.Took, r.All.Clients, r.All.Skipped, r.RateReached())
	// A tenth of a second, the grace and the time-out; thousands of clients that end at once
	// may take more on a busy machine.
	if r.Took > 5*time.Second || r.All.Clients+r.All.Skipped != MaxRate/10 {
		t.Errorf("took %v, %d came and %d did not; want about 1.1s, and %d", r.Took, r.All.Clients, r.All.Skipped, MaxRate/10)
	}
	if r.Coming > c.Duration+grace+3*time.Second || r.RateReached() > MaxRate*1.01 {
		t.Errorf("clients came for %v, %.0f per second", r.Coming, r.RateReached())
	}
}

func TestGRPCMeetsHTTP(t *testing.T) {
	noLeak(t)
	for code, want := range map[int]string{200: "HTTP 200, but no gRPC", 503: "HTTP 503", 404: "HTTP 404"} {
		url := serveHTTP(t, false, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(code) }), new(conns))
		c := many(3)
		c.Proto, c.Attempts = GRPC, 1
		if r := run(t, c, url); r.All.Served != 0 || r.All.Answers[want] != 3 {
			t.Errorf("result is %+v, %s; want 3 of %q", r.All, r.Broken, want)
		}
	}
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
		{"resets", func(c net.Conn) { c.Read(make([]byte, 1)); c.(*net.TCPConn).SetLinger(0) }, false, true},
		{"closes at once", func(net.Conn) {}, false, true},
		{"speaks no HTTP", answer("SSH-2.0-x\r\n\r\n"), false, true},
		{"has a body that does not come", func(c net.Conn) { answer("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nab")(c); hang(c) }, true, false},
		{"has a body that is cut off", answer("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nab"), false, true},
		{"has a header without end", func(c net.Conn) {
			c.Read(make([]byte, 4096))
			io.WriteString(c, "HTTP/1.1 200 OK\r\n")
			for err := error(nil); err == nil; {
				_, err = io.WriteString(c, "X: "+strings.Repeat("y", 1000)+"\r\n")
			}
		}, false, true},
		{"has a body without end", func(c net.Conn) {
			answer("HTTP/1.1 200 OK\r\n\r\n")(c)
			for err := error(nil); err == nil; {
				_, err = c.Write(make([]byte, 1000))
			}
		}, true, false},
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
			for _, proto := range []Proto{H1, H2C, GRPC} {
				if proto != H1 && s.name != "never answers" && s.name != "resets" && s.name != "closes at once" && s.name != "speaks no HTTP" {
					continue
				}
				c := many(5)
				c.Proto, c.Attempts, c.Timeout = proto, 1, 5*time.Second
				if s.timedOut {
					c.Timeout = 100 * time.Millisecond
				}
				r := run(t, c, "http://"+ln.Addr().String())
				if r.All.Served > 0 || (r.All.TimedOut == 5) != s.timedOut || (r.All.Unreachable == 5) != s.unreachable {
					t.Errorf("%s: result is %+v; %s", proto, r.All, r.Broken)
				}
				if s.unreachable && r.Broken == "" {
					t.Errorf("%s: it is not said what was wrong", proto)
				}
			}
		})
	}
}

// Thousands of clients, and no server.
func TestHerdAtAClosedPort(t *testing.T) {
	noLeak(t)
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ln.Close()
	for _, proto := range []Proto{H1, H2C, GRPC} {
		c := many(2000)
		c.Proto, c.Attempts, c.Mix = proto, 2, clients.All(clients.Fixed{})
		r := run(t, c, "http://"+ln.Addr().String())
		if r.All.Unreachable != 2*c.Herd || r.All.GaveUp != c.Herd {
			t.Errorf("%s: result is %+v; want all unreachable, twice", proto, r.All)
		}
	}
}

func TestCertificatesAreChecked(t *testing.T) {
	noLeak(t)
	url := serveHTTP(t, true, refusing(0, 0, ""), new(conns))
	for _, proto := range []Proto{H1, H2, GRPC} {
		c := many(2)
		c.Proto, c.Attempts = proto, 1
		r := run(t, c, url)
		if r.All.Unreachable != 2 || !strings.Contains(r.Broken, "certificate") {
			t.Errorf("%s: result is %+v, %q; want 2 that do not trust the certificate", proto, r.All, r.Broken)
		}
	}
}

// A server without HTTP/2 gets no HTTP/1.1 request instead.
func TestH2IsNotH1(t *testing.T) {
	noLeak(t)
	srv := httptest.NewUnstartedServer(refusing(0, 0, ""))
	srv.TLS = &tls.Config{NextProtos: []string{"http/1.1"}}
	srv.Config.ErrorLog = quiet
	srv.StartTLS()
	defer srv.Close()
	c := many(2)
	c.Proto, c.Attempts, c.Insecure = H2, 1, true
	if r := run(t, c, srv.URL); r.All.Served != 0 || r.All.Unreachable != 2 {
		t.Errorf("result is %+v, %q; want none served", r.All, r.Broken)
	}
}

// A stopped run leaves nothing behind, in any state.
func TestStoppedRunsLeaveNothing(t *testing.T) {
	for _, proto := range []Proto{H1, H2C, GRPC} {
		t.Run(string(proto), func(t *testing.T) {
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
			c.Proto, c.Connected, c.HerdAfter = proto, true, 10*time.Millisecond
			var err error
			if c.Target, err = NewTarget(ctx, url, false); err != nil {
				t.Fatal(err)
			}
			l, err := NewLoad(c)
			if err != nil {
				t.Fatal(err)
			}
			r := l.Run(ctx)
			checkLoad(t, r)
			if !errors.Is(r.Stopped, ErrStopped) || r.All.Trying == 0 || r.All.CutOff != r.All.Trying || r.All.Requests != r.All.CutOff {
				t.Errorf("result is %+v, stopped %v; want some trying, all cut off", r.All, r.Stopped)
			}
		})
	}
}

func TestProgressIsThereMeanwhile(t *testing.T) {
	var l *Load // of the handler
	seen := make(chan Progress, 1)
	url := serveHTTP(t, false, http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
		select {
		case seen <- l.Progress():
		default:
		}
		l.Result()
	}), new(conns))
	c := many(10)
	c.Target, _ = NewTarget(t.Context(), url, false)
	var err error
	if l, err = NewLoad(c); err != nil {
		t.Fatal(err)
	}
	if p := l.Progress(); p != (Progress{}) {
		t.Errorf("before the run: %+v", p)
	}
	l.Run(t.Context())
	if p := <-seen; p.Came == 0 || p.Trying == 0 || p.Requests == 0 || p.At <= 0 {
		t.Errorf("meanwhile: %+v", p)
	}
	if p := l.Progress(); p.Served != 10 || p.Requests != 10 || p.Came != 10 {
		t.Errorf("after it: %+v", p)
	}
}

// A host may have an address without a listener, as localhost often does.
func TestDialTriesEveryAddress(t *testing.T) {
	noLeak(t)
	url := serveHTTP(t, false, refusing(0, 0, ""), new(conns))
	c := many(5)
	c.Target, _ = NewTarget(t.Context(), url, false)
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ln.Close()
	c.Target.Addresses = append([]netip.AddrPort{netip.MustParseAddrPort(ln.Addr().String())}, c.Target.Addresses...)
	l, err := NewLoad(c)
	if err != nil {
		t.Fatal(err)
	}
	r := l.Run(t.Context())
	checkLoad(t, r)
	if r.All.Served != 5 || r.All.Requests != 5 {
		t.Errorf("result is %+v, %s; want 5 served at once", r.All, r.Broken)
	}
	if good := l.dialer.good.Load(); good != 1 {
		t.Errorf("the address that works is number %d, want 1", good)
	}
}

// A client of a Balance goes where that says, and nowhere else.
func TestBalance(t *testing.T) {
	noLeak(t)
	c := many(5)
	var visits [2]atomic.Int64
	for i := range visits {
		url := serveHTTP(t, false, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			visits[i].Add(1)
			if i == 0 {
				w.WriteHeader(http.StatusServiceUnavailable)
			}
		}), new(conns))
		target, err := NewTarget(t.Context(), url, false)
		if err != nil {
			t.Fatal(err)
		}
		c.Target.URL, c.Target.Addresses = target.URL, append(c.Target.Addresses, target.Addresses...)
	}
	c.Mix, c.Patience = clients.Population{{Weight: 1, Policy: clients.Fixed{}}}, time.Minute
	c.Balance = func(client, n int) int { return min(1, max(0, n-client-1)) } // client 0: to 0, 1; client 1: to 0, 0, 1
	l, err := NewLoad(c)
	if err != nil {
		t.Fatal(err)
	}
	r := l.Run(t.Context())
	checkLoad(t, r)
	if r.All.Served != 5 || visits[0].Load() != 1+2+3+4+5 || visits[1].Load() != 5 {
		t.Errorf("%d served, %d and %d visits; want 5, 15 and 5", r.All.Served, visits[0].Load(), visits[1].Load())
	}
}

func TestFaultsHere(t *testing.T) {
	for err, want := range map[error]bool{
		&net.OpError{Op: "dial", Err: os.NewSyscallError("socket", syscall.EMFILE)}:         true,
		&net.OpError{Op: "dial", Err: os.NewSyscallError("connect", syscall.EADDRNOTAVAIL)}: true,
		&net.OpError{Op: "dial", Err: os.NewSyscallError("connect", syscall.ECONNREFUSED)}:  false,
		context.DeadlineExceeded: false,
	} {
		if got := isFaultHere(err); got != want {
			t.Errorf("%v is a fault of this machine: %v, want %v", err, got, want)
		}
	}
}
