package redis

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	redigo "github.com/gomodule/redigo/redis"

	"github.com/herdshield/shield/share"
)

const (
	// mostCalls bounds the calls in flight at one server, each of which has a connection of
	// its own. Ours: 1,600 calls a second that take 20 ms each.
	mostCalls = 32

	// callTimeout bounds a call, connecting included. No exchange waits so long: a connection
	// on which one was given up counts as dead after that time.
	callTimeout = time.Second

	// pingAfter is how long a connection is silent until it is asked whether it lives. One
	// that does not answer within share.GiveUp is closed.
	pingAfter = share.GiveUp

	// idleTime is how long a connection is kept that is not needed. Ours: firewalls forget
	// connections later.
	idleTime = time.Minute
)

var errBusy = fmt.Errorf("%d calls are in flight: %w", mostCalls, context.DeadlineExceeded)

// A pool has the connections to one server.
type pool struct {
	ctx   context.Context // of connections
	open  func() *redigo.Pool
	conns atomic.Pointer[redigo.Pool]
	calls chan struct{} // one for each in flight
	began time.Time
	used  atomic.Int64 // when a call was made last, since began
}

func (o Options) newPool(ctx context.Context, address string, k kind) *pool {
	p := &pool{ctx: ctx, calls: make(chan struct{}, mostCalls), began: time.Now()}
	p.open = func() *redigo.Pool {
		return &redigo.Pool{
			MaxIdle:     mostCalls,
			IdleTimeout: idleTime,
			DialContext: func(ctx context.Context) (redigo.Conn, error) { return o.dial(ctx, address, k) },
		}
	}
	p.conns.Store(p.open())
	return p
}

// close closes all connections that no call uses, and the others after their calls.
func (p *pool) close() { p.conns.Load().Close() }

// do sends a command, and returns the reply. If ctx ends first, the call goes on in the
// background: a connection that is only slow is kept for the next.
func (p *pool) do(ctx context.Context, asking bool, command string, args ...any) (any, error) {
	select {
	case p.calls <- struct{}{}:
	case <-ctx.Done():
		return nil, errBusy
	}
	type result struct {
		reply any
		err   error
	}
	got := make(chan result, 1)
	go func() {
		defer func() { <-p.calls }()
		reply, err := p.call(callTimeout, asking, command, args...)
		got <- result{reply, err}
	}()
	select {
	case r := <-got:
		return r.reply, r.err
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// call sends a command, and waits for the reply. If there is none in time, or the connection
// breaks, all connections to the server are made anew.
func (p *pool) call(timeout time.Duration, asking bool, command string, args ...any) (reply any, err error) {
	ctx, cancel := context.WithTimeout(p.ctx, timeout)
	defer cancel()
	conns := p.conns.Load()
	conn, err := conns.GetContext(ctx)
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	p.used.Store(int64(time.Since(p.began)))
	if asking {
		_, err = redigo.DoContext(conn, ctx, "ASKING")
	}
	if err == nil {
		reply, err = redigo.DoContext(conn, ctx, command, args...)
	}
	if conn.Err() != nil && p.conns.CompareAndSwap(conns, p.open()) {
		conns.Close()
	}
	return reply, err
}

// ping asks the server whether it lives, if there was no call for pingAfter.
func (p *pool) ping() {
	if p.conns.Load().IdleCount() > 0 && time.Since(p.began)-time.Duration(p.used.Load()) >= pingAfter {
		_, _ = p.call(share.GiveUp, false, "PING")
	}
}
