package caddymodule

import (
	"bufio"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"

	"github.com/herdshield/shield/caddymodule/socket"
)

// defers reports whether the kernel defers connections.
func defers(t *testing.T, l *net.TCPListener) (on bool) {
	t.Helper()
	raw, err := l.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	_ = raw.Control(func(fd uintptr) {
		n, err := syscall.GetsockoptInt(int(fd), syscall.IPPROTO_TCP, syscall.TCP_DEFER_ACCEPT)
		if err != nil {
			t.Fatal(err)
		}
		on = n > 0
	})
	return on
}

// TestFlood says where connections are accepted from, and when the kernel defers them.
func TestFlood(t *testing.T) {
	tcp, err := net.ListenTCP("tcp", &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	l := new(Door).WrapListener(tcp).(*doorListener)
	defer l.Close()
	const start = time.Hour
	var f flood
	for _, step := range []struct {
		after         time.Duration
		greeted, once bool
		defers, saves bool // system calls
	}{
		{0, false, false, false, false},
		{0, false, true, false, false},
		{1, true, false, true, false},
		{2, true, true, true, true},
		{3, false, true, true, true},
		{4, true, false, true, false},
		{5, true, true, true, true},
		{4 + warmth, false, true, true, true},
		{5 + warmth, false, true, false, false},
		{6 + warmth, false, true, false, false},
		{7 + warmth, true, true, true, true},
	} {
		l.once.Store(step.once)
		_, saves := f.next(start+step.after, l, step.greeted).(*socket.Listener)
		if on := defers(t, tcp); on != step.defers || saves != step.saves {
			t.Errorf("%+v: the kernel defers: %v, system calls are saved: %v", step, on, saves)
		}
	}
	if err := l.Close(); err != nil {
		t.Error(err)
	}
	if conn, err := net.Dial("tcp", tcp.Addr().String()); err == nil {
		_ = conn.Close()
		t.Error("the socket is open after Close")
	}
}

// TestFloodEnds has a listener closed just before it would open its socket once more.
func TestFloodEnds(t *testing.T) {
	tcp, err := net.ListenTCP("tcp", &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	defer tcp.Close()
	l := new(Door).WrapListener(tcp).(*doorListener)
	l.greeted = nil // what Close does first
	var f flood
	if f.next(time.Hour, l, true) != net.Listener(tcp) || l.socket != nil {
		t.Error("it opens its socket")
	}
}

// TestFloodOfListeners says whose connections may be accepted without them.
func TestFloodOfListeners(t *testing.T) {
	address, err := caddy.ParseNetworkAddress("127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	opened, err := address.Listen(t.Context(), 0, net.ListenConfig{})
	if err != nil {
		t.Fatal(err)
	}
	l := opened.(net.Listener)
	defer l.Close()
	if tcp := tcpListener(l); tcp == nil || tcp.Addr().String() != l.Addr().String() {
		t.Errorf("Caddy's listener, a %T, is not known", l)
	}
	if tcpListener(aheadListener{l}) != nil || tcpListener(struct{ net.Listener }{l}) != nil {
		t.Error("a wrapper that sees all connections is passed over")
	}
	unix, err := net.Listen("unix", t.TempDir()+"/socket")
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close()
	if tcpListener(unix) != nil {
		t.Error("a Unix socket is taken for TCP")
	}
}

// spyWrapper notes the listener that it gets.
type spyWrapper struct{}

var spied sync.Map // by address

func init() { caddy.RegisterModule(spyWrapper{}) }

func (spyWrapper) CaddyModule() caddy.ModuleInfo {
	return caddy.ModuleInfo{ID: "caddy.listeners.shield_test_spy", New: func() caddy.Module { return new(spyWrapper) }}
}

func (spyWrapper) WrapListener(l net.Listener) net.Listener {
	spied.Store(l.Addr().String(), l)
	return l
}

// TestFloodBesideOthers has clients open connections that are refused all the time. Others, of the
// same address and of another one, are silent, ask more than once, and send and get much.
func TestFloodBesideOthers(t *testing.T) {
	echo := newHook(t, func(w http.ResponseWriter, r *http.Request, next caddyhttp.Handler) error {
		if r.URL.Path != "/echo" {
			return next.ServeHTTP(w, r)
		}
		b, err := io.ReadAll(r.Body)
		if err == nil {
			_, err = w.Write(b)
		}
		return err
	})
	server := strings.Replace(withDoor, "]", `, {"wrapper": "shield_test_spy"}]`, 1)
	r := start(t, setup{server: server + `"keepalive_interval": "77s", "keepalive_idle": "78s", "keepalive_count": 5,`, handlers: echo + "," + overQuota("") + "," + respondOK})
	spy, _ := spied.LoadAndDelete(r.addr)
	l := spy.(*doorListener)
	if want := (net.KeepAliveConfig{Enable: true, Idle: 78 * time.Second, Interval: 77 * time.Second, Count: 5}); l.keepAlive != want {
		t.Errorf("connections get %+v, want %+v", l.keepAlive, want)
	}
	var on atomic.Bool
	on.Store(true)
	var clients sync.WaitGroup
	defer clients.Wait()
	defer on.Store(false)
	for range 4 {
		clients.Go(func() { hammer(r, 1, closing, on.Load) })
	}
	eventually(t, "refusals save system calls", func() bool {
		l.mu.Lock()
		defer l.mu.Unlock()
		return l.socket != nil && l.once.Load()
	})
	body := strings.Repeat("0123456789", 100_000)
	for _, from := range []string{"127.0.0.1", "127.0.0.2"} {
		dial := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}}
		var others sync.WaitGroup
		for i := range 20 {
			others.Go(func() {
				conn, err := dial.Dial("tcp", r.addr)
				if err != nil {
					t.Error(err)
					return
				}
				defer conn.Close()
				_ = conn.SetDeadline(time.Now().Add(patience))
				if i%4 == 0 {
					dawdle(1500 * time.Millisecond) // longer than the kernel waits
				}
				in := bufio.NewReader(conn)
				for range 3 {
					_, _ = io.WriteString(conn, "POST /echo HTTP/1.1\r\nHost: h\r\nContent-Length: "+strconv.Itoa(len(body))+"\r\n\r\n")
					go func() { _, _ = io.WriteString(conn, body) }()
					resp, err := http.ReadResponse(in, nil)
					if err != nil {
						t.Error(err)
						return
					}
					if got, err := io.ReadAll(resp.Body); string(got) != body || err != nil {
						t.Errorf("%d bytes of %d come back: %v", len(got), len(body), err)
					}
				}
			})
		}
		others.Wait()
	}
	if r.atDoor() == 0 {
		t.Error("none was refused at the door")
	}
}

// A lastConn is told which answer is the last one.
type lastConn struct {
	deafConn
	last string
}

func (c *lastConn) WriteLast(b []byte) (int, error) {
	c.last += string(b)
	return len(b), nil
}

// TestDoorWritesLast has a connection end with its first answer, or go on after it.
func TestDoorWritesLast(t *testing.T) {
	for _, dither := range []bool{false, true} {
		conn := &lastConn{deafConn: deafConn{reads: get}}
		answer := page{policy: -1, text: []byte("HTTP/1.1 503 x\r\nConnection: close\r\n\r\n")}
		c := refusedBefore(t, conn, dither, memo{closes: true, page: answer})
		if n, err := c.next(make([]byte, maxHead), true); n != 0 || err != io.EOF {
			t.Errorf("dither %v: %d bytes and %v, want the end", dither, n, err)
		}
		if conn.last != string(answer.text) {
			t.Errorf("dither %v: the last answer is %q, want %q", dither, conn.last, answer.text)
		}
		if c.once == dither {
			t.Errorf("dither %v: the next connection saves system calls: %v", dither, c.once)
		}
	}
}
