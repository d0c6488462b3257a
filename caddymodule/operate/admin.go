// Package operate is the admin endpoint /shield/ of a running config: what operators are shown, in JSON and
// on a page for browsers, and which requests may change something for a while.
//
// It does not know what a shield is, or how it is changed: that is what the Shields of the config say. It is
// no API for applications, which have Caddy's.
//
//	admin.go       the routes, what each asks the Shields for, and which requests may make a change
//	live.go        the page, and what it follows second by second
//	pageserver.go  an address of its own for all that, where browsers are let in; that no other process listens at the endpoint
//
// For example, the app of a config, which is Shields, serves the page like so:
//
//	page, err := operate.ServePage("localhost:2020", registry, logger)
//	…
//	defer page.Close()
//	operate.Announce(second) // once in each, so that pages that are open have it
package operate

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

// Shields are what operators see and change: Caddy's app "shield" is that. All methods are safe for
// concurrent use. Without named, clients have no names in a response. Errors are those of BadRequest, for who
// asks. by is who asks for a change, as far as that is known.
type Shields interface {
	Status(named bool) adminapi.Status

	// Watch returns the Status of the shields that have a history, with their seconds from since on. If one
	// is asked for, the others have no figures. With all there are clients and overrides, too.
	Watch(shield string, since uint64, all, named bool) (adminapi.Watch, error)

	Who(shield string, n int, named bool) (adminapi.WhoStatus, error)
	Explain(ask adminapi.ExplainRequest, named bool) (adminapi.ExplainStatus, error)

	// Changes do all that is asked for, or nothing.
	Forgive(ask adminapi.ExplainRequest, by string) (adminapi.ForgivenStatus, error)
	Begin(ask adminapi.OverrideRequest, by string) (adminapi.Override, error)
	End(id, by string) error

	// Stopped is closed when the config is no longer in force.
	Stopped() <-chan struct{}
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
		route("explain", serveExplain, http.MethodGet, http.MethodPost), route("forgive", change(http.StatusOK, Shields.Forgive), http.MethodPost),
		route("overrides", change(http.StatusCreated, Shields.Begin), http.MethodPost), route("overrides/", serveEnd, http.MethodDelete),
	}
}

// A server answers requests, with what the Shields of the running config say.
type server func(http.ResponseWriter, *http.Request, Shields) error

// route is the route of a path below /shield/.
func route(path string, serve server, methods ...string) caddy.AdminRoute {
	return caddy.AdminRoute{Pattern: "/shield/" + path, Handler: caddy.AdminHandlerFunc(func(w http.ResponseWriter, r *http.Request) error {
		if !slices.Contains(methods, r.Method) {
			return BadRequest(http.StatusMethodNotAllowed, "method is %s; use %s", r.Method, strings.Join(methods, " or "))
		}
		if r.Method != http.MethodGet && path != "explain" && !mayChange(r) {
			return BadRequest(http.StatusForbidden, "the admin endpoint is read-only at this address; use a loopback address, a Unix socket, or remote administration with a client certificate")
		}
		module, err := caddy.ActiveContext().AppIfConfigured("shield")
		if errors.Is(err, caddy.ErrNotConfigured) {
			return BadRequest(http.StatusNotFound, "the running config has no shield")
		}
		if err != nil {
			return err
		}
		return serve(w, r, module.(Shields))
	})}
}

// BadRequest is an error of the person who asks.
func BadRequest(status int, format string, args ...any) error {
	return caddy.APIError{HTTPStatus: status, Err: fmt.Errorf(format, args...)}
}

// answer writes a response that is about this moment, or returns the error.
func answer(w http.ResponseWriter, status int, v any, err error) error {
	if err != nil {
		return err
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(status)
	return json.NewEncoder(w).Encode(v)
}

func serveStatus(w http.ResponseWriter, r *http.Request, shields Shields) error {
	if r.URL.Path != "/shield/" {
		return BadRequest(http.StatusNotFound, "path is %s; use /shield/", r.URL.Path)
	}
	w.Header().Set("Vary", "Accept")
	if wantsPage(r) {
		return servePage(w)
	}
	return answer(w, http.StatusOK, shields.Status(mayChange(r)), nil)
}

// serveWho answers GET /shield/who?shield=NAME&n=10.
func serveWho(w http.ResponseWriter, r *http.Request, shields Shields) error {
	query, n := r.URL.Query(), 10
	if text := query.Get("n"); text != "" {
		var err error
		if n, err = strconv.Atoi(text); err != nil || n < 1 || n > 100 {
			return BadRequest(http.StatusBadRequest, "n is %s; use 1 to 100", adminapi.Shown(text))
		}
	}
	who, err := shields.Who(query.Get("shield"), n, mayChange(r))
	return answer(w, http.StatusOK, who, err)
}

// serveExplain answers GET /shield/explain?client=NAME, or POST with an object: Caddy logs URLs, and a name may be
// a credential.
func serveExplain(w http.ResponseWriter, r *http.Request, shields Shields) error {
	query := r.URL.Query()
	ask := adminapi.ExplainRequest{Shield: query.Get("shield"), Client: query.Get("client")}
	if r.Method == http.MethodPost {
		if err := readObject(w, r, &ask); err != nil {
			return err
		}
	}
	status, err := shields.Explain(ask, mayChange(r))
	return answer(w, http.StatusOK, status, err)
}

// change is a server that has something changed as the body asks for, and says what has become of it.
func change[Ask, Done any](status int, do func(Shields, Ask, string) (Done, error)) server {
	return func(w http.ResponseWriter, r *http.Request, shields Shields) error {
		var ask Ask
		if err := readObject(w, r, &ask); err != nil {
			return err
		}
		done, err := do(shields, ask, askedBy(r))
		return answer(w, status, done, err)
	}
}

// serveEnd ends an override.
func serveEnd(w http.ResponseWriter, r *http.Request, shields Shields) error {
	err := shields.End(strings.TrimPrefix(r.URL.Path, "/shield/overrides/"), askedBy(r))
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
		return BadRequest(http.StatusUnsupportedMediaType, "Content-Type is %.100q; use application/json", kind)
	}
	in := json.NewDecoder(http.MaxBytesReader(w, r.Body, 16<<10))
	in.DisallowUnknownFields()
	if err := in.Decode(to); err != nil {
		return BadRequest(http.StatusBadRequest, "the body is not the JSON object this endpoint takes: %w", err)
	}
	if _, err := in.Token(); err != io.EOF {
		return BadRequest(http.StatusBadRequest, "the body has more after its object; send one object")
	}
	return nil
}
