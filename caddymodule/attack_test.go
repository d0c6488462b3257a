package caddymodule

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
	"github.com/quic-go/quic-go/http3"
	"golang.org/x/net/http2"

	"github.com/herdshield/shield/caddymodule/upload"
)

// roomFor is a shield that has room for n requests at once.
func roomFor(n int) string {
	return fmt.Sprintf(`{"handler": "shield", "name": "s", "concurrency": {"limit": %d}},`, n)
}

// A flood of new keys costs memory up to a bound that the config sets, and no client over
// its limit is forgotten. In the first flood each key could send more. In the second each is
// over its limit with its first request.
func TestFloodOfKeysIsBounded(t *testing.T) {
	const maxKeys = 10_000
	keys := 200_000
	if raceEnabled {
		keys = 15_000 // one goroutine sends them all
	}
	for _, c := range []struct {
		name  string
		burst int
	}{
		{"keys that could send more", 3},
		{"keys over their limit", 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := start(t, setup{handlers: fmt.Sprintf(`{"handler": "shield", "name": "s", "zones": [
				{"name": "z", "key": "{http.request.header.X-Api-Key}", "rate": 1, "per": "1h", "burst": %d, "max_keys": %d}
			]},`, c.burst, maxKeys) + respondOK})
			h := r.handler()
			admitted := 0
			next := caddyhttp.HandlerFunc(func(http.ResponseWriter, *http.Request) error {
				admitted++
				return nil
			})
			req := httptest.NewRequest(http.MethodGet, "/", nil)
			w := &noWriter{header: http.Header{}}
			send := func(key string) (status int) {
				req.Header["X-Api-Key"] = []string{key}
				clear(w.header)
				w.status = http.StatusOK
				if err := h.ServeHTTP(w, req, next); err != nil {
					t.Fatal(err)
				}
				return w.status
			}
			for range c.burst {
				if send("greedy") != http.StatusOK {
					t.Fatal("refused within the burst")
				}
			}
			send("greedy") // the first refusal allocates the memory for all
			before := heap()
			rng := rand.New(rand.NewPCG(4, 5))
			for i := range keys {
				send(strconv.FormatUint(rng.Uint64(), 16))
				if i%1000 == 0 && send("greedy") != http.StatusTooManyRequests {
					t.Fatalf("after %d keys of the flood the client that is over its limit was admitted", i)
				}
			}
			grown := heap() - before
			if grown > 1<<20 {
				t.Errorf("the flood took %d bytes; want at most 1 MiB for %d keys", grown, maxKeys)
			}
			z := r.status().Zones[0]
			if z.Keys > maxKeys || z.Keys < maxKeys/2 {
				t.Errorf("%d keys are remembered, want at most %d, and half of that", z.Keys, maxKeys)
			}
			if z.Admitted+z.Refused != uint64(keys+keys/1000+c.burst+1) || z.Admitted != uint64(admitted) {
				t.Errorf("%d admitted, %d seen, %d refused; want %d in all", z.Admitted, admitted, z.Refused, keys+keys/1000+c.burst+1)
			}
			t.Logf("heap +%d KiB, %d keys, %d evicted, %d admitted from shared buckets", grown>>10, z.Keys, z.Evicted, z.Shared)
		})
	}
}

// heap returns how much memory is in use.
func heap() int64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// noWriter is a ResponseWriter that keeps the status only.
type noWriter struct {
	header http.Header
	status int
}

func (w *noWriter) Header() http.Header         { return w.header }
func (w *noWriter) WriteHeader(status int)      { w.status = status }
func (w *noWriter) Write(b []byte) (int, error) { return len(b), nil }

// Whatever a client does to its request, its place is given back; not earlier
// than the backend is done with it, either.
func TestEveryEndGivesThePlaceBack(t *testing.T) {
	early := strings.Repeat("x", upload.MaxEarly) // only then the backend hears of it
	chunks := fmt.Sprintf("%x\n%s\n", len(early), early)
	const chunk = "400\n" // 1024 bytes, in hexadecimal
	for _, c := range []struct {
		name string
		send string        // by the client, after which its request is at the backend
		then func(w *wire) // what it does next
	}{
		{"it uploads slowly", "POST /read HTTP/1.1\nHost: x\nContent-Length: 16404\n\n" + early, func(w *wire) {
			for range 10 {
				dawdle(time.Millisecond)
				w.send("12")
			}
			if a := w.answer(); a.StatusCode != http.StatusOK || a.body != "read 16404" {
				w.Errorf("%d %q", a.StatusCode, a.body)
			}
		}},
		{"it is gone in mid-upload", "POST /read HTTP/1.1\nHost: x\nContent-Length: 17000\n\n" + early + "12345", func(w *wire) { _ = w.Close() }},
		{"it is gone in mid-upload of chunks", "POST /read HTTP/1.1\nHost: x\nTransfer-Encoding: chunked\n\n" + chunks + chunk + "12345", func(w *wire) { _ = w.Close() }},
		{"it breaks a chunk", "POST /read HTTP/1.1\nHost: x\nTransfer-Encoding: chunked\n\n" + chunks, func(w *wire) { w.send("no number\n"); _, _ = w.r.ReadByte() }},
		{"it is gone before the answer", "GET /hang HTTP/1.1\nHost: x\n\n", func(w *wire) { _ = w.Close() }},
		{"it is gone in mid-answer", "GET /stream HTTP/1.1\nHost: x\n\n", func(w *wire) { w.head(); _ = w.Close() }},
		{"it closes its half in mid-answer", "GET /stream HTTP/1.1\nHost: x\n\n", func(w *wire) {
			w.head()
			_ = w.Conn.(*net.TCPConn).CloseWrite()
			_, _ = io.Copy(io.Discard, w.r)
		}},
		{"the backend breaks off", "GET /break HTTP/1.1\nHost: x\n\n", func(w *wire) {
			if a, err := answer(w.head(), nil); err == nil {
				w.Errorf("the whole of %q", a.body)
			}
		}},
		{"the backend is silent and gone", "GET /gone HTTP/1.1\nHost: x\n\n", func(w *wire) {
			if a := w.answer(); a.StatusCode != http.StatusBadGateway {
				w.Errorf("%d, want 502", a.StatusCode)
			}
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			entered, looked := make(chan struct{}, 10), make(chan struct{})
			backend := serveBackend(t, func(w http.ResponseWriter, r *http.Request) {
				entered <- struct{}{}
				switch r.URL.Path {
				case "/read":
					n, err := io.Copy(io.Discard, r.Body)
					if err == nil {
						fmt.Fprintf(w, "read %d", n)
					}
				case "/hang":
					<-r.Context().Done()
				case "/stream":
					for r.Context().Err() == nil {
						fmt.Fprint(w, strings.Repeat("x", 1000))
						_ = http.NewResponseController(w).Flush()
						dawdle(time.Millisecond)
					}
				case "/break":
					w.Header().Set("Content-Length", "1000")
					fmt.Fprint(w, "not all")
					_ = http.NewResponseController(w).Flush()
					<-looked
					panic(http.ErrAbortHandler)
				case "/gone":
					<-looked
					panic(http.ErrAbortHandler)
				}
			})
			r := start(t, setup{handlers: roomFor(1) + proxyTo(backend, "")})
			w := r.dial()
			w.send("%s", c.send)
			receive(t, "a request at the backend", entered)
			if n := r.inFlight(); n != 1 {
				t.Errorf("%d in flight at the backend, want 1", n)
			}
			if a := r.get("/ok"); a.StatusCode != http.StatusServiceUnavailable || a.Header.Get("Retry-After") == "" {
				t.Errorf("without room: %d, Retry-After %q; want 503 with one", a.StatusCode, a.Header.Get("Retry-After"))
			}
			close(looked)
			c.then(w)
			r.drains()
			if a := r.get("/ok"); a.StatusCode != http.StatusOK {
				t.Errorf("with room again: %d, want 200", a.StatusCode)
			}
			r.drains()
		})
	}
}

// A handler that panics, as reverse_proxy does on purpose when a response breaks
// off, or that fails, gives its place back.
func TestPanickingHandlerGivesItsPlaceBack(t *testing.T) {
	for _, c := range []struct {
		name   string
		next   hookFunc
		status int // 0: none, the connection ends
	}{
		{"http.ErrAbortHandler", func(http.ResponseWriter, *http.Request, caddyhttp.Handler) error { panic(http.ErrAbortHandler) }, 0},
		{"something else", func(http.ResponseWriter, *http.Request, caddyhttp.Handler) error { panic("boom") }, 0},
		{"in mid-answer", func(w http.ResponseWriter, _ *http.Request, _ caddyhttp.Handler) error {
			w.Header().Set("Content-Length", "10")
			fmt.Fprint(w, "12345")
			panic(http.ErrAbortHandler)
		}, 0},
		{"an error", func(http.ResponseWriter, *http.Request, caddyhttp.Handler) error {
			return caddyhttp.Error(http.StatusTeapot, errHook)
		}, http.StatusTeapot},
		{"an error of no kind", func(http.ResponseWriter, *http.Request, caddyhttp.Handler) error { return errHook }, http.StatusInternalServerError},
	} {
		for _, accept := range []string{"*/*", "text/event-stream"} { // with and without a Tracker
			t.Run(c.name+", Accept "+accept, func(t *testing.T) {
				r := start(t, setup{handlers: roomFor(1) + newHook(t, c.next)})
				for range 3 {
					w := r.dial()
					w.send("GET / HTTP/1.1\nHost: x\nAccept: %s\n\n", accept)
					if resp, err := http.ReadResponse(w.r, nil); err == nil {
						_, err = io.Copy(io.Discard, resp.Body)
						if resp.StatusCode == http.StatusServiceUnavailable {
							t.Fatal("no room: a place was lost")
						}
						if err == nil && resp.StatusCode != c.status {
							t.Errorf("a whole answer: %d, want %d", resp.StatusCode, c.status)
						}
					} else if c.status != 0 {
						t.Error(err)
					}
					r.drains()
				}
			})
		}
	}
}

// echoSocket is a backend that upgrades and echoes, or says "plain".
func echoSocket(w http.ResponseWriter, r *http.Request) {
	if r.Header.Get("Upgrade") != "websocket" {
		fmt.Fprint(w, "plain")
		return
	}
	conn, rw, err := http.NewResponseController(w).Hijack()
	if err != nil {
		panic(err)
	}
	defer conn.Close()
	if _, err := io.WriteString(conn, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n"); err == nil {
		_, _ = io.Copy(conn, rw)
	}
}

const upgrade = "GET /%d HTTP/1.1\nHost: x\nConnection: Upgrade\nUpgrade: websocket\nSec-WebSocket-Version: 13\nSec-WebSocket-Key: MDEyMzQ1Njc4OWFiY2RlZg==\n\n"

// A WebSocket stays for hours. It needs a place to be opened, and gives it back
// when the switch is done: 50 of them do not fill a backend with room for two.
func TestOpenWebSocketsHoldNoPlace(t *testing.T) {
	r := start(t, setup{handlers: roomFor(2) + proxyTo(serveBackend(t, echoSocket), "")})
	var open []*wire
	for i := range 50 {
		w := r.dial()
		w.send(upgrade, i)
		if resp := w.head(); resp.StatusCode != http.StatusSwitchingProtocols {
			t.Fatalf("WebSocket %d: %d, want 101", i, resp.StatusCode)
		}
		if n := r.inFlight(); n != 0 { // the client has its 101, so it is no race
			t.Fatalf("WebSocket %d: %d in flight after the switch, want 0", i, n)
		}
		w.echoes(fmt.Sprintf("hello from %d", i))
		open = append(open, w)
	}
	if a := r.get("/"); a.StatusCode != http.StatusOK || a.body != "plain" {
		t.Errorf("with 50 WebSockets open: %d, want 200", a.StatusCode)
	}
	for i, w := range open {
		w.echoes(fmt.Sprintf("still here: %d", i))
		_ = w.Close()
	}
	r.drains()
	if s := r.status().Shields[0]; s.Admitted != 51 || sum(s.Refused) != 0 {
		t.Errorf("%d admitted, %v refused; want 51 and none", s.Admitted, s.Refused)
	}
}

// A WebSocket that finds no room is refused like anything else, and one that the
// backend does not want is an ordinary request.
func TestWebSocketNeedsAPlaceToOpen(t *testing.T) {
	entered, goOn := make(chan struct{}), make(chan struct{})
	r := start(t, setup{handlers: roomFor(1) + proxyTo(serveBackend(t, func(w http.ResponseWriter, r *http.Request) {
		entered <- struct{}{}
		<-goOn
		if r.URL.Path == "/0" {
			http.Error(w, "no", http.StatusForbidden)
			return
		}
		echoSocket(w, r)
	}), "")})
	for i := range 2 {
		opening := r.dial()
		opening.send(upgrade, i)
		receive(t, "an upgrade at the backend", entered)
		late := r.dial()
		late.send(upgrade, 9)
		if a := late.answer(); a.StatusCode != http.StatusServiceUnavailable || a.Header.Get("Retry-After") == "" {
			t.Errorf("while another opens: %d, Retry-After %q; want 503", a.StatusCode, a.Header.Get("Retry-After"))
		}
		goOn <- struct{}{}
		want := []int{http.StatusForbidden, http.StatusSwitchingProtocols}[i]
		if resp := opening.head(); resp.StatusCode != want {
			t.Errorf("%d, want %d", resp.StatusCode, want)
		}
		r.drains()
	}
}

// The stream of an EventSource gives its place back when it begins. Any other holds it until it
// ends, as any other response.
func TestEventStreams(t *testing.T) {
	for _, c := range []struct {
		accept, comes string
		holds         int
	}{
		{"text/event-stream", "text/event-stream", 0},
		{"text/event-stream;q=0.9", "text/event-stream; charset=utf-8", 0},
		{"application/json, text/event-stream", "text/event-stream", 1}, // an answer in parts
		{"application/json, text/event-stream", "application/json", 1},
		{"*/*", "text/event-stream", 1},
		{"text/event-stream", "application/json", 1}, // asked for, but something else comes
	} {
		t.Run(c.accept+" "+c.comes, func(t *testing.T) {
			more := make(chan string)
			r := start(t, setup{handlers: roomFor(1) + proxyTo(serveBackend(t, func(w http.ResponseWriter, r *http.Request) {
				if r.URL.Path != "/events" {
					return
				}
				w.Header().Set("Content-Type", c.comes)
				_ = http.NewResponseController(w).Flush()
				for event := range more {
					fmt.Fprintf(w, "data: %s\n\n", event)
					_ = http.NewResponseController(w).Flush()
				}
			}), "")})
			req, _ := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+r.addr+"/events", nil)
			req.Header.Set("Accept", c.accept)
			resp, err := r.client.Do(req)
			if err != nil {
				t.Fatal(err)
			}
			defer resp.Body.Close()
			event := func(text string) {
				t.Helper()
				more <- text
				want := "data: " + text + "\n\n"
				got := make([]byte, len(want))
				if _, err := io.ReadFull(resp.Body, got); err != nil || string(got) != want {
					t.Fatalf("event %q, %v; want %q", got, err, want)
				}
			}
			event("one")
			if n := r.inFlight(); n != c.holds {
				t.Errorf("%d in flight while the stream goes on, want %d", n, c.holds)
			}
			want := []int{http.StatusOK, http.StatusServiceUnavailable}[c.holds]
			if a := r.get("/other"); a.StatusCode != want {
				t.Errorf("another request: %d, want %d", a.StatusCode, want)
			}
			event("two")
			close(more)
			if rest, err := io.ReadAll(resp.Body); err != nil || len(rest) > 0 {
				t.Errorf("at the end: %q, %v", rest, err)
			}
			r.drains()
			if a := r.get("/other"); a.StatusCode != http.StatusOK {
				t.Errorf("after the stream: %d, want 200", a.StatusCode)
			}
		})
	}
}

// h2cBackend runs h with HTTP/2 and without TLS, as gRPC servers in a cluster do.
func h2cBackend(t *testing.T, h http.HandlerFunc) *httptest.Server {
	srv := httptest.NewUnstartedServer(h)
	srv.Config.Protocols = new(http.Protocols)
	srv.Config.Protocols.SetUnencryptedHTTP2(true)
	srv.Start()
	t.Cleanup(func() {
		srv.CloseClientConnections()
		srv.Close()
	})
	return srv
}

// h2c makes a rig's client one of HTTP/2 without TLS, and returns the number of
// its connections.
func (r *rig) h2c() (connections *atomic.Int64) {
	connections = new(atomic.Int64)
	p := new(http.Protocols)
	p.SetUnencryptedHTTP2(true)
	transport := &http.Transport{Protocols: p, DialContext: func(ctx context.Context, network, addr string) (net.Conn, error) {
		connections.Add(1)
		return new(net.Dialer).DialContext(ctx, network, addr)
	}}
	r.client = &http.Client{Transport: transport}
	r.Cleanup(transport.CloseIdleConnections)
	return connections
}

const h2cServer = `"protocols": ["h1", "h2c"],`

// A gRPC call may be a stream that goes on for long. It is work for the backend,
// and holds its place until it ends. A call over the limit is refused in gRPC.
func TestGRPCStreamHoldsItsPlace(t *testing.T) {
	backend := h2cBackend(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/grpc")
		w.Header().Set("Trailer", "Grpc-Status")
		w.WriteHeader(http.StatusOK)
		rc := http.NewResponseController(w)
		_ = rc.Flush()
		buf := make([]byte, 100)
		for {
			n, err := r.Body.Read(buf)
			_, _ = w.Write(buf[:n])
			_ = rc.Flush()
			if err != nil {
				break
			}
		}
		w.Header().Set("Grpc-Status", "0")
	})
	r := start(t, setup{server: h2cServer, handlers: roomFor(1) + proxyTo(backend, `, "transport": {"protocol": "http", "versions": ["h2c"]}`)})
	connections := r.h2c()
	call := func(ctx context.Context) (*http.Response, *io.PipeWriter) {
		t.Helper()
		body, to := io.Pipe()
		req, _ := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+r.addr+"/pkg.Service/Method", body)
		req.Header.Set("Content-Type", "application/grpc")
		req.Header.Set("Te", "trailers")
		resp, err := r.client.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		return resp, to
	}
	refused := func() {
		t.Helper()
		resp, to := call(t.Context())
		_ = to.Close()
		a, err := answer(resp, nil)
		ms, _ := strconv.Atoi(a.Header.Get("Grpc-Retry-Pushback-Ms"))
		if err != nil || a.StatusCode != http.StatusOK || a.body != "" || a.Header.Get("Grpc-Status") != "14" || ms < 1 {
			t.Errorf("%v, %d %v %q; want UNAVAILABLE with a pushback", err, a.StatusCode, a.Header, a.body)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	for _, end := range []string{"by the client", "by cancelling"} {
		resp, to := call(ctx)
		got := make([]byte, 5)
		for i := range 5 {
			fmt.Fprintf(to, "msg %d", i)
			if _, err := io.ReadFull(resp.Body, got); err != nil || string(got) != fmt.Sprintf("msg %d", i) {
				t.Fatalf("message %d: %q, %v", i, got, err)
			}
			if n := r.inFlight(); n != 1 {
				t.Errorf("message %d: %d in flight, want 1", i, n)
			}
			refused()
		}
		if end == "by the client" {
			_ = to.Close()
			if rest, err := io.ReadAll(resp.Body); err != nil || len(rest) > 0 || resp.Trailer.Get("Grpc-Status") != "0" {
				t.Errorf("at the end: %q, %v, trailers %v", rest, err, resp.Trailer)
			}
		} else {
			cancel()
		}
		_ = resp.Body.Close()
		r.drains()
	}
	if n := connections.Load(); n != 1 {
		t.Errorf("%d connections, want 1: refusals and cancelled calls end streams only", n)
	}
}

// withExtendedConnect runs the calling test in a process of its own, with the
// setting that makes Go's HTTP/2 speak RFC 8441. It reports whether this is it.
func withExtendedConnect(t *testing.T) bool {
	t.Helper()
	const setting = "http2xconnect=1" // read when the process starts
	if strings.Contains(os.Getenv("GODEBUG"), setting) {
		return true
	}
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), exe, "-test.run", "^"+t.Name()+"$", "-test.timeout", "1m")
	cmd.Env = append(os.Environ(), "GODEBUG="+setting)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	} else if !bytes.Contains(out, []byte("PASS")) || bytes.Contains(out, []byte("no tests to run")) {
		t.Errorf("the test did not run:\n%s", out)
	}
	return false
}

// Browsers open WebSockets in a stream of HTTP/2 or HTTP/3 by an extended CONNECT
// (RFC 8441, RFC 9220). There is no switch of protocols and nothing to hijack; the
// place is given back with the 200.
func TestWebSocketsOverHTTP2HoldNoPlace(t *testing.T) {
	if !withExtendedConnect(t) {
		return
	}
	r := start(t, setup{server: h2cServer, handlers: roomFor(2) + proxyTo(serveBackend(t, echoSocket), "")})
	connections := r.h2c()
	dial := func(ctx context.Context, network, addr string, _ *tls.Config) (net.Conn, error) {
		return r.client.Transport.(*http.Transport).DialContext(ctx, network, addr)
	}
	//lint:ignore SA1019 net/http's own Transport does not send :protocol
	client := &http.Client{Transport: &http2.Transport{AllowHTTP: true, DialTLSContext: dial}}
	defer client.CloseIdleConnections()
	type socket struct {
		to   *io.PipeWriter
		from io.ReadCloser
	}
	var open []socket
	for i := range 20 {
		body, to := io.Pipe()
		resp, err := client.Transport.RoundTrip((&http.Request{
			Method: http.MethodConnect,
			URL:    &url.URL{Scheme: "http", Host: r.addr, Path: "/"},
			Header: http.Header{":protocol": {"websocket"}},
			Body:   body,
		}).WithContext(t.Context()))
		if err != nil {
			t.Fatal(err)
		}
		if resp.StatusCode != http.StatusOK {
			t.Fatalf("WebSocket %d: %d, want 200", i, resp.StatusCode)
		}
		if n := r.inFlight(); n != 0 {
			t.Fatalf("WebSocket %d: %d in flight after the switch, want 0", i, n)
		}
		open = append(open, socket{to, resp.Body})
	}
	if a := r.get("/"); a.StatusCode != http.StatusOK || a.body != "plain" {
		t.Errorf("with 20 WebSockets open: %d %q, want 200", a.StatusCode, a.body)
	}
	for i, s := range open {
		sent, got := fmt.Sprintf("hello from %2d", i), make([]byte, 13)
		fmt.Fprint(s.to, sent)
		if _, err := io.ReadFull(s.from, got); err != nil || string(got) != sent {
			t.Errorf("WebSocket %d echoed %q, %v; want %q", i, got, err, sent)
		}
		_ = s.to.Close()
		ends(t, s.from)
	}
	if n := connections.Load(); n != 2 {
		t.Errorf("%d connections, want one for all WebSockets and one for the rest", n)
	}
}

func TestWebSocketsOverHTTP3HoldNoPlace(t *testing.T) {
	cert := newCertificate(t)
	r := start(t, setup{apps: cert.apps, server: cert.server + `"protocols": ["h1", "h2", "h3"],`, handlers: roomFor(2) + proxyTo(serveBackend(t, echoSocket), "")})
	client := r.http3(cert)
	conn, err := client.transport.Dial(t.Context(), "", http3.ConfigureTLSConfig(client.tls), client.quic)
	if err != nil {
		t.Fatal(err)
	}
	h3 := client.transport.NewClientConn(conn)
	receive(t, "the server's settings", h3.ReceivedSettings())
	if !h3.Settings().EnableExtendedConnect {
		t.Fatal("Caddy does not speak RFC 9220 any more")
	}
	var open []*http3.RequestStream
	for i := range 20 {
		stream, err := h3.OpenRequestStream(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if err := stream.SendRequestHeader(&http.Request{
			Method: http.MethodConnect, Proto: "websocket", Host: "example.com",
			URL: &url.URL{Scheme: "https", Host: "example.com", Path: "/"}, Header: http.Header{},
		}); err != nil {
			t.Fatal(err)
		}
		resp, err := stream.ReadResponse()
		if err != nil || resp.StatusCode != http.StatusOK {
			t.Fatalf("WebSocket %d: %v, %v; want 200", i, resp, err)
		}
		if n := r.inFlight(); n != 0 {
			t.Fatalf("WebSocket %d: %d in flight after the switch, want 0", i, n)
		}
		open = append(open, stream)
	}
	plain, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "https://example.com/", nil)
	if err != nil {
		t.Fatal(err)
	}
	if a, err := answer(h3.RoundTrip(plain)); err != nil || a.body != "plain" {
		t.Errorf("with 20 WebSockets open: %v %q, want it plain", err, a.body)
	}
	for i, s := range open {
		sent, got := fmt.Sprintf("hello from %2d", i), make([]byte, 13)
		if _, err := io.WriteString(s, sent); err != nil {
			t.Fatal(err)
		}
		if _, err := io.ReadFull(s, got); err != nil || string(got) != sent {
			t.Errorf("WebSocket %d echoed %q, %v; want %q", i, got, err, sent)
		}
		_ = s.Close()
		ends(t, s)
	}
}

// ends waits for the end of a stream, when its handler has returned. Caddy's Stop
// says goodbye to the WebSockets that are open, in HTTP/2 and 3 by a write that
// races with theirs.
func ends(t *testing.T, from io.Reader) {
	t.Helper()
	if rest, err := io.ReadAll(from); err != nil || len(rest) > 0 {
		t.Errorf("at the end: %q, %v", rest, err)
	}
}

// promptly is how long a refusal may take in a test on an idle machine. Promised are
// 150 ms. An answer that waits for a body takes a minute or more.
const promptly = time.Second

// quotaUsed is a shield whose only client, X-Key: greedy, has used up its quota as
// soon as it has sent one request.
func quotaUsed(pushback string) string {
	if pushback != "" {
		pushback = ", " + pushback
	}
	return `{"handler": "shield", "name": "s", "pushback": {"quota_max": "30s"` + pushback + `}, "zones": [
		{"name": "z", "key": "{http.request.header.X-Key}", "rate": 1, "per": "1h", "burst": 1}
	]},`
}

// Caddy wraps the body, so that net/http waited for a minute for the body of a request that
// was refused without reading it; and the client waited for "100 Continue". A refusal is
// prompt in every case, whether shield or error routes write it.
func TestRefusalDoesNotWaitForTheBody(t *testing.T) {
	const post = "POST / HTTP/1.1\nHost: x\nX-Key: greedy\n"
	cases := []struct {
		name   string
		head   string
		body   int  // bytes that the client has sent when it looks for the answer
		slowly bool // it goes on sending, a little at a time
		closes bool
	}{
		{"Expect, body withheld", post + "Content-Length: 1000\nExpect: 100-continue\n\n", 0, false, true},
		{"Expect, 10 MB withheld", post + "Content-Length: 10000000\nExpect: 100-continue\n\n", 0, false, true},
		{"Expect, chunks withheld", post + "Transfer-Encoding: chunked\nExpect: 100-continue\n\n", 0, false, true},
		{"100 KB withheld", post + "Content-Length: 100000\n\n", 0, false, true},
		{"100 KB slowly", post + "Content-Length: 100000\n\n", 10, true, true},
		{"10 MB withheld", post + "Content-Length: 10000000\n\n", 0, false, true},
		{"10 MB slowly", post + "Content-Length: 10000000\n\n", 10, true, true},
		{"10 MB in part", post + "Content-Length: 10000000\n\n", 300_000, false, true},
		{"chunks withheld", post + "Transfer-Encoding: chunked\n\n", 0, false, true},
		{"chunks in part", post + "Transfer-Encoding: chunked\n\n186a0\n", 1000, false, true},
		{"chunks slowly", post + "Transfer-Encoding: chunked\n\n186a0\n", 10, true, true},
		{"1 KB that is there", post + "Content-Length: 1000\n\n", 1000, false, false},
		{"100 KB that are there", post + "Content-Length: 100000\n\n", 100_000, false, false},
		{"no body", post + "Content-Length: 0\n\n", 0, false, false},
	}
	for _, writer := range []struct{ name, pushback, errors string }{
		{"direct", "", ""},
		{"error routes", "", `{"handler": "static_response", "body": "{http.error.status_code}"}`},
	} {
		t.Run(writer.name, func(t *testing.T) {
			r := start(t, setup{handlers: quotaUsed(writer.pushback) + respondOK, errors: writer.errors})
			meter := newStallMeter(t)
			if a := r.get("/", "X-Key", "greedy"); a.StatusCode != http.StatusOK {
				t.Fatalf("the first request: %d, want 200", a.StatusCode)
			}
			for _, c := range cases {
				t.Run(c.name, func(t *testing.T) {
					w := r.dial()
					w.T = t
					began, stalls := time.Now(), meter.stalls()
					w.send("%s%s", c.head, strings.Repeat("x", c.body))
					stop := make(chan struct{})
					var sending sync.WaitGroup
					if c.slowly {
						sending.Go(func() {
							for {
								select {
								case <-stop:
									return
								case <-time.After(5 * time.Millisecond): // a slow client
								}
								if _, err := io.WriteString(w.Conn, "x"); err != nil {
									return
								}
							}
						})
					}
					a := w.answer()
					took := time.Since(began)
					close(stop)
					sending.Wait()
					if a.StatusCode != http.StatusTooManyRequests || a.Header.Get("Retry-After") != "30" || a.body == "" {
						t.Errorf("%d, Retry-After %q, %q; want a whole 429 with 30", a.StatusCode, a.Header.Get("Retry-After"), a.body)
					}
					if most := meter.bound(promptly, stalls); took > most {
						t.Errorf("it took %v, want at most %v", took, most)
					}
					t.Logf("%v", took)
					if c.closes || writer.errors != "" && c.body > upload.MaxEarly { // the routes may take a while
						// The server hangs up, and soon: it does not listen to the body.
						if _, err := io.Copy(io.Discard, w.r); err != nil && !isReset(err) {
							t.Errorf("the connection is still open: %v", err)
						}
						// net/http lingers for 500 ms.
						if hung, most := time.Since(began), meter.bound(promptly+time.Second, stalls); hung > most {
							t.Errorf("the connection was open for %v, want at most %v", hung, most)
						}
						return
					}
					if a.Close && meter.stalls() > stalls {
						t.Skipf("needs a machine that reads the body within 50 ms; it stood still for %v", meter.stalls()-stalls)
					}
					// The connection lives on, beyond the deadline that the refusal set.
					dawdle(70 * time.Millisecond)
					w.send("GET / HTTP/1.1\nHost: x\nX-Key: %s\n\n", t.Name())
					if a := w.answer(); a.StatusCode != http.StatusOK || a.body != "ok" {
						t.Errorf("next on the connection: %d %q, want 200", a.StatusCode, a.body)
					}
				})
			}
		})
	}
}

// isReset reports whether a connection ended because the other side has closed it.
func isReset(err error) bool {
	var timeout net.Error
	return !(errors.As(err, &timeout) && timeout.Timeout())
}

// A client that posts again and again, refused or not, needs one connection. A refusal
// leaves the body only 50 ms, so that on a busy machine it may take several attempts.
func TestKeepAliveSurvivesRefusedPosts(t *testing.T) {
	r := start(t, setup{handlers: quotaUsed("") + newHook(t, func(w http.ResponseWriter, r *http.Request, _ caddyhttp.Handler) error {
		n, err := io.Copy(io.Discard, r.Body)
		fmt.Fprintf(w, "read %d", n)
		return err
	})})
	meter := newStallMeter(t)
	for attempt, deadline := 0, time.Now().Add(patience); ; attempt++ {
		stalls := meter.stalls()
		err := postsOnOneConnection(r, attempt)
		if err == nil {
			return
		}
		if meter.stalls() == stalls {
			t.Fatal(err)
		}
		if time.Now().After(deadline) {
			t.Skipf("needs a machine that is idle for half a second within %v: %v", patience, err)
		}
	}
}

func postsOnOneConnection(r *rig, attempt int) error {
	conn, err := net.Dial("tcp", r.addr)
	if err != nil {
		return err
	}
	defer conn.Close()
	from := bufio.NewReader(conn)
	for i, size := range []int{10, 10, 1000, 100_000, 250_000, 10} {
		key := fmt.Sprint("greedy ", attempt)
		want, body := http.StatusTooManyRequests, ""
		if i == 0 || i == 5 {
			key += fmt.Sprint(" ", i)
			want, body = http.StatusOK, fmt.Sprintf("read %d", size)
		}
		if i == 1 {
			r.get("/", "X-Key", key)
		}
		if _, err := fmt.Fprintf(conn, "POST / HTTP/1.1\r\nHost: x\r\nX-Key: %s\r\nContent-Length: %d\r\n\r\n%s", key, size, strings.Repeat("x", size)); err != nil {
			return err
		}
		a, err := answer(http.ReadResponse(from, nil))
		if err != nil {
			return err
		}
		if a.StatusCode != want || body != "" && a.body != body || a.Close {
			return fmt.Errorf("post %d of %d bytes: %d %q, close %v; want %d %q on a connection that stays", i, size, a.StatusCode, a.body, a.Close, want, body)
		}
	}
	return nil
}

// With error routes, refusals look like the other errors of the site. The routes get the
// headers of the refusal, and placeholders that say what happened.
func TestErrorRoutesWriteRefusals(t *testing.T) {
	const page = `{"handler": "static_response", "headers": {"X-Page": ["yes"]}, "body": "{http.error.status_code} {http.error.message} {http.shield.decision} {http.shield.reason} {http.shield.zone} {http.shield.retry_after} {http.shield.retry_after_ms}"}`
	const shielded = `{"handler": "shield", "name": "s", "pushback": {"dither": false, "quota_max": "30s"%s}, "capacity": {"rate": 1, "per": "1h", "burst": 2}, "zones": [
		{"name": "z", "key": "{http.request.header.X-Key}", "rate": 1, "per": "1h", "burst": 1}
	]},` + respondOK
	for _, c := range []struct {
		name, pushback, errors string
		quota, capacity        string // the body, without what Retry-After says; "*" is one by shield
	}{
		{"auto with routes", "", page, "429 refused by shield refuse quota z", "503 refused by shield refuse capacity "},
		{"auto without", "", "", "*", "*"},
		{"direct with routes", `, "respond": "direct"`, page, "*", "*"},
		{"error with routes", `, "respond": "error", "max": "7s"`, page, "429 refused by shield refuse quota z", "503 refused by shield refuse capacity "},
		{"error without", `, "respond": "error"`, "", "", ""}, // as Caddy answers any error
		{"other statuses", `, "status": 420, "overload_status": 529`, page, "420 refused by shield refuse quota z", "529 refused by shield refuse capacity "},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := start(t, setup{handlers: fmt.Sprintf(shielded, c.pushback), errors: c.errors})
			r.get("/", "X-Key", "one")
			check := func(key string, status int, want, policy string) {
				t.Helper()
				a := r.get("/", "X-Key", key)
				if strings.Contains(c.pushback, "420") {
					status = map[int]int{429: 420, 503: 529}[status]
				}
				if a.StatusCode != status {
					t.Errorf("%s: %d, want %d", key, a.StatusCode, status)
				}
				// The next token comes in an hour. A client over its quota is told the most that
				// such clients are told, and others a time in the last quarter of theirs.
				most := 30
				if key != "one" && strings.Contains(c.pushback, "7s") {
					most = 7
				}
				seconds, ms := a.Header.Get("Retry-After"), a.Header.Get("Retry-After-Ms")
				n, _ := strconv.Atoi(ms)
				if status == 429 && n != 1000*most || n < 750*most || n > 1000*most || seconds != strconv.Itoa((n+999)/1000) {
					t.Errorf("%s: Retry-After %s and %s ms, want up to %d s", key, seconds, ms, most)
				}
				if want != "*" && want != "" {
					want += " " + seconds + " " + ms
				}
				if want == "*" {
					if a.Header.Get("Content-Type") != "application/problem+json" || a.Header.Get("X-Page") != "" {
						t.Errorf("%s: %v %q, want shield's own", key, a.Header, a.body)
					}
				} else if a.body != want || (a.Header.Get("X-Page") == "yes") != (want != "") {
					t.Errorf("%s: %v %q, want %q", key, a.Header, a.body, want)
				}
				for name, want := range map[string]string{"Cache-Control": "no-store", "Ratelimit-Policy": policy} {
					if got := a.Header.Values(name); strings.Join(got, "|") != want {
						t.Errorf("%s: %s is %q, want %q", key, name, got, want)
					}
				}
			}
			check("one", 429, c.quota, `"z";q=1;w=3600`)
			r.get("/", "X-Key", "two")
			check("three", 503, c.capacity, "")
		})
	}
}

// In HTTP/2 "Connection: close" would end the other requests. A refusal ends its own stream,
// with or without a body on its way, and the connection goes on.
func TestHTTP2ConnectionSurvivesRefusals(t *testing.T) {
	for _, writer := range []struct{ name, errors string }{
		{"direct", ""},
		{"error routes", `{"handler": "static_response"}`},
	} {
		t.Run(writer.name, func(t *testing.T) {
			cert := newCertificate(t)
			g := newGate(t)
			r := start(t, setup{
				apps: cert.apps, server: cert.server + `"protocols": ["h1", "h2"],`,
				handlers: quotaUsed("") + proxyTo(g.Server, ""), errors: writer.errors,
			})
			var connections atomic.Int64
			transport := &http.Transport{ForceAttemptHTTP2: true, TLSClientConfig: cert.trust, DialContext: func(ctx context.Context, network, _ string) (net.Conn, error) {
				connections.Add(1)
				return new(net.Dialer).DialContext(ctx, network, r.addr)
			}}
			defer transport.CloseIdleConnections()
			client := &http.Client{Transport: transport}
			do := func(key string, body io.Reader) (answered, error) {
				req, _ := http.NewRequestWithContext(t.Context(), http.MethodPost, "https://example.com/", body)
				req.Header.Set("X-Key", key)
				return answer(client.Do(req))
			}
			held := make(chan answered, 1)
			go func() {
				a, err := do("greedy", nil)
				if err != nil {
					t.Error(err)
				}
				held <- a
			}()
			receive(t, "a request at the backend", g.entered)
			meter := newStallMeter(t)
			endless, to := io.Pipe()
			defer to.Close()
			for i, body := range []io.Reader{nil, strings.NewReader("short"), strings.NewReader(strings.Repeat("x", 1_000_000)), endless, nil} {
				began, stalls := time.Now(), meter.stalls()
				a, err := do("greedy", body)
				if err != nil || a.StatusCode != http.StatusTooManyRequests || a.ProtoMajor != 2 || a.Header.Get("Retry-After") != "30" || a.Header.Get("Connection") != "" {
					t.Errorf("refusal %d: %v, %+v", i, err, a.Response)
				}
				if took, most := time.Since(began), meter.bound(promptly, stalls); took > most {
					t.Errorf("refusal %d took %v, want at most %v", i, took, most)
				}
			}
			g.goOn <- struct{}{}
			if a := receive(t, "an answer", held); a.body != "served" {
				t.Errorf("the request that was in flight all along got %q", a.body)
			}
			if n := connections.Load(); n != 1 {
				t.Errorf("%d connections, want 1", n)
			}
		})
	}
}

// The same in HTTP/3: all on one connection, which is alive at the end.
func TestHTTP3ConnectionSurvivesRefusals(t *testing.T) {
	cert := newCertificate(t)
	r := start(t, setup{apps: cert.apps, server: cert.server + `"protocols": ["h1", "h2", "h3"],`, handlers: `
		{"handler": "shield", "name": "s", "pushback": {"quota_max": "30s"}, "zones": [{"name": "z", "key": "{http.request.host}", "rate": 1, "per": "1h", "burst": 1}]},` + respondOK})
	client := r.http3(cert)
	conn, err := client.transport.Dial(t.Context(), "", http3.ConfigureTLSConfig(client.tls), client.quic)
	if err != nil {
		t.Fatal(err)
	}
	h3 := client.transport.NewClientConn(conn)
	for i, body := range []string{"", "", "short", strings.Repeat("x", 1_000_000), ""} {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "https://example.com/", strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		a, err := answer(h3.RoundTrip(req))
		if err != nil {
			t.Fatalf("request %d: %v", i, err)
		}
		if want := map[bool]int{true: http.StatusOK, false: http.StatusTooManyRequests}[i == 0]; a.StatusCode != want || a.ProtoMajor != 3 {
			t.Errorf("request %d: %s %s, want %d", i, a.Proto, a.Status, want)
		}
		if i > 0 && a.Header.Get("Retry-After") != "30" {
			t.Errorf("request %d: %v", i, a.Header)
		}
	}
	if err := context.Cause(conn.Context()); err != nil {
		t.Errorf("the connection has ended: %v", err)
	}
}
