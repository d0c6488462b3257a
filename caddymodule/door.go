package caddymodule

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
	"go.uber.org/zap"

	"github.com/herdshield/shield"
	"github.com/herdshield/shield/caddymodule/socket"
)

func init() { caddy.RegisterModule(new(Door)) }

// Door implements a listener wrapper that makes refusals cheap. A client that sends a request
// again which a shield behind it has just refused, byte for byte, gets its answer before Caddy
// parses and routes the request. So does a client whose requests all differ, where the config
// proves that its address decides.
//
// The shield decides on each request, as without the wrapper: quotas, appointments and
// counts are the same. The answer is that of the request before, with its own times. At least
// once per second a request of each client goes the usual way, through all handlers and logs.
//
// It is for HTTP/1.1 and HTTP/2. It stands after `tls` if that is listed. Where access logs must have
// a line for every request, set `door off` in the shield.
type Door struct {
	keepAlive net.KeepAliveConfig // of the server
	header    time.Duration       // how long the server waits for a head; 0: for ever
	log       *zap.Logger
}

// CaddyModule implements caddy.Module.
func (*Door) CaddyModule() caddy.ModuleInfo {
	return caddy.ModuleInfo{ID: "caddy.listeners.shield", New: func() caddy.Module { return new(Door) }}
}

// Provision implements caddy.Provisioner. It has requests find the connections that they come on.
func (d *Door) Provision(ctx caddy.Context) error {
	server, _ := ctx.Value(caddyhttp.ServerCtxKey).(*caddyhttp.Server)
	if server == nil {
		return errors.New("the listener wrapper shield is not in an HTTP server; want it in one")
	}
	d.log, d.header = ctx.Logger(), time.Duration(server.ReadHeaderTimeout)
	d.keepAlive = net.KeepAliveConfig{
		Enable: server.KeepAliveInterval >= 0, Idle: time.Duration(server.KeepAliveIdle),
		Interval: time.Duration(server.KeepAliveInterval), Count: server.KeepAliveCount,
	}
	var once sync.Once
	server.RegisterConnContext(func(ctx context.Context, conn net.Conn) context.Context {
		once.Do(func() { receiveVisits(ctx) })
		if c := doorIn(conn); c != nil {
			return context.WithValue(ctx, doorKey{}, c)
		}
		return ctx
	})
	return nil
}

// UnmarshalCaddyfile implements caddyfile.Unmarshaler: there is nothing to set.
func (*Door) UnmarshalCaddyfile(d *caddyfile.Dispenser) error {
	d.Next()
	if d.NextArg() || d.NextBlock(d.Nesting()) {
		return d.ArgErr()
	}
	return nil
}

// WrapListener implements caddy.ListenerWrapper.
func (d *Door) WrapListener(l net.Listener) net.Listener {
	return &doorListener{
		Listener: l, keepAlive: d.keepAlive, header: d.header, log: d.log, memos: new(memos),
		out: make(chan accepted), next: make(chan *doorConn), done: make(chan struct{}), greeted: map[*doorConn]struct{}{},
	}
}

// A doorListener accepts connections that remember.
type doorListener struct {
	net.Listener
	keepAlive net.KeepAliveConfig
	header    time.Duration
	log       *zap.Logger
	memos     *memos
	start     sync.Once
	out       chan accepted  // for Accept
	next      chan *doorConn // for a greeter that has nothing to do
	once      atomic.Bool    // the last one that was greeted has ended with its first answer

	stop    sync.Once
	done    chan struct{} // closed by Close
	mu      sync.Mutex
	greeted map[*doorConn]struct{} // net/http does not know them; guarded by mu, nil after Close
	idle    int                    // greeters that have nothing to do; guarded by mu
	socket  *socket.Listener       // nil: there is none, or no address was greeted; guarded by mu
}

// accepted is what Accept returns.
type accepted struct {
	conn net.Conn
	err  error
}

// Accept implements net.Listener.
func (l *doorListener) Accept() (net.Conn, error) {
	l.start.Do(func() { go l.accept() })
	select {
	case a := <-l.out:
		return a.conn, a.err
	case <-l.done:
		return nil, net.ErrClosed
	}
}

// accept accepts connections until the listener is closed. It must not wait for a client: the
// address of a connection with the PROXY protocol, say, comes with its first bytes.
func (l *doorListener) accept() {
	var flood flood
	from := l.Listener
	for on := true; on; {
		conn, err := from.Accept()
		if err != nil {
			on = l.pass(accepted{err: err})
			continue
		}
		c := newDoorConn(conn, l.memos)
		if _, is := conn.(tlsConn); is {
			on = l.pass(accepted{conn: tlsDoorConn{c, l.log}}) // Caddy looks for its method
			continue
		}
		now := shield.Now()
		greeted := l.greets(now, c)
		if !greeted {
			on = l.pass(accepted{conn: c})
		}
		from = flood.next(now, l, greeted)
	}
}

// pass hands a connection to Accept. It reports false, and closes it, if the listener is closed.
func (l *doorListener) pass(a accepted) bool {
	select {
	case l.out <- a:
		return true
	case <-l.done:
		if a.conn != nil {
			_ = a.conn.Close()
		}
		return false
	}
}

// Close implements net.Listener.
func (l *doorListener) Close() error {
	l.stop.Do(func() {
		close(l.done)
		l.mu.Lock()
		greeted := l.greeted
		l.greeted = nil
		l.mu.Unlock()
		for c := range greeted {
			_ = c.Close()
		}
		if l.socket != nil { // it is no other one from now on
			_ = l.socket.Close()
		}
	})
	return l.Listener.Close()
}

// tlsConn is a connection over TLS.
type tlsConn interface{ ConnectionState() tls.ConnectionState }

type tlsDoorConn struct {
	*doorConn
	log *zap.Logger
}

// Read implements net.Conn. If the handshake fails it does what net/http does with a tls.Conn.
func (c tlsDoorConn) Read(p []byte) (int, error) {
	n, err := c.doorConn.Read(p)
	if err != nil && !c.begun && !c.ConnectionState().HandshakeComplete {
		c.noteHandshake(err)
	}
	return n, err
}

// noteHandshake logs why a handshake has failed. It tells clients that do not speak TLS.
func (c tlsDoorConn) noteHandshake(err error) {
	if bad, is := errors.AsType[tls.RecordHeaderError](err); is && bad.Conn != nil && isPlainHTTP(bad.RecordHeader) {
		err = errPlainHTTP
		_, _ = io.WriteString(bad.Conn, "HTTP/1.0 400 Bad Request\r\n\r\nClient sent an HTTP request to an HTTPS server.\n")
		_ = bad.Conn.Close()
	}
	c.log.Debug("TLS handshake error", zap.Stringer("remote", c.RemoteAddr()), zap.Error(err))
}

var errPlainHTTP = errors.New("client sent an HTTP request to an HTTPS server")

// isPlainHTTP reports whether what should be the head of a TLS record begins a request.
func isPlainHTTP(head [5]byte) bool {
	switch string(head[:]) {
	case "GET /", "HEAD ", "POST ", "PUT /", "OPTIO":
		return true
	}
	return false
}

// ConnectionState is for Caddy, which makes it the TLS of requests.
func (c tlsDoorConn) ConnectionState() tls.ConnectionState { return c.Conn.(tlsConn).ConnectionState() }

var (
	_ caddy.ListenerWrapper = (*Door)(nil)
	_ caddy.Provisioner     = (*Door)(nil)
	_ caddyfile.Unmarshaler = (*Door)(nil)
)
