package caddymodule

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"sync"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"

	"github.com/herdshield/shield"
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
type Door struct{}

// CaddyModule implements caddy.Module.
func (*Door) CaddyModule() caddy.ModuleInfo {
	return caddy.ModuleInfo{ID: "caddy.listeners.shield", New: func() caddy.Module { return new(Door) }}
}

// Provision implements caddy.Provisioner. It has requests find the connections that they come on.
func (*Door) Provision(ctx caddy.Context) error {
	server, _ := ctx.Value(caddyhttp.ServerCtxKey).(*caddyhttp.Server)
	if server == nil {
		return errors.New("the listener wrapper shield is not in an HTTP server; want it in one")
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
func (*Door) WrapListener(l net.Listener) net.Listener {
	return &doorListener{
		Listener: l, memos: new(memos),
		out: make(chan accepted), next: make(chan *doorConn), done: make(chan struct{}), greeted: map[*doorConn]struct{}{},
	}
}

// A doorListener accepts connections that remember.
type doorListener struct {
	net.Listener
	memos *memos
	start sync.Once
	out   chan accepted  // for Accept
	next  chan *doorConn // for a greeter that has nothing to do

	stop    sync.Once
	done    chan struct{} // closed by Close
	mu      sync.Mutex
	greeted map[*doorConn]struct{} // net/http does not know them; guarded by mu, nil after Close
	idle    int                    // greeters that have nothing to do; guarded by mu
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
	for on := true; on; {
		conn, err := l.Listener.Accept()
		if err != nil {
			on = l.pass(accepted{err: err})
			continue
		}
		c := newDoorConn(conn, l.memos)
		if _, is := conn.(tlsConn); is {
			on = l.pass(accepted{conn: tlsDoorConn{c}}) // Caddy looks for its method
		} else if !l.greets(c) {
			on = l.pass(accepted{conn: c})
		}
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

// greetFor is how long a new connection is read before net/http sees it. Ours: clients that
// hammer send at once, and the goroutine of one that does not is better in net/http's care.
const greetFor = 10 * time.Second

// greets reports whether a connection is read here first, because its address has been refused
// lately. It costs net/http more to begin with a connection than to answer a request.
func (l *doorListener) greets(c *doorConn) bool {
	if c.origin.serial != 0 || !l.memos.warm(c.origin.remote, shield.Now()) {
		return false
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.greeted == nil {
		return false
	}
	l.greeted[c] = struct{}{}
	select {
	case l.next <- c:
	default:
		go l.greeter(c)
	}
	return true
}

// maxIdleGreeters is how many goroutines wait for connections to greet. A new one would have to
// grow its stack, which takes 7 % of what such a connection costs.
const maxIdleGreeters = 64

// greeter greets one connection after another.
func (l *doorListener) greeter(c *doorConn) {
	for on := true; on; {
		l.greet(c)
		if on = l.rest(1); !on {
			return
		}
		select {
		case c = <-l.next:
		case <-l.done:
			on = false
		}
		l.rest(-1)
	}
}

// rest counts greeters that have nothing to do. It reports false if there are enough of them.
func (l *doorListener) rest(n int) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if n > 0 && l.idle >= maxIdleGreeters {
		return false
	}
	l.idle += n
	return true
}

// greet answers what it knows, for as long as the connection says nothing else.
func (l *doorListener) greet(c *doorConn) {
	_ = c.SetReadDeadline(shield.At(shield.Now() + greetFor))
	err := c.first()
	l.mu.Lock()
	delete(l.greeted, c)
	l.mu.Unlock()
	if timeout, is := errors.AsType[net.Error](err); err != nil && (c.ended != nil || !is || !timeout.Timeout()) {
		_ = c.Close()
		return
	}
	_ = c.SetReadDeadline(time.Time{})
	l.pass(accepted{conn: c})
}

// Close implements net.Listener.
func (l *doorListener) Close() error {
	var greeted map[*doorConn]struct{}
	l.stop.Do(func() {
		close(l.done)
		l.mu.Lock()
		greeted, l.greeted = l.greeted, nil
		l.mu.Unlock()
	})
	for c := range greeted {
		_ = c.Close()
	}
	return l.Listener.Close()
}

// tlsConn is a connection over TLS.
type tlsConn interface{ ConnectionState() tls.ConnectionState }

type tlsDoorConn struct{ *doorConn }

// ConnectionState is for Caddy, which makes it the TLS of requests.
func (c tlsDoorConn) ConnectionState() tls.ConnectionState { return c.Conn.(tlsConn).ConnectionState() }

var (
	_ caddy.ListenerWrapper = (*Door)(nil)
	_ caddy.Provisioner     = (*Door)(nil)
	_ caddyfile.Unmarshaler = (*Door)(nil)
)
