package door

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"net/http"
	"sync"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
)

func init() { caddy.RegisterModule(new(Door)) }

// Door implements a listener wrapper that makes rejections cheap. If a client repeats a request that shield has
// just rejected, byte for byte and on the same connection, it gets the rejection before Caddy parses and routes
// the request.
//
// shield still decides on every request, so quotas, appointments and counts are the same as without the
// wrapper. The response is the previous one with its times updated. At least once per second, a request of each
// connection takes the usual way, through all handlers and logs.
//
// It works for HTTP/1.1 and HTTP/2. If you list `tls`, put it after that. If your access logs need a line for
// every request, set `fast_reject off` in the shield.
type Door struct{}

// CaddyModule implements caddy.Module.
func (*Door) CaddyModule() caddy.ModuleInfo {
	return caddy.ModuleInfo{ID: "caddy.listeners.shield", New: func() caddy.Module { return new(Door) }}
}

// Provision implements caddy.Provisioner. It has requests find the connections that they come on.
func (*Door) Provision(ctx caddy.Context) error {
	server, _ := ctx.Value(caddyhttp.ServerCtxKey).(*caddyhttp.Server)
	if server == nil {
		return errors.New("the listener wrapper shield is not in an HTTP server; put it in one")
	}
	server.RegisterConnContext(connContext())
	return nil
}

// connContext returns the ConnContext of a server, which receives visits then. With its first connection no request has
// been served yet, and net/http looks for the Handler at each.
func connContext() func(context.Context, net.Conn) context.Context {
	var once sync.Once
	return func(ctx context.Context, outer net.Conn) context.Context {
		once.Do(func() {
			if server, ok := ctx.Value(http.ServerContextKey).(*http.Server); ok && server.Handler != nil {
				server.Handler = visits{server.Handler}
			}
		})
		if c := connIn(outer); c != nil {
			return context.WithValue(ctx, connKey{}, c)
		}
		return ctx
	}
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
func (*Door) WrapListener(l net.Listener) net.Listener { return listener{l} }

// A listener accepts connections that remember.
type listener struct{ net.Listener }

func (l listener) Accept() (net.Conn, error) {
	accepted, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	c := &conn{Conn: accepted}
	if _, is := accepted.(stater); is {
		return tlsConn{c}, nil // Caddy looks for its method
	}
	return c, nil
}

// A stater is a connection over TLS.
type stater interface{ ConnectionState() tls.ConnectionState }

type tlsConn struct{ *conn }

// ConnectionState is for Caddy, which makes it the TLS of requests.
func (c tlsConn) ConnectionState() tls.ConnectionState { return c.Conn.(stater).ConnectionState() }
