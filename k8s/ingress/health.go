package ingress

import (
	"errors"
	"fmt"
	"net/http"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
)

func init() { caddy.RegisterModule(new(Health)) }

// Why a process is not ready, beside what App.Ready says.
var (
	errDraining = errors.New("shutting down")
	errStarting = errors.New("starting") // not all listeners are up
)

// Health answers the probes of Kubernetes, and passes on requests for other paths.
//
// Path | Answer
// -----|-------
// `/livez` | 200, always: a process that answers is alive. Neither an outage of the API server nor a cluster that is not synced yet is a reason for a restart.
// `/readyz` | 200 if all servers listen, the cluster's objects are known, and no shutdown has begun; else 503. The body says what is missing.
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

// ready returns why this process should not get requests, or nil. Shutting down comes
// first: it overrides all other reasons.
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
