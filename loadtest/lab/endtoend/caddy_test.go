// Package endtoend measures what Caddy pays per request for shield, from the
// server's entry to its response, beside Caddy alone, a static 429, and
// github.com/mholt/caddy-ratelimit.
//
// It has nothing but tests; README.md says how to run them.
package endtoend

import (
	"bufio"
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
	_ "github.com/caddyserver/caddy/v2/modules/standard"
	_ "github.com/mholt/caddy-ratelimit"

	_ "github.com/herdshield/shield/caddymodule"
	"github.com/herdshield/shield/loadtest/lab/must"
)

// config is an operator's plain server, with what would disturb a benchmark
// turned off: no admin socket, no files written, no TLS. The log keeps its
// default level, because encoding a line is a cost of the handler that logs
// it, but goes nowhere.
const config = `{
	"admin": {"disabled": true, "config": {"persist": false}},
	"logging": {"logs": {"default": {"writer": {"output": "discard"}}}},
	"apps": {
		"tls": {"disable_storage_check": true, "disable_storage_clean": true},
		"http": {"servers": {"srv": {
			"listen": ["127.0.0.1:0"],
			"protocols": ["h1"],
			"automatic_https": {"disable": true},
			"routes": [{"handle": [%s]}]
		}}}
	}
}`

// serve runs Caddy with the given handlers, in JSON and separated by commas,
// until the test ends. There is one Caddy per process, so tests that serve
// cannot run in parallel.
func serve(tb testing.TB, handlers string) *caddyhttp.Server {
	tb.Helper()
	must.Do(tb, caddy.Load(fmt.Appendf(nil, config, handlers), true))
	// Stop, not a reload: buckets outlive reloads, and every row wants its own.
	tb.Cleanup(func() {
		if err := caddy.Stop(); err != nil {
			tb.Error(err)
		}
	})
	app := must.Get(caddy.ActiveContext().App("http"))(tb)
	return app.(*caddyhttp.App).Servers["srv"]
}

// okBody is what an admitted request gets, from the backend or from memory.
const okBody = "ok\n"

// A backend answers at once, except on /hold, where it answers when the test
// ends.
type backend struct {
	handler string // the reverse_proxy handler that leads to it, in JSON
	held    chan struct{}
	release chan struct{}
}

func newBackend(tb testing.TB) *backend {
	be := &backend{held: make(chan struct{}), release: make(chan struct{})}
	srv := httptest.NewServer(be)
	tb.Cleanup(srv.Close)
	be.handler = fmt.Sprintf(`{"handler": "reverse_proxy", "upstreams": [{"dial": %q}]}`, srv.Listener.Addr())
	return be
}

func (be *backend) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.URL.Path == "/hold" {
		be.held <- struct{}{}
		<-be.release
	}
	fmt.Fprint(w, okBody)
}

// hold sends srv a request that stays in flight until the test ends.
func (be *backend) hold(tb testing.TB, srv *caddyhttp.Server) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		srv.ServeHTTP(httptest.NewRecorder(), httptest.NewRequestWithContext(tb.Context(), http.MethodGet, "/hold", nil))
	}()
	select {
	case <-be.held:
	case <-done:
		tb.Fatal("the request that should hold the slot was rejected")
	}
	tb.Cleanup(func() {
		close(be.release)
		<-done
	})
}

const rawRequest = "GET /items/42 HTTP/1.1\r\n" +
	"Host: shop.example.com\r\n" +
	"User-Agent: endtoend/1\r\n" +
	"Accept: application/json\r\n" +
	"Accept-Encoding: gzip\r\n" +
	"Cookie: session=0123456789abcdef\r\n" +
	"\r\n"

// A response is what a row checks about each response.
type answer struct {
	status     int
	retryAfter bool // a whole number of seconds, at least 1
	size       int  // of the body, in bytes
}

// A pipeline calls the server without a socket, one request at a time. It does not
// allocate, so that allocations counted are the server's.
type pipeline struct {
	srv *caddyhttp.Server
	req *http.Request
	w   discard
}

func newPipeline(tb testing.TB, srv *caddyhttp.Server) *pipeline {
	req := must.Get(http.ReadRequest(bufio.NewReader(strings.NewReader(rawRequest))))(tb)
	// The rest of what net/http would fill in. A context that can be cancelled
	// matters: reverse_proxy watches it.
	ctx, cancel := context.WithCancel(context.Background())
	tb.Cleanup(cancel)
	req = req.WithContext(ctx)
	req.RemoteAddr = "192.0.2.7:50000"
	return &pipeline{srv: srv, req: req, w: discard{header: http.Header{}}}
}

func (p *pipeline) do() answer {
	clear(p.w.header)
	p.w.status, p.w.size = 0, 0
	p.req.Body = http.NoBody // Caddy wraps it in place; else each request adds a layer
	p.srv.ServeHTTP(&p.w, p.req)
	status := p.w.status
	if status == 0 {
		status = http.StatusOK // as net/http does for a handler that wrote nothing
	}
	after, err := strconv.Atoi(p.w.header.Get("Retry-After"))
	return answer{status, err == nil && after >= 1, p.w.size}
}

// discard is the least ResponseWriter that is to Caddy what net/http's is: it
// has deadlines, whose absence would cost Caddy allocations.
type discard struct {
	header http.Header
	status int
	size   int
}

func (w *discard) Header() http.Header              { return w.header }
func (w *discard) SetReadDeadline(time.Time) error  { return nil }
func (w *discard) SetWriteDeadline(time.Time) error { return nil }

func (w *discard) WriteHeader(status int) {
	if w.status == 0 {
		w.status = status
	}
}

func (w *discard) Write(p []byte) (int, error) {
	w.WriteHeader(http.StatusOK)
	w.size += len(p)
	return len(p), nil
}

// BenchmarkAdmit shows what a limiter adds to a request that it lets through.
func BenchmarkAdmit(b *testing.B) {
	for _, next := range []struct{ name, handler string }{
		{"respond", respond},
		{"proxy", ""},
	} {
		for _, r := range admitting {
			b.Run("next="+next.name+"/handler="+r.name, func(b *testing.B) { measure(b, r.start(b, next.handler), r.want) })
		}
	}
}

// BenchmarkReject shows what a response costs that spares the backend.
func BenchmarkReject(b *testing.B) {
	for _, r := range rejecting {
		b.Run("handler="+r.name, func(b *testing.B) { measure(b, r.start(b, ""), r.want) })
	}
}

func measure(b *testing.B, c *pipeline, want answer) {
	b.ReportAllocs()
	cpu := cpuTime()
	for b.Loop() {
		// Every response is checked: a bucket that refills halfway would mix
		// admissions into the price of rejections.
		if got := c.do(); !want.covers(got) {
			b.Fatalf("answer %+v; want %+v", got, want)
		}
	}
	// Waiting and busy neighbours, which ns/op suffers from, do not count.
	b.ReportMetric(float64(cpuTime()-cpu)/float64(b.N), "cpu-ns/op")
}

// cpuTime returns the processor time this process has used.
func cpuTime() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// A row is one handler under test, set before the handler that would serve.
type row struct {
	name    string
	handler string // in JSON; empty for none
	hold    bool   // measured while another request is in flight
	want    answer
}

var (
	served      = answer{status: http.StatusOK, size: len(okBody)}
	tooMany     = answer{status: http.StatusTooManyRequests, retryAfter: true}
	unavailable = answer{status: http.StatusServiceUnavailable, retryAfter: true}
)

// respond serves from memory, to show a limiter's cost without a proxy's.
const respond = `{"handler": "static_response", "status_code": 200, "body": "ok\n"}`

// admitting are handlers with limits that one client cannot reach.
var admitting = []row{
	{name: "none", want: served},
	{name: "shield", want: served, handler: `{"handler": "shield",
		"zones": [{"name": "per_client", "key": "{http.vars.client_ip}", "rate": 1000000, "per": "1s", "burst": 1000000}],
		"capacity": {"rate": 1000000, "per": "1s", "burst": 1000000},
		"concurrency": {"limit": 1000}}`},
	// Only a zone: what caddy-ratelimit can be compared with.
	{name: "shield-zone", want: served, handler: `{"handler": "shield",
		"zones": [{"name": "per_client", "key": "{http.vars.client_ip}", "rate": 1000000, "per": "1s", "burst": 1000000}]}`},
	// A short window, because it allocates max_events timestamps per client.
	{name: "caddy-ratelimit", want: served, handler: `{"handler": "rate_limit", "rate_limits":
		{"per_client": {"key": "{http.vars.client_ip}", "max_events": 1000, "window": "1ms"}}}`},
}

// rejecting are handlers that reject from the second request on. The first is
// the yardstick: what operators write that reject all clients alike.
var rejecting = []row{
	{name: "respond", want: tooMany, handler: `{"handler": "static_response", "status_code": 429,
		"headers": {"Retry-After": ["1"]}, "body": "Too many requests\n"}`},
	{name: "shield-zone", want: tooMany, handler: `{"handler": "shield",
		"zones": [{"name": "per_client", "key": "{http.vars.client_ip}", "rate": 1, "per": "1h", "burst": 1}]}`},
	// Without dither: a rejection that is held back for a fraction of a second costs that, and no allocation.
	{name: "shield-capacity", want: unavailable, handler: `{"handler": "shield",
		"capacity": {"rate": 1, "per": "1h", "burst": 1}, "pushback": {"dither": false}}`},
	{name: "shield-concurrency", hold: true, want: unavailable, handler: `{"handler": "shield",
		"concurrency": {"limit": 1}, "queue": {"off": true}, "pushback": {"dither": false}}`},
	{name: "caddy-ratelimit", want: tooMany, handler: `{"handler": "rate_limit", "rate_limits":
		{"per_client": {"key": "{http.vars.client_ip}", "max_events": 1, "window": "1h"}}}`},
}

// start runs Caddy with the row's handler before next, which may be empty for
// a proxy to a backend of the row's own, and returns a client that has seen
// the response that the row is about.
func (r row) start(tb testing.TB, next string) *pipeline {
	tb.Helper()
	be := newBackend(tb)
	if next == "" {
		next = be.handler
	}
	if r.handler != "" {
		next = r.handler + "," + next
	}
	srv := serve(tb, next)
	if r.hold {
		be.hold(tb, srv)
	}
	c := newPipeline(tb, srv)
	// A row that rejects may first admit what its burst allows.
	for range 3 {
		got := c.do()
		if r.want.covers(got) {
			return c
		}
		if got != served {
			tb.Fatalf("answer %+v, want %+v", got, r.want)
		}
	}
	tb.Fatalf("still served after 3 requests, want %+v", r.want)
	return nil
}

// covers reports whether got is the response wanted. A rejection's body may be of
// any size.
func (want answer) covers(got answer) bool {
	if want.size == 0 {
		got.size = 0
	}
	return got == want
}
