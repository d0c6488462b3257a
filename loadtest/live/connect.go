package live

import (
	"context"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// connecting bounds how many connections are opened at one time. More would overflow the
// accept queue of a busy listener.
const connecting = 64

// ahead returns how long before its client's arrival a connection is opened, for a herd of
// n. Ours: servers wait longer than that for a request, and even a slow machine opens
// 10,000 connections in a second.
func ahead(n int) time.Duration {
	return time.Second + time.Duration(n)*time.Second/10_000
}

// spares are connections for a herd, one for each client. The zero spares are empty.
type spares struct {
	due     []time.Duration // when clients come, since the start of the run, ascending
	conns   []spare         // in their order
	timeout time.Duration
	dial    func(ctx context.Context, network, address string) (net.Conn, error)
}

// openFirst opens, before the start, the connections that are needed soon after it, and
// returns their number. If one fails, or all together take longer than the time-out,
// clients open their own.
func (s *spares) openFirst(ctx context.Context) int {
	ctx, cancel := context.WithTimeout(ctx, s.timeout)
	defer cancel()
	n, _ := slices.BinarySearch(s.due, ahead(len(s.due)))
	s.open(ctx, 0, n, time.Now())
	return n
}

// open opens the connections from number first to last-1, each shortly before its client
// comes in a run since start. It returns when that is done, or soon after ctx ends.
func (s *spares) open(ctx context.Context, first, last int, start time.Time) {
	var all sync.WaitGroup
	turns := make(chan struct{}, connecting)
	for i := first; i < last && wait(ctx, s.due[i]-ahead(len(s.due))-time.Since(start)); i++ {
		turns <- struct{}{}
		all.Go(func() {
			c, cancel := context.WithTimeout(ctx, s.timeout)
			defer cancel()
			s.conns[i].open(c, s.dial)
			<-turns
		})
	}
	all.Wait()
}

// A spare is a connection opened before its client needs it. It is taken once. The nil
// spare has no connection. It is safe for concurrent use.
type spare struct {
	conn atomic.Pointer[net.Conn] // nil before it is open; &taken once the client has come, or never will
}

var taken net.Conn

// open opens the connection, unless the client is there already.
func (s *spare) open(ctx context.Context, dial func(ctx context.Context, network, address string) (net.Conn, error)) {
	if s.conn.Load() != nil {
		return
	}
	if conn, err := dial(ctx, "", ""); err == nil && !s.conn.CompareAndSwap(nil, &conn) {
		conn.Close()
	}
}

// take returns the connection once, and nil if there is none.
func (s *spare) take() net.Conn {
	if s == nil {
		return nil
	}
	if conn := s.conn.Swap(&taken); conn != nil {
		return *conn
	}
	return nil
}

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
