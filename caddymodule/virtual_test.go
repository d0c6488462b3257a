package caddymodule

import (
	"bytes"
	"context"
	"io"
	"log"
	"net"
	"net/http"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
)

// onWires plays a story in virtual time whose clients have connections to a server of Caddy's
// handlers, and whose backend is behind proxyOnWires.
func (r *rig) onWires(t *testing.T, server *http.Server, backend http.HandlerFunc, story func(r *rig)) {
	t.Helper()
	app, err := caddy.ActiveContext().App("http")
	if err != nil {
		t.Fatal(err)
	}
	r.inVirtualTime(t, func(inside *rig, _ func(func())) {
		server.Handler = app.(*caddyhttp.App).Servers["srv"]
		front, client := serveOnWires(server)
		back, proxy := serveOnWires(&http.Server{Handler: backend})
		defer func() {
			client.CloseIdleConnections()
			_ = server.Close()
			proxy.CloseIdleConnections()
			_ = back.server.Close()
		}()
		inside.wires, inside.client = front, &http.Client{Transport: client}
		backendOnWires.Store(proxy)
		story(inside)
	})
}

// virtualWires are a listener without sockets.
type virtualWires struct {
	server *http.Server
	accept chan net.Conn
	closed chan struct{}
	once   sync.Once
}

func serveOnWires(server *http.Server) (*virtualWires, *http.Transport) {
	v := &virtualWires{server: server, accept: make(chan net.Conn), closed: make(chan struct{})}
	server.ErrorLog = log.New(io.Discard, "", 0)
	go func() { _ = server.Serve(v) }()
	return v, &http.Transport{MaxIdleConnsPerHost: 100, DialContext: func(context.Context, string, string) (net.Conn, error) { return v.dial() }}
}

func (v *virtualWires) dial() (net.Conn, error) {
	up, down := newVirtualWire(), newVirtualWire()
	select {
	case v.accept <- &virtualConn{from: up, to: down}:
		return &virtualConn{from: down, to: up}, nil
	case <-v.closed:
		return nil, net.ErrClosed
	}
}

func (v *virtualWires) Accept() (net.Conn, error) {
	select {
	case conn := <-v.accept:
		return conn, nil
	case <-v.closed:
		return nil, net.ErrClosed
	}
}

func (v *virtualWires) Close() error   { v.once.Do(func() { close(v.closed) }); return nil }
func (v *virtualWires) Addr() net.Addr { return virtualAddr }

var virtualAddr = &net.TCPAddr{IP: net.IPv4(192, 0, 2, 1), Port: 1234}

// A virtualWire carries bytes in one direction, and has room for all.
type virtualWire struct {
	mu       sync.Mutex // guards the fields below
	changed  *sync.Cond
	bytes    bytes.Buffer
	ended    bool      // nothing more will come
	gone     bool      // no one reads any more
	deadline time.Time // of reads
	timer    *time.Timer
}

func newVirtualWire() *virtualWire {
	w := new(virtualWire)
	w.changed = sync.NewCond(&w.mu)
	return w
}

func (w *virtualWire) change(f func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	f()
	w.changed.Broadcast()
}

// A virtualConn is one end of two wires.
type virtualConn struct{ from, to *virtualWire }

func (c *virtualConn) Read(b []byte) (int, error) {
	w := c.from
	w.mu.Lock()
	defer w.mu.Unlock()
	for {
		switch {
		case w.gone:
			return 0, net.ErrClosed
		case !w.deadline.IsZero() && !time.Now().Before(w.deadline):
			return 0, os.ErrDeadlineExceeded
		case w.bytes.Len() > 0:
			return w.bytes.Read(b)
		case w.ended:
			return 0, io.EOF
		}
		w.changed.Wait()
	}
}

func (c *virtualConn) Write(b []byte) (n int, err error) {
	c.to.change(func() {
		if n = len(b); c.to.gone || c.to.ended {
			n, err = 0, net.ErrClosed
		} else {
			c.to.bytes.Write(b)
		}
	})
	return n, err
}

func (c *virtualConn) CloseWrite() error {
	c.to.change(func() { c.to.ended = true })
	return nil
}

func (c *virtualConn) Close() error {
	_ = c.SetReadDeadline(time.Time{})
	c.from.change(func() { c.from.gone = true })
	return c.CloseWrite()
}

func (c *virtualConn) SetReadDeadline(t time.Time) error {
	w := c.from
	w.change(func() {
		if w.timer != nil {
			w.timer.Stop()
		}
		if w.deadline = t; !t.IsZero() {
			w.timer = time.AfterFunc(time.Until(t), func() { w.change(func() {}) })
		}
	})
	return nil
}

func (c *virtualConn) SetWriteDeadline(time.Time) error { return nil }

func (c *virtualConn) SetDeadline(t time.Time) error { return c.SetReadDeadline(t) }
func (c *virtualConn) LocalAddr() net.Addr           { return virtualAddr }
func (c *virtualConn) RemoteAddr() net.Addr          { return virtualAddr }

// wireTransport is how reverse_proxy reaches the backend of the story that is played.
type wireTransport struct{}

var backendOnWires atomic.Pointer[http.Transport]

func init() { caddy.RegisterModule(wireTransport{}) }

func (wireTransport) CaddyModule() caddy.ModuleInfo {
	return caddy.ModuleInfo{ID: "http.reverse_proxy.transport.shield_test_wires", New: func() caddy.Module { return new(wireTransport) }}
}

func (*wireTransport) RoundTrip(r *http.Request) (*http.Response, error) {
	r.URL.Scheme = "http"
	return backendOnWires.Load().RoundTrip(r)
}

// proxyOnWires is a reverse_proxy handler for stories on virtual wires, with more fields, each with a comma at its beginning.
func proxyOnWires(more string) string {
	return `{"handler": "reverse_proxy", "upstreams": [{"dial": "backend:80"}], "transport": {"protocol": "shield_test_wires"} ` + more + `}`
}
