package shield

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httptrace"
	"net/http/httputil"
	"net/url"
	"os"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

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

// A worker is a backend that counts what it works on. A request takes as long as its path
// says, or until hold is closed; that it has been sent shows in began.
type worker struct {
	occupancy
	stops bool // when its client hangs up
	began chan string
	hold  chan bool
}

func (b *worker) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	defer b.enter()()
	if b.began != nil {
		b.began <- r.URL.Path
	}
	if r.URL.Path == "/hold" {
		<-b.hold
		return
	}
	takes, _ := time.ParseDuration(r.URL.Path[1:])
	gone := r.Context()
	if !b.stops {
		gone = context.Background()
	}
	select {
	case <-time.After(takes):
	case <-gone.Done():
	}
}

// atTheEnd returns what is left in a Guard soon after the worker has done all its work.
func (b *worker) atTheEnd(g *Guard) loadshed.ConcurrencyStats {
	idle := time.Now()
	for ; g.backend.inFlight.InFlight() > 0 && time.Since(idle) < promptly; g.Tick(Now()) {
		if b.now.Load() > 0 {
			idle = time.Now()
		}
		time.Sleep(10 * ms)
	}
	return g.backend.ShedStats(Now())
}

// proxyOf returns the address of a Guard before a proxy to a backend.
func proxyOf(t *testing.T, c Config, backend http.Handler, with ...func(*http.Server)) (*Guard, string) {
	t.Helper()
	to, err := url.Parse("http://" + serve(t, backend))
	if err != nil {
		t.Fatal(err)
	}
	proxy := httputil.NewSingleHostReverseProxy(to)
	proxy.Transport = &http.Transport{MaxIdleConnsPerHost: 100}
	proxy.ErrorHandler = func(w http.ResponseWriter, r *http.Request, err error) {
		w.WriteHeader(http.StatusBadGateway)
		fmt.Fprint(w, err)
	}
	g := mustNew(t, c, nil)
	return g, serve(t, g.Handler(proxy), with...)
}

// A pipe is a network between one server and its clients, for virtual time.
type pipe chan net.Conn

func (p pipe) dial(context.Context, string, string) (net.Conn, error) { return p.connect() }

func (p pipe) connect() (net.Conn, error) {
	client, server := net.Pipe()
	p <- server
	return client, nil
}

// Accept implements net.Listener.
func (p pipe) Accept() (net.Conn, error) {
	if conn, ok := <-p; ok {
		return conn, nil
	}
	return nil, net.ErrClosed
}

func (p pipe) Close() error   { close(p); return nil }
func (p pipe) Addr() net.Addr { return &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)} }

// pipedProxy is a proxyOf in virtual time. end ends it.
func pipedProxy(t *testing.T, c Config, backend http.Handler) (g *Guard, front pipe, end func()) {
	t.Helper()
	front, back := make(pipe), make(pipe)
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

// dialer connects to an address.
func dialer(addr string) func() (net.Conn, error) {
	return func() (net.Conn, error) { return net.Dial("tcp", addr) }
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
	t.Parallel()
	for _, c := range []struct {
		name     string
		config   Config
		page     string
		takes    time.Duration // as long as what others ask for
		most     int64
		patience time.Duration
	}{
		{"concurrency 8", Config{Concurrency: 8}, "1s", 0, 8, 5 * ms},
		{"concurrency 8, finish", Config{Concurrency: 8, Orphans: OrphansFinish}, "1s", 0, 8, 5 * ms},
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
				over := make(chan bool)
				var others sync.WaitGroup
				if c.takes > 0 {
					client := &http.Client{Transport: &http.Transport{DialContext: front.dial}}
					others.Go(func() {
						defer client.CloseIdleConnections()
						for {
							select {
							case <-over:
								return
							case <-time.After(10 * ms):
								if resp, err := client.Get("http://shield/" + c.takes.String()); err == nil {
									resp.Body.Close()
								}
							}
						}
					})
					time.Sleep(300 * ms)
				}
				hangUps(t, front.connect, strings.Replace(get, "/", "/"+c.page, 1), 200, 3*time.Second, c.patience)
				close(over)
				others.Wait()
				t.Logf("%d in the backend at most", b.most.Load())
				if n := b.most.Load(); n > c.most {
					t.Errorf("%d in the backend at most, want %d", n, c.most)
				}
				if s := b.atTheEnd(g); s.InFlight != 0 || s.Orphans != 0 || s.Clients != 0 {
					t.Errorf("at the end %+v", s)
				}
			})
		})
	}
}

// So do uploads that clients reset, of which shield hears twice: by the context and by the
// body.
func TestResetUploads(t *testing.T) {
	t.Parallel()
	b := &worker{began: make(chan string, 20)}
	g, addr := proxyOf(t, Config{Concurrency: 3, Pushback: undithered}, b, func(s *http.Server) {
		s.Protocols = new(http.Protocols)
		s.Protocols.SetUnencryptedHTTP2(true)
	})
	client, all := http2Client(t), sync.WaitGroup{}
	for i := range 20 {
		patience := 50 * ms
		if i == 0 { // until the backend has it
			patience = time.Hour
		}
		all.Go(func() {
			ctx, reset := context.WithTimeout(t.Context(), patience)
			defer reset()
			body, part := io.Pipe()
			defer part.Close()
			go fmt.Fprint(part, "half a body")
			if i == 0 {
				go func() { await(t, b.began); reset() }()
			}
			r, _ := http.NewRequestWithContext(ctx, "POST", "http://"+addr+"/300ms", body)
			if resp, err := client.Do(r); err == nil {
				resp.Body.Close()
			}
		})
		time.Sleep(20 * ms)
	}
	all.Wait()
	if n := b.most.Load(); n == 0 || n > 3 {
		t.Errorf("%d in the backend at most, want 3", n)
	}
	if s := b.atTheEnd(g); b.now.Load() != 0 || s.InFlight != 0 || s.Orphans != 0 {
		t.Errorf("at the end %d are worked on; %+v", b.now.Load(), s)
	}
}

// A backend that stops when its client hangs up loses nothing by the place that is kept:
// it says so. And one that works on has no more than the limit.
func TestHangUpsCostLittle(t *testing.T) {
	t.Parallel()
	cases := []struct {
		orphans Orphans
		stops   bool
		goodput float64
	}{{OrphansFree, true, 0}, {OrphansKeep, true, 0}, {OrphansFree, false, 0}, {OrphansKeep, false, 0}}
	var all sync.WaitGroup
	for i := range cases { // at the same time, on the same machine
		c := &cases[i]
		b := &pool{workers: make(chan bool, 8), stops: c.stops}
		config := Config{Concurrency: 12, Orphans: c.orphans, Pushback: undithered, Client: func(r *http.Request) string { return r.Header.Get("X-Client") }}
		_, addr := proxyOf(t, config, b)
		all.Go(func() {
			c.goodput = overloadOf(addr, 160*1.4, 8*time.Second, .3) / 160
			t.Logf("%s, the backend stops: %v: goodput %.2f, %d in the backend at most", c.orphans, c.stops, c.goodput, b.most.Load())
			if c.orphans == OrphansKeep && b.most.Load() > 13 {
				t.Errorf("%d in the backend at most, want 12", b.most.Load())
			}
		})
	}
	all.Wait()
	if is, least := cases[1].goodput, .88*cases[0].goodput; is < least { // 0.95, and what chance takes of 8 s
		t.Errorf("goodput %.2f of a backend that stops, want %.2f", is, least)
	}
}

// A pool is a backend of 8 workers, with a queue. Its requests say how long they take.
type pool struct {
	occupancy
	workers chan bool
	stops   bool
}

func (b *pool) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	defer b.enter()()
	work, err := time.ParseDuration(r.Header.Get("X-Work"))
	if err != nil {
		panic(err)
	}
	gone := r.Context()
	if !b.stops {
		gone = context.Background()
	}
	select {
	case b.workers <- true:
	case <-gone.Done():
		return
	}
	defer func() { <-b.workers }()
	select {
	case <-time.After(work):
	case <-gone.Done():
	}
}

// overloadOf sends requests at random, so many per second for a while, the same ones each time.
// They take 50 ms, exponentially distributed. A share of the clients hangs up after 10 ms.
// It returns how many per second of the others were served.
func overloadOf(addr string, rate float64, for_ time.Duration, hangUp float64) float64 {
	var all sync.WaitGroup
	var served atomic.Int64
	random := rand.New(rand.NewPCG(1, 2))
	tr := &http.Transport{MaxIdleConnsPerHost: 100}
	defer tr.CloseIdleConnections()
	end := time.Now().Add(for_)
	for next := time.Now(); next.Before(end); next = next.Add(time.Duration(random.ExpFloat64() / rate * float64(time.Second))) {
		time.Sleep(time.Until(next))
		hangs, work, client := random.Float64() < hangUp, time.Duration(random.ExpFloat64()*float64(50*ms)), random.Uint64()
		all.Go(func() {
			ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
			if hangs {
				ctx, cancel = context.WithTimeout(context.Background(), 10*ms)
			}
			defer cancel()
			r, _ := http.NewRequestWithContext(ctx, "GET", "http://"+addr+"/", nil)
			r.Header.Set("X-Client", fmt.Sprint(client))
			r.Header.Set("X-Work", work.String())
			if resp, err := tr.RoundTrip(r); err == nil {
				resp.Body.Close()
				if resp.StatusCode == 200 && !hangs {
					served.Add(1)
				}
			}
		})
	}
	all.Wait()
	return float64(served.Load()) / for_.Seconds()
}

// Whatever the connection to the backend is, and however a backend that works on takes the
// news that its client has gone, it has no more than the limit: one more for a backend that
// hides, once a minute, that it works on.
func TestHangUpsOverAnyConnection(t *testing.T) {
	t.Parallel()
	const limit, takes = 4, "400ms"
	work := func(b *worker, r *http.Request) (done chan bool) {
		done = make(chan bool)
		go func() {
			defer close(done)
			b.ServeHTTP(nil, r.Clone(context.Background()))
		}()
		return done
	}
	closes := func(b *worker) http.Handler { // as event loops do
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			select {
			case <-r.Context().Done():
				panic(http.ErrAbortHandler)
			case <-work(b, r):
			}
		})
	}
	answers := func(b *worker) http.Handler { // as gateways do
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			select {
			case <-r.Context().Done():
				w.WriteHeader(StatusClientGone)
			case <-work(b, r):
			}
		})
	}
	plain := func(b *worker) http.Handler { return b }
	for _, c := range []struct {
		name    string
		backend func(*worker) http.Handler
		serve   func(*httptest.Server) *http.Transport
		request string
		most    int64
	}{
		{"HTTP/1", plain, nil, "GET /400ms HTTP/1.1\r\nHost: shield\r\n\r\n", limit},
		{"POST", plain, nil, "POST /400ms HTTP/1.1\r\nHost: shield\r\nContent-Length: 4\r\n\r\nbody", limit},
		{"TLS", plain, func(s *httptest.Server) *http.Transport {
			s.StartTLS()
			return s.Client().Transport.(*http.Transport)
		}, "", limit},
		{"HTTP/2", plain, func(s *httptest.Server) *http.Transport {
			s.EnableHTTP2 = true
			s.StartTLS()
			return s.Client().Transport.(*http.Transport)
		}, "", limit},
		{"HTTP/2 without TLS", plain, func(s *httptest.Server) *http.Transport {
			s.Config.Protocols = new(http.Protocols)
			s.Config.Protocols.SetUnencryptedHTTP2(true)
			s.Start()
			tr := &http.Transport{Protocols: new(http.Protocols)}
			tr.Protocols.SetUnencryptedHTTP2(true)
			return tr
		}, "", limit},
		{"closes and works on", closes, nil, "", limit + 1},
		{"answers 499 and works on", answers, nil, "", limit + 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			b := &worker{began: make(chan string, 1000), hold: make(chan bool)}
			s := httptest.NewUnstartedServer(c.backend(b))
			s.Config.ErrorLog = log.New(io.Discard, "", 0)
			defer s.Close()
			tr := &http.Transport{}
			if c.serve != nil {
				tr = c.serve(s)
			} else {
				s.Start()
			}
			defer tr.CloseIdleConnections()
			to, _ := url.Parse(s.URL)
			proxy := httputil.NewSingleHostReverseProxy(to)
			proxy.Transport, proxy.ErrorHandler = tr, func(w http.ResponseWriter, _ *http.Request, _ error) { w.WriteHeader(http.StatusBadGateway) }
			g := mustNew(t, Config{Concurrency: limit, Pushback: undithered}, nil)
			addr := serve(t, g.Handler(proxy))
			if c.request == "" {
				c.request = "GET /" + takes + " HTTP/1.1\r\nHost: shield\r\n\r\n"
			}
			var first []*socket
			for range limit { // they hang up when the backend has all of them
				conn := dial(t, addr)
				first = append(first, conn)
				conn.send(strings.Replace(c.request, takes, "hold", 1))
				await(t, b.began)
			}
			for _, conn := range first {
				conn.Close()
			}
			kept := int(2*limit - c.most) // a backend that hides has lost shield's trust by now
			until := time.Now().Add(patience)
			for s := g.backend.ShedStats(Now()); (s.InFlight != kept || s.Orphans != kept) && time.Now().Before(until); s = g.backend.ShedStats(Now()) {
				time.Sleep(ms)
			}
			close(b.hold)
			hangUps(t, dialer(addr), c.request, 100, 2*time.Second, 20*ms)
			t.Logf("%d in the backend at most", b.most.Load())
			if n := b.most.Load(); n > c.most || n < limit {
				t.Errorf("%d in the backend at most, want %d", n, c.most)
			}
			if s := b.atTheEnd(g); s.InFlight != 0 || s.Orphans != 0 {
				t.Errorf("at the end %+v", s)
			}
		})
	}
}

// A request whose client hangs up just before it is sent is not sent, and its error is the
// client's: a proxy does not take it for a failure of the backend.
func TestHangUpBeforeSending(t *testing.T) {
	t.Parallel()
	for _, when := range []string{"GotConn", "Host"} {
		for _, method := range []string{"GET", "POST"} {
			b := &worker{began: make(chan string, 100)}
			to, _ := url.Parse("http://" + serve(t, b))
			var errs sync.Map
			proxy := httputil.NewSingleHostReverseProxy(to)
			proxy.Transport = leaver{&http.Transport{}, when}
			proxy.ErrorHandler = func(_ http.ResponseWriter, r *http.Request, err error) { errs.Store(r.RemoteAddr, err) }
			g := mustNew(t, Config{Concurrency: 100, Pushback: undithered}, nil)
			var all sync.WaitGroup
			for i := range 50 {
				all.Go(func() {
					r := httptest.NewRequest(method, "/0s", strings.NewReader("body"))
					r.RemoteAddr = fmt.Sprintf("192.0.2.%d:1", i)
					ctx, leave := context.WithCancel(t.Context())
					defer leave()
					g.Handler(proxy).ServeHTTP(httptest.NewRecorder(), r.WithContext(context.WithValue(ctx, leaver{}, leave)))
					if err, _ := errs.Load(r.RemoteAddr); err == nil || !errors.Is(err.(error), context.Canceled) {
						t.Errorf("%s, %s: the error is %v, want %v", when, method, err, context.Canceled)
					}
				})
			}
			all.Wait()
			if n := len(b.began); n != 0 {
				t.Errorf("%s, %s: %d requests reached the backend, want none", when, method, n)
			}
			proxy.Transport.(leaver).CloseIdleConnections()
		}
	}
}

// A leaver is a Transport by which a request's client leaves at a moment of its way.
type leaver struct {
	*http.Transport
	when string // a hook of httptrace, or the header field that was written
}

func (l leaver) RoundTrip(r *http.Request) (*http.Response, error) {
	leave := func() {
		r.Context().Value(leaver{}).(context.CancelFunc)()
		s := r.Context().Value(shelterKey{}).(*Shelter)
		for left := false; !left; runtime.Gosched() {
			s.mu.Lock()
			left = s.left > 0
			s.mu.Unlock()
		}
	}
	trace := &httptrace.ClientTrace{GotConn: func(httptrace.GotConnInfo) { leave() }}
	if l.when != "GotConn" {
		trace = &httptrace.ClientTrace{WroteHeaderField: func(name string, _ []string) {
			if name == l.when {
				leave()
			}
		}}
	}
	return l.Transport.RoundTrip(r.WithContext(httptrace.WithClientTrace(r.Context(), trace)))
}

// Clients that hang up, at whatever moment, do no harm to those that stay, though all of them
// share the connections to the backend.
func TestHangUpsHarmNoOther(t *testing.T) {
	t.Parallel()
	b := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		time.Sleep(3 * ms)
		_, _ = w.Write(body)
	})
	g, addr := proxyOf(t, Config{Concurrency: 1000, Pushback: undithered}, b)
	end := make(chan bool)
	var all sync.WaitGroup
	for range 4 {
		all.Go(func() {
			for {
				select {
				case <-end:
					return
				default:
				}
				conn, err := net.Dial("tcp", addr)
				if err != nil {
					t.Error(err)
					return
				}
				fmt.Fprint(conn, get)
				time.Sleep(3*ms + time.Duration(rand.IntN(1500))*time.Microsecond)
				conn.Close()
			}
		})
	}
	for i := range 1000 {
		resp, err := http.Post("http://"+addr+"/", "text/plain", strings.NewReader(fmt.Sprint(i)))
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(resp.Body)
		resp.Body.Close()
		if string(body) == context.Canceled.Error() {
			continue // the Transport had them wait for one connection, as it does without a Guard
		}
		if resp.StatusCode != 200 || string(body) != fmt.Sprint(i) || err != nil {
			t.Errorf("%d: %d %q %v", i, resp.StatusCode, body, err)
		}
	}
	close(end)
	all.Wait()
	for until := time.Now().Add(10 * time.Second); g.backend.inFlight.InFlight() > 0 && time.Now().Before(until); {
		time.Sleep(ms)
	}
	if s := g.backend.ShedStats(Now()); s.InFlight != 0 || s.Orphans != 0 {
		t.Errorf("at the end %+v", s)
	}
}

// A request that is answered when its backend is to be told finds out nothing: the next one may.
func TestBackendAnswersWhenItIsTold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		inBubble(t)
		g := mustNew(t, Config{Concurrency: 1}, nil)
		ours, theirs := net.Pipe()
		defer theirs.Close()
		for range 3 {
			s := &Shelter{g: g, is: answered, left: Now()}
			if !g.backend.candour.trusts(s.left) {
				t.Fatal("it is not trusted")
			}
			if got := s.await(&line{Conn: ours}); got != Aborted {
				t.Errorf("outcome %v, want %v", got, Aborted)
			}
			time.Sleep(ms)
		}
	})
}

// The answer of a backend that is told tells how its request has ended, and whether it can be
// believed.
func TestToldBackend(t *testing.T) {
	const patience = 100 * ms
	for _, c := range []struct {
		name    string
		after   time.Duration // the client has gone
		answer  string        // of the backend; "": it closes the connection
		want    Outcome
		trusted bool
	}{
		{"stops", ms, "HTTP/1.1 200 OK\r\n\r\n", Aborted, true},
		{"works on", 900 * ms, "HTTP/1.1 200 OK\r\n\r\n", Served, true},
		{"works on, and fails", 900 * ms, "HTTP/1.1 500 No\r\n\r\n", Served, true},
		{"answers in parts", 900 * ms, "HTTP/1.1 103 Early Hints\r\n\r\nHTTP/1.1 404 No\r\n\r\n", Served, true},
		{"works for ever", time.Hour, "", Aborted, true},
		{"closes the connection", ms, "", Aborted, false},
		{"closes it in the middle", ms, "HTTP/1.1 20", Aborted, false},
		{"speaks no HTTP", ms, "220 mail\r\n", Aborted, false},
		{"is a gateway", ms, "HTTP/1.1 499 Gone\r\n\r\n", Aborted, false},
		{"is a gateway that waits", 900 * ms, "HTTP/1.1 504 Late\r\n\r\n", Aborted, false},
	} {
		synctest.Test(t, func(t *testing.T) {
			inBubble(t)
			g := mustNew(t, Config{Concurrency: 1}, nil)
			ours, theirs := net.Pipe()
			s := &Shelter{g: g, began: Now(), is: sent}
			time.Sleep(patience)
			s.left = Now()
			time.AfterFunc(c.after, func() {
				_, _ = io.WriteString(theirs, c.answer)
				theirs.Close()
			})
			got := s.await(&line{Conn: ours})
			if took := Now() - s.left; got != c.want || took != min(c.after, longestOrphan) {
				t.Errorf("%s: outcome %v after %v, want %v after %v", c.name, got, took, c.want, c.after)
			}
			if trusted := g.backend.candour.trusts(Now()); trusted != c.trusted {
				t.Errorf("%s: it is trusted: %v", c.name, trusted)
			}
			if !g.backend.candour.trusts(Now() + doubtful + time.Second) {
				t.Errorf("%s: it is not trusted again after %v", c.name, doubtful)
			}
			ours.Close()
		})
	}
}

// transport is a connection to a backend that answers when it likes.
type transport struct {
	upload  time.Duration // until the request is sent
	answers time.Duration
	calls   int
}

func (tr *transport) RoundTrip(r *http.Request) (*http.Response, error) {
	tr.calls++
	trace := httptrace.ContextClientTrace(r.Context())
	if trace.GotConn == nil {
		trace = &httptrace.ClientTrace{
			GotConn: func(httptrace.GotConnInfo) {}, WroteHeaderField: func(string, []string) {},
			WroteRequest: func(httptrace.WroteRequestInfo) {}, GotFirstResponseByte: func() {},
		}
	}
	trace.GotConn(httptrace.GotConnInfo{Conn: struct{ net.Conn }{}})
	trace.WroteHeaderField("Host", nil)
	for i, wait := range []time.Duration{tr.upload, tr.answers} {
		select {
		case <-time.After(wait):
		case <-r.Context().Done():
			return nil, r.Context().Err()
		}
		if i == 0 {
			trace.WroteRequest(httptrace.WroteRequestInfo{})
		}
	}
	trace.GotFirstResponseByte()
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

// A place is kept for as long as the backend has work, at most 10 s after the hang-up, also
// when the Guard has been replaced meanwhile.
func TestPlaceOfAnOrphan(t *testing.T) {
	for _, c := range []struct {
		name     string
		orphans  Orphans
		tr       transport
		patience time.Duration
		deadline bool // the server's own ends the request, and no client leaves
		until    time.Duration
	}{
		{"works on", "", transport{answers: 2 * time.Second}, ms, false, 3 * time.Second},
		{"free", OrphansFree, transport{answers: 2 * time.Second}, ms, false, ms},
		{"never answers", "", transport{answers: time.Hour}, ms, false, longestOrphan + ms},
		{"in the upload", "", transport{upload: 2 * time.Second, answers: time.Hour}, time.Second, false, time.Second + longestOrphan},
		{"after the upload", "", transport{upload: 2 * time.Second, answers: time.Second}, 2500 * ms, false, 4 * time.Second},
		{"in the response", "", transport{answers: 2 * time.Second}, 2500 * ms, false, 2500 * ms},
		{"stays", "", transport{answers: 2 * time.Second}, time.Hour, false, 3 * time.Second},
		{"late", "", transport{answers: 2 * time.Second}, 500 * ms, true, 500 * ms},
	} {
		synctest.Test(t, func(t *testing.T) {
			inBubble(t)
			state := new(State)
			g := mustNew(t, Config{Concurrency: 1, PerClient: 1, Orphans: c.orphans, Pushback: undithered}, state)
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
				t.Errorf("%s: the place is held for %v, after %d calls; want %v", c.name, took, c.tr.calls, c.until)
			}
			if s := state.Backend.ShedStats(Now()); s.InFlight != 1 || s.Orphans != 0 || s.Clients != 0 {
				t.Errorf("%s: in the end %+v", c.name, s)
			}
		})
	}
}

func BenchmarkShelter(b *testing.B) {
	for _, kind := range []Orphans{OrphansFree, OrphansKeep} {
		b.Run(string(kind), func(b *testing.B) {
			g := Must(New(Config{Concurrency: 100, Orphans: kind}, nil))
			ctx, cancel := context.WithCancel(context.Background())
			defer cancel()
			r := httptest.NewRequestWithContext(ctx, "GET", "/", nil)
			b.ReportAllocs()
			for b.Loop() {
				d := g.Admit(Now(), Request{})
				_, s := g.Shelter(r, nil, &d)
				d.Done(Now(), s.End(Served))
			}
		})
	}
}

// TestMain lets more tests run in parallel than there are processors: they wait for
// sockets and for time to pass.
func TestMain(m *testing.M) {
	flag.Parse()
	if err := flag.Set("test.parallel", "6"); err != nil {
		panic(err)
	}
	os.Exit(m.Run())
}
