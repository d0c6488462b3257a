package testserver

import (
	"io"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// A Proxy is a way to a server that can be made slow, and cut.
type Proxy struct {
	Addr string

	to    string
	delay atomic.Int64
	mu    sync.Mutex // guards conns and cut
	conns []net.Conn
	cut   bool
}

// StartProxy starts a proxy before the server at an address.
func StartProxy(t testing.TB, to string) *Proxy {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &Proxy{Addr: l.Addr().String(), to: to}
	t.Cleanup(func() { l.Close(); p.Cut(true) })
	go func() {
		for {
			client, err := l.Accept()
			if err != nil {
				return
			}
			go p.serve(client)
		}
	}()
	return p
}

// Delay makes each answer later by d, of a client that waits for one before it asks for the next.
func (p *Proxy) Delay(d time.Duration) { p.delay.Store(int64(d)) }

// Cut closes all connections and those to come, or ends that.
func (p *Proxy) Cut(cut bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.cut = cut
	for _, conn := range p.conns {
		conn.Close()
	}
	p.conns = nil
}

func (p *Proxy) serve(client net.Conn) {
	defer client.Close()
	server, err := net.Dial("tcp", p.to)
	if err != nil {
		return
	}
	defer server.Close()
	p.mu.Lock()
	p.conns = append(p.conns, client, server)
	cut := p.cut
	p.mu.Unlock()
	if cut {
		return
	}
	go func() { io.Copy(server, client); server.Close() }()
	for buffer := make([]byte, 64<<10); ; {
		n, err := server.Read(buffer)
		if err != nil {
			return
		}
		time.Sleep(time.Duration(p.delay.Load()))
		if _, err := client.Write(buffer[:n]); err != nil {
			return
		}
	}
}
