package ingress

import (
	"errors"
	"fmt"
	"net/http"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
)

func init() { caddy.RegisterModule(new(Health)) }

// errDraining is why a process that shuts down is not ready.
var errDraining = errors.New("shutting down")

// errStarting is why one is not ready before all its listeners are up.
var errStarting = errors.New("starting")

// Health answers the probes of Kubernetes; it passes on requests for other paths.
//
// Path | Answer
// -----|-------
// `/livez` | 200, always: whoever can answer is alive. That the API server is away, or nothing is known yet, is no reason to be restarted.
// `/readyz` | 200 if all servers listen, the cluster's objects are known, and no shutdown is under way; else 503. The body says what is missing.
//
// It needs the app `shield_ingress`.
type Health struct {
	app     interface{ Ready() error }
	running func() bool // whether Caddy has started a config
	exiting func() bool // whether the process is about to end
}

// CaddyModule returns the Caddy module information.
func (*Health) CaddyModule() caddy.ModuleInfo {
	return caddy.ModuleInfo{
		ID:  "http.handlers.shield_ingress_health",
		New: func() caddy.Module { return new(Health) },
	}
}

// Provision implements caddy.Provisioner.
func (h *Health) Provision(ctx caddy.Context) error {
	app, err := ctx.App("shield_ingress")
	if err != nil {
		return fmt.Errorf("getting the app shield_ingress: %w", err)
	}
	h.app = app.(*App)
	h.exiting = caddy.Exiting
	// There is an active context from when all listeners are up, until Stop.
	h.running = func() bool { return caddy.ActiveContext().Context != nil }
	return nil
}

// ServeHTTP implements caddyhttp.MiddlewareHandler.
func (h *Health) ServeHTTP(w http.ResponseWriter, r *http.Request, next caddyhttp.Handler) error {
	header := w.Header()
	header.Del("Server")
	var err error
	switch r.URL.Path {
	case "/livez":
	case "/readyz":
		err = h.ready()
	default:
		return next.ServeHTTP(w, r)
	}
	header.Set("Content-Type", "text/plain; charset=utf-8")
	header.Set("Cache-Control", "no-store")
	if r.Method != http.MethodGet && r.Method != http.MethodHead {
		header.Set("Allow", "GET, HEAD")
		w.WriteHeader(http.StatusMethodNotAllowed)
		return nil
	}
	text := "ok\n"
	if err != nil {
		text = "not ready: " + err.Error() + "\n"
		w.WriteHeader(http.StatusServiceUnavailable)
	}
	_, _ = w.Write([]byte(text)) // a client that is gone
	return nil
}

// ready returns nil, or why no requests should be sent here. Shutting down comes
// first: nothing else matters then.
func (h *Health) ready() error {
	if h.exiting() {
		return errDraining
	}
	if !h.running() {
		return errStarting
	}
	return h.app.Ready()
}

// Interface guards.
var (
	_ caddy.Provisioner           = (*Health)(nil)
	_ caddyhttp.MiddlewareHandler = (*Health)(nil)
)
