package endtoend

import (
	"bufio"
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
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
