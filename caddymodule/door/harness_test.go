package door_test

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
	_ "github.com/caddyserver/caddy/v2/modules/standard"

	"github.com/herdshield/shield"
	"github.com/herdshield/shield/caddymodule"
	"github.com/herdshield/shield/caddymodule/door"
	"github.com/herdshield/shield/oncall"
)

// Stories are played in virtual time. Caddy is loaded outside of them, with a server for each story. In the
// story, net/http serves with that server's handlers, on pipes, behind a door or without one. All that goes
// on at one instant is over when settle returns: there is nothing to wait for.

const (
	get       = "GET /a HTTP/1.1\r\nHost: h\r\nUser-Agent: test\r\n\r\n"
	respondOK = `{"handler": "static_response", "body": "ok"}`
	withDoor  = `"listener_wrappers": [{"wrapper": "shield"}],`
)

// overQuota is a shield that admits one request an hour of each client. Those of one name share it.
func overQuota(name, zone, more string) string {
	return fmt.Sprintf(`{"handler": "shield", "name": %q, "pushback": {"dither": false}, "zones": [{"name": %q, "rate": 1, "per": "1h", "burst": 1}] %s}`, name, zone, more)
}

func route(handlers ...string) string { return `{"handle": [` + strings.Join(handlers, ",") + `]}` }

// A site is a server: its routes, and more fields, each with a comma at its end.
type site struct{ name, more, routes string }

// load runs Caddy with sites until the test ends, and maybe with certificates. They listen on pipes.
func load(t testing.TB, certificates string, sites ...site) {
	t.Helper()
	var all []string
	for _, s := range sites {
		all = append(all, fmt.Sprintf(`%q: {"listen": ["pipes/%s:1"], "automatic_https": {"disable": true}, %s "routes": [%s]}`, s.name, s.name, s.more, s.routes))
	}
	config := fmt.Appendf(nil, `{
		"admin": {"disabled": true, "config": {"persist": false}}, "logging": {"logs": {"default": {"writer": {"output": "discard"}}}},
		"apps": {"shield": {}, "tls": {"disable_storage_check": true, "disable_storage_clean": true, "certificates": {%s}}, "http": {"servers": {%s}}}
	}`, certificates, strings.Join(all, ","))
	if err := caddy.Load(config, true); err != nil {
		t.Fatalf("%v\n%s", err, config)
	}
	t.Cleanup(func() { _ = caddy.Stop() })
}

// handlerOf returns what a site does with requests.
func handlerOf(t testing.TB, site string) http.Handler {
	t.Helper()
	app, err := caddy.ActiveContext().App("http")
	if err != nil {
		t.Fatal(err)
	}
	return app.(*caddyhttp.App).Servers[site]
}

// situations are those of all shields.
func situations(t testing.TB) []oncall.Situation {
	t.Helper()
	app, err := caddy.ActiveContext().AppIfConfigured("shield")
	if err != nil {
		t.Fatal(err)
	}
	return app.(*caddymodule.App).Status(true).Shields
}

// facts are what a shield has counted.
func facts(t testing.TB, name string) *oncall.Facts {
	t.Helper()
	all := situations(t)
	i := slices.IndexFunc(all, func(s oncall.Situation) bool { return s.Name == name })
	if i < 0 {
		t.Fatalf("there is no shield %s", name)
	}
	return all[i].Facts
}

// atDoor returns how many rejections of a shield a door has answered.
func atDoor(t testing.TB, name string) int {
	t.Helper()
	n := facts(t, name).FastReject
	return int(n["h1"] + n["h2"])
}

// pass lets virtual time pass, and settle waits for all that happens now.
func pass(d time.Duration) { time.Sleep(d) }
func settle()              { synctest.Wait() }

// A stage has servers in virtual time.
type stage struct {
	*testing.T
	closers []func()
	servers []*http.Server
	ended   atomic.Int64 // connections, for servers
}

// play plays a story.
func play(t *testing.T, story func(s *stage)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		pass(time.Until(shield.At(time.Hour))) // virtual time begins in the year 2000
		s := &stage{T: t}
		defer func() { // also after Fatal
			for _, stop := range slices.Backward(s.closers) {
				stop()
			}
			pass(time.Minute) // net/http lingers on connections that it ends
		}()
		story(s)
	})
}

// serve has a handler served behind a door, or without one.
func (s *stage) serve(h http.Handler, behind bool) *pipeListener {
	l := newPipeListener()
	server := &http.Server{Handler: h, Protocols: new(http.Protocols), ReadHeaderTimeout: time.Minute, ReadTimeout: 2 * time.Minute, IdleTimeout: 5 * time.Minute}
	server.Protocols.SetHTTP1(true)
	server.Protocols.SetUnencryptedHTTP2(true)
	server.ConnState = func(_ net.Conn, is http.ConnState) {
		if is == http.StateClosed {
			s.ended.Add(1)
		}
	}
	go func() {
		if behind {
			_ = door.Serve(server, l)
		} else {
			_ = server.Serve(l)
		}
	}()
	s.closers, s.servers = append(s.closers, func() { _ = server.Close() }), append(s.servers, server)
	return l
}

// A client sends bytes, and keeps what comes.
type client struct {
	testing.TB
	net.Conn
	out  chan string
	done sync.WaitGroup
	deaf

	mu   sync.Mutex
	came []byte // guarded by mu
	over bool   // guarded by mu
}

func (s *stage) dial(l *pipeListener) *client {
	s.Helper()
	conn, err := l.dial()
	if err != nil {
		s.Fatal(err)
	}
	c := newClient(s.T, conn)
	s.closers = append(s.closers, c.close)
	return c
}

func newClient(t testing.TB, conn net.Conn) *client {
	c := &client{TB: t, Conn: conn, out: make(chan string, 100)}
	c.done.Go(func() {
		for text := range c.out {
			_, _ = io.WriteString(conn, text)
		}
	})
	c.done.Go(func() {
		for b := make([]byte, 8<<10); ; {
			c.listens()
			n, err := conn.Read(b)
			c.mu.Lock()
			c.came, c.over = append(c.came, b[:n]...), err != nil
			c.mu.Unlock()
			if err != nil {
				return
			}
		}
	})
	return c
}

// deaf is whether a client reads no more, but for what it is reading.
type deaf struct {
	now  atomic.Bool
	ends chan struct{}
}

func (d *deaf) becomeDeaf() {
	d.ends = make(chan struct{})
	d.now.Store(true)
}

func (d *deaf) hearAgain() { close(d.ends) }

func (d *deaf) listens() {
	if d.now.Load() {
		<-d.ends
	}
}

// close closes the connection, once.
func (c *client) close() {
	if c.out != nil {
		_ = c.Conn.Close()
		close(c.out)
		c.done.Wait()
		c.out = nil
	}
}

// ask sends bytes, and returns all that comes at this instant.
func (c *client) ask(text string) string {
	c.out <- text
	settle()
	return c.take()
}

func (c *client) take() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	text := string(c.came)
	c.came = nil
	return text
}

func (c *client) isOver() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.over
}

// A pipeListener accepts connections within the process, from addresses as of TCP.
type pipeListener struct {
	conns chan net.Conn
	stop  sync.Once
	done  chan struct{} // closed by Close
}

func newPipeListener() *pipeListener {
	return &pipeListener{conns: make(chan net.Conn), done: make(chan struct{})}
}

var (
	pipes    sync.Map // of *pipeListener, by the name of the site
	lastPort atomic.Int64
)

func init() {
	caddy.RegisterNetwork("pipes", func(_ context.Context, _, host, _ string, _ uint, _ net.ListenConfig) (any, error) {
		l := newPipeListener()
		pipes.Store(host, l)
		return l, nil
	})
}

// dialCaddy connects to a site that Caddy serves, in real time.
func dialCaddy(t testing.TB, site string) net.Conn {
	t.Helper()
	l, is := pipes.Load(site)
	if !is {
		t.Fatalf("no site %s", site)
	}
	conn, err := l.(*pipeListener).dial()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

func (l *pipeListener) dial() (net.Conn, error) { return l.dialFrom(net.IPv4(127, 0, 0, 1)) }

func (l *pipeListener) dialFrom(ip net.IP) (net.Conn, error) {
	client, server := net.Pipe()
	select {
	case l.conns <- pipeConn{server, &net.TCPAddr{IP: ip, Port: int(1024 + lastPort.Add(1)%60000)}}:
		return client, nil
	case <-l.done:
		return nil, net.ErrClosed
	}
}

func (l *pipeListener) Accept() (net.Conn, error) {
	select {
	case conn := <-l.conns:
		return conn, nil
	case <-l.done:
		return nil, net.ErrClosed
	}
}

func (l *pipeListener) Addr() net.Addr { return &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)} }

func (l *pipeListener) Close() error {
	l.stop.Do(func() { close(l.done) })
	return nil
}

type pipeConn struct {
	net.Conn
	from *net.TCPAddr
}

func (c pipeConn) RemoteAddr() net.Addr { return c.from }
func (c pipeConn) LocalAddr() net.Addr  { return &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)} }

// A hook is a handler whose work a test writes in Go.
type hook struct {
	Hook string `json:"hook,omitempty"`
}

type hookFunc func(http.ResponseWriter, *http.Request, caddyhttp.Handler) error

var hooks sync.Map // name -> hookFunc

func init() { caddy.RegisterModule(hook{}) }

func (hook) CaddyModule() caddy.ModuleInfo {
	return caddy.ModuleInfo{ID: "http.handlers.door_test_hook", New: func() caddy.Module { return new(hook) }}
}

func (h *hook) ServeHTTP(w http.ResponseWriter, r *http.Request, next caddyhttp.Handler) error {
	f, _ := hooks.Load(h.Hook)
	return f.(hookFunc)(w, r, next)
}

// newHook makes f a handler, and returns it in JSON.
func newHook(name string, f hookFunc) string {
	hooks.Store(name, f)
	return fmt.Sprintf(`{"handler": "door_test_hook", "hook": %q}`, name)
}
