package ingress

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp/reverseproxy"

	"github.com/herdshield/shield"
	"github.com/herdshield/shield/k8s/endpoint"
	"github.com/herdshield/shield/k8s/model"
	"github.com/herdshield/shield/pushback"
)

func init() {
	caddy.RegisterModule(new(Handler))
	caddy.RegisterModule(new(Upstreams))
}

// Handler implements an HTTP handler that does what the Ingresses of a cluster ask
// for: it finds the Service that a request is for, holds it to the limits of both, and
// passes it on to one of the Service's endpoints.
type Handler struct {
	app     *App
	proxies [len(transports)]caddyhttp.MiddlewareHandler // by model.Protocol
	answers *pushback.Answers

	upgraded atomic.Int64 // connections that may have been taken over, by websockets
}

// CaddyModule implements caddy.Module.
func (*Handler) CaddyModule() caddy.ModuleInfo {
	return caddy.ModuleInfo{ID: "http.handlers.shield_ingress", New: func() caddy.Module { return new(Handler) }}
}

// Provision implements caddy.Provisioner.
func (h *Handler) Provision(ctx caddy.Context) error {
	module, err := ctx.App("shield_ingress")
	if err != nil {
		return err
	}
	h.app = module.(*App)
	if h.answers, err = pushback.New(pushback.Config{}, nil); err != nil {
		return err
	}
	for protocol, transport := range transports {
		module, err := ctx.LoadModuleByID("http.handlers.reverse_proxy", reverseProxy(transport))
		if err != nil {
			return err
		}
		proxy := module.(*reverseproxy.Handler)
		proxy.Transport = viaTransport{proxy.Transport}
		h.proxies[protocol] = proxy
	}
	if server, ok := ctx.Value(caddyhttp.ServerCtxKey).(*caddyhttp.Server); ok {
		server.RegisterOnStop(h.outlast)
	}
	return nil
}

// outlast waits for upgraded connections to end, at most until ctx does: for the rest
// of the grace period. A server that shuts down does not wait for those.
func (h *Handler) outlast(ctx context.Context) error {
	for h.upgraded.Load() > 0 {
		select {
		case <-time.After(upgradedEvery):
		case <-ctx.Done():
			return nil
		}
	}
	return nil
}

// upgradedEvery is how often is looked whether all upgraded connections have ended.
const upgradedEvery = 50 * time.Millisecond

const (
	// dialTimeout is how long an endpoint may take to accept a connection. Ours:
	// within a cluster it takes a millisecond, and a lost packet is sent again
	// after one second (RFC 6298).
	dialTimeout = 2 * time.Second

	// keepIdle is how many idle connections are kept to each endpoint, and for how
	// long. Many servers close theirs after 60 s or more, and one that is closed while
	// a request is on its way to it is an error that cannot be repeated for a POST.
	keepIdle    = 256
	keepIdleFor = 50 * time.Second

	// retries is how many other endpoints are tried, where an endpoint could not be
	// reached, or broke off a request that may be repeated.
	retries = 2
)

// transports are reverse_proxy's, by model.Protocol.
var transports = [...]map[string]any{
	model.HTTP:  {"protocol": "http", "versions": []string{"1.1"}},
	model.H2C:   {"protocol": "http", "versions": []string{"h2c", "2"}},
	model.HTTPS: {"protocol": "http", "versions": []string{"1.1", "2"}, "tls": map[string]any{"insecure_skip_verify": true}},
}

// reverseProxy returns the JSON of a reverse_proxy that asks Upstreams where to go.
func reverseProxy(transport map[string]any) json.RawMessage {
	transport["dial_timeout"] = caddy.Duration(dialTimeout)
	transport["keep_alive"] = map[string]any{"max_idle_conns_per_host": keepIdle, "idle_timeout": caddy.Duration(keepIdleFor)}
	b, err := json.Marshal(map[string]any{
		"transport":         transport,
		"dynamic_upstreams": map[string]any{"source": "shield_ingress"},
		"load_balancing": map[string]any{
			"retries":          retries,
			"selection_policy": map[string]any{"policy": "first"},
			// RFC 9110, section 9.2.2, but for those that mostly have a body,
			// which is gone once it has been sent.
			"retry_match": []any{map[string]any{"method": []string{"GET", "HEAD", "OPTIONS", "TRACE"}}},
		},
	})
	if err != nil {
		panic(err) // nothing in it is a user's
	}
	return b
}

// A trip is what is known of one request on its way to an endpoint.
type trip struct {
	handler *Handler
	passage *passage
	at      atomic.Pointer[endpoint.Endpoint] // where it has a place now
	tried   []*endpoint.Endpoint
	room    [retries]*endpoint.Endpoint // for tried
	refused error                       // why there is no endpoint
}

// tripKey is where requests carry their trip, among Caddy's variables.
const tripKey = "shield_ingress.trip"

// ServeHTTP implements caddyhttp.MiddlewareHandler.
func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request, _ caddyhttp.Handler) error {
	c := h.app.controller
	w.Header().Del("Server") // Caddy's: it is the backend's to say, or nobody's
	if c.draining.Load() {
		// So that clients go elsewhere before the listener is closed; HTTP/2
		// clients are sent a GOAWAY for it.
		w.Header().Set("Connection", "close")
	}
	snapshot := c.snapshot.Load()
	if snapshot == nil {
		return h.unavailable(w, r)
	}
	target, err := snapshot.table.Resolve(r.Host, r.URL)
	switch {
	case err != nil:
		c.count(unreadable)
		return say(w, http.StatusBadRequest, "400 the path can be read in more than one way\n")
	case target == nil:
		c.count(unrouted)
		return say(w, http.StatusNotFound, "404 no Ingress has this host and path\n")
	}
	p := snapshot.ways[way{target.Origin, target.Backend}]
	if p.redirects(r) {
		c.count(redirected)
		w.Header().Set("Location", "https://"+hostOf(r.Host)+r.URL.RequestURI())
		return say(w, http.StatusPermanentRedirect, "308 use https\n")
	}
	if p.first == nil {
		c.count(unserved)
		return h.unavailable(w, r)
	}
	t := &trip{handler: h, passage: p}
	caddyhttp.SetVar(r.Context(), tripKey, t)
	err = p.first.ServeHTTP(w, r)
	switch {
	case t.refused != nil:
		c.count(unserved)
		return h.unavailable(w, r)
	case err != nil:
		return h.fail(w, c, err)
	}
	c.count(passed)
	return nil
}

// ServeHTTP passes an admitted request to an endpoint. It implements
// caddyhttp.Handler.
func (p *passage) ServeHTTP(w http.ResponseWriter, r *http.Request) error {
	t := caddyhttp.GetVar(r.Context(), tripKey).(*trip)
	if tracker, ok := w.(*shield.Tracker); ok {
		// An upgraded connection, or a stream, gives its place back at once.
		tracker.Before(func() { t.leave(endpoint.Served) })
		defer tracker.Before(nil)
	}
	outcome := endpoint.Served
	defer func() { t.leave(outcome) }() // also if it panics: a response broke off
	if len(r.Header["Upgrade"]) > 0 {
		t.handler.upgraded.Add(1)
		defer t.handler.upgraded.Add(-1)
	}
	forward(r)
	w = &viaWriter{caddyhttp.ResponseWriterWrapper{ResponseWriter: w}}
	err := t.handler.proxies[p.protocol].ServeHTTP(w, r, nil)
	var dial reverseproxy.DialError
	if errors.As(err, &dial) {
		outcome = endpoint.Unreachable
	}
	return err
}

// enter takes a place at an endpoint, another one than before.
func (t *trip) enter(now time.Duration) (*endpoint.Endpoint, error) {
	if last := t.leave(endpoint.Unreachable); last != nil {
		if t.tried == nil {
			t.tried = t.room[:0]
		}
		t.tried = append(t.tried, last)
	}
	e, err := t.passage.set.Pick(now, rand.Uint64(), t.tried)
	if t.refused = err; err == nil {
		t.at.Store(e)
	}
	return e, err
}

// leave gives back the place, if there is one, and returns where it was.
func (t *trip) leave(o endpoint.Outcome) *endpoint.Endpoint {
	e := t.at.Swap(nil)
	if e != nil {
		e.Release(shield.Now(), o)
	}
	return e
}

// ServeHTTP implements caddyhttp.Handler.
func (g guarded) ServeHTTP(w http.ResponseWriter, r *http.Request) error {
	return g.shield.ServeHTTP(w, r, g.next)
}

// redirects reports whether a request over plain HTTP is to come over TLS.
func (p *passage) redirects(r *http.Request) bool {
	if p.origin == nil || p.origin.NoRedirect || len(p.origin.TLSHosts) == 0 || ofACME(r.URL.Path) {
		return false
	}
	if scheme(r) == "https" { // up to a proxy before this one
		return false
	}
	host := strings.ToLower(hostOf(r.Host))
	for _, tls := range p.origin.TLSHosts {
		if tls == host {
			return true
		}
		if suffix, wild := strings.CutPrefix(tls, "*"); wild {
			if label, ok := strings.CutSuffix(host, suffix); ok && label != "" && !strings.Contains(label, ".") {
				return true
			}
		}
	}
	return false
}

// hostOf returns the host without its port.
func hostOf(host string) string {
	if h, _, err := net.SplitHostPort(host); err == nil {
		if strings.Contains(h, ":") {
			return "[" + h + "]"
		}
		return h
	}
	return strings.TrimSuffix(host, ".")
}

// unavailable answers a request for which there is nobody. When there will be is not
// known, so nobody gets an appointment; but everybody is told another time.
func (h *Handler) unavailable(w http.ResponseWriter, r *http.Request) error {
	wait := time.Second + rand.N(spreadOver)
	h.answers.Write(w, r, pushback.Refusal{Policy: -1, Hint: h.answers.Hint(wait)}, shield.At(shield.Now()))
	return nil
}

// spreadOver is over how long clients of a Service without endpoints are spread. Ours:
// about what a pod takes to start.
const spreadOver = 9 * time.Second

// fail answers a request that an endpoint has not. The controller logs how many there
// were; a line for each would be a flood when it matters least.
func (h *Handler) fail(w http.ResponseWriter, c *controller, err error) error {
	var failed caddyhttp.HandlerError
	if !errors.As(err, &failed) || failed.StatusCode < 400 {
		return err
	}
	if failed.StatusCode >= 500 {
		c.count(broken)
		c.failed(err)
	}
	return say(w, failed.StatusCode, fmt.Sprintf("%d %s\n", failed.StatusCode, http.StatusText(failed.StatusCode)))
}

// say answers with a few words.
func say(w http.ResponseWriter, status int, text string) error {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	w.WriteHeader(status)
	_, _ = w.Write([]byte(text)) // the client may be gone
	return nil
}

// Upstreams tells reverse_proxy where shield_ingress wants a request to go: to one
// endpoint, at which it has a place, and another one if it asks again.
type Upstreams struct{}

// CaddyModule implements caddy.Module.
func (*Upstreams) CaddyModule() caddy.ModuleInfo {
	return caddy.ModuleInfo{ID: "http.reverse_proxy.upstreams.shield_ingress", New: func() caddy.Module { return new(Upstreams) }}
}

// GetUpstreams implements reverseproxy.UpstreamSource. No error is returned if there
// is no endpoint: reverse_proxy would log it, for each request.
func (*Upstreams) GetUpstreams(r *http.Request) ([]*reverseproxy.Upstream, error) {
	t, ok := caddyhttp.GetVar(r.Context(), tripKey).(*trip)
	if !ok {
		return nil, errors.New("the upstreams of shield_ingress are for its own handler")
	}
	e, err := t.enter(shield.Now())
	if err != nil {
		return nil, nil
	}
	return []*reverseproxy.Upstream{{Dial: e.Addr()}}, nil
}

var (
	_ caddy.Provisioner           = (*Handler)(nil)
	_ caddyhttp.MiddlewareHandler = (*Handler)(nil)
	_ reverseproxy.UpstreamSource = (*Upstreams)(nil)
)
