package endtoend

import (
	"bufio"
	"context"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/caddyserver/caddy/v2/modules/caddyhttp"

	"github.com/herdshield/shield/loadtest/lab/must"
)

// rawRequest is what it sends.
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
