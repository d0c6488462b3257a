package socket

import (
	"bytes"
	"errors"
	"io"
	"net"
	"os"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// listen returns a listener of an address, and the one that has opened its socket.
func listen(t *testing.T, address string, keepAlive net.KeepAliveConfig) (*Listener, *net.TCPListener) {
	t.Helper()
	opened, err := net.Listen("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	l := Of(opened.(*net.TCPListener), keepAlive)
	if l == nil {
		t.Fatal("there is no listener")
	}
	t.Cleanup(func() { _ = l.Close(); _ = opened.Close() })
	return l, opened.(*net.TCPListener)
}

// connect returns both ends of a new connection, with what the client has sent.
func connect(t *testing.T, l *Listener, sends string) (*Conn, *net.TCPConn) {
	t.Helper()
	if err := l.Defer(sends != ""); err != nil {
		t.Fatal(err)
	}
	_, port, _ := net.SplitHostPort(l.Addr().String())
	host := "127.0.0.1"
	if l.address.IP.Equal(net.IPv6loopback) {
		host = "::1"
	}
	client, err := net.Dial("tcp", net.JoinHostPort(host, port))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = client.Close() })
	_ = client.SetDeadline(time.Now().Add(time.Minute))
	if _, err := io.WriteString(client, sends); err != nil {
		t.Fatal(err)
	}
	conn, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return conn.(*Conn), client.(*net.TCPConn)
}

// read returns what is read next.
func read(t *testing.T, from io.Reader) string {
	t.Helper()
	b := make([]byte, 100)
	n, err := from.Read(b)
	if err != nil {
		t.Fatal(err)
	}
	return string(b[:n])
}

const local = "127.0.0.1:0"

func TestAnswersOnce(t *testing.T) {
	l, _ := listen(t, local, net.KeepAliveConfig{})
	conn, client := connect(t, l, "question")
	if got := read(t, conn); got != "question" {
		t.Errorf("%q is read", got)
	}
	if n, err := conn.WriteLast([]byte("answer")); n != 6 || err != nil {
		t.Errorf("%d bytes of 6 are written: %v", n, err)
	}
	if err := conn.Close(); err != nil {
		t.Error(err)
	}
	if got, err := io.ReadAll(client); string(got) != "answer" || err != nil {
		t.Errorf("the client gets %q, %v", got, err)
	}
	if conn.tcp != nil {
		t.Error("net has taken the connection over")
	}
	if err := conn.Close(); !errors.Is(err, net.ErrClosed) {
		t.Errorf("a second Close returns %v", err)
	}
	if _, err := conn.Read(nil); !errors.Is(err, net.ErrClosed) {
		t.Errorf("Read returns %v after Close", err)
	}
}

// TestWriteLastSavesSegments counts what clients get: the end comes with the answer.
func TestWriteLastSavesSegments(t *testing.T) {
	l, _ := listen(t, local, net.KeepAliveConfig{})
	segments := func(answer func(*Conn)) (sum uint32) {
		for range 20 {
			conn, client := connect(t, l, "question")
			read(t, conn)
			answer(conn)
			if got, err := io.ReadAll(client); string(got) != "answer" || err != nil {
				t.Errorf("the client gets %q, %v", got, err)
			}
			raw, _ := client.SyscallConn()
			_ = raw.Control(func(fd uintptr) {
				info, err := unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO)
				if err != nil {
					t.Fatal(err)
				}
				sum += info.Segs_in
			})
		}
		return sum
	}
	two := segments(func(c *Conn) { _, _ = io.WriteString(c, "answer"); _ = c.Close() })
	one := segments(func(c *Conn) { _, _ = c.WriteLast([]byte("answer")); _ = c.Close() })
	if one+15 > two {
		t.Errorf("20 clients get %d segments, and %d with Write", one, two)
	}
}

// TestWriteLastOutlivesUnreadBytes has a client send more than is read. The kernel resets such a
// connection, but not before the answer.
func TestWriteLastOutlivesUnreadBytes(t *testing.T) {
	l, _ := listen(t, local, net.KeepAliveConfig{})
	conn, client := connect(t, l, "question, and more")
	if _, err := conn.Read(make([]byte, 8)); err != nil {
		t.Fatal(err)
	}
	_, _ = conn.WriteLast([]byte("answer"))
	_ = conn.Close()
	if got := read(t, client); got != "answer" {
		t.Errorf("the client gets %q", got)
	}
}

// TestWriteLastWaits has a client read slowly what the kernel does not buffer.
func TestWriteLastWaits(t *testing.T) {
	l, _ := listen(t, local, net.KeepAliveConfig{})
	conn, client := connect(t, l, "question")
	long := bytes.Repeat([]byte("answer"), 5<<20)
	go func() {
		if n, err := conn.WriteLast(long); n != len(long) || err != nil {
			t.Errorf("%d bytes of %d are written: %v", n, len(long), err)
		}
		_, _ = io.Copy(io.Discard, conn)
		_ = conn.Close()
	}()
	got, err := io.ReadAll(client)
	if _ = client.Close(); !bytes.Equal(got, long) || err != nil {
		t.Errorf("the client gets %d bytes of %d: %v", len(got), len(long), err)
	}
}

// TestNetTakesOver does all that a server may do with a connection.
func TestNetTakesOver(t *testing.T) {
	l, _ := listen(t, local, net.KeepAliveConfig{Enable: true, Idle: 77 * time.Second})
	tests := map[string]func(t *testing.T, conn *Conn, client *net.TCPConn){
		"waits": func(t *testing.T, conn *Conn, client *net.TCPConn) {
			go func() { _, _ = client.Write([]byte("more")) }()
			if got := read(t, conn); got != "more" {
				t.Errorf("%q is read", got)
			}
		},
		"answers more than once": func(t *testing.T, conn *Conn, client *net.TCPConn) {
			for _, s := range []string{"one", "two"} {
				if _, err := io.WriteString(conn, s); err != nil {
					t.Fatal(err)
				}
				if got := read(t, client); got != s {
					t.Errorf("the client gets %q", got)
				}
			}
		},
		"sends a file": func(t *testing.T, conn *Conn, client *net.TCPConn) {
			if n, err := io.Copy(conn, strings.NewReader("file")); n != 4 || err != nil {
				t.Errorf("%d bytes of 4 are sent: %v", n, err)
			}
			if got := read(t, client); got != "file" {
				t.Errorf("the client gets %q", got)
			}
		},
		"closes half": func(t *testing.T, conn *Conn, client *net.TCPConn) {
			if err := conn.CloseWrite(); err != nil {
				t.Error(err)
			}
			if _, err := client.Read(make([]byte, 1)); err != io.EOF {
				t.Errorf("the client gets %v", err)
			}
			_, _ = client.Write([]byte("more"))
			if got := read(t, conn); got != "more" {
				t.Errorf("%q is read", got)
			}
		},
		"asks for the descriptor": func(t *testing.T, conn *Conn, _ *net.TCPConn) {
			raw, err := conn.SyscallConn()
			if err != nil {
				t.Fatal(err)
			}
			_ = raw.Control(func(fd uintptr) {
				idle, err := syscall.GetsockoptInt(int(fd), syscall.IPPROTO_TCP, syscall.TCP_KEEPIDLE)
				if idle != 77 || err != nil {
					t.Errorf("keep-alive packets come after %d s, %v; want 77", idle, err)
				}
			})
		},
		"gives up": func(t *testing.T, conn *Conn, _ *net.TCPConn) {
			_ = conn.SetDeadline(time.Now().Add(-time.Second))
			if _, err := conn.Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) {
				t.Errorf("Read returns %v", err)
			}
			if _, err := conn.Write(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) {
				t.Errorf("Write returns %v", err)
			}
		},
		"is told to give up": func(t *testing.T, conn *Conn, _ *net.TCPConn) {
			go func() { _ = conn.SetReadDeadline(time.Unix(1, 0)) }()
			if _, err := conn.Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) {
				t.Errorf("Read returns %v", err)
			}
		},
		"is closed": func(t *testing.T, conn *Conn, _ *net.TCPConn) {
			go func() { _ = conn.Close() }()
			if _, err := conn.Read(make([]byte, 1)); !errors.Is(err, net.ErrClosed) {
				t.Errorf("Read returns %v", err)
			}
		},
		"is left": func(t *testing.T, conn *Conn, client *net.TCPConn) {
			_ = client.Close()
			if _, err := conn.Read(make([]byte, 1)); err != io.EOF {
				t.Errorf("Read returns %v", err)
			}
		},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			conn, client := connect(t, l, "question")
			read(t, conn)
			test(t, conn, client)
		})
	}
}

func TestAddresses(t *testing.T) {
	for _, address := range []string{local, "0.0.0.0:0", "[::]:0", "[::1]:0"} {
		t.Run(address, func(t *testing.T) {
			l, _ := listen(t, address, net.KeepAliveConfig{})
			conn, client := connect(t, l, "question")
			if conn.LocalAddr().String() != client.RemoteAddr().String() || conn.RemoteAddr().String() != client.LocalAddr().String() {
				t.Errorf("it is between %v and %v; the client's is between %v and %v", conn.LocalAddr(), conn.RemoteAddr(), client.RemoteAddr(), client.LocalAddr())
			}
		})
	}
	if got := zone(1); got != "lo" {
		t.Errorf("interface 1 is %q", got)
	}
	if got := zone(1 << 30); got != "1073741824" {
		t.Errorf("an unknown interface is %q", got)
	}
}

// TestDefers connects without sending: the kernel hands the connection over when it has waited.
func TestDefers(t *testing.T) {
	l, _ := listen(t, local, net.KeepAliveConfig{})
	if err := l.Defer(true); err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	client, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	conn, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if took := time.Since(began); took < time.Second/2 {
		t.Errorf("a silent connection is accepted after %v", took)
	}
	_, _ = io.WriteString(client, "question")
	if got := read(t, conn); got != "question" {
		t.Errorf("%q is read", got)
	}
}

// TestCloses has the two listeners closed in turn. Neither ends the other.
func TestCloses(t *testing.T) {
	for _, first := range []string{"the duplicate", "the one that opened it"} {
		t.Run(first, func(t *testing.T) {
			l, opened := listen(t, local, net.KeepAliveConfig{})
			if err := l.Defer(true); err != nil {
				t.Fatal(err)
			}
			closed, open := net.Listener(l), net.Listener(opened)
			if first != "the duplicate" {
				closed, open = open, closed
			}
			ended := make(chan error)
			go func() { _, err := closed.Accept(); ended <- err }()
			_ = closed.Close()
			if err := <-ended; !errors.Is(err, net.ErrClosed) {
				t.Errorf("Accept returns %v", err)
			}
			client, err := net.Dial("tcp", open.Addr().String())
			if err != nil {
				t.Fatal(err)
			}
			defer client.Close()
			conn, err := open.Accept()
			if err != nil {
				t.Fatal(err)
			}
			_ = conn.Close()
			_ = open.Close()
			if client, err := net.Dial("tcp", open.Addr().String()); err == nil {
				_ = client.Close()
				t.Error("the socket is open")
			}
		})
	}
	l, _ := listen(t, local, net.KeepAliveConfig{})
	var temporary interface{ Temporary() bool } // net/http accepts again after those
	if err := l.failed(os.NewSyscallError("accept4", syscall.EMFILE)); !errors.As(err, &temporary) || !temporary.Temporary() {
		t.Errorf("%v ends the server", err)
	}
}

// TestTogether has all methods called at once, for the race detector.
func TestTogether(t *testing.T) {
	l, _ := listen(t, local, net.KeepAliveConfig{})
	for range 50 {
		conn, client := connect(t, l, "question")
		var wg sync.WaitGroup
		for _, f := range []func(){
			func() { _, _ = conn.Read(make([]byte, 100)) },
			func() { _, _ = conn.Read(make([]byte, 100)) },
			func() { _, _ = conn.WriteLast([]byte("answer")) },
			func() { _ = conn.SetDeadline(time.Now()) },
			func() { _ = conn.Close() },
			func() { _ = client.Close() },
		} {
			wg.Go(f)
		}
		wg.Wait()
	}
}

// BenchmarkAnswerOnce has a client connect, ask and be answered, as often as it can. Its own time is
// in all figures.
func BenchmarkAnswerOnce(b *testing.B) {
	answer := bytes.Repeat([]byte("answer"), 50)
	opened, err := net.Listen("tcp", local)
	if err != nil {
		b.Fatal(err)
	}
	defer opened.Close()
	l := Of(opened.(*net.TCPListener), net.KeepAliveConfig{})
	defer l.Close()
	for name, from := range map[string]net.Listener{"net": opened, "socket": l} {
		b.Run(name, func(b *testing.B) {
			if err := l.Defer(name == "socket"); err != nil {
				b.Fatal(err)
			}
			b.ReportAllocs()
			buffer := make([]byte, 1000)
			for b.Loop() {
				client, err := net.Dial("tcp", opened.Addr().String())
				if err != nil {
					b.Fatal(err)
				}
				_, _ = io.WriteString(client, "question")
				conn, err := from.Accept()
				if err != nil {
					b.Fatal(err)
				}
				_, _ = conn.Read(buffer)
				if c, is := conn.(*Conn); is {
					_, err = c.WriteLast(answer)
				} else {
					_, err = conn.Write(answer)
				}
				if err != nil {
					b.Fatal(err)
				}
				_ = conn.Close()
				for err = nil; err == nil; {
					_, err = client.Read(buffer)
				}
				_ = client.Close()
			}
		})
	}
}
