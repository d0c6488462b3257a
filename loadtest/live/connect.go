package live

import (
	"cmp"
	"context"
	"net"
	"net/url"
	"sync"
	"time"
)

// connecting bounds how many connections are being opened at one time: more
// would overflow the queue of a listener that is not given the time to accept.
const connecting = 64

// connect opens a connection for each client if it is wanted. Where that fails
// there is none, and the client will find out by itself.
func (h *Herd) connect(ctx context.Context) []*spare {
	u, err := url.Parse(h.cfg.URL)
	if err != nil || !h.cfg.Connected {
		return make([]*spare, h.cfg.Clients)
	}
	addr := net.JoinHostPort(u.Hostname(), cmp.Or(u.Port(), "80"))
	return connect(ctx, h.cfg.Clients, h.cfg.Timeout, func(ctx context.Context) (net.Conn, error) {
		return dial(ctx, "tcp", addr)
	})
}

// connect opens n connections within timeout. Where that fails there is nil.
func connect(ctx context.Context, n int, timeout time.Duration, dial func(context.Context) (net.Conn, error)) []*spare {
	conns := make([]*spare, n)
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	var all sync.WaitGroup
	for first := range min(connecting, n) {
		all.Go(func() {
			for i := first; i < n; i += connecting {
				if conn, err := dial(ctx); err == nil {
					conns[i] = &spare{conn: conn}
				}
			}
		})
	}
	all.Wait()
	return conns
}

// A spare is a connection that was opened before somebody needs it. It is taken
// once. The nil spare has none. It is safe for concurrent use.
type spare struct {
	mu   sync.Mutex
	conn net.Conn // guarded by mu; nil once it is taken
}

// take returns the connection, and nil when it is called again.
func (s *spare) take() net.Conn {
	if s == nil {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	conn := s.conn
	s.conn = nil
	return conn
}

// close closes the connection unless it has been taken.
func (s *spare) close() {
	if conn := s.take(); conn != nil {
		conn.Close()
	}
}

type connKey struct{}

// withConn lets dial return the connection of s, once, instead of a new one.
func withConn(ctx context.Context, s *spare) context.Context {
	if s == nil {
		return ctx
	}
	return context.WithValue(ctx, connKey{}, s)
}

// dial is for http.Transport, which calls it with the values of the request's
// context.
func dial(ctx context.Context, network, addr string) (net.Conn, error) {
	if s, ok := ctx.Value(connKey{}).(*spare); ok {
		if conn := s.take(); conn != nil {
			return conn, nil
		}
	}
	return new(net.Dialer).DialContext(ctx, network, addr)
}
