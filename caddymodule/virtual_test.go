package caddymodule

import (
	"context"
	"io"
	"log"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"

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
	client, server := net.Pipe()
	select {
	case v.accept <- addressed{server}:
		return &hurriedConn{Conn: client}, nil
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

// addressed is a connection of a client with an address.
type addressed struct{ net.Conn }

func (addressed) LocalAddr() net.Addr  { return virtualAddr }
func (addressed) RemoteAddr() net.Addr { return virtualAddr }

// A hurriedConn writes without waiting for the reader.
type hurriedConn struct {
	net.Conn
	mu      sync.Mutex // guards the fields below
	waiting []byte
	writing bool
}

func (c *hurriedConn) Write(b []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.waiting = append(c.waiting, b...); !c.writing {
		c.writing = true
		go c.write()
	}
	return len(b), nil
}

func (c *hurriedConn) write() {
	for {
		c.mu.Lock()
		b := c.waiting
		c.waiting, c.writing = nil, len(b) > 0
		c.mu.Unlock()
		if len(b) == 0 {
			return
		}
		_, _ = c.Conn.Write(b)
	}
}

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
