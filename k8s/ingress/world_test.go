package ingress

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
	_ "github.com/caddyserver/caddy/v2/modules/caddyhttp/standard"
	_ "github.com/caddyserver/caddy/v2/modules/caddytls/standardstek"

	"github.com/herdshield/shield"
	"github.com/herdshield/shield/k8s/model"
	"github.com/herdshield/shield/k8s/policy"
	"github.com/herdshield/shield/k8s/testbed/must"
	"github.com/herdshield/shield/limiter"
	"github.com/herdshield/shield/pushback"
)

// A world is an ingress at work, with a Model that the test makes instead of a cluster.
type world struct {
	t          *testing.T
	controller *controller
	division   policy.Division
	base       string // http://127.0.0.1:port
	secure     string // 127.0.0.1:port, over TLS
	now        time.Duration
}

var worlds atomic.Int64

// newWorld starts an ingress with a Model. It ends with the test. Clients may speak HTTP/2 without TLS, too.
func newWorld(t *testing.T, m *model.Model, change ...func(*Options)) *world {
	t.Helper()
	o := DefaultOptions()
	for _, c := range change {
		c(&o)
	}
	ports := must.FreePorts(t, 3)
	o.HTTPPort, o.HTTPSPort, o.StatusPort = ports[0], ports[1], ports[2]
	o.address, o.ShutdownDelay, o.GracePeriod, o.LogLevel = "127.0.0.1", 0, time.Second, "ERROR"
	o.App.Pod = fmt.Sprint("pod-", worlds.Add(1)) // or it would be the last test's
	key := must.Get(json.Marshal(o.App))(t)
	w := &world{t: t, controller: &controller{config: *o.App, live: newLive(), measures: newMeasures(), log: caddy.Log()}}
	w.controller.begin.Do(func() {}) // it watches no cluster
	controllers.LoadOrStore(string(key), w.controller)
	w.apply(m)
	config := strings.Replace(string(must.Get(Config(o))(t)), `"protocols":["h1"]`, `"protocols":["h1","h2","h2c"]`, 1)
	must.Do(t, caddy.Load([]byte(config), true))
	t.Cleanup(func() { _ = caddy.Stop() })
	w.base, w.secure = fmt.Sprint("http://127.0.0.1:", ports[0]), fmt.Sprint("127.0.0.1:", ports[1])
	return w
}

func (w *world) apply(m *model.Model) {
	w.t.Helper()
	if w.now == 0 {
		w.now = shield.Now()
	}
	w.now++ // no two changes are at the same time
	s := w.controller.live.apply(w.now, m, &w.division, w.controller.config.Pod)
	w.controller.snapshot.Store(s)
	s.settle()
	if app := w.controller.shields.Load(); app != nil {
		app.Show(s.shields)
	}
	for _, p := range w.controller.live.problems {
		w.t.Errorf("problem: %+v", p)
	}
}

// dial returns a connection, which ends with the test, and what reads from it.
func (w *world) dial() (net.Conn, *bufio.Reader) {
	w.t.Helper()
	conn := must.Get(net.Dial("tcp", strings.TrimPrefix(w.base, "http://")))(w.t)
	w.t.Cleanup(func() { _ = conn.Close() })
	_ = conn.SetDeadline(time.Now().Add(10 * time.Second))
	return conn, bufio.NewReader(conn)
}

// get sends one request, and returns the response with its body read.
func (w *world) get(host, path string, headers ...string) (*http.Response, string) {
	w.t.Helper()
	return w.send(http.MethodGet, host, path, nil, headers...)
}

// expect checks the status of a request, which is what it says.
func (w *world) expect(want int, host, path, what string, args ...any) {
	w.t.Helper()
	if resp, body := w.get(host, path); resp.StatusCode != want {
		w.t.Errorf("%s: got %d %q, want %d", fmt.Sprintf(what, args...), resp.StatusCode, body, want)
	}
}

func (w *world) send(method, host, path string, body io.Reader, headers ...string) (*http.Response, string) {
	w.t.Helper()
	r := must.Get(http.NewRequestWithContext(context.Background(), method, w.base+path, body))(w.t)
	r.Host = host
	for i := 0; i < len(headers); i += 2 {
		r.Header.Set(headers[i], headers[i+1])
	}
	resp := must.Get((&http.Transport{DisableKeepAlives: true}).RoundTrip(r))(w.t)
	defer resp.Body.Close()
	b := must.Get(io.ReadAll(resp.Body))(w.t)
	return resp, string(b)
}

// A pod is a backend that says its name, and counts what it works on.
type pod struct {
	*httptest.Server
	name         string
	inside, most atomic.Int64
	served       atomic.Int64
	hold         chan struct{} // requests for /hold wait until it is closed
	takes        time.Duration // each request
}

func newPod(t *testing.T, name string, started func(*httptest.Server)) *pod {
	p := &pod{name: name, hold: make(chan struct{})}
	p.Server = httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		n := p.inside.Add(1)
		defer p.inside.Add(-1)
		for most := p.most.Load(); n > most && !p.most.CompareAndSwap(most, n); most = p.most.Load() {
		}
		p.served.Add(1)
		time.Sleep(p.takes) // for real: it is about sockets
		switch r.URL.Path {
		case "/hold":
			select {
			case <-p.hold:
			case <-r.Context().Done():
			}
		case "/events":
			w.Header().Set("Content-Type", "text/event-stream")
			w.WriteHeader(http.StatusOK)
			_ = http.NewResponseController(w).Flush()
			<-r.Context().Done()
			return
		}
		fmt.Fprintf(w, "%s %s %s", p.name, r.Proto, r.URL.Path)
	}))
	started(p.Server)
	t.Cleanup(func() {
		p.CloseClientConnections() // or a test that has failed would hang
		p.Close()
	})
	return p
}

func start(s *httptest.Server) { s.Start() }

// serving starts a pod that serves so.
func serving(t *testing.T, name string, serve http.HandlerFunc) *pod {
	return newPod(t, name, func(s *httptest.Server) { s.Config.Handler = serve; s.Start() })
}

// newPods starts pods that have one port in common, as those of a Service have, at
// addresses of their own. They are named pod0 and so on; each request takes so long.
func newPods(t *testing.T, n int, takes time.Duration) []*pod {
	t.Helper()
	port := must.FreePorts(t, 1)[0]
	var pods []*pod
	for i := range n {
		l := must.Get(net.Listen("tcp", fmt.Sprintf("127.0.0.%d:%d", i+1, port)))(t)
		pods = append(pods, newPod(t, fmt.Sprint("pod", i), func(s *httptest.Server) {
			_ = s.Listener.Close()
			s.Listener = l
			s.Start()
		}))
		pods[i].takes = takes
	}
	return pods
}

func (p *pod) endpoint() model.Endpoint {
	return model.Endpoint{Addr: netip.MustParseAddrPort(p.Listener.Addr().String())}
}

func service(name string, is policy.Service) *model.Service {
	return &model.Service{Ref: model.Ref{Kind: "Service", Namespace: "shop", Name: name, UID: "service-" + name}, Policy: is}
}

func origin(name string, is policy.Ingress) *model.Origin {
	return &model.Origin{Ref: model.Ref{Kind: "Ingress", Namespace: "shop", Name: name, UID: "ingress-" + name}, Policy: is}
}

func backend(s *model.Service, pods ...*pod) *model.Backend {
	b := &model.Backend{Service: s, Port: "http"}
	for _, p := range pods {
		b.Endpoints = append(b.Endpoints, p.endpoint())
	}
	return b
}

func placed(is policy.Service, n int) *model.Backend {
	b := backend(service("web", is))
	b.Endpoints = addresses(n)
	return b
}

// hourly is a quota of n requests, and of one more in an hour.
func hourly(n int) []policy.Zone {
	return []policy.Zone{{Name: "rate", Limit: limiter.Config{Rate: 1, Per: hour, Burst: n}}}
}

func all(o *model.Origin, b *model.Backend) *model.Model {
	return &model.Model{Rules: []model.Rule{{Path: "/", Target: model.Target{Origin: o, Backend: b}}}}
}

// A memory is an ingress without sockets, and without a Caddy: it can run in a synctest
// bubble. Requests that find an endpoint are answered by serve.
type memory struct {
	*controller
	handler *Handler
}

func newMemory(t *testing.T, m *model.Model, serve http.HandlerFunc) *memory {
	t.Helper()
	c := &controller{live: newLive(), measures: newMeasures(), log: caddy.Log()}
	s := c.live.apply(shield.Now(), m, &policy.Division{}, "")
	c.snapshot.Store(s)
	s.settle()
	answers := must.Get(pushback.NewResponses(pushback.ResponseConfig{}, nil))(t)
	h := &Handler{app: &App{controller: c}, answers: answers}
	for i := range h.proxies {
		h.proxies[i] = endpointFunc(serve)
	}
	for _, p := range c.live.problems {
		t.Errorf("problem: %+v", p)
	}
	return &memory{c, h}
}

type endpointFunc http.HandlerFunc

func (f endpointFunc) ServeHTTP(w http.ResponseWriter, r *http.Request, _ caddyhttp.Handler) error {
	if at, err := new(Upstreams).GetUpstreams(r); err != nil || len(at) == 0 {
		return caddyhttp.Error(http.StatusServiceUnavailable, err)
	}
	f(w, r)
	return nil
}

func (m *memory) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	r = caddyhttp.PrepareRequest(r, caddy.NewReplacer(), w, new(caddyhttp.Server))
	idle := &caddyhttp.IdleTimeoutReader{ // as Caddy's server has it
		ReadCloser: r.Body, Ctrl: http.NewResponseController(w), Deadline: caddyhttp.IdleDeadline{Timeout: stallTimeout}, Logger: caddy.Log(),
		DrainDeadline: r.ProtoMajor == 1 && r.ContentLength != 0, ClearBetweenReads: r.ProtoMajor == 2,
	}
	defer idle.HandlerDone()
	r = r.WithContext(caddyhttp.ContextWithIdleTimeouts(r.Context(), idle, nil))
	r.Body = idle
	if err := m.handler.ServeHTTP(w, r, nil); err != nil {
		status := http.StatusInternalServerError
		var is caddyhttp.HandlerError
		if errors.As(err, &is) {
			status = is.StatusCode
		}
		w.WriteHeader(status)
	}
}

// from answers a GET of a client with this address, "192.0.2.1" or "[2001:db8::1]". header are pairs.
func (m *memory) from(client, host string, header ...string) *http.Response {
	r := httptest.NewRequest(http.MethodGet, "http://"+host, nil)
	if r.URL.Path == "" {
		r.URL.Path = "/"
	}
	r.RemoteAddr = client + ":1234"
	for i := 0; i < len(header); i += 2 {
		r.Header.Set(header[i], header[i+1])
	}
	w := httptest.NewRecorder()
	m.ServeHTTP(w, r)
	return w.Result()
}

// pipes are a listener for connections that need no sockets, and that keep to the time of a synctest bubble.
type pipes struct {
	accept chan net.Conn
	closed chan struct{}
	once   sync.Once
}

// servePipes has a handler serve connections that dial begins, over HTTP/1.1 or HTTP/2. It ends with stop.
func servePipes(h http.Handler) (dial func() net.Conn, stop func()) {
	l := &pipes{accept: make(chan net.Conn), closed: make(chan struct{})}
	s := &http.Server{Handler: h, Protocols: new(http.Protocols)}
	s.Protocols.SetHTTP1(true)
	s.Protocols.SetUnencryptedHTTP2(true)
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = s.Serve(l) // until it is closed
	}()
	dial = func() net.Conn {
		near, far := net.Pipe()
		l.accept <- far
		return near
	}
	return dial, func() {
		_ = s.Close()
		<-done
	}
}

func (l *pipes) Accept() (net.Conn, error) {
	select {
	case c := <-l.accept:
		return c, nil
	case <-l.closed:
		return nil, net.ErrClosed
	}
}

func (l *pipes) Close() error {
	l.once.Do(func() { close(l.closed) })
	return nil
}

func (l *pipes) Addr() net.Addr { return new(net.TCPAddr) }
