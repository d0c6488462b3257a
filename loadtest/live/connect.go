package live

import (
	"cmp"
	"context"
	"net"
	"net/url"
	"sync"
)

// connecting bounds how many connections are being opened at one time: more
// would overflow the queue of a listener that is not given the time to accept.
const connecting = 64

// connect opens a connection for each client if it is wanted. Where that fails
// there is none, and the client will find out by itself.
func (h *Herd) connect(ctx context.Context) []net.Conn {
	conns := make([]net.Conn, h.cfg.Clients)
	u, err := url.Parse(h.cfg.URL)
	if err != nil || !h.cfg.Connected {
		return conns
	}
	ctx, cancel := context.WithTimeout(ctx, h.cfg.Timeout)
	defer cancel()
	addr := net.JoinHostPort(u.Hostname(), cmp.Or(u.Port(), "80"))
	var all sync.WaitGroup
	for first := range min(connecting, len(conns)) {
		all.Go(func() {
			for i := first; i < len(conns); i += connecting {
				if conn, err := dial(ctx, "tcp", addr); err == nil {
					conns[i] = conn
				}
			}
		})
	}
	all.Wait()
	return conns
}

type connKey struct{}

// withConn lets dial return conn instead of a new connection, unless it is nil.
func withConn(ctx context.Context, conn net.Conn) context.Context {
	if conn == nil {
		return ctx
	}
	return context.WithValue(ctx, connKey{}, conn)
}

// dial is for http.Transport, which calls it with the values of the request's
// context.
func dial(ctx context.Context, network, addr string) (net.Conn, error) {
	if conn, ok := ctx.Value(connKey{}).(net.Conn); ok {
		return conn, nil
	}
	return new(net.Dialer).DialContext(ctx, network, addr)
}
