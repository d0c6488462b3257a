package caddymodule

import (
	"errors"
	"time"

	"github.com/herdshield/shield"
)

// look is for a read of one byte. net/http makes such reads for two purposes. While a handler runs it
// looks whether the client is still there; from a client that sends its next request at once this would
// take the first byte, and what is left is no request. And bufio reads a byte when its buffer is full
// but for that one, in the middle of a line. Nothing here tells the two apart.
//
// So look waits for a byte as any read does, keeps it, and says that none was read. For the first
// purpose that is the end of the read. For the second, bufio reads once more, and then gets the byte.
func (c *doorConn) look() error {
	c.lone = false
	if len(c.rest) == 0 {
		if err := c.readEarly(); err != nil {
			return err
		}
	}
	c.looked = true
	return nil
}

// readEarly waits until there is an early byte.
func (c *doorConn) readEarly() error {
	if c.has {
		return nil
	}
	n, err := c.Conn.Read(c.early[:])
	if c.has = n > 0; c.has {
		return nil // an error comes again
	}
	return err
}

// read reads what came early, and then what comes. Only where a request begins may there be an early
// byte: it is at least 16 bytes long, so there is more to come. See alone for anywhere else.
func (c *doorConn) read(p []byte) (n int, err error) {
	if !c.has {
		return c.Conn.Read(p)
	}
	p[0], c.has = c.early[0], false
	if len(p) > 1 && !c.taken.Load() {
		n, err = c.Conn.Read(p[1:])
	}
	return n + 1, err
}

// alone passes an early byte on alone. It may be the last one of a request that net/http has read but
// for that one. If it is the first one, the chunk after it is the rest: see whole.
func (c *doorConn) alone(p []byte) int {
	p[0], c.has, c.lone = c.early[0], false, true
	return 1
}

// whole returns a chunk with the byte before it that was passed on alone, if there was one.
func (c *doorConn) whole(buf, chunk []byte) []byte {
	if !c.lone {
		return chunk
	}
	return append(append(buf, c.early[0]), chunk...)
}

// longAgo is a deadline that is over.
var longAgo = time.Unix(1, 0)

// SetReadDeadline implements net.Conn.
func (c *doorConn) SetReadDeadline(t time.Time) error {
	by := int64(0)
	if !t.IsZero() {
		by = max(1, int64(t.Sub(shield.At(0))))
	}
	c.readBy.Store(by)
	return c.Conn.SetReadDeadline(t)
}

// readDeadline returns the deadline that net/http has set.
func (c *doorConn) readDeadline() time.Time {
	if by := c.readBy.Load(); by > 0 {
		return shield.At(time.Duration(by))
	}
	return time.Time{}
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
	by := time.Duration(c.readBy.Load())
	if !starts || by <= 0 {
		return 0, 0
	}
	now = shield.Now()
	return by - now, now
}
