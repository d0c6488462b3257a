package caddymodule

import (
	"context"
	"errors"
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

	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
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
			if a := w.answer(); a.StatusCode != http.StatusOK || a.body != "read 16404" {
				w.Errorf("%d %q", a.StatusCode, a.body)
			}
		}},
		{"it is gone in mid-upload", "POST /read HTTP/1.1\nHost: x\nContent-Length: 17000\n\n" + early + "12345", func(w *wire) { _ = w.Close() }},
		{"it is gone in mid-upload of chunks", "POST /read HTTP/1.1\nHost: x\nTransfer-Encoding: chunked\n\n" + chunks + chunk + "12345", func(w *wire) { _ = w.Close() }},
		{"it breaks a chunk", "POST /read HTTP/1.1\nHost: x\nTransfer-Encoding: chunked\n\n" + chunks, func(w *wire) { w.send("no number\n"); _, _ = w.r.ReadByte() }},
		{"it is gone before the response", "GET /hang HTTP/1.1\nHost: x\n\n", func(w *wire) { _ = w.Close() }},
		{"it is gone in mid-answer", "GET /stream HTTP/1.1\nHost: x\n\n", func(w *wire) { w.head(); _ = w.Close() }},
		{"it closes its half in mid-answer", "GET /stream HTTP/1.1\nHost: x\n\n", func(w *wire) {
			w.head()
			_ = w.Conn.(*virtualConn).CloseWrite()
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
					<-looked
					panic(http.ErrAbortHandler)
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
				if n := r.inFlight(); n != 1 {
					t.Errorf("%d in flight at the backend, want 1", n)
				}
				if a := r.get("/ok"); a.StatusCode != http.StatusServiceUnavailable || a.Header.Get("Retry-After") == "" {
					t.Errorf("without room: %d, Retry-After %q; want 503 with one", a.StatusCode, a.Header.Get("Retry-After"))
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

// A handler that panics, as reverse_proxy does on purpose when a response breaks
// off, or that fails, gives its permit back.
func TestPanickingHandlerGivesItsPermitBack(t *testing.T) {
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
		t.Run(c.name, func(t *testing.T) {
			r := start(t, setup{handlers: roomFor(1) + newHook(t, c.next)})
			for _, accept := range []string{"*/*", "text/event-stream", "*/*"} {
				w := r.dial()
				w.send("GET / HTTP/1.1\nHost: x\nAccept: %s\n\n", accept)
				switch resp, err := http.ReadResponse(w.r, nil); {
				case err != nil && c.status != 0:
					t.Error(err)
				case err == nil:
					if _, err = io.Copy(io.Discard, resp.Body); err == nil && resp.StatusCode != c.status { // 503: a permit was lost
						t.Errorf("a whole response: %d, want %d", resp.StatusCode, c.status)
					}
				}
				r.drains()
			}
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

// promptly is how long a rejection may take here, on a busy machine. A response that waits for a body takes a minute or more.
const promptly = 15 * time.Second

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
		name   string
		head   string
		body   int  // bytes that the client has sent when it looks for the response
		slowly bool // it goes on sending, a little at a time
		closes bool
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
	for name, errors := range map[string]string{"direct": "", "error routes": `{"handler": "static_response", "body": "{http.error.status_code}"}`} {
		t.Run(name, func(t *testing.T) {
			r := start(t, setup{handlers: quotaUsed + respondOK, errors: errors})
			r.wantStatus(http.StatusOK, "/", "X-Key", "greedy")
			for _, c := range cases {
				t.Run(c.name, func(t *testing.T) {
					t.Parallel()
					w := r.dial()
					w.T = t
					began := time.Now()
					w.send("%s%s", c.head, strings.Repeat("x", c.body))
					ctx, stop := context.WithCancel(t.Context())
					defer stop()
					for range map[bool]int{true: 1}[c.slowly] {
						go func() {
							for ctx.Err() == nil {
								dawdle(5 * time.Millisecond) // a slow client
								_, _ = io.WriteString(w.Conn, "x")
							}
						}()
					}
					a := w.answer()
					stop()
					if a.StatusCode != http.StatusTooManyRequests || a.Header.Get("Retry-After") != "30" || a.body == "" {
						t.Errorf("%d, Retry-After %q, %q; want a whole 429 with 30", a.StatusCode, a.Header.Get("Retry-After"), a.body)
					}
					if c.closes || errors != "" && c.body > upload.MaxEarly { // the routes may take a while
						// The server hangs up, and soon: it does not listen to the body.
						if _, err := io.Copy(io.Discard, w.r); err != nil && !isReset(err) {
							t.Errorf("the connection is still open: %v", err)
						}
					}
					if took := time.Since(began); took > promptly {
						t.Errorf("it took %v, want at most %v", took, promptly)
					}
					if c.closes || a.Close { // a busy machine may take longer to read the body than the server waits
						return
					}
					// The connection lives on, beyond the deadline that the rejection set.
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

// With error routes, rejections look like the other errors of the site. The routes get the
// headers of the rejection, and placeholders that say what happened.
func TestErrorRoutesWriteRejections(t *testing.T) {
	const page = `{"handler": "static_response", "headers": {"X-Page": ["yes"]}, "body": "{http.error.status_code} {http.error.message} {http.shield.decision} {http.shield.reason} {http.shield.zone} {http.shield.retry_after} {http.shield.retry_after_ms}"}`
	const shielded = `{"handler": "shield", "name": "s", "pushback": {"dither": false, "quota_max": "30s"%s}, "capacity": {"rate": 1, "per": "1h", "burst": 2}, "zones": [
		{"name": "z", "key": "{http.request.header.X-Key}", "rate": 1, "per": "1h", "burst": 1}
	]},` + respondOK
	for _, c := range []struct {
		name, pushback, errors string
		quota, capacity        string // the body, without what Retry-After says; "*" is one by shield
	}{
		{"auto with routes", "", page, "429 rejected by shield reject quota z", "503 rejected by shield reject capacity "},
		{"auto without", "", "", "*", "*"},
		{"direct with routes", `, "respond": "direct"`, page, "*", "*"},
		{"error with routes", `, "respond": "error", "max": "7s"`, page, "429 rejected by shield reject quota z", "503 rejected by shield reject capacity "},
		{"error without", `, "respond": "error"`, "", "", ""}, // as Caddy answers any error
		{"other statuses", `, "status": 420, "overload_status": 529`, page, "420 rejected by shield reject quota z", "529 rejected by shield reject capacity "},
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

// In HTTP/2 "Connection: close" would end the other requests. A rejection ends its own stream,
// with or without a body on its way, and the connection goes on.
func TestHTTP2ConnectionSurvivesRejections(t *testing.T) {
	for _, writer := range []struct{ name, errors string }{
		{"direct", ""},
		{"error routes", `{"handler": "static_response"}`},
	} {
		t.Run(writer.name, func(t *testing.T) {
			cert := newCertificate(t)
			g := newGate(t)
			r := start(t, setup{
				apps: cert.apps, server: cert.server + `"protocols": ["h1", "h2"],`,
				handlers: quotaUsed + proxyTo(g.Server, ""), errors: writer.errors,
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
			endless, to := io.Pipe()
			defer to.Close()
			for i, body := range []io.Reader{nil, strings.NewReader("short"), strings.NewReader(strings.Repeat("x", 1_000_000)), endless, nil} {
				began := time.Now()
				a, err := do("greedy", body)
				if err != nil || a.StatusCode != http.StatusTooManyRequests || a.ProtoMajor != 2 || a.Header.Get("Retry-After") != "30" || a.Header.Get("Connection") != "" {
					t.Errorf("rejection %d: %v, %+v", i, err, a.Response)
				}
				if took := time.Since(began); took > promptly {
					t.Errorf("rejection %d took %v, want at most %v", i, took, promptly)
				}
			}
			g.goOn <- struct{}{}
			if a := receive(t, "a response", held); a.body != "served" {
				t.Errorf("the request that was in flight all along got %q", a.body)
			}
			if n := connections.Load(); n != 1 {
				t.Errorf("%d connections, want 1", n)
			}
		})
	}
}

// The same in HTTP/3: all on one connection, which is alive at the end.
func TestHTTP3ConnectionSurvivesRejections(t *testing.T) {
	cert := newCertificate(t)
	r := start(t, setup{apps: cert.apps, server: cert.server + `"protocols": ["h1", "h2", "h3"],`, handlers: `
		{"handler": "shield", "name": "s", "pushback": {"quota_max": "30s"}, "zones": [{"name": "z", "key": "{http.request.host}", "rate": 1, "per": "1h", "burst": 1}]},` + respondOK})
	conn, h3 := r.dialHTTP3(cert)
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
