package live

import (
	"context"
	"net"
	"slices"
	"sync"
	"time"
)

// connecting bounds how many connections are opened at one time. More would overflow the
// accept queue of a busy listener.
const connecting = 64

// each calls f with 0 to n-1, about in this order, and returns when all calls have.
func each(n int, f func(i int)) {
	var all sync.WaitGroup
	for first := range min(connecting, n) {
		all.Go(func() {
			for i := first; i < n; i += connecting {
				f(i)
			}
		})
	}
	all.Wait()
}

// ahead returns how long before its client's arrival a connection is opened, for a herd of
// n. Ours: servers wait longer than that for a request, and even a slow machine opens
// 10,000 connections in a second.
func ahead(n int) time.Duration {
	return time.Second + time.Duration(n)*time.Second/10_000
}

// spares are connections for a herd, one for each client. The nil spares are empty. Only
// next and close must not be called at the same time.
type spares struct {
	due     []time.Duration // when clients come, since the start of the run, ascending
	conns   []*spare        // in their order
	first   int             // so many are opened before the run
	taken   int             // by next
	timeout time.Duration
	dial    func(context.Context) (net.Conn, error)
}

func newSpares(due []time.Duration, timeout time.Duration, dial func(context.Context) (net.Conn, error)) *spares {
	s := &spares{due: due, timeout: timeout, dial: dial, conns: make([]*spare, len(due))}
	for i := range s.conns {
		s.conns[i] = new(spare)
	}
	s.first, _ = slices.BinarySearch(due, ahead(len(due)))
	return s
}

// openFirst opens, before the start, the connections that are needed soon after it. If one
// fails, or all together take longer than the time-out, clients open their own.
func (s *spares) openFirst(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, s.timeout)
	defer cancel()
	each(s.first, func(i int) { s.open(ctx, i) })
}

// openLater opens the other connections, each shortly before its client comes. It returns
// when that is done, or soon after ctx ends.
func (s *spares) openLater(ctx context.Context, start time.Time) {
	if s == nil {
		return
	}
	each(len(s.conns)-s.first, func(i int) {
		i += s.first
		if !wait(ctx, s.due[i]-ahead(len(s.due))-time.Since(start)) {
			return
		}
		ctx, cancel := context.WithTimeout(ctx, s.timeout)
		defer cancel()
		s.open(ctx, i)
	})
}

func (s *spares) open(ctx context.Context, i int) {
	if s.conns[i].wanted() {
		if conn, err := s.dial(ctx); err == nil {
			s.conns[i].put(conn)
		}
	}
}

// next returns the connection of the next client of the herd.
func (s *spares) next() *spare {
	if s == nil {
		return nil
	}
	s.taken++
	return s.conns[s.taken-1]
}

// close closes the connections that no client has taken.
func (s *spares) close() {
	if s == nil {
		return
	}
	for _, c := range s.conns[s.taken:] {
		c.close()
	}
}

// A spare is a connection opened before its client needs it. It is taken once. The nil
// spare has no connection. It is safe for concurrent use.
type spare struct {
	mu    sync.Mutex
	conn  net.Conn // guarded by mu; nil before it is open, and once it is taken
	taken bool     // guarded by mu: the client has come, or never will
}

// wanted reports whether the connection has not been taken.
func (s *spare) wanted() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return !s.taken
}

// put gives s its connection, or closes it if s has been taken.
func (s *spare) put(conn net.Conn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.taken {
		conn.Close()
		return
	}
	s.conn = conn
}

// take returns the connection once, and nil if there is none.
func (s *spare) take() net.Conn {
	if s == nil {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	conn := s.conn
	s.conn, s.taken = nil, true
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
