package caddymodule

import (
	"bytes"
	"errors"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/herdshield/shield"
)

// readBackground is for net/http, which reads a byte while a handler runs, to see whether the
// client is still there. Once a request was refused it gets nothing: it would take the first byte
// of the next one from a client that sends it at once, and the rest is no request. All that comes
// is kept for later, and net/http ends the read with a deadline.
func (c *doorConn) readBackground(p []byte) (int, error) {
	if len(c.early) == 0 {
		switch due, wary := c.background.wait(); {
		case !due:
			return 0, os.ErrDeadlineExceeded
		case wary:
			if err := c.readEarly(); err != nil {
				return 0, err
			}
			c.background.waitOver()
			return 0, os.ErrDeadlineExceeded
		}
	}
	n, err := c.read(p)
	if n > 0 {
		c.ahead.Store(true)
	}
	return n, err
}

// readEarly reads what comes before it is asked for.
func (c *doorConn) readEarly() error {
	b := headBuffers.Get().(*headBuffer)
	defer headBuffers.Put(b)
	n, err := c.receive(b[:])
	if n == 0 {
		return err
	}
	c.early = bytes.Clone(b[:n])
	return nil
}

// read reads what came early, or else what comes.
func (c *doorConn) read(p []byte) (int, error) {
	if len(c.early) == 0 {
		return c.receive(p)
	}
	n := copy(p, c.early)
	c.early = c.early[n:]
	return n, nil
}

// receive reads what comes.
func (c *doorConn) receive(p []byte) (n int, err error) {
	c.readBy.readers.Add(1)
	defer c.readBy.readers.Add(-1)
	for again := true; again; {
		if c.readBy.at() == longAgo {
			return 0, os.ErrDeadlineExceeded
		}
		n, err = c.Conn.Read(p)
		timeout, is := err.(net.Error) // as poll returns it
		again = n == 0 && is && timeout.Timeout() && c.readBy.tooSoon(c.Conn)
	}
	return n, err
}

// SetReadDeadline implements net.Conn.
func (c *doorConn) SetReadDeadline(t time.Time) error {
	by := noDeadline
	if !t.IsZero() {
		if by = t.Sub(shield.At(0)); by <= 0 {
			by = longAgo
		}
	}
	err := c.readBy.set(c.Conn, by)
	c.background.setOver(by == longAgo) // as net/http ends its read
	return err
}

// SetDeadline implements net.Conn. net/http calls it only for a handler that takes the connection
// over, as for a WebSocket. From then on it is read as any other one.
func (c *doorConn) SetDeadline(t time.Time) error {
	c.taken.Store(true)
	return errors.Join(c.SetReadDeadline(t), c.SetWriteDeadline(t))
}

// patience returns for how long net/http waits for the next request, from now; 0: for ever. It
// has set the deadline just before, and a client that is answered here has as long again.
func (c *doorConn) patience(starts bool) (idle, now time.Duration) {
	by := c.readBy.at()
	if !starts || by <= 0 {
		return 0, 0
	}
	now = shield.Now()
	return by - now, now
}

// A readDeadline is when reads of a connection end. net/http sets it six times for a request. The
// connection itself gets only one that is earlier than the one it has. A read that it ends too
// soon begins again. Its methods may be called by any goroutine.
type readDeadline struct {
	by      atomic.Int64 // as shield.Now has it, or one of those below
	readers atomic.Int32 // reads of the connection that have begun

	mu  sync.Mutex
	has time.Duration // the connection's; guarded by mu
}

const (
	noDeadline time.Duration = 0
	longAgo    time.Duration = -1
)

func (d *readDeadline) at() time.Duration { return time.Duration(d.by.Load()) }

// set sets the deadline.
func (d *readDeadline) set(conn net.Conn, by time.Duration) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.by.Store(int64(by))
	switch {
	case by == d.has, by == noDeadline && d.has > 0, 0 < d.has && d.has < by:
		return nil
	case by == longAgo && d.readers.Load() == 0: // the next one sees it
		return nil
	}
	return d.give(conn, by)
}

// tooSoon gives the connection its deadline, if that is not yet over. It reports whether a read
// is to begin again.
func (d *readDeadline) tooSoon(conn net.Conn) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	now, by := shield.Now(), d.at()
	over := by == longAgo || 0 < by && by <= now
	ended := 0 < d.has && d.has <= now // by this one
	return ended && !over && d.give(conn, by) == nil
}

// give sets the connection's deadline. d.mu is held.
func (d *readDeadline) give(conn net.Conn, by time.Duration) error {
	var t time.Time
	switch by {
	case noDeadline:
	case longAgo:
		t = time.Unix(1, 0)
	default:
		t = shield.At(by)
	}
	d.has = by
	return conn.SetReadDeadline(t)
}
