package caddymodule

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/quic-go/quic-go/http3"

	"github.com/herdshield/shield/caddymodule/upload"
)

// roomFor is a shield that has room for n requests at once.
func roomFor(n int) string {
	return fmt.Sprintf(`{"handler": "shield", "name": "s", "concurrency": {"limit": %d}, "queue": {"off": true}},`, n)
}

// Whatever a client does to its request, its permit is given back; not earlier
// than the backend is done with it, either.
func TestEveryEndGivesThePermitBack(t *testing.T) {
	early := strings.Repeat("x", upload.MaxEarly) // only then the backend hears of it
	chunks := fmt.Sprintf("%x\n%s\n", len(early), early)
	const chunk = "400\n" // 1024 bytes, in hexadecimal
	leaves := func(w *wire) { _ = w.Close() }
	breaks := func(w *wire) { w.send("no number\n"); _, _ = w.r.ReadByte() }
	gets := func(want string) func(*wire) { // status and body; "": not all of a response
		return func(w *wire) {
			a, err := answer(http.ReadResponse(w.r, nil))
			if err != nil && want != "" || err == nil && fmt.Sprint(a.StatusCode, " ", a.body) != want {
				w.Errorf("it gets %v %q, %v; want %q", a.Response, a.body, err, want)
			}
		}
	}
	for _, c := range []struct {
		name string
		send string        // by the client, after which its request is at the backend
		then func(w *wire) // what it does next
	}{
		{"it uploads slowly", "POST /read HTTP/1.1\nHost: x\nContent-Length: 16404\n\n" + early, func(w *wire) {
			for range 10 {
				pass(2 * time.Second) // longer than for the part that is read early
				w.send("12")
			}
			gets("200 read 16404")(w)
		}},
		{"it is gone in mid-upload", "POST /read HTTP/1.1\nHost: x\nContent-Length: 17000\n\n" + early + "12345", leaves},
		{"it is gone in mid-upload of chunks", "POST /read HTTP/1.1\nHost: x\nTransfer-Encoding: chunked\n\n" + chunks + chunk + "12345", leaves},
		{"it breaks a chunk", "POST /read HTTP/1.1\nHost: x\nTransfer-Encoding: chunked\n\n" + chunks, breaks},
		{"it is gone before the response", "GET /hang HTTP/1.1\nHost: x\n\n", leaves},
		{"it is gone in mid-answer", "GET /stream HTTP/1.1\nHost: x\n\n", func(w *wire) { w.head(); leaves(w) }},
		{"the backend breaks off", "GET /break HTTP/1.1\nHost: x\n\n", gets("")},
		{"the backend is silent and gone", "GET /gone HTTP/1.1\nHost: x\n\n", gets("502 ")},
	} {
		t.Run(c.name, func(t *testing.T) {
			entered, looked := make(chan struct{}, 10), make(chan struct{})
			backend := func(w http.ResponseWriter, r *http.Request) {
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
						pass(time.Millisecond)
					}
				case "/break":
					w.Header().Set("Content-Length", "1000")
					fmt.Fprint(w, "not all")
					_ = http.NewResponseController(w).Flush()
					fallthrough
				case "/gone":
					<-looked
					panic(http.ErrAbortHandler)
				}
			}
			r := start(t, setup{handlers: roomFor(1) + proxyOnWires("")})
			r.onWires(t, new(http.Server), backend, func(r *rig) {
				w := r.dial()
				w.send("%s", c.send)
				receive(t, "a request at the backend", entered)
				if a, n := r.get("/ok"), r.inFlight(); a.StatusCode != http.StatusServiceUnavailable || a.Header.Get("Retry-After") == "" || n != 1 {
					t.Errorf("without room: %d, Retry-After %q; want 503 with one; %d in flight, want 1", a.StatusCode, a.Header.Get("Retry-After"), n)
				}
				close(looked)
				c.then(w)
				r.drains()
				awaitTransit()
				r.wantStatus(http.StatusOK, "/ok")
				r.drains()
			})
		})
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

// Browsers open WebSockets in a stream of HTTP/3 by an extended CONNECT (RFC 9220). There is no switch
// of protocols and nothing to hijack; the permit is given back with the 200.
func TestWebSocketsOverHTTP3HoldNoPermit(t *testing.T) {
	cert := newCertificate(t)
	r := start(t, setup{apps: cert.apps, server: cert.server + `"protocols": ["h1", "h2", "h3"],`, handlers: roomFor(2) + proxyTo(serveBackend(t, echoSocket), "")})
	_, h3 := r.dialHTTP3(cert)
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
		connect := &http.Request{Method: http.MethodConnect, Proto: "websocket", Host: "example.com", URL: &url.URL{Scheme: "https", Host: "example.com", Path: "/"}, Header: http.Header{}}
		if err := stream.SendRequestHeader(connect); err != nil {
			t.Fatal(err)
		}
		resp, err := stream.ReadResponse()
		if err != nil || resp.StatusCode != http.StatusOK || r.inFlight() != 0 {
			t.Fatalf("WebSocket %d: %v, %v, and %d in flight after the switch; want 200 and 0", i, resp, err, r.inFlight())
		}
		open = append(open, stream)
	}
	for i, s := range open {
		sent, got := fmt.Sprintf("hello from %2d", i), make([]byte, 13)
		_, _ = io.WriteString(s, sent)
		if _, err := io.ReadFull(s, got); err != nil || string(got) != sent {
			t.Errorf("WebSocket %d echoed %q, %v; want %q", i, got, err, sent)
		}
		_ = s.Close()
		if rest, err := io.ReadAll(s); err != nil || len(rest) > 0 { // or Caddy's goodbye races with it
			t.Errorf("at the end: %q, %v", rest, err)
		}
	}
}

// quotaUsed is a shield whose only client, X-Key: greedy, has used up its quota as
// soon as it has sent one request.
const quotaUsed = `{"handler": "shield", "name": "s", "pushback": {"quota_max": "30s"}, "zones": [
	{"name": "z", "key": "{http.request.header.X-Key}", "rate": 1, "per": "1h", "burst": 1}
]},`

// Caddy wraps the body, so that net/http waited for a minute for the body of a request that
// was rejected without reading it; and the client waited for "100 Continue". A rejection is
// prompt in every case, whether shield or error routes write it.
func TestRejectionDoesNotWaitForTheBody(t *testing.T) {
	const post = "POST / HTTP/1.1\nHost: x\nX-Key: greedy\n"
	cases := []struct {
		name, head string
		body       int  // bytes that the client has sent when it looks for the response
		slowly     bool // it goes on sending, a little at a time
		closes     bool
	}{
		{"Expect, body withheld", post + "Content-Length: 1000\nExpect: 100-continue\n\n", 0, false, true},
		{"Expect, chunks withheld", post + "Transfer-Encoding: chunked\nExpect: 100-continue\n\n", 0, false, true},
		{"100 KB withheld", post + "Content-Length: 100000\n\n", 0, false, true},
		{"10 MB slowly", post + "Content-Length: 10000000\n\n", 10, true, true},
		{"10 MB in part", post + "Content-Length: 10000000\n\n", 300_000, false, true},
		{"chunks slowly", post + "Transfer-Encoding: chunked\n\n186a0\n", 10, true, true},
		{"1 KB that is there", post + "Content-Length: 1000\n\n", 1000, false, false},
		{"100 KB that are there", post + "Content-Length: 100000\n\n", 100_000, false, false},
		{"no body", post + "Content-Length: 0\n\n", 0, false, false},
	}
	const routes, unbounded = `{"handler": "static_response", "body": "{http.error.status_code}"}`, `"read_idle_timeout": -1,`
	for name, with := range map[string]setup{"direct": {}, "error routes": {errors: routes}, "and bodies may take for ever": {errors: routes, server: unbounded}} {
		with.handlers = quotaUsed + respondOK
		r := start(t, with)
		r.onWires(t, new(http.Server), nil, func(r *rig) {
			r.wantStatus(http.StatusOK, "/", "X-Key", "greedy")
			for _, c := range cases {
				w, began := r.dial(), time.Now()
				w.send("%s%s", c.head, strings.Repeat("x", c.body))
				ctx, stop := context.WithCancel(r.Context())
				if c.slowly {
					go func() {
						for ctx.Err() == nil {
							pass(5 * time.Millisecond)
							_, _ = io.WriteString(w.Conn, "x")
						}
					}()
				}
				a := w.answer()
				stop()
				if a.StatusCode != http.StatusTooManyRequests || a.Header.Get("Retry-After") != "30" || a.body == "" {
					t.Errorf("%s, %s: %d, Retry-After %q, %q; want a whole 429 with 30", name, c.name, a.StatusCode, a.Header.Get("Retry-After"), a.body)
				}
				closes := c.closes || with.errors != "" && c.body > upload.MaxEarly || with.server != "" && c.body > 0 // the routes may take a while
				if closes {                                                                                            // the server hangs up, and soon: it does not listen to the body
					_, _ = io.Copy(io.Discard, w.r)
				}
				if took := time.Since(began); took > 600*time.Millisecond {
					t.Errorf("%s, %s: it took %v", name, c.name, took)
				}
				if !closes { // the connection lives on, beyond the deadline that the rejection set
					pass(70 * time.Millisecond)
					w.send("GET / HTTP/1.1\nHost: x\nX-Key: %s\n\n", name+c.name)
					if a := w.answer(); a.StatusCode != http.StatusOK || a.body != "ok" {
						t.Errorf("%s, %s: next on the connection: %d %q, want 200", name, c.name, a.StatusCode, a.body)
					}
				}
				_ = w.Close()
			}
		})
		_ = caddy.Stop()
	}
}

// With error routes, rejections look like the other errors of the site. The routes get the
// headers of the rejection, and placeholders that say what happened.
func TestErrorRoutesWriteRejections(t *testing.T) {
	const page = `{"handler": "static_response", "body": "{http.error.status_code} {http.error.message} {http.shield.decision} {http.shield.reason} {http.shield.zone} {http.shield.retry_after} {http.shield.retry_after_ms}"}`
	const own = `{"type":` // how shield's own body begins
	for _, c := range []struct {
		name, pushback, errors string
		quota, capacity        string // what responses begin with
	}{
		{"with routes", "", page, "429 429 rejected by shield reject quota z 30 30000", "503 503 rejected by shield reject capacity "},
		{"without", "", "", "429 " + own, "503 " + own},
		{"other statuses", `, "status": 420, "overload_status": 529`, page, "420 420 rejected by shield reject quota z 30 30000", "529 529 rejected by shield reject capacity "},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := start(t, setup{errors: c.errors, handlers: `{"handler": "shield", "name": "s", "pushback": {"dither": false, "quota_max": "30s"` + c.pushback + `}, "capacity": {"rate": 1, "per": "1h", "burst": 2}, "zones": [
				{"name": "z", "key": "{http.request.header.X-Key}", "rate": 1, "per": "1h", "burst": 1}]},` + respondOK})
			check := func(key, want, policy string) {
				t.Helper()
				a := r.get("/", "X-Key", key)
				seconds, ms := a.Header.Get("Retry-After"), a.Header.Get("Retry-After-Ms")
				if got := fmt.Sprint(a.StatusCode, " ", a.body); !strings.HasPrefix(got, want) || strings.Contains(a.body, "reject ") && !strings.HasSuffix(a.body, " "+seconds+" "+ms) {
					t.Errorf("%s: %s, want %s", key, got, want)
				}
				if n, _ := strconv.Atoi(ms); n == 0 || n > 30000 || seconds != strconv.Itoa((n+999)/1000) {
					t.Errorf("%s: Retry-After %s and %s ms, want up to 30 s", key, seconds, ms)
				}
				if a.Header.Get("Cache-Control") != "no-store" || a.Header.Get("Ratelimit-Policy") != policy {
					t.Errorf("%s: %v, want no-store, and the policy %s", key, a.Header, policy)
				}
			}
			r.get("/", "X-Key", "one")
			check("one", c.quota, `"z";q=1;w=3600`)
			r.get("/", "X-Key", "two")
			check("three", c.capacity, "")
		})
	}
}

// In HTTP/2 and 3, "Connection: close" would end the other requests. A rejection ends its own stream, with or without a body
// on its way, and the connection goes on, with a request that was in flight all along.
func TestConnectionSurvivesRejections(t *testing.T) {
	for _, c := range []struct {
		protocol int
		errors   string
	}{{2, ""}, {2, `{"handler": "static_response"}`}, {3, ""}} {
		cert, g := newCertificate(t), newGate(t)
		r := start(t, setup{apps: cert.apps, server: cert.server + `"protocols": ["h1", "h2", "h3"],`, handlers: quotaUsed + proxyTo(g.Server, ""), errors: c.errors})
		var connections atomic.Int64
		h2 := &http.Transport{ForceAttemptHTTP2: true, TLSClientConfig: cert.trust, DialContext: func(ctx context.Context, network, _ string) (net.Conn, error) {
			connections.Add(1)
			return new(net.Dialer).DialContext(ctx, network, r.addr)
		}}
		defer h2.CloseIdleConnections()
		var transport http.RoundTripper = h2
		if c.protocol == 3 {
			_, transport = r.dialHTTP3(cert) // which is one connection
		}
		do := func(body io.Reader) (answered, error) {
			req, _ := http.NewRequestWithContext(t.Context(), http.MethodPost, "https://example.com/", body)
			req.Header.Set("X-Key", "greedy")
			return answer(transport.RoundTrip(req))
		}
		held := make(chan answered, 1)
		go func() {
			a, err := do(nil)
			if err != nil {
				t.Error(err)
			}
			held <- a
		}()
		receive(t, "a request at the backend", g.entered)
		endless, to := io.Pipe()
		defer to.Close()
		for i, body := range []io.Reader{nil, strings.NewReader("short"), strings.NewReader(strings.Repeat("x", 1_000_000)), endless, nil} {
			began := time.Now()
			a, err := do(body)
			if err != nil || a.StatusCode != http.StatusTooManyRequests || a.ProtoMajor != c.protocol || a.Header.Get("Retry-After") != "30" || a.Header.Get("Connection") != "" {
				t.Errorf("HTTP/%d, rejection %d: %v, %+v", c.protocol, i, err, a.Response)
			}
			if took := time.Since(began); took > 15*time.Second { // of a busy machine; a response that waits for a body takes a minute
				t.Errorf("HTTP/%d, rejection %d took %v", c.protocol, i, took)
			}
		}
		g.goOn <- struct{}{}
		if a := receive(t, "a response", held); a.body != "served" {
			t.Errorf("HTTP/%d: the request that was in flight all along got %q", c.protocol, a.body)
		}
		if n := connections.Load(); n > 1 {
			t.Errorf("%d connections, want 1", n)
		}
		_ = caddy.Stop()
	}
}
