package ingress

import (
	"errors"
	"net"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"

	"github.com/herdshield/shield"
	"github.com/herdshield/shield/k8s/model"
	"github.com/herdshield/shield/k8s/policy"
	"github.com/herdshield/shield/k8s/testbed/must"
	"github.com/herdshield/shield/pushback"
)

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

// endpointFunc is a reverse_proxy that asks where to go, and has the response at hand.
type endpointFunc http.HandlerFunc

func (f endpointFunc) ServeHTTP(w http.ResponseWriter, r *http.Request, _ caddyhttp.Handler) error {
	if at, err := new(Upstreams).GetUpstreams(r); err != nil || len(at) == 0 {
		return caddyhttp.Error(http.StatusServiceUnavailable, err)
	}
	f(w, r)
	return nil
}

// ServeHTTP does what Caddy's server does.
func (m *memory) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	r = caddyhttp.PrepareRequest(r, caddy.NewReplacer(), w, new(caddyhttp.Server))
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
