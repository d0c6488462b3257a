package caddymodule

import (
	"bufio"
	"cmp"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
	_ "github.com/caddyserver/caddy/v2/modules/standard"
	"github.com/quic-go/quic-go"
	"github.com/quic-go/quic-go/http3"

	"github.com/herdshield/shield"
	"github.com/herdshield/shield/caddymodule/adminapi"
	"github.com/herdshield/shield/share/redis/testserver"
)

// A rig is a running Caddy with real sockets, and a client of it. There is one
// Caddy in a process, so no test with a rig is parallel.
type rig struct {
	*testing.T
	addr   string // where it listens: a port that does not change over reloads
	client *http.Client
	wires  *virtualWires // in place of addr, in stories on virtual wires
}

var everyDoor = flag.Bool("doors", false, "run all tests with the listener wrapper shield")

// A setup is a Caddy configuration, in JSON. Everything that a test does not ask
// for is off.
type setup struct {
	handlers string // of the only route, separated by commas
	routes   string // instead of it
	errors   string // of the only error route
	server   string // more fields of the server, each with a comma at its end
	apps     string // more apps, each with a comma at its end
	listen   string // another address to listen on
	admin    string // the address of the admin endpoint
	log      string // the writer of the log; "": it is thrown away
}

func (s setup) json(addr string) []byte {
	listen := fmt.Sprintf("%q", addr)
	if s.listen != "" {
		listen += fmt.Sprintf(", %q", s.listen)
	}
	apps, server, failing, admin := s.apps, s.server, "", `"disabled": true`
	if s.admin != "" {
		admin = fmt.Sprintf(`"listen": %q`, s.admin)
	}
	if *everyDoor && !strings.Contains(server, `"listener_wrappers":`) {
		server += withDoor
	}
	if !strings.Contains(server, `"protocols":`) {
		server += `"protocols": ["h1"],`
	}
	if !strings.Contains(apps, `"tls":`) {
		apps += `"tls": {"disable_storage_check": true, "disable_storage_clean": true},`
	}
	if s.errors != "" {
		failing = `"errors": {"routes": [{"handle": [` + s.errors + `]}]},`
	}
	return fmt.Appendf(nil, `{
		"admin": {%s, "config": {"persist": false}},
		"logging": {"logs": {"default": {"writer": %s}}},
		"apps": {
			%s
			"http": {"servers": {"srv": {
				"listen": [%s],
				"automatic_https": {"disable": true},
				%s
				%s
				"routes": [%s]
			}}}
		}
	}`, admin, cmp.Or(s.log, `{"output": "discard"}`), apps, listen, failing, server, cmp.Or(s.routes, `{"handle": [`+s.handlers+`]}`))
}

// start runs Caddy until the test ends.
func start(t *testing.T, s setup) *rig {
	t.Helper()
	transport := &http.Transport{MaxIdleConnsPerHost: 100}
	r := &rig{T: t, addr: freeAddr(t), client: &http.Client{Transport: transport}}
	t.Cleanup(func() {
		transport.CloseIdleConnections()
		if err := caddy.Stop(); err != nil {
			t.Error(err)
		}
		eventually(t, "the pool is empty once Caddy has stopped", func() bool { return poolKeys() == 0 })
	})
	r.load(s)
	return r
}

// load replaces the configuration.
func (r *rig) load(s setup) {
	r.Helper()
	if err := r.tryLoad(s); err != nil {
		r.Fatalf("load: %v", err)
	}
}

// tryLoad does so, or returns the error. Then it waits until only one config
// listens: Caddy closes the sockets of the other a little later, and Linux resets
// the connections that wait there.
func (r *rig) tryLoad(s setup) error {
	r.Helper()
	err := caddy.Load(s.json(r.addr), true)
	eventually(r.T, "one config listens", func() bool { return caddy.ListenerUsage("tcp", r.addr) <= 1 })
	return err
}

// get requests path, with headers given as name, value, name, value, and reads
// the whole response. It tries again if there is none: see tryLoad.
func (r *rig) get(path string, headers ...string) answered {
	r.Helper()
	req, err := http.NewRequestWithContext(r.Context(), http.MethodGet, "http://"+r.addr+path, nil)
	if err != nil {
		r.Fatal(err)
	}
	for i := 0; i < len(headers); i += 2 {
		req.Header.Set(headers[i], headers[i+1])
	}
	resp, err := r.client.Do(req)
	for try := 0; err != nil && try < 3; try++ {
		resp, err = r.client.Do(req)
	}
	a, err := answer(resp, err)
	if err != nil {
		r.Fatal(err)
	}
	return a
}

// An answered is a response that was read to its end.
type answered struct {
	*http.Response
	body string
}

func answer(resp *http.Response, err error) (answered, error) {
	if err != nil {
		return answered{}, err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	return answered{resp, string(body)}, err
}

// handler returns the first shield handler of the running configuration.
func (r *rig) handler() *Handler {
	r.Helper()
	return r.handlers()[0]
}

// handlers returns all of them that are not in subroutes.
func (r *rig) handlers() (all []*Handler) {
	r.Helper()
	app, err := caddy.ActiveContext().App("http")
	if err != nil {
		r.Fatal(err)
	}
	for _, route := range app.(*caddyhttp.App).Servers["srv"].Routes {
		for _, h := range route.Handlers {
			if h, ok := h.(*Handler); ok {
				all = append(all, h)
			}
		}
	}
	if len(all) == 0 {
		r.Fatal("no shield is running")
	}
	return all
}

// app returns the shield app of the running configuration.
func (r *rig) app() *App {
	r.Helper()
	app, err := caddy.ActiveContext().AppIfConfigured("shield")
	if err != nil {
		r.Fatal(err)
	}
	return app.(*App)
}

// status is what the admin endpoint tells.
func (r *rig) status() adminapi.Status {
	r.Helper()
	return r.app().Status(true)
}

// stats returns the counts of the first shield. They cost less than its status, which visits
// the records of all clients.
func (r *rig) stats() shield.BackendStats {
	r.Helper()
	return r.app().configured[0].record.Stats(shield.Now())
}

// inFlight returns the requests in flight in the first shield.
func (r *rig) inFlight() int {
	r.Helper()
	return r.stats().InFlight
}

// drains waits until no permit is taken. A response may be with the client a
// moment before its permit is given back.
func (r *rig) drains() {
	r.Helper()
	eventually(r.T, "no request in flight", func() bool { return r.inFlight() == 0 })
}

// stopReports stops the reports of the running configuration, so that a test's own are the
// only ones.
func (a *App) stopReports() {
	close(a.stop)
	<-a.stopped
	a.stop, a.stopped = make(chan struct{}), make(chan struct{})
	close(a.stopped)
}

// inVirtualTime plays a story in virtual time: waiting takes no real time, and requests take
// no virtual time. Caddy runs outside, and requests reach its server without sockets.
// A story passes steps that need real time, such as a reload, to outside, which
// returns when they are done. Caddy's work outside happens long before the story, so
// that no shield may detect herds, which would count the time between.
func (r *rig) inVirtualTime(t *testing.T, story func(r *rig, outside func(func()))) {
	t.Helper()
	r.app().stopReports()
	calls, done := make(chan func()), make(chan struct{})
	go func() {
		for f := range calls {
			f()
			done <- struct{}{}
		}
	}()
	defer close(calls)
	synctest.Test(t, func(t *testing.T) {
		pass(time.Until(shield.At(time.Hour))) // virtual time begins in the year 2000
		inside := *r
		inside.T = t
		story(inside.from("192.0.2.1"), func(f func()) { calls <- f; <-done })
	})
}

// from returns a client with another address, whose requests use no sockets.
func (r *rig) from(ip string) *rig {
	other := *r
	other.client = &http.Client{Transport: directTransport(ip)}
	return &other
}

// directTransport passes requests from an address to Caddy's server.
type directTransport string

// RoundTrip implements http.RoundTripper.
func (ip directTransport) RoundTrip(r *http.Request) (*http.Response, error) {
	app, err := caddy.ActiveContext().App("http")
	if err != nil {
		return nil, err
	}
	in := httptest.NewRequestWithContext(r.Context(), r.Method, r.URL.String(), r.Body)
	in.Header, in.RemoteAddr = r.Header.Clone(), string(ip)+":1234"
	w := httptest.NewRecorder()
	app.(*caddyhttp.App).Servers["srv"].ServeHTTP(w, in)
	return w.Result(), r.Context().Err()
}

// pass lets virtual time pass.
func pass(d time.Duration) { time.Sleep(d) }

// awaitTransit waits until a client that was rejected has heard of it: what it sends
// sooner is taken for another request.
func awaitTransit() { pass(300 * time.Millisecond) }

// dawdle is what a slow client, backend or network does over sockets: real time passes.
func dawdle(d time.Duration) { time.Sleep(d) }

// patience is how long to wait for an event that must come, and comes in milliseconds on
// an idle machine.
const patience = time.Minute

// eventually waits until something is so.
func eventually(t testing.TB, what string, is func() bool) {
	t.Helper()
	ticker := time.NewTicker(2 * time.Millisecond)
	defer ticker.Stop()
	for deadline := time.Now().Add(patience); !is(); <-ticker.C {
		if time.Now().After(deadline) {
			t.Errorf("not within %v: %s", patience, what)
			return
		}
	}
}

// receive waits for a value.
func receive[T any](t testing.TB, what string, from <-chan T) (v T) {
	t.Helper()
	select {
	case v = <-from:
	case <-time.After(patience):
		t.Fatalf("not within %v: %s", patience, what)
	}
	return v
}

// freeAddr returns an address of the loopback interface that is free now.
// Reloads need an address that they can name.
func freeAddr(t testing.TB) string { return testserver.FreeAddress(t) }

// poolKeys returns how many states are in the pool.
func poolKeys() (n int) {
	pool.Range(func(any, any) bool {
		n++
		return true
	})
	return n
}

// wantRefs checks how many handlers use each state in the pool, by key.
func wantRefs(t testing.TB, want map[any]int) {
	t.Helper()
	pool.Range(func(key, _ any) bool {
		if _, ok := want[key]; !ok {
			t.Errorf("%T %q is in the pool, but is not used", key, key)
		}
		return true
	})
	for key, n := range want {
		if refs, _ := pool.References(key); refs != n {
			t.Errorf("%T %q: %d references, want %d", key, key, refs, n)
		}
	}
}

// proxyTo returns a reverse_proxy handler, with more fields, each with a comma
// at its beginning.
func proxyTo(backend *httptest.Server, more string) string {
	return fmt.Sprintf(`{"handler": "reverse_proxy", "upstreams": [{"dial": %q}] %s}`, backend.Listener.Addr(), more)
}

// respondOK answers 200 and nothing else.
const respondOK = `{"handler": "static_response", "body": "ok"}`

// serveBackend runs h until the test ends.
func serveBackend(t *testing.T, h http.HandlerFunc) *httptest.Server {
	t.Helper()
	srv := httptest.NewServer(h)
	t.Cleanup(func() {
		srv.CloseClientConnections()
		srv.Close()
	})
	return srv
}

// A gate is a backend that holds each request until it is told to go on.
type gate struct {
	*httptest.Server
	t       *testing.T
	entered chan string   // the path of each request that has come in
	goOn    chan struct{} // one token lets one request go on
}

func newGate(t *testing.T) *gate {
	g := &gate{t: t, entered: make(chan string, 1000), goOn: make(chan struct{}, 1000)}
	g.Server = serveBackend(t, func(w http.ResponseWriter, r *http.Request) {
		g.entered <- r.URL.Path
		select {
		case <-g.goOn:
			fmt.Fprint(w, "served")
		case <-r.Context().Done():
		}
	})
	return g
}

// A hook is a handler whose work a test writes in Go. One without a name passes
// everything on.
type hook struct {
	Hook string `json:"hook,omitempty"`
	Fail bool   `json:"fail,omitempty"` // in Provision
}

func init() { caddy.RegisterModule(hook{}) }

var hooks sync.Map // name -> hookFunc

type hookFunc func(http.ResponseWriter, *http.Request, caddyhttp.Handler) error

// newHook makes f a handler until the test ends, and returns it in JSON.
func newHook(t *testing.T, f hookFunc) string {
	name := fmt.Sprintf("%s %p", t.Name(), &f)
	hooks.Store(name, f)
	t.Cleanup(func() { hooks.Delete(name) })
	return fmt.Sprintf(`{"handler": "shield_test_hook", "hook": %q}`, name)
}

// failingHook is a handler that cannot be provisioned.
const failingHook = `{"handler": "shield_test_hook", "fail": true}`

func (hook) CaddyModule() caddy.ModuleInfo {
	return caddy.ModuleInfo{ID: "http.handlers.shield_test_hook", New: func() caddy.Module { return new(hook) }}
}

var errHook = errors.New("this hook fails")

func (h *hook) Provision(caddy.Context) error {
	if h.Fail {
		return errHook
	}
	return nil
}

func (h *hook) ServeHTTP(w http.ResponseWriter, r *http.Request, next caddyhttp.Handler) error {
	if f, ok := hooks.Load(h.Hook); ok {
		return f.(hookFunc)(w, r, next)
	}
	return next.ServeHTTP(w, r)
}

// A certificate is what a server shows and what a client trusts.
type certificate struct {
	apps, server string // for a setup
	trust        *tls.Config
}

// newCertificate returns one for 127.0.0.1 and example.com.
func newCertificate(t *testing.T) certificate {
	t.Helper()
	srv := httptest.NewTLSServer(nil)
	defer srv.Close()
	pair := srv.TLS.Certificates[0]
	key, err := x509.MarshalPKCS8PrivateKey(pair.PrivateKey)
	if err != nil {
		t.Fatal(err)
	}
	loaded, err := json.Marshal([]map[string]string{{
		"certificate": string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: pair.Certificate[0]})),
		"key":         string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: key})),
	}})
	if err != nil {
		t.Fatal(err)
	}
	pool := x509.NewCertPool()
	pool.AddCert(srv.Certificate())
	return certificate{
		apps:   fmt.Sprintf(`"tls": {"disable_storage_check": true, "disable_storage_clean": true, "certificates": {"load_pem": %s}},`, loaded),
		server: `"tls_connection_policies": [{}],`,
		trust:  &tls.Config{RootCAs: pool, ServerName: "example.com"},
	}
}

// A wire is a connection on which a test says exactly what it sends.
type wire struct {
	*testing.T
	net.Conn
	r *bufio.Reader
}

func (r *rig) dial() *wire {
	r.Helper()
	dial := func() (net.Conn, error) { return net.DialTimeout("tcp", r.addr, patience) }
	if r.wires != nil {
		dial = r.wires.dial
	}
	conn, err := dial()
	if err != nil {
		r.Fatal(err)
	}
	r.Cleanup(func() { _ = conn.Close() })
	_ = conn.SetDeadline(time.Now().Add(2 * patience))
	return &wire{r.T, conn, bufio.NewReader(conn)}
}

// send writes text, whose lines end with LF here and with CRLF on the wire.
func (w *wire) send(format string, args ...any) {
	w.Helper()
	if _, err := io.WriteString(w.Conn, strings.ReplaceAll(fmt.Sprintf(format, args...), "\n", "\r\n")); err != nil {
		w.Fatal(err)
	}
}

// head reads the head of a response to a GET; the body is left on the wire.
func (w *wire) head() *http.Response {
	w.Helper()
	resp, err := http.ReadResponse(w.r, nil)
	if err != nil {
		w.Fatalf("reading the response: %v", err)
	}
	return resp
}

// answer reads a whole response.
func (w *wire) answer() answered {
	w.Helper()
	a, err := answer(w.head(), nil)
	if err != nil {
		w.Fatalf("reading the body: %v", err)
	}
	return a
}

// echoes checks that what is sent comes back.
func (w *wire) echoes(text string) {
	w.Helper()
	if _, err := io.WriteString(w.Conn, text); err != nil {
		w.Fatal(err)
	}
	got := make([]byte, len(text))
	if _, err := io.ReadFull(w.r, got); err != nil || string(got) != text {
		w.Fatalf("echo: %q, %v; want %q", got, err, text)
	}
}

// dialHTTP3 connects over HTTP/3.
func (r *rig) dialHTTP3(cert certificate) (*quic.Conn, *http3.ClientConn) {
	r.Helper()
	conn, err := quic.DialAddr(r.Context(), r.addr, http3.ConfigureTLSConfig(cert.trust), nil)
	if err != nil {
		r.Fatal(err)
	}
	return conn, new(http3.Transport).NewClientConn(conn)
}
