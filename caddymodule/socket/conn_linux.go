package socket

import (
	"errors"
	"io"
	"net"
	"os"
	"sync"
	"syscall"
	"time"
)

// A Conn is a connection of a Listener. While it only reads bytes that are there, is answered
// for the last time and is closed, it makes no other system calls. For anything else net takes
// it over, as it also does when Read has to wait.
type Conn struct {
	listener      *Listener
	local, remote net.Addr

	// mu is held while fd is used, lest it be closed meanwhile. Nothing waits for the client then.
	mu      sync.Mutex
	fd      int          // -1: net has it, or it is closed
	tcp     *net.TCPConn // nil: net does not have it
	readBy  time.Time    // for net
	writeBy time.Time    // for net
}

// full returns the connection that net has, which takes it over now if it has none.
func (c *Conn) full() (*net.TCPConn, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.tcp != nil:
		return c.tcp, nil
	case c.fd < 0:
		return nil, net.ErrClosed
	}
	f := os.NewFile(uintptr(c.fd), "connection")
	c.fd = -1
	conn, err := net.FileConn(f) // a duplicate
	_ = f.Close()
	if err != nil {
		return nil, err
	}
	c.tcp = conn.(*net.TCPConn)
	if k := c.listener.keepAlive; k.Enable && k != (net.KeepAliveConfig{Enable: true}) { // which it has
		_ = c.tcp.SetKeepAliveConfig(k)
	}
	_ = c.tcp.SetReadDeadline(c.readBy)
	_ = c.tcp.SetWriteDeadline(c.writeBy)
	return c.tcp, nil
}

// now calls do with the descriptor, if net does not have the connection. It reports whether do
// has done it.
func (c *Conn) now(do func(fd int) bool) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.fd >= 0 && do(c.fd)
}

// Read implements net.Conn. It may return bytes that are there after its deadline.
func (c *Conn) Read(p []byte) (n int, err error) {
	if c.now(func(fd int) bool { n, err = syscall.Read(fd, p); return err == nil }) {
		if n == 0 && len(p) > 0 {
			err = io.EOF
		}
		return n, err
	}
	tcp, err := c.full() // it has the error, too
	if err != nil {
		return 0, err
	}
	return tcp.Read(p)
}

// Write implements net.Conn.
func (c *Conn) Write(p []byte) (int, error) {
	tcp, err := c.full()
	if err != nil {
		return 0, err
	}
	return tcp.Write(p)
}

// WriteLast writes p and that no more follows, in one segment if that has room. Without it a client
// gets two, which takes a fifth of what such a connection costs.
func (c *Conn) WriteLast(p []byte) (n int, err error) {
	if c.now(func(fd int) bool {
		n, err = syscall.SendmsgN(fd, p, nil, nil, syscall.MSG_MORE|syscall.MSG_NOSIGNAL)
		return err == nil && n == len(p) && syscall.Shutdown(fd, syscall.SHUT_WR) == nil
	}) {
		return n, nil
	}
	tcp, err := c.full()
	if err != nil {
		return max(0, n), err
	}
	rest, err := tcp.Write(p[max(0, n):])
	return max(0, n) + rest, errors.Join(err, tcp.CloseWrite())
}

// ReadFrom implements io.ReaderFrom, so that the kernel sends files.
func (c *Conn) ReadFrom(r io.Reader) (int64, error) {
	tcp, err := c.full()
	if err != nil {
		return 0, err
	}
	return tcp.ReadFrom(r)
}

// CloseWrite is that of net.TCPConn.
func (c *Conn) CloseWrite() error {
	tcp, err := c.full()
	if err != nil {
		return err
	}
	return tcp.CloseWrite()
}

// SyscallConn implements syscall.Conn.
func (c *Conn) SyscallConn() (syscall.RawConn, error) {
	tcp, err := c.full()
	if err != nil {
		return nil, err
	}
	return tcp.SyscallConn()
}

// Close implements net.Conn.
func (c *Conn) Close() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch fd := c.fd; {
	case c.tcp != nil:
		return c.tcp.Close()
	case fd < 0:
		return net.ErrClosed
	default:
		c.fd = -1
		return os.NewSyscallError("close", syscall.Close(fd))
	}
}

// LocalAddr implements net.Conn.
func (c *Conn) LocalAddr() net.Addr { return c.local }

// RemoteAddr implements net.Conn.
func (c *Conn) RemoteAddr() net.Addr { return c.remote }

// SetReadDeadline implements net.Conn.
func (c *Conn) SetReadDeadline(t time.Time) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.tcp != nil {
		return c.tcp.SetReadDeadline(t)
	}
	c.readBy = t
	return nil
}

// SetWriteDeadline implements net.Conn.
func (c *Conn) SetWriteDeadline(t time.Time) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.tcp != nil {
		return c.tcp.SetWriteDeadline(t)
	}
	c.writeBy = t
	return nil
}

// SetDeadline implements net.Conn.
func (c *Conn) SetDeadline(t time.Time) error {
	return errors.Join(c.SetReadDeadline(t), c.SetWriteDeadline(t))
}
