package socket

import (
	"errors"
	"net"
	"os"
	"strconv"
	"syscall"
)

// A Listener accepts connections of a socket that another listener has opened. Either may
// accept at any time. Methods are safe for concurrent use.
type Listener struct {
	file      *os.File // a duplicate of the socket
	raw       syscall.RawConn
	address   *net.TCPAddr
	keepAlive net.KeepAliveConfig
}

// Of returns a listener of the socket that l listens on, or nil if there can be none. Connections
// get keepAlive when net takes them over. The socket is open until both listeners are closed.
func Of(l *net.TCPListener, keepAlive net.KeepAliveConfig) *Listener {
	file, err := l.File()
	if err != nil {
		return nil
	}
	raw, err := file.SyscallConn()
	address, _ := l.Addr().(*net.TCPAddr)
	if err != nil || address == nil {
		_ = file.Close()
		return nil
	}
	return &Listener{file, raw, address, keepAlive}
}

// Defer has the kernel keep a connection until its first bytes are there, for a second at most:
// then it is accepted without them. See TCP_DEFER_ACCEPT in tcp(7).
func (l *Listener) Defer(on bool) error {
	seconds := 0
	if on {
		seconds = 1
	}
	var err error
	return errors.Join(l.raw.Control(func(fd uintptr) {
		err = os.NewSyscallError("setsockopt", syscall.SetsockoptInt(int(fd), syscall.IPPROTO_TCP, syscall.TCP_DEFER_ACCEPT, seconds))
	}), err)
}

// Accept implements net.Listener. It returns a *Conn.
func (l *Listener) Accept() (net.Conn, error) {
	var fd int
	var from syscall.Sockaddr
	var err error
	closed := l.raw.Read(func(listener uintptr) (done bool) {
		for {
			fd, from, err = syscall.Accept4(int(listener), syscall.SOCK_NONBLOCK|syscall.SOCK_CLOEXEC)
			if err != syscall.EINTR && err != syscall.ECONNABORTED {
				return err != syscall.EAGAIN
			}
		}
	})
	switch {
	case closed != nil:
		return nil, l.failed(net.ErrClosed)
	case err != nil:
		return nil, l.failed(os.NewSyscallError("accept4", err))
	}
	c := &Conn{listener: l, fd: fd, local: l.address}
	if l.address.IP.IsUnspecified() {
		if c.local, err = addrOf(syscall.Getsockname(fd)); err != nil {
			_ = syscall.Close(fd)
			return nil, l.failed(os.NewSyscallError("getsockname", err))
		}
	}
	c.remote, _ = addrOf(from, nil)
	return c, nil
}

// addrOf returns the address that the kernel calls a.
func addrOf(a syscall.Sockaddr, err error) (net.Addr, error) {
	switch a := a.(type) {
	case *syscall.SockaddrInet4:
		return &net.TCPAddr{IP: a.Addr[:], Port: a.Port}, err
	case *syscall.SockaddrInet6:
		return &net.TCPAddr{IP: a.Addr[:], Port: a.Port, Zone: zone(a.ZoneId)}, err
	}
	return nil, err
}

// zone returns the name of a network interface, or its number if it has none.
func zone(id uint32) string {
	if id == 0 {
		return ""
	}
	if i, err := net.InterfaceByIndex(int(id)); err == nil {
		return i.Name
	}
	return strconv.Itoa(int(id))
}

// failed returns an error like net's, by which net/http knows those that pass.
func (l *Listener) failed(err error) error {
	return &net.OpError{Op: "accept", Net: "tcp", Addr: l.address, Err: err}
}

// Addr implements net.Listener.
func (l *Listener) Addr() net.Addr { return l.address }

// Close implements net.Listener. Connections are deferred no more, on whatever listens on.
func (l *Listener) Close() error { return errors.Join(l.Defer(false), l.file.Close()) }
