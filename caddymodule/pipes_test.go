package caddymodule

import (
	"context"
	"fmt"
	"net"
	"strings"
	"sync"
	"time"

	"github.com/caddyserver/caddy/v2"
)

// pipes is a network of Caddy within the process: it can have more connections than a process may
// have files.
var pipes sync.Map // of *pipeListener, by host and port

func init() {
	caddy.RegisterNetwork("pipes", func(_ context.Context, _, host, port string, _ uint, _ net.ListenConfig) (any, error) {
		l := &pipeListener{addr: net.JoinHostPort(host, port), conns: make(chan net.Conn), done: make(chan struct{})}
		pipes.Store(l.addr, l)
		return l, nil
	})
}

type pipeListener struct {
	addr  string
	conns chan net.Conn
	stop  sync.Once
	done  chan struct{} // closed by Close
}

// dialPipe connects to a server, from an address.
func dialPipe(addr string, from *net.TCPAddr) (net.Conn, error) {
	l, is := pipes.Load(strings.TrimPrefix(addr, "pipes/"))
	if !is {
		return nil, fmt.Errorf("no server listens on %s", addr)
	}
	client, server := net.Pipe()
	select {
	case l.(*pipeListener).conns <- pipeConn{server, from}:
		return pipeClient{client, server}, nil
	case <-l.(*pipeListener).done:
		return nil, net.ErrClosed
	}
}

func (l *pipeListener) Accept() (net.Conn, error) {
	select {
	case conn := <-l.conns:
		return conn, nil
	case <-l.done:
		return nil, net.ErrClosed
	}
}

func (l *pipeListener) Addr() net.Addr { return &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)} }

func (l *pipeListener) Close() error {
	l.stop.Do(func() {
		pipes.Delete(l.addr)
		close(l.done)
	})
	return nil
}

// A pipeConn passes for a connection over TCP, of which the door knows the address.
type pipeConn struct {
	net.Conn
	from *net.TCPAddr
}

func (c pipeConn) RemoteAddr() net.Addr            { return c.from }
func (c pipeConn) LocalAddr() net.Addr             { return &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)} }
func (c pipeConn) WriteLast(b []byte) (int, error) { return c.Write(b) }

// A pipeClient stops, before it closes the pipe, the timers of the server's deadlines: they would keep it.
type pipeClient struct {
	net.Conn
	server net.Conn
}

func (c pipeClient) Close() error {
	_ = c.server.SetDeadline(time.Time{})
	return c.Conn.Close()
}
