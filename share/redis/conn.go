package redis

import (
	"errors"
	"net"
)

// Of one answer. Ours: the longest are news of 1 MiB, and the slots of a Cluster in many pieces.
const (
	mostBytes = 16 << 20 // that were announced or sent
	lineBytes = 32       // what a line, or an element of a list, takes beside its text
)

var errTooLong = errors.New("a response is longer than a store sends")

// A bounded connection fails when a server announces or sends more than a store does. The library makes room for as
// much as a server announces, before that has come: "$9223372036854775807" would end the process, and "*1" that never
// ends its stack. No text of a store has lines.
type bounded struct {
	net.Conn
	bytes  int  // of the answer until now
	kind   byte // the first of the line that has not ended; 0: there is none
	number int  // after it
}

// Write begins with what is asked: all that comes afterwards is its answer.
func (c *bounded) Write(b []byte) (int, error) {
	c.bytes = 0
	return c.Conn.Write(b)
}

func (c *bounded) Read(b []byte) (n int, err error) {
	n, err = c.Conn.Read(b)
	c.bytes += n
	for _, char := range b[:n] {
		switch {
		case char == '\n':
			c.bytes += lineBytes
			if c.kind == '*' { // a list in a list has room made for it before either has come
				c.bytes += lineBytes * c.number
			} else if c.kind == '$' {
				c.bytes += c.number
			}
			c.kind, c.number = 0, 0
		case c.kind == 0:
			c.kind = char
		case '0' <= char && char <= '9':
			c.number = min(10*c.number+int(char-'0'), mostBytes+1)
		}
	}
	if c.bytes > mostBytes {
		return 0, errTooLong
	}
	return n, err
}
