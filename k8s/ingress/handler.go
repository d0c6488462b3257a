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
	"github.com/herdshield/shield/pushback"
)

func init() { caddy.RegisterModule(new(Handler)) }

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
	if h.answers, err = pushback.NewAnswers(pushback.AnswerConfig{}, nil); err != nil {
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
		server.RegisterOnStop(h.outlast)
	}
	return nil
}

// outlast waits for upgraded connections to end, at most until ctx does: for the rest
// of the grace period. A server that shuts down does not wait for those.
func (h *Handler) outlast(ctx context.Context) error {
	if !caddy.Exiting() {
		return nil // a reload: reverse_proxy does what its stream_close_delay says
	}
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
	transport = maps.Clone(transport)
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

// ServeHTTP implements caddyhttp.MiddlewareHandler.
func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request, _ caddyhttp.Handler) error {
	became := aborted // if it panics, as reverse_proxy does where a response breaks off
	c := h.app.controller
	defer func() { c.count(became) }()
	w.Header().Del("Server") // Caddy's: it is the backend's to say, or nobody's
	if c.draining.Load() && len(r.Header["Upgrade"]) == 0 {
		// So that clients go elsewhere before the listener is closed; HTTP/2
		// clients are sent a GOAWAY for it.
		w.Header().Set("Connection", "close")
	}
	snapshot := c.snapshot.Load()
	if snapshot == nil {
		became = unserved
		return h.unavailable(w, r, "not everything in the cluster has been seen yet")
	}
	if r.Method == http.MethodConnect && r.ProtoMajor == 1 {
		became = unreadable
		return say(w, r, http.StatusMethodNotAllowed, "this is no forward proxy")
	}
	target, err := snapshot.table.Resolve(r.Host, r.URL)
	switch {
	case err != nil:
		became = unreadable
		return say(w, r, http.StatusBadRequest, "the path can be read in more than one way")
	case target == nil:
		became = unrouted
		return say(w, r, http.StatusNotFound, "no Ingress has this host and path")
	}
	p := snapshot.ways[way{target.Origin, target.Backend}]
	if p.redirects(r) {
		became = redirected
		w.Header().Set("Location", "https://"+hostOf(r.Host)+r.URL.RequestURI())
		return say(w, r, http.StatusPermanentRedirect, "use https")
	}
	if p.first == nil {
		became = unserved
		return h.unavailable(w, r, "there is no such Service, or it has no such port")
	}
	t := &trip{handler: h, passage: p, talks: p.protocol == model.H2C || pushback.IsGRPC(r)}
	if p.limited && !t.talks {
		whole, done, err := c.readEarly(w, r)
		defer done()
		if t.whole = whole; err != nil {
			became = unreadable
			breakOff(w, r)
			return say(w, r, http.StatusRequestTimeout, "the body did not come")
		}
	}
	caddyhttp.SetVar(r.Context(), tripKey, t)
	switch err = p.first.ServeHTTP(w, r); {
	case err == nil:
		became = passed
		return nil
	case errors.Is(err, errFull):
		became = unserved
		return h.unavailable(w, r, "no endpoint has room")
	case errors.Is(err, caddymodule.ErrUnasked):
		became = unserved
		return h.unavailable(w, r, "no endpoint is ready")
	default:
		became, err = h.fail(w, r, c, err)
		return err
	}
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

// breakOff has the connection of HTTP/1 closed after the answer: the rest of the body is
// not waited for.
func breakOff(w http.ResponseWriter, r *http.Request) {
	if r.ProtoMajor == 1 {
		w.Header().Set("Connection", "close")
	}
}

// hostOf returns the host of a Host field, without its port and final dot.
func hostOf(field string) string {
	host := field
	if h, _, err := net.SplitHostPort(field); err == nil {
		if host = h; strings.Contains(h, ":") {
			return "[" + h + "]"
		}
	}
	return strings.TrimSuffix(host, ".")
}

// unavailable answers a request for which there is nobody. When there will be is not
// known, so nobody gets an appointment; but everybody is told another time.
func (h *Handler) unavailable(w http.ResponseWriter, r *http.Request, why string) error {
	refusal := pushback.Refusal{Policy: -1, Hint: h.answers.Hint(time.Second + rand.N(spreadOver))}
	if pushback.IsGRPC(r) {
		h.answers.Write(w, r, refusal, shield.At(shield.Now()))
		return nil
	}
	h.answers.SetHeader(w, refusal)
	return say(w, r, http.StatusServiceUnavailable, why)
}

// spreadOver is over how long clients of a Service without endpoints are spread. Ours:
// about what a pod takes to start.
const spreadOver = 9 * time.Second

// fail answers a request that an endpoint has not. The controller logs how many there
// were; a line for each would be a flood when it matters least.
func (h *Handler) fail(w http.ResponseWriter, r *http.Request, c *controller, err error) (became outcome, _ error) {
	var failed caddyhttp.HandlerError
	switch {
	case !errors.As(err, &failed) || failed.StatusCode < 400:
		return broken, err
	case r.Context().Err() != nil:
		became = aborted
	case failed.StatusCode >= 500:
		became = broken
		c.failed(err)
	default:
		became = unreadable
	}
	return became, say(w, r, failed.StatusCode, http.StatusText(failed.StatusCode))
}

// grpcStatus are the codes of gRPC for what a proxy answers by itself
// (grpc/doc/statuscodes.md), which their clients cannot read from a status of HTTP.
var grpcStatus = map[int]string{
	http.StatusBadRequest: "3", http.StatusRequestTimeout: "4", http.StatusNotFound: "12", http.StatusMethodNotAllowed: "12",
	http.StatusBadGateway: "14", http.StatusServiceUnavailable: "14", http.StatusGatewayTimeout: "14",
}

// say answers with a status and a few words.
func say(w http.ResponseWriter, r *http.Request, status int, why string) error {
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
