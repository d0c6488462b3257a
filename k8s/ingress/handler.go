package ingress

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
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
	"github.com/herdshield/shield/caddymodule"
	"github.com/herdshield/shield/k8s/model"
	"github.com/herdshield/shield/k8s/route"
	"github.com/herdshield/shield/pushback"
)

func init() { caddy.RegisterModule(new(Handler)) }

// Handler implements an HTTP handler that serves the Ingresses of a cluster: it finds the
// Service of a request, applies the limits of the Ingress and the Service, and passes the
// request to an endpoint.
type Handler struct {
	app     *App
	proxies [len(transports)]caddyhttp.MiddlewareHandler // by model.Protocol
	answers *pushback.Responses

	upgraded atomic.Int64 // connections that may have been hijacked, by websockets
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
	if h.answers, err = pushback.NewResponses(pushback.ResponseConfig{}, nil); err != nil {
		return err
	}
	for protocol, transport := range transports {
		module, err := ctx.LoadModuleByID("http.handlers.reverse_proxy", reverseProxy(transport))
		if err != nil {
			return err
		}
		proxy := module.(*reverseproxy.Handler)
		transport := proxy.Transport.(*reverseproxy.HTTPTransport)
		transport.Transport.DialContext = watchDials(transport.Transport.DialContext)
		proxy.Transport = viaTransport{reaching{transport}}
		h.proxies[protocol] = proxy
	}
	if server, ok := ctx.Value(caddyhttp.ServerCtxKey).(*caddyhttp.Server); ok {
		server.RegisterOnStop(h.awaitUpgraded)
	}
	return nil
}

// awaitUpgraded waits until all upgraded connections have ended or ctx, the grace period,
// has. A server that shuts down does not wait for those.
func (h *Handler) awaitUpgraded(ctx context.Context) error {
	if !caddy.Exiting() {
		return nil // a reload: reverse_proxy handles them, by its stream_close_delay
	}
	for h.upgraded.Load() > 0 {
		select {
		case <-time.After(upgradedPoll):
		case <-ctx.Done():
			return nil
		}
	}
	return nil
}

// upgradedPoll is how often awaitUpgraded looks.
const upgradedPoll = 50 * time.Millisecond

const (
	// dialTimeout is how long an endpoint may take to accept a connection. Ours:
	// within a cluster it takes a millisecond, and a lost packet is sent again
	// after one second (RFC 6298).
	dialTimeout = 2 * time.Second

	// maxIdle is how many idle connections are kept to each endpoint, and idleFor for how
	// long. Many servers close theirs after 60 s or more. A close while a request is on its
	// way is an error, and a POST cannot be retried.
	maxIdle = 256
	idleFor = 50 * time.Second

	// retries is how many other endpoints are tried if an endpoint cannot be reached, or
	// breaks off a request that may be repeated.
	retries = 2
)

// transports are the transports of reverse_proxy, by model.Protocol.
var transports = [...]map[string]any{
	model.HTTP:  {"protocol": "http", "versions": []string{"1.1"}},
	model.H2C:   {"protocol": "http", "versions": []string{"h2c", "2"}},
	model.HTTPS: {"protocol": "http", "versions": []string{"1.1", "2"}, "tls": map[string]any{"insecure_skip_verify": true}},
}

// reverseProxy returns the JSON of a reverse_proxy that gets its endpoints from Upstreams.
func reverseProxy(transport map[string]any) json.RawMessage {
	transport = maps.Clone(transport)
	transport["compression"] = false // client and backend agree on an encoding
	transport["dial_timeout"] = caddy.Duration(dialTimeout)
	transport["keep_alive"] = map[string]any{"max_idle_conns_per_host": maxIdle, "idle_timeout": caddy.Duration(idleFor)}
	b, err := json.Marshal(map[string]any{
		"transport":         transport,
		"dynamic_upstreams": map[string]any{"source": "shield_ingress"},
		"load_balancing": map[string]any{
			"retries":          retries,
			"selection_policy": map[string]any{"policy": "first"},
			// The idempotent methods (RFC 9110, section 9.2.2) without those that
			// mostly have a body, which cannot be sent again.
			"retry_match": []any{map[string]any{"method": []string{"GET", "HEAD", "OPTIONS", "TRACE"}}},
		},
	})
	if err != nil {
		panic(err) // users set none of it
	}
	return b
}

// ServeHTTP implements caddyhttp.MiddlewareHandler.
func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request, _ caddyhttp.Handler) error {
	began, c := shield.Now(), h.app.controller
	result := aborted // if it panics, as reverse_proxy does when a response breaks off
	var t *trip
	defer func() {
		if t != nil {
			t.passage.traffic.ended(t.writer.status, began)
			if t.late && !t.slow && r.Context().Err() == nil { // of a client that has gone the permit was kept, and no more
				result = timeout
			}
		}
		c.count(result)
	}()
	w.Header().Del("Server") // Caddy's: only a backend's is passed on
	if c.draining.Load() && len(r.Header["Upgrade"]) == 0 {
		// Clients reconnect elsewhere before the listener is closed; HTTP/2 clients get a
		// GOAWAY for it.
		w.Header().Set("Connection", "close")
	}
	t, result, err := h.route(w, r, c)
	if t == nil {
		return err
	}
	w = &t.writer
	passes, result, err := h.gate(w, r, c, t)
	if passes {
		result, err = h.pass(w, r, c, t)
	}
	return err
}

// route returns the trip that a request is to make. If there is none for it, route answers it
// and returns nil.
func (h *Handler) route(w http.ResponseWriter, r *http.Request, c *controller) (*trip, outcome, error) {
	snapshot := c.snapshot.Load()
	if snapshot == nil {
		return nil, unserved, h.unavailable(w, r, "starting: the cluster's objects are not known yet")
	}
	if r.Method == http.MethodConnect && r.ProtoMajor == 1 {
		return nil, unreadable, respond(w, r, http.StatusMethodNotAllowed, "this is not a forward proxy")
	}
	target, err := snapshot.table.Resolve(r.Host, r.URL)
	switch {
	case err != nil:
		return nil, unreadable, respond(w, r, http.StatusBadRequest, "ambiguous path: servers may read it differently")
	case target == nil:
		return nil, unrouted, respond(w, r, http.StatusNotFound, "no Ingress has this host and path")
	}
	p := snapshot.passages[target]
	return &trip{
		handler: h, target: target, passage: p, streams: p.protocol == model.H2C || pushback.IsGRPC(r),
		writer: statusWriter{ResponseWriterWrapper: caddyhttp.ResponseWriterWrapper{ResponseWriter: w}},
	}, aborted, nil
}

// gate answers requests that go no further, whatever the limits say: those that are
// redirected, that the Ingress does not serve, or that no endpoint could serve. It reports whether a
// request passes.
func (h *Handler) gate(w http.ResponseWriter, r *http.Request, c *controller, t *trip) (passes bool, result outcome, err error) {
	p, f := t.passage, t.target.Filters
	if f != nil {
		t.plan = &plan{Filters: f, extra: p.extra(w, r, f)}
	}
	if p.redirects(r) {
		w.Header().Set("Location", "https://"+hostOf(r.Host)+r.URL.RequestURI())
		return false, redirected, respond(w, r, http.StatusPermanentRedirect, "use https")
	}
	if t.target.Closed != "" {
		return false, closed, h.unavailable(w, r, t.target.Closed)
	}
	if f.Asks() && !f.Admits(clientAddress(r)) {
		return false, denied, respond(w, r, http.StatusForbidden, "the Ingress does not serve this address")
	}
	if f != nil {
		if to, code := redirect(r, f); to != "" {
			w.Header().Set("Location", to)
			return false, redirected, respond(w, r, code, to)
		}
		if preflight(w, r, t.plan.extra) {
			return false, answered, nil
		}
	}
	if p.first == nil {
		return false, unserved, h.unavailable(w, r, "the Service does not exist, or has no such port")
	}
	if t.target.Rewrite != nil {
		var ok bool
		if t.planned().url, ok = route.Rewrite(t.target.Rewrite, r.URL); !ok {
			return false, unreadable, respond(w, r, http.StatusBadRequest, "the path cannot be rewritten: servers may read the result differently")
		}
	}
	if r.ContentLength != 0 {
		if most := t.bodySize(&c.config); most >= 0 && r.ContentLength > most {
			return false, unreadable, rejectBody(w, r)
		} else if most >= 0 && r.ContentLength < 0 {
			t.planned().sized = &sizedBody{left: most}
		}
	}
	return true, aborted, nil
}

// pass has a request go through its passage.
func (h *Handler) pass(w http.ResponseWriter, r *http.Request, c *controller, t *trip) (outcome, error) {
	p := t.passage
	if d := p.timeouts.Request; d > 0 {
		defer t.limit(r, d)()
	}
	if p.limited && !t.streams {
		whole, done, err := c.bodies.Read(r, t.end)
		defer done()
		if t.whole = whole; err != nil {
			return unreadable, tooSlow(w, r)
		}
	}
	caddyhttp.SetVar(r.Context(), tripKey, t)
	switch err := p.first.ServeHTTP(w, r); {
	case err == nil && t.last.Load() == nil && t.writer.status == http.StatusGatewayTimeout:
		return timeout, nil // the time was over in the queue of a shield
	case err == nil:
		return passed, nil
	case t.late && errors.Is(err, caddymodule.ErrUnasked):
		return timeout, respond(w, r, http.StatusGatewayTimeout, "the time for the request is over")
	case errors.Is(err, errAnswered):
		return answered, nil
	case errors.Is(err, errFull):
		return unserved, h.unavailable(w, r, "all endpoints are at their limit")
	case errors.Is(err, caddymodule.ErrUnasked):
		return unserved, h.unavailable(w, r, "no endpoint is ready")
	case t.slow:
		return unreadable, tooSlow(w, r)
	default:
		return h.fail(w, r, c, err)
	}
}

// tooSlow answers a request whose client does not send it.
func tooSlow(w http.ResponseWriter, r *http.Request) error {
	breakOff(w, r)
	return respond(w, r, http.StatusRequestTimeout, "the request body did not arrive in time")
}

// ServeHTTP implements caddyhttp.Handler.
func (g guarded) ServeHTTP(w http.ResponseWriter, r *http.Request) error {
	return g.shield.ServeHTTP(w, r, g.next)
}

// redirects reports whether a request over plain HTTP is redirected to HTTPS.
func (p *passage) redirects(r *http.Request) bool {
	if p.origin == nil || p.origin.NoRedirect || len(p.origin.TLSHosts) == 0 && !p.origin.ForceRedirect || ofACME(r.URL.Path) {
		return false
	}
	return scheme(r) != "https" && (p.origin.ForceRedirect || p.asksTLS(r.Host)) // the client's, perhaps to a proxy before this one
}

// asksTLS reports whether the Ingress asks for TLS for the host of a Host field.
func (p *passage) asksTLS(field string) bool {
	host := strings.ToLower(hostOf(field))
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

// breakOff has a connection of HTTP/1 closed after the response, without waiting for the rest
// of the body.
func breakOff(w http.ResponseWriter, r *http.Request) {
	if r.ProtoMajor == 1 {
		w.Header().Set("Connection", "close")
	}
}

// hostOf returns the host of a Host field, without port and trailing dot.
func hostOf(field string) string {
	host := field
	if h, _, err := net.SplitHostPort(field); err == nil {
		if host = h; strings.Contains(h, ":") {
			return "[" + h + "]"
		}
	}
	return strings.TrimSuffix(host, ".")
}

// unavailable answers a request that no endpoint can serve. When one will is not known, so
// clients get no appointments, but times that are spread at random.
func (h *Handler) unavailable(w http.ResponseWriter, r *http.Request, why string) error {
	rejection := pushback.Rejection{Policy: -1, Hint: h.answers.Hint(time.Second + rand.N(spreadOver))}
	if pushback.IsGRPC(r) {
		h.answers.Write(w, r, rejection, shield.At(shield.Now()))
		return nil
	}
	h.answers.SetHeader(w, r, rejection)
	return respond(w, r, http.StatusServiceUnavailable, why)
}

// spreadOver is the time over which the clients of a Service without endpoints are spread.
// Ours: about the start time of a pod.
const spreadOver = 9 * time.Second

// fail answers a request that an endpoint has not answered. The controller logs how many
// there were, since a line for each would flood the log during an outage.
func (h *Handler) fail(w http.ResponseWriter, r *http.Request, c *controller, err error) (result outcome, _ error) {
	var failed caddyhttp.HandlerError
	switch {
	case !errors.As(err, &failed) || failed.StatusCode < 400:
		return broken, err
	case errors.Is(r.Context().Err(), context.Canceled):
		result = aborted
	case failed.StatusCode == http.StatusGatewayTimeout:
		result = timeout
		c.failed(err)
	case failed.StatusCode >= 500:
		result = broken
		c.failed(err)
	default:
		result = unreadable
	}
	return result, respond(w, r, failed.StatusCode, http.StatusText(failed.StatusCode))
}

// grpcStatus has the gRPC codes of a proxy's own responses (grpc/doc/statuscodes.md): gRPC
// clients do not read them from the HTTP status.
var grpcStatus = map[int]string{
	http.StatusBadRequest: "3", http.StatusRequestTimeout: "4", http.StatusForbidden: "7", http.StatusUnauthorized: "16", http.StatusNotFound: "12", http.StatusMethodNotAllowed: "12", http.StatusRequestEntityTooLarge: "8",
	http.StatusBadGateway: "14", http.StatusServiceUnavailable: "14", http.StatusGatewayTimeout: "4",
}

// respond answers with a status and a short text.
func respond(w http.ResponseWriter, r *http.Request, status int, why string) error {
	if code, ok := grpcStatus[status]; ok && pushback.IsGRPC(r) {
		w.Header().Set("Content-Type", "application/grpc")
		w.Header().Set("Grpc-Status", code)
		w.Header().Set("Grpc-Message", why)
		w.WriteHeader(http.StatusOK)
		return nil
	}
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	w.WriteHeader(status)
	_, _ = fmt.Fprintf(w, "%d %s\n", status, why) // the client may be gone
	return nil
}

var (
	_ caddy.Provisioner           = (*Handler)(nil)
	_ caddyhttp.MiddlewareHandler = (*Handler)(nil)
)
