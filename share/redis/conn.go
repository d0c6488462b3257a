package redis

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"net"
	"strconv"

	redigo "github.com/gomodule/redigo/redis"

	"github.com/herdshield/shield/share"
)

// Of one answer. Ours: the longest are news of 1 MiB, and the slots of a Cluster in many pieces.
const (
	mostBytes = 16 << 20
	mostLines = 1 << 19 // elements of lists are two each, one of them as they are announced, and bulk strings one more
)

var errTooLong = errors.New("a response is longer than a store sends")

// A bounded connection fails when a server announces or sends more than a store does. The library makes room for as
// much as a server announces, before that has come: "$9223372036854775807" would end the process, and "*1" that never
// ends its stack.
type bounded struct {
	net.Conn
	bytes, lines int    // of the answer until now
	skip         int    // bytes of a bulk string that are still to come, with its end
	head         []byte // of a line that has not ended, as much as a length takes
}

// Write begins with what is asked: all that comes afterwards is its answer.
func (c *bounded) Write(b []byte) (int, error) {
	c.bytes, c.lines = 0, 0
	return c.Conn.Write(b)
}

func (c *bounded) Read(b []byte) (n int, err error) {
	n, err = c.Conn.Read(b)
	if c.bytes += n; c.bytes > mostBytes {
		return 0, errTooLong
	}
	for rest := b[:n]; len(rest) > 0; {
		if c.skip > 0 {
			part := min(c.skip, len(rest))
			c.skip, rest = c.skip-part, rest[part:]
			continue
		}
		line, after, ended := bytes.Cut(rest, []byte("\n"))
		c.head = append(c.head, line[:min(len(line), 32-len(c.head))]...)
		if ended && !c.line() {
			return 0, errTooLong
		}
		rest = after
	}
	return n, err
}

// line takes a line that has ended, and reports whether a store may have sent it.
func (c *bounded) line() bool {
	head := bytes.TrimSuffix(c.head, []byte("\r"))
	c.head = c.head[:0]
	c.lines++
	if len(head) > 0 && (head[0] == '$' || head[0] == '*') {
		n, err := strconv.Atoi(string(head[1:]))
		if err != nil || n > mostBytes {
			return false
		}
		if head[0] == '*' { // a list in a list has room made for it before either has come
			c.lines += max(0, n)
		} else if n >= 0 {
			c.skip = n + len("\r\n")
		}
	}
	return c.lines <= mostLines
}

func (o *Options) connect(ctx context.Context, address, user, password string) (redigo.Conn, error) {
	dialer := &net.Dialer{KeepAlive: share.GiveUp}
	dial := dialer.DialContext
	if o.TLS != nil {
		dial = (&tls.Dialer{NetDialer: dialer, Config: o.TLS}).DialContext
	}
	return redigo.DialContext(ctx, "tcp", address, redigo.DialUsername(user), redigo.DialPassword(password),
		redigo.DialContextFunc(func(ctx context.Context, network, address string) (net.Conn, error) {
			conn, err := dial(ctx, network, address)
			if err != nil {
				return nil, err
			}
			return &bounded{Conn: conn}, nil
		}), redigo.DialReadTimeout(dialTime), redigo.DialWriteTimeout(share.GiveUp))
}
