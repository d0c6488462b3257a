package endtoend

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"net"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
)

// rawRequest is what both clients send.
const rawRequest = "GET /items/42 HTTP/1.1\r\n" +
	"Host: shop.example.com\r\n" +
	"User-Agent: endtoend/1\r\n" +
	"Accept: application/json\r\n" +
	"Accept-Encoding: gzip\r\n" +
	"Cookie: session=0123456789abcdef\r\n" +
	"\r\n"

// An answer is what a row checks about each response.
type answer struct {
	status     int
	retryAfter bool // a whole number of seconds, at least 1
	size       int  // of the body, in bytes
}

// A client sends one request at a time and reads the whole answer. Clients do
// not allocate, so that allocations counted are the server's.
type client interface {
	do() (answer, error)
}

func validRetryAfter(s string) bool {
	n, err := strconv.Atoi(s)
	return err == nil && n >= 1
}

// A pipeline client calls the server without a socket.
type pipeline struct {
	srv *caddyhttp.Server
	req *http.Request
	w   discard
}

func newPipeline(tb testing.TB, srv *caddyhttp.Server) client {
	req, err := http.ReadRequest(bufio.NewReader(strings.NewReader(rawRequest)))
	if err != nil {
		tb.Fatal(err)
	}
	// The rest of what net/http would fill in. A context that can be cancelled
	// matters: reverse_proxy watches it.
	ctx, cancel := context.WithCancel(context.Background())
	tb.Cleanup(cancel)
	req = req.WithContext(ctx)
	req.RemoteAddr = "192.0.2.7:50000"
	return &pipeline{srv: srv, req: req, w: discard{header: http.Header{}}}
}

func (p *pipeline) do() (answer, error) {
	clear(p.w.header)
	p.w.status, p.w.size = 0, 0
	p.req.Body = http.NoBody // Caddy wraps it in place; else each request adds a layer
	p.srv.ServeHTTP(&p.w, p.req)
	status := p.w.status
	if status == 0 {
		status = http.StatusOK // as net/http does for a handler that wrote nothing
	}
	return answer{status, validRetryAfter(p.w.header.Get("Retry-After")), p.w.size}, nil
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

// A socket client speaks HTTP/1.1 over one loopback connection. It is written
// out because net/http's client would cost more than what is measured.
type socket struct {
	conn    net.Conn
	r       *bufio.Reader
	request []byte
}

func newSocket(tb testing.TB, srv *caddyhttp.Server) client {
	conn, err := net.Dial("tcp", srv.Listeners()[0].Addr().String())
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { _ = conn.Close() })
	return &socket{conn: conn, r: bufio.NewReader(conn), request: []byte(rawRequest)}
}

func (s *socket) do() (a answer, err error) {
	if _, err := s.conn.Write(s.request); err != nil {
		return a, err
	}
	line, err := s.r.ReadSlice('\n')
	if err != nil {
		return a, err
	}
	if len(line) < len("HTTP/1.1 200") {
		return a, fmt.Errorf("short status line %q", line)
	}
	if a.status, err = strconv.Atoi(string(line[9:12])); err != nil {
		return a, err
	}
	a.size = -1
	for {
		if line, err = s.r.ReadSlice('\n'); err != nil {
			return a, err
		}
		if line = bytes.TrimRight(line, "\r\n"); len(line) == 0 {
			break
		}
		if v, ok := bytes.CutPrefix(line, []byte("Retry-After: ")); ok {
			a.retryAfter = validRetryAfter(string(v))
		} else if v, ok := bytes.CutPrefix(line, []byte("Content-Length: ")); ok {
			if a.size, err = strconv.Atoi(string(v)); err != nil {
				return a, err
			}
		}
	}
	if a.size < 0 {
		return a, fmt.Errorf("status %d without Content-Length: this client reads nothing else", a.status)
	}
	_, err = s.r.Discard(a.size)
	return a, err
}
