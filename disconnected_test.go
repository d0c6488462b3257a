package shield

import (
	"context"
	"flag"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httptrace"
	"net/http/httputil"
	"net/url"
	"os"
	"runtime/debug"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/test/bufconn"

	"github.com/herdshield/shield/loadshed"
)

// An occupancy is how many requests are in a backend, and how many were at most.
type occupancy struct{ now, most atomic.Int64 }

// enter counts a request in, and returns what counts it out.
func (o *occupancy) enter() (leave func()) {
	n := o.now.Add(1)
	for m := o.most.Load(); n > m && !o.most.CompareAndSwap(m, n); m = o.most.Load() {
	}
	return func() { o.now.Add(-1) }
}

// A worker is a backend that counts what it works on. A request takes as long as its path says.
type worker struct{ occupancy }

func (b *worker) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	defer b.enter()()
	if w != nil && r.ContentLength != 0 {
		w.Header().Set("Connection", "close") // it does not wait for the rest of the body
	}
	takes, _ := time.ParseDuration(r.URL.Path[1:])
	time.Sleep(takes)
}

// atTheEnd returns what is left in a Guard soon after the worker has done all its work.
func (b *worker) atTheEnd(g *Guard) BackendStats {
	idle := time.Now()
	for ; g.backend.inFlight.InFlight() > 0 && time.Since(idle) < promptly; g.Tick(Now()) {
		if b.now.Load() > 0 {
			idle = time.Now()
		}
		time.Sleep(10 * ms)
	}
	time.Sleep(10 * ms) // what is held is given back after the disconnected is counted out
	return g.backend.Stats(Now())
}

// proxyOf returns the address of a Guard before a proxy to a backend.
func proxyOf(t *testing.T, c Config, to string, transport http.RoundTripper, with ...func(*http.Server)) (*Guard, string) {
	t.Helper()
	backend, err := url.Parse(to)
	if err != nil {
		t.Fatal(err)
	}
	proxy := httputil.NewSingleHostReverseProxy(backend)
	proxy.Transport = transport
	proxy.ErrorHandler = func(w http.ResponseWriter, _ *http.Request, _ error) { w.WriteHeader(http.StatusBadGateway) }
	g := mustNew(t, c, nil)
	return g, serve(t, g.Handler(proxy), with...)
}

// A pipe is a network between one server and its clients, for virtual time.
type pipe struct{ *bufconn.Listener }

func newPipe() pipe { return pipe{bufconn.Listen(1 << 12)} }

// Accept implements net.Listener.
func (p pipe) Accept() (net.Conn, error) {
	conn, err := p.Listener.Accept()
	return pipeEnd{conn}, err
}

// A pipeEnd has no read deadline that is over when it is set: bufconn makes a timer of it, and Go 1.26.8 with the race
// detector crashes at times in one that fires at once in a bubble.
type pipeEnd struct{ net.Conn }

func (c pipeEnd) SetReadDeadline(t time.Time) error {
	if !t.IsZero() && time.Until(t) <= 0 {
		t = time.Now().Add(time.Nanosecond)
	}
	return c.Conn.SetReadDeadline(t)
}

func (p pipe) dial(ctx context.Context, _, _ string) (net.Conn, error) { return p.DialContext(ctx) }

// pipedProxy is a proxyOf in virtual time. end ends it.
func pipedProxy(t *testing.T, c Config, backend http.Handler) (g *Guard, front pipe, end func()) {
	t.Helper()
	front, back := newPipe(), newPipe()
	proxy := httputil.NewSingleHostReverseProxy(&url.URL{Scheme: "http", Host: "backend"})
	transport := &http.Transport{MaxIdleConnsPerHost: 100, DialContext: back.dial}
	proxy.Transport, proxy.ErrorLog = transport, log.New(io.Discard, "", 0)
	g = mustNew(t, c, nil)
	servers := []*http.Server{{Handler: backend}, {Handler: g.Handler(proxy), ErrorLog: proxy.ErrorLog}}
	go func() { _ = servers[0].Serve(back) }()
	go func() { _ = servers[1].Serve(front) }()
	return g, front, func() {
		transport.CloseIdleConnections()
		for _, s := range servers {
			_ = s.Close()
		}
	}
}

// hangUps sends a request so many times per second for a while, each on a connection of its
// own that is closed after its patience.
func hangUps(t *testing.T, dial func() (net.Conn, error), request string, rate int, for_, patience time.Duration) {
	var all sync.WaitGroup
	defer all.Wait()
	end := time.Now().Add(for_)
	for time.Now().Before(end) {
		all.Go(func() {
			conn, err := dial()
			if err != nil {
				t.Error(err)
				return
			}
			defer conn.Close()
			fmt.Fprint(conn, request)
			time.Sleep(patience)
		})
		time.Sleep(time.Second / time.Duration(rate))
	}
}

// Requests whose clients hang up count for as long as the backend works on them: it never
// has more than the limit.
func TestHangUpsInTheBackend(t *testing.T) {
	for _, c := range []struct {
		name     string
		config   Config
		page     string
		takes    time.Duration // as long as what others ask for
		most     int64
		patience time.Duration
	}{
		{"concurrency 8", Config{Concurrency: 8}, "1s", 0, 8, 5 * ms},
		{"per client 3 of 100", Config{Concurrency: 100, PerClient: 3}, "1s", 0, 3, 5 * ms},
		{"adaptive, pages of 1 ms", Config{Adaptive: &loadshed.AdaptiveConfig{Max: 40}}, "3s", ms, 40, 5 * ms},
		{"adaptive, pages of 1 ms, patience 100 ms", Config{Adaptive: &loadshed.AdaptiveConfig{Max: 40}}, "3s", ms, 40, 100 * ms},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				inBubble(t)
				b := &worker{}
				c.config.Pushback = undithered
				g, front, end := pipedProxy(t, c.config, b)
				defer end()
				var others sync.WaitGroup
				if c.takes > 0 {
					client := &http.Client{Transport: &http.Transport{DialContext: front.dial}}
					others.Go(func() {
						for end := time.Now().Add(3300 * ms); time.Now().Before(end); time.Sleep(10 * ms) {
							if resp, err := client.Get("http://shield/" + c.takes.String()); err == nil {
								resp.Body.Close()
							}
						}
						client.CloseIdleConnections()
					})
					time.Sleep(300 * ms)
				}
				hangUps(t, front.Dial, strings.Replace(get, "/", "/"+c.page, 1), 200, 3*time.Second, c.patience)
				others.Wait()
				t.Logf("%d in the backend at most", b.most.Load())
				if n := b.most.Load(); n > c.most {
					t.Errorf("%d in the backend at most, want %d", n, c.most)
				}
				if s := b.atTheEnd(g); s.InFlight != 0 || s.Disconnected != 0 || s.Clients != 0 {
					t.Errorf("at the end %+v", s)
				}
			})
		})
	}
}

// Whatever the connection to the backend is, and whatever a backend does that notices a client
// that has gone, it has no more than the limit.
func TestHangUpsOverAnyConnection(t *testing.T) {
	t.Parallel()
	const limit = 4
	closes := func(b *worker) http.Handler { // as event loops do
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			done := make(chan bool)
			go func() {
				defer close(done)
				b.ServeHTTP(nil, r.Clone(context.Background()))
			}()
			select {
			case <-r.Context().Done():
				panic(http.ErrAbortHandler)
			case <-done:
			}
		})
	}
	for _, c := range []struct {
		name, request string
		backend       func(*worker) http.Handler
		http2         bool
	}{
		{"HTTP/1", "GET /400ms HTTP/1.1\r\nHost: shield\r\n\r\n", closes, false},
		{"POST", "POST /400ms HTTP/1.1\r\nHost: shield\r\nContent-Length: 4\r\n\r\nbody", closes, false},
		{"half a POST", "POST /400ms HTTP/1.1\r\nHost: shield\r\nContent-Length: 4\r\n\r\nbo", func(b *worker) http.Handler { return b }, false},
		{"HTTP/2", "GET /400ms HTTP/1.1\r\nHost: shield\r\n\r\n", closes, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			b := new(worker)
			s := httptest.NewUnstartedServer(c.backend(b))
			s.EnableHTTP2 = c.http2
			s.StartTLS()
			defer s.Close()
			g, addr := proxyOf(t, Config{Concurrency: limit, Pushback: undithered}, s.URL, s.Client().Transport)
			dial := func() (net.Conn, error) { return net.Dial("tcp", addr) }
			hangUps(t, dial, c.request, 100, 2*time.Second, 20*ms)
			if n := b.most.Load(); n != limit {
				t.Errorf("%d in the backend at most, want %d", n, limit)
			}
			if s := b.atTheEnd(g); s.InFlight != 0 || s.Disconnected != 0 {
				t.Errorf("at the end %+v", s)
			}
		})
	}
}

// transport is a connection to a backend that answers when it likes.
type transport struct {
	answers time.Duration
	calls   int
}

func (tr *transport) RoundTrip(r *http.Request) (*http.Response, error) {
	tr.calls++
	select {
	case <-time.After(tr.answers):
	case <-r.Context().Done():
		return nil, r.Context().Err()
	}
	if trace := httptrace.ContextClientTrace(r.Context()); trace.GotFirstResponseByte != nil {
		trace.GotFirstResponseByte()
	}
	return &http.Response{StatusCode: 200, Body: &slowBody{ctx: r.Context()}, Request: r}, nil
}

// slowBody takes a second.
type slowBody struct{ ctx context.Context }

func (b *slowBody) Read([]byte) (int, error) {
	select {
	case <-time.After(time.Second):
		return 0, io.EOF
	case <-b.ctx.Done():
		return 0, b.ctx.Err()
	}
}

func (b *slowBody) Close() error { return nil }

// A permit is kept for as long as the backend has work, at most 10 s after the hang-up, also
// when the Guard has been replaced meanwhile.
func TestPermitOfADisconnectedClient(t *testing.T) {
	for _, c := range []struct {
		name         string
		disconnected Disconnected
		tr           transport
		patience     time.Duration
		deadline     bool // the server's own ends the request, and no client leaves
		until        time.Duration
	}{
		{"works on", "", transport{answers: 2 * time.Second}, ms, false, 3 * time.Second},
		{"free", DisconnectedFree, transport{answers: 2 * time.Second}, ms, false, ms},
		{"never answers", "", transport{answers: time.Hour}, ms, false, longestDisconnected + ms},
		{"in the response", "", transport{answers: 2 * time.Second}, 2500 * ms, false, 2500 * ms},
		{"stays", "", transport{answers: 2 * time.Second}, time.Hour, false, 3 * time.Second},
		{"late", "", transport{answers: 2 * time.Second}, 500 * ms, true, 500 * ms},
	} {
		synctest.Test(t, func(t *testing.T) {
			inBubble(t)
			state := new(State)
			g := mustNew(t, Config{Concurrency: 1, PerClient: 1, Disconnected: c.disconnected, Pushback: undithered}, state)
			proxy := &httputil.ReverseProxy{Rewrite: func(*httputil.ProxyRequest) {}, Transport: &c.tr, ErrorHandler: func(http.ResponseWriter, *http.Request, error) {}}
			ctx, leave := context.WithCancel(t.Context())
			if c.deadline {
				ctx, leave = context.WithTimeout(t.Context(), c.patience)
			} else {
				time.AfterFunc(c.patience, leave)
			}
			defer leave()
			done, began := make(chan time.Duration, 1), Now()
			go func() {
				defer func() {
					_ = recover() // as http.Server does
					done <- Now() - began
				}()
				g.Handler(proxy).ServeHTTP(httptest.NewRecorder(), httptest.NewRequestWithContext(ctx, "GET", "http://shield/", nil))
			}()
			synctest.Wait()
			mustNew(t, Config{Concurrency: 2, PerClient: 1, Pushback: undithered}, state).Admit(Now(), Request{})
			if took := <-done; took != c.until || c.tr.calls != 1 {
				t.Errorf("%s: the permit is held for %v, after %d calls; want %v", c.name, took, c.tr.calls, c.until)
			}
			if s := state.Backend.Stats(Now()); s.InFlight != 1 || s.Disconnected != 0 || s.Clients != 0 {
				t.Errorf("%s: in the end %+v", c.name, s)
			}
		})
	}
}

// An answer to a client that has waited for longer than one takes in calm, and is gone, is a failure like any other.
func TestAnswersThatComeTooLate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		inBubble(t)
		b := new(worker)
		g, front, end := pipedProxy(t, Config{Adaptive: &loadshed.AdaptiveConfig{}, Pushback: undithered}, b)
		defer end()
		hangUps(t, front.Dial, strings.Replace(get, "/", "/50ms", 1), 40, 5*time.Second, time.Second)
		hangUps(t, front.Dial, strings.Replace(get, "/", "/2s", 1), 40, 20*time.Second, 500*ms)
		if s := b.atTheEnd(g); s.Changes[loadshed.Failed] == 0 {
			t.Errorf("no client is served for 20 s, and the limit has changed for %v", s.Changes)
		}
	})
}

// TestMain lets more tests run in parallel than there are processors: they wait for
// sockets and for time to pass. Their heaps are small and live shortly, so the collector runs seldom.
func TestMain(m *testing.M) {
	debug.SetGCPercent(400)
	flag.Parse()
	if err := flag.Set("test.parallel", "6"); err != nil {
		panic(err)
	}
	os.Exit(m.Run())
}
