package door

import (
	"bytes"
	"errors"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/net/http2"

	"github.com/herdshield/shield"
	"github.com/herdshield/shield/limiter"
)

// A conn answers, when net/http wants to read a request, those that it has a memo of,
// and reads on. It passes on any other bytes.
//
// A request begins after one that was verified to be all of one chunk, or was answered here.
// Anywhere else no memo counts: at the beginning of a connection, and after a chunk with more or
// less than a request, or a body, until a rejected request has been verified again.
//
// Read is called by one goroutine at a time. Handlers, Write and Close may run at any time. Read
// waits in a Read of the connection itself, under the deadline that net/http has set, and for
// nothing else.
type conn struct {
	net.Conn
	memos memos
	h2    atomic.Pointer[h2Conn] // reads and writes, if it is HTTP/2

	recording atomic.Bool // there is a draft

	mu    sync.Mutex
	visit visit // of the request that was passed on; guarded by mu

	// Only Read uses what follows.
	begun   bool   // the first bytes have come
	early   []byte // of a request, that were read before it: one byte, or the first of the connection
	kept    bool   // they are to be passed on with the next chunk
	torn    bool   // they were passed on alone
	writeBy writeDeadline
}

func (c *conn) Read(p []byte) (n int, err error) {
	switch h2 := c.h2.Load(); {
	case !c.begun:
		return c.begin(p)
	case h2 != nil:
		return h2.read(p)
	case len(p) == 1:
		return c.readByte(p)
	}
	return c.next(p, c.finish() && !c.torn)
}

// readByte is for net/http, which looks while a handler runs whether the client is still there. What it
// gets then is the first byte of the next request. If this one is being rejected, the byte is kept for the
// read of the next one, which is longer than that: an answer that is all but written needs no look.
func (c *conn) readByte(p []byte) (n int, err error) {
	if n, err = c.Conn.Read(p); n == 0 {
		return 0, err
	}
	c.early = append(c.early[:0], p[0])
	c.kept = c.recording.Load()
	c.torn = !c.kept
	if c.kept {
		return 0, nil // an error comes again
	}
	return n, err
}

// readChunk reads what comes, after the byte that was kept.
func (c *conn) readChunk(p []byte) (n int, err error) {
	if !c.kept {
		return c.Conn.Read(p)
	}
	if n, err = c.Conn.Read(p[1:]); n > 0 {
		p[0], c.kept = c.early[0], false
		n++
	}
	return n, err
}

// begins is how HTTP/2 begins. net/http asks for as much first.
const begins = "PRI * HTTP/2.0"

// begin passes on what tells HTTP/1 from HTTP/2. No HTTP/1 request begins as HTTP/2 does: one with the method PRI has
// another target.
func (c *conn) begin(p []byte) (n int, err error) {
	n, err = c.Conn.Read(p[:min(len(p), len(begins))])
	c.begun, c.torn, c.early = n > 0, n > 0, append(c.early, p[:n]...)
	if string(p[:n]) == begins {
		c.h2.Store(&h2Conn{c: c, out: h2Writer{conn: c.Conn, turn: make(chan struct{}, 1)}, pass: len(http2.ClientPreface) - n})
	}
	return n, err
}

// next answers what it knows, if a request begins here, and returns the first chunk that is
// to be passed on.
func (c *conn) next(p []byte, starts bool) (n int, err error) {
	for {
		if n, err = c.readChunk(p); n == 0 {
			return 0, err
		}
		if !starts || err != nil {
			c.pass(p[:n], nil)
			return n, err
		}
		now := shield.Now()
		m := c.memos.find(now, 0, p[:n])
		if m == nil {
			c.pass(p[:n], nil)
			return n, nil
		}
		d := m.of.Guard().Admit(now, m.q)
		told := c.memos.telling(m, &d, now)
		if told == nil { // it is for the handler
			c.pass(p[:n], &hand{m.of, d})
			return n, nil
		}
		told.of.Rejected(&m.q, &d, told.page.status, 1)
		c.writeBy.begin(c.Conn, d.At())
		b := pages.Get().(*[]byte)
		*b = told.page.append((*b)[:0], d.Hint, time.Now())
		_, err = c.Conn.Write(*b)
		if pages.Put(b); err != nil {
			return 0, err
		}
	}
}

// A writeDeadline is until when answers have to be written; 0: there is none of ours.
type writeDeadline time.Duration

// readerTakes is how long a client may take to read what was sent.
const readerTakes = time.Minute

// begin is called before an answer is written.
func (by *writeDeadline) begin(c net.Conn, now time.Duration) {
	if time.Duration(*by) < now+readerTakes*2/3 { // not for every answer
		*by = writeDeadline(now + readerTakes)
		_ = c.SetWriteDeadline(shield.At(now + readerTakes))
	}
}

// end is called before anything else is.
func (by *writeDeadline) end(c net.Conn) {
	if *by > 0 {
		*by = 0
		_ = c.SetWriteDeadline(time.Time{})
	}
}

// pages hold answers while they are written. They are all of about one size.
var pages = sync.Pool{New: func() any { return new([]byte) }}

// pass notes a chunk that is passed on, with the decision on it, if there is one.
func (c *conn) pass(chunk []byte, h *hand) {
	c.writeBy.end(c.Conn)
	next := visit{hand: h}
	if len(chunk) < maxHead-len(begins) {
		var buf [maxHead]byte // on the stack
		if c.torn {
			chunk = append(append(buf[:0], c.early...), chunk...)
		}
		next.sum = sum(chunk)
	}
	c.torn = false
	c.mu.Lock()
	defer c.mu.Unlock()
	if next.sum != 0 && c.memos.knows(next.sum) {
		next.head = bytes.Clone(chunk)
	}
	c.visit = next
}

// finish ends what the passed request has left, and reports whether the next one begins where
// the connection is read next.
func (c *conn) finish() (starts bool) {
	c.mu.Lock()
	last := c.visit
	c.visit = visit{}
	c.recording.Store(false)
	c.mu.Unlock()
	last.hand.drop()
	if last.draft == nil {
		return false
	}
	return c.memos.keep(last.draft)
}

// rejected is that of Visit.
func (c *conn) rejected(v rejection, q *shield.Request, keys []limiter.Key, d *shield.Decision) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch is := &c.visit; {
	case is.sum == 0 || is.shields != 1 || is.draft != nil:
	default:
		c.memos.sees(is.sum)
		if is.head != nil && isAllOf(is.head, v.r) {
			is.draft = v.draft(is.head, 0, q, keys, d)
			c.recording.Store(true)
		}
	}
}

func (c *conn) Write(b []byte) (int, error) {
	if h2 := c.h2.Load(); h2 != nil {
		return h2.out.Write(b)
	}
	if c.recording.Load() {
		c.mu.Lock()
		if d := c.visit.draft; d != nil && len(d.written) <= maxPage {
			d.written = append(d.written, b...)
		}
		c.mu.Unlock()
	}
	return c.Conn.Write(b)
}

// ReadFrom implements io.ReaderFrom, so that the kernel sends files over HTTP/1.1. An answer that is sent so is not recorded,
// and what is left of it is none.
func (c *conn) ReadFrom(r io.Reader) (int64, error) {
	return io.Copy(c.Conn, r)
}

// Close gives back what the connection's requests have left. Those of HTTP/2 have a time of their own: see number.
func (c *conn) Close() error {
	err := c.Conn.Close()
	c.finish()
	return err
}

// CloseWrite is for net/http, which has a client read an answer before its connection ends.
func (c *conn) CloseWrite() error {
	if half, ok := c.Conn.(interface{ CloseWrite() error }); ok {
		return half.CloseWrite()
	}
	return errors.ErrUnsupported
}
