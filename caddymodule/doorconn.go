package caddymodule

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"io"
	"net"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/net/http2"

	"github.com/herdshield/shield"
)

// A doorConn answers, when net/http wants to read a request, those that it has a memo of,
// and reads on. It passes on any other bytes.
//
// A request begins where a connection does, and after a request that was verified to be all of
// one chunk, or was answered here. Anywhere else no memo counts: after a chunk with more or
// less than a request, or a body, until a refused request has been verified again.
//
// Read is called by one goroutine at a time. Handlers, Write and Close may run at any time. Whatever
// Read waits for, it waits in a Read of the connection itself, under the deadline that net/http has
// set; but for a refusal that is held back, for less than a second.
type doorConn struct {
	net.Conn
	memos  *memos
	serial uint64
	origin origin
	memo   atomic.Pointer[memo]   // of the last request, if it was refused
	h2     atomic.Pointer[h2Door] // reads and writes, if it is HTTP/2
	reader

	readBy    atomic.Int64 // the read deadline, as shield.Now has it; 0: none
	taken     atomic.Bool  // a handler has taken the connection over
	state     atomic.Int32 // reading, answering or closed
	recording atomic.Bool  // there is a draft

	mu     sync.Mutex
	passed passed // guarded by mu
}

// reader is what only Read uses.
type reader struct {
	answered bool          // something was
	once     bool          // by an answer that ended the connection, and was not held back
	begun    bool          // something was passed on
	buffer   *headBuffer   // of rest; nil: it has none
	rest     []byte        // that was read, and is to be passed on
	early    [1]byte       // that came before it was asked for
	has      bool          // there is an early byte
	lone     bool          // it was passed on alone
	looked   bool          // the last read was told of none, see look
	ended    error         // no more is read: net/http may try again
	writeBy  time.Duration // the write deadline; 0: none of ours
}

// The values of doorConn.state.
const (
	reading   = iota
	answering // Close leaves it to the reader to close
	closed
)

// headBuffer holds the first chunk of a connection, of which net/http asks for 14 bytes first.
type headBuffer [maxHead]byte

var headBuffers = sync.Pool{New: func() any { return new(headBuffer) }}

var lastSerial atomic.Uint64

func newDoorConn(conn net.Conn, m *memos) *doorConn {
	c := &doorConn{Conn: conn, memos: m, serial: lastSerial.Add(1)}
	switch conn.(type) {
	case *net.TCPConn, lastWriter:
		c.origin.remote, c.origin.local = addrOf(conn.RemoteAddr()), addrOf(conn.LocalAddr())
	default:
		c.origin.serial = c.serial
	}
	return c
}

func addrOf(a net.Addr) netip.Addr {
	if tcp, _ := a.(*net.TCPAddr); tcp != nil {
		return tcp.AddrPort().Addr().Unmap()
	}
	return netip.Addr{}
}

// Read implements net.Conn.
func (c *doorConn) Read(p []byte) (int, error) {
	h2 := c.h2.Load()
	switch {
	case h2 != nil:
		return h2.read(p)
	case c.ended != nil:
		return 0, c.ended
	case len(p) == 1 && c.begun && !c.looked && !c.taken.Load():
		return 0, c.look()
	}
	c.looked = false
	switch {
	case len(c.rest) > 0:
		return c.passRest(p), nil
	case c.taken.Load():
		return c.read(p)
	case c.begun:
		return c.next(p, c.finish())
	}
	if err := c.first(); err != nil {
		return 0, err
	}
	return c.Read(p)
}

// first reads the first chunk that is to be passed on.
func (c *doorConn) first() error {
	c.buffer = headBuffers.Get().(*headBuffer)
	n, err := c.next(c.buffer[:], true)
	if n == 0 {
		c.freeBuffer()
		return err
	}
	// No HTTP/1 request begins as HTTP/2 does: one with the method PRI has another target.
	for n < len(http2.ClientPreface) && err == nil && strings.HasPrefix(http2.ClientPreface, string(c.buffer[:n])) {
		var more int
		more, err = c.read(c.buffer[n:])
		n += more
	}
	if c.rest = c.buffer[:n]; bytes.HasPrefix(c.rest, []byte(http2.ClientPreface)) {
		c.h2.Store(newH2Door(c, c.buffer, c.rest))
		c.buffer, c.rest = nil, nil
	}
	return nil // an error comes again
}

func (c *doorConn) passRest(p []byte) int {
	n := copy(p, c.rest)
	if c.rest = c.rest[n:]; len(c.rest) == 0 {
		c.freeBuffer()
	}
	return n
}

func (c *doorConn) freeBuffer() {
	headBuffers.Put(c.buffer)
	c.buffer, c.rest = nil, nil
}

// next answers what it knows, if a request begins here, and returns the first chunk that is
// to be passed on.
func (c *doorConn) next(p []byte, starts bool) (n int, err error) {
	if c.has && !starts {
		return c.alone(p), nil
	}
	var hand *inHand
	idle, moved := c.patience(starts)
	for hand == nil {
		if n, err = c.read(p); n == 0 {
			return 0, err
		}
		var m *memo
		var q shield.Request
		var now time.Duration
		if starts && err == nil {
			m, q, now = c.find(p[:n])
		}
		if m == nil {
			break
		}
		if hand, err = c.again(m, q, now); err != nil {
			c.ended = err
			return 0, err
		}
		c.answered = true
		if idle > 0 && now-moved > idle/8 {
			_ = c.SetReadDeadline(shield.At(now + idle))
			moved = now
		}
	}
	if c.answered && !c.begun {
		n, err = c.unbegun(p, n, err)
	}
	if n == 0 {
		return 0, err
	}
	c.pass(p[:n], hand)
	return n, err
}

// unbegun makes the beginning of a connection of what net/http must take for the middle of
// one: the client has had answers. If it ends within the next four bytes it is an idle one, not
// a broken request; and it cannot turn to HTTP/2, which net/http would still accept.
func (c *doorConn) unbegun(p []byte, n int, err error) (int, error) {
	for n < 4 && err == nil {
		var more int
		more, err = c.Conn.Read(p[n:])
		n += more
	}
	if n < 4 || string(p[:4]) == "PRI " {
		c.ended = cmp.Or(err, io.EOF)
		return 0, c.ended
	}
	return n, err
}

// find returns the memo of a chunk or a rule for it, what to ask the Guard, and what time it is.
func (c *doorConn) find(chunk []byte) (m *memo, q shield.Request, now time.Duration) {
	if len(chunk) >= maxHead || chunk[0] == 0 {
		return nil, q, 0
	}
	now = shield.Now()
	if m = c.memo.Load(); m.counts(&c.origin, c.serial, chunk, now) {
		return m, m.q, now
	}
	if m = c.memos.find(c.origin.sum(chunk)); m.counts(&c.origin, c.serial, chunk, now) {
		c.memo.Store(m)
		return m, m.q, now
	}
	if c.memos.warm(c.origin.remote, now) {
		m, q = c.rule(chunk, now)
		return m, q, now
	}
	return nil, q, 0
}

// again decides on a request that it has a memo of, and answers it. A decision that it cannot
// tell is for the handler. An error ends the connection.
func (c *doorConn) again(m *memo, q shield.Request, now time.Duration) (hand *inHand, err error) {
	if !c.state.CompareAndSwap(reading, answering) {
		return nil, net.ErrClosed
	}
	d := m.admit(now, q)
	if told := m.answer(&d, c.serial, now); told == nil {
		hand = &inHand{m.h, d}
	} else {
		m.h.countRefused(&q, &d)
		at, ok := c.deliver(&d)
		if ok {
			c.once = !c.answered && told.closes && d.Hold == 0
			err = c.tell(told, &d, at)
		} else { // the handler and the logs say so
			d.Gone = true
			hand = &inHand{m.h, d}
		}
	}
	if !c.state.CompareAndSwap(answering, reading) { // Close was called
		hand.drop()
		return nil, errors.Join(net.ErrClosed, c.close())
	}
	return hand, err
}

// deliver holds a refusal back, and sees whether the client leaves meanwhile.
func (c *doorConn) deliver(d *shield.Decision) (now time.Duration, ok bool) {
	if d.Hold == 0 {
		return d.Deliver(context.Background())
	}
	ctx, leave := context.WithCancel(context.Background())
	defer leave()
	_ = c.Conn.SetReadDeadline(time.Time{})
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		err := c.readEarly()
		if timeout, is := errors.AsType[net.Error](err); err != nil && !(is && timeout.Timeout()) {
			leave()
		}
	}()
	now, ok = d.Deliver(ctx)
	_ = c.Conn.SetReadDeadline(longAgo)
	<-ended
	_ = c.Conn.SetReadDeadline(c.readDeadline())
	return now, ok
}

const (
	// readerTakes is how long a client may take to read what was sent.
	readerTakes = time.Minute

	// lastWords is how long an answer may take after the server has closed the connection.
	// Ours: a refusal is held for less than a second.
	lastWords = 2 * time.Second
)

// tell writes an answer. The error is io.EOF if the connection ends with it.
func (c *doorConn) tell(m *memo, d *shield.Decision, now time.Duration) error {
	if c.writeBy < now+readerTakes*2/3 && c.state.Load() == answering { // not for every answer
		c.writeBy = now + readerTakes
		_ = c.Conn.SetWriteDeadline(shield.At(c.writeBy))
	}
	b := pages.Get().(*[]byte)
	*b = m.page.append((*b)[:0], d.Hint, dateNow())
	m.h.record.atDoor.Add(1)
	m.observe(d, now-d.At())
	var err error
	if last, is := c.Conn.(lastWriter); is && m.closes {
		_, err = last.WriteLast(*b)
	} else {
		_, err = c.Conn.Write(*b)
	}
	pages.Put(b)
	if err == nil && m.closes {
		err = io.EOF
	}
	return err
}

// A lastWriter is a socket.Conn, which there is on Linux only: plain TCP.
type lastWriter interface{ WriteLast([]byte) (int, error) }

// pages hold answers while they are written. They are all of about one size.
var pages = sync.Pool{New: func() any { return new([]byte) }}

// pass notes a chunk that is passed on, with the decision on it, if there is one.
func (c *doorConn) pass(chunk []byte, hand *inHand) {
	if c.writeBy > 0 {
		c.writeBy = 0
		_ = c.Conn.SetWriteDeadline(time.Time{})
	}
	next := passed{hand: hand}
	if len(chunk) < maxHead-1 {
		var buf [maxHead]byte // on the stack
		chunk = c.whole(buf[:0], chunk)
		next.sum = c.origin.sum(chunk)
		if c.memos.knows(next.sum) || c.memos.knows(c.origin.sum(nil)) {
			next.head = bytes.Clone(chunk)
		}
	}
	c.lone = false
	c.mu.Lock()
	defer c.mu.Unlock()
	c.passed, c.begun = next, true
}

// Write implements net.Conn.
func (c *doorConn) Write(b []byte) (int, error) {
	if h2 := c.h2.Load(); h2 != nil {
		return h2.out.Write(b)
	}
	if c.recording.Load() {
		c.mu.Lock()
		if d := c.passed.draft; d != nil {
			d.record(b)
		}
		c.mu.Unlock()
	}
	return c.Conn.Write(b)
}

// ReadFrom implements io.ReaderFrom, so that the kernel sends files.
func (c *doorConn) ReadFrom(r io.Reader) (int64, error) {
	if c.recording.Swap(false) {
		c.mu.Lock()
		c.passed.draft = nil
		c.mu.Unlock()
	}
	if h2 := c.h2.Load(); h2 != nil {
		return io.Copy(&h2.out, r)
	}
	return io.Copy(c.Conn, r)
}

// Close implements net.Conn. An answer that is being written is finished first.
func (c *doorConn) Close() error {
	if c.state.CompareAndSwap(answering, closed) {
		return c.Conn.SetWriteDeadline(shield.At(shield.Now() + lastWords))
	}
	c.state.CompareAndSwap(reading, closed)
	return c.close()
}

func (c *doorConn) close() error {
	err := c.Conn.Close()
	c.finish()
	if h2 := c.h2.Load(); h2 != nil {
		h2.close()
	}
	return err
}

// CloseWrite is for net/http, which has a client read an answer before its connection ends.
func (c *doorConn) CloseWrite() error {
	if half, ok := c.Conn.(interface{ CloseWrite() error }); ok {
		return half.CloseWrite()
	}
	return errors.ErrUnsupported
}

// SyscallConn implements syscall.Conn.
func (c *doorConn) SyscallConn() (syscall.RawConn, error) {
	if conn, ok := c.Conn.(syscall.Conn); ok {
		return conn.SyscallConn()
	}
	return nil, errors.ErrUnsupported
}
