package caddymodule

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"github.com/caddyserver/caddy/v2"
	caddycmd "github.com/caddyserver/caddy/v2/cmd"
	"github.com/spf13/cobra"

	"github.com/herdshield/shield/caddymodule/adminapi"
	"github.com/herdshield/shield/caddymodule/commands"
)

func init() {
	caddy.RegisterModule(new(Admin))
	caddycmd.RegisterCommand(caddycmd.Command{
		Name:  "shield",
		Usage: "<command>",
		Short: "Inspect the shields of a running instance, and change them for a limited time",
		CobraFunc: func(cmd *cobra.Command) {
			cmd.DisableFlagsInUseLine = true
			cmd.Args = commands.NoSuchCommand
			cmd.RunE = func(cmd *cobra.Command, _ []string) error { return cmd.Help() }
			commands.Add(cmd, "caddy shield")
		},
	})
}

// Admin is the admin endpoints: `GET /shield/` is a Status of the running config, or for browsers
// a page that shows what happens, `GET /shield/live` is a Watch, and `GET /shield/who` names clients.
type Admin struct{}

// CaddyModule implements caddy.Module.
func (*Admin) CaddyModule() caddy.ModuleInfo {
	return caddy.ModuleInfo{ID: "admin.api.shield", New: func() caddy.Module { return new(Admin) }}
}

// Routes implements caddy.AdminRouter.
func (*Admin) Routes() []caddy.AdminRoute {
	return []caddy.AdminRoute{
		route("", serveStatus, http.MethodGet), route("live", serveLive, http.MethodGet), route("who", serveWho, http.MethodGet),
		route("explain", serveExplain, http.MethodGet, http.MethodPost), route("forgive", change(http.StatusOK, (*App).Forgive), http.MethodPost),
		route("overrides", change(http.StatusCreated, (*App).Begin), http.MethodPost), route("overrides/", serveEnd, http.MethodDelete),
	}
}

// A server answers requests, with what the app of the running config says.
type server func(http.ResponseWriter, *http.Request, *App) error

// route is the route of a path below /shield/.
func route(path string, serve server, methods ...string) caddy.AdminRoute {
	return caddy.AdminRoute{Pattern: "/shield/" + path, Handler: caddy.AdminHandlerFunc(func(w http.ResponseWriter, r *http.Request) error {
		if !slices.Contains(methods, r.Method) {
			return badRequest(http.StatusMethodNotAllowed, "method is %s; use %s", r.Method, strings.Join(methods, " or "))
		}
		if r.Method != http.MethodGet && path != "explain" && !mayChange(r) {
			return badRequest(http.StatusForbidden, "the admin endpoint is read-only at this address; use a loopback address, a Unix socket, or remote administration with a client certificate")
		}
		module, err := caddy.ActiveContext().AppIfConfigured("shield")
		if errors.Is(err, caddy.ErrNotConfigured) {
			return badRequest(http.StatusNotFound, "the running config has no shield")
		}
		if err != nil {
			return err
		}
		return serve(w, r, module.(*App))
	})}
}

// badRequest is an error of the person who asks.
func badRequest(status int, format string, args ...any) error {
	return caddy.APIError{HTTPStatus: status, Err: fmt.Errorf(format, args...)}
}

// reply writes a response that is about this moment, or returns the error.
func reply(w http.ResponseWriter, status int, v any, err error) error {
	if err != nil {
		return err
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(status)
	return json.NewEncoder(w).Encode(v)
}

func serveStatus(w http.ResponseWriter, r *http.Request, app *App) error {
	if r.URL.Path != "/shield/" {
		return badRequest(http.StatusNotFound, "path is %s; use /shield/", r.URL.Path)
	}
	w.Header().Set("Vary", "Accept")
	if wantsPage(r) {
		return servePage(w)
	}
	return reply(w, http.StatusOK, app.Status(mayChange(r)), nil)
}

// serveWho answers GET /shield/who?shield=NAME&n=10.
func serveWho(w http.ResponseWriter, r *http.Request, app *App) error {
	query, n := r.URL.Query(), 10
	if text := query.Get("n"); text != "" {
		var err error
		if n, err = strconv.Atoi(text); err != nil || n < 1 || n > 100 {
			return badRequest(http.StatusBadRequest, "n is %s; use 1 to 100", adminapi.Shown(text))
		}
	}
	who, err := app.Who(query.Get("shield"), n, mayChange(r))
	return reply(w, http.StatusOK, who, err)
}

// serveExplain answers GET /shield/explain?client=NAME, or POST with an object: Caddy logs URLs, and a name may be
// a credential.
func serveExplain(w http.ResponseWriter, r *http.Request, app *App) error {
	query := r.URL.Query()
	ask := adminapi.ExplainRequest{Shield: query.Get("shield"), Client: query.Get("client")}
	if r.Method == http.MethodPost {
		if err := readObject(w, r, &ask); err != nil {
			return err
		}
	}
	status, err := app.Explain(ask, mayChange(r))
	return reply(w, http.StatusOK, status, err)
}

// change is a server that has something changed as the body asks for, and says what has become of it.
func change[Ask, Done any](status int, do func(*App, Ask, string) (Done, error)) server {
	return func(w http.ResponseWriter, r *http.Request, app *App) error {
		var ask Ask
		if err := readObject(w, r, &ask); err != nil {
			return err
		}
		done, err := do(app, ask, askedBy(r))
		return reply(w, status, done, err)
	}
}

// serveEnd ends an override.
func serveEnd(w http.ResponseWriter, r *http.Request, app *App) error {
	err := app.End(strings.TrimPrefix(r.URL.Path, "/shield/overrides/"), askedBy(r))
	if err == nil {
		w.WriteHeader(http.StatusNoContent)
	}
	return err
}

// mayChange reports whether a request to the admin endpoint may change what the shields do: it
// comes over a loopback address or a Unix socket, or its client has a certificate that Caddy's
// remote administration has verified. Other listeners are read-only. Ours: a page that is on a
// network for all to see must not be a switch for all.
func mayChange(r *http.Request) bool {
	if r.TLS != nil && len(r.TLS.VerifiedChains) > 0 {
		return true
	}
	switch at, _ := r.Context().Value(http.LocalAddrContextKey).(net.Addr); at := at.(type) {
	case *net.TCPAddr:
		return at.IP.IsLoopback()
	case *net.UnixAddr:
		return true
	}
	return false
}

// askedBy says who has sent a request to the admin endpoint, as far as that is known.
func askedBy(r *http.Request) string {
	who := r.RemoteAddr
	if who == "" || who == "@" {
		who = "a Unix socket"
	}
	if r.TLS != nil && len(r.TLS.PeerCertificates) > 0 {
		who += fmt.Sprintf(", certificate %q", r.TLS.PeerCertificates[0].Subject)
	}
	if origin := r.Header.Get("Origin"); origin != "" {
		who += fmt.Sprintf(", origin %.200q", origin)
	}
	return who
}

// readObject reads the body of a request, of at most 16 KiB.
func readObject(w http.ResponseWriter, r *http.Request, to any) error {
	if kind, _, _ := strings.Cut(r.Header.Get("Content-Type"), ";"); kind != "application/json" {
		return badRequest(http.StatusUnsupportedMediaType, "Content-Type is %.100q; use application/json", kind)
	}
	in := json.NewDecoder(http.MaxBytesReader(w, r.Body, 16<<10))
	in.DisallowUnknownFields()
	if err := in.Decode(to); err != nil {
		return badRequest(http.StatusBadRequest, "the body is not the JSON object this endpoint takes: %w", err)
	}
	if _, err := in.Token(); err != io.EOF {
		return badRequest(http.StatusBadRequest, "the body has more after its object; send one object")
	}
	return nil
}
