package operate

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"

	"github.com/caddyserver/caddy/v2"
	caddycmd "github.com/caddyserver/caddy/v2/cmd"
	"github.com/spf13/cobra"

	"github.com/herdshield/shield/caddymodule/adminapi"
	"github.com/herdshield/shield/caddymodule/commands"
	"github.com/herdshield/shield/oncall"
)

func init() {
	caddy.RegisterModule(new(Admin))
	caddycmd.RegisterCommand(caddycmd.Command{
		Name:  "shield",
		Usage: "<command>",
		Short: "Shows what the shields of a running instance do, and changes it for a while",
		CobraFunc: func(cmd *cobra.Command) {
			cmd.DisableFlagsInUseLine = true
			cmd.Args = commands.NoSuchCommand
			cmd.RunE = func(cmd *cobra.Command, _ []string) error { return cmd.Help() }
			commands.Add(cmd)
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

// running returns the Shields of the running config; nil if it has no shield.
func running() (Shields, error) {
	module, err := caddy.ActiveContext().AppIfConfigured("shield")
	if errors.Is(err, caddy.ErrNotConfigured) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return module.(Shields), nil
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
		route("", serveStatus), route("explain", some(serveExplain)), route("live", serveLive), route("who", serveWho),
		route("forgive", some(serveForgive)), route("overrides", some(serveOverrides)), route("overrides/", some(serveOverride)),
	}
}

// A server answers requests; without Shields, which are nil then, too.
type server func(http.ResponseWriter, *http.Request, Shields) error

// some is a server that needs Shields.
func some(serve server) server {
	return func(w http.ResponseWriter, r *http.Request, shields Shields) error {
		if shields == nil {
			return BadRequest(http.StatusNotFound, "the running config has no shield")
		}
		return serve(w, r, shields)
	}
}

// route is the route of a path below /shield/.
func route(path string, serve server) caddy.AdminRoute {
	return caddy.AdminRoute{Pattern: "/shield/" + path, Handler: caddy.AdminHandlerFunc(func(w http.ResponseWriter, r *http.Request) error {
		shields, err := running()
		if err != nil {
			return err
		}
		return serve(w, r, shields)
	})}
}

// BadRequest is an error of the person who asks.
func BadRequest(status int, format string, args ...any) error {
	return caddy.APIError{HTTPStatus: status, Err: fmt.Errorf(format, args...)}
}

// only returns an error unless a request has the method.
func only(r *http.Request, method string) error {
	if r.Method != method {
		return BadRequest(http.StatusMethodNotAllowed, "method is %s; want %s", r.Method, method)
	}
	return nil
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
		return BadRequest(http.StatusNotFound, "path is %s; want /shield/", r.URL.Path)
	}
	if err := only(r, http.MethodGet); err != nil {
		return err
	}
	w.Header().Set("Vary", "Accept")
	if wantsPage(r) {
		return servePage(w)
	}
	status := adminapi.Status{Shields: []oncall.Situation{}, Zones: []adminapi.ZoneStatus{}}
	if shields != nil {
		status = shields.Status(mayChange(r))
	}
	status.ReadOnly = !mayChange(r)
	return answer(w, http.StatusOK, status, nil)
}

// maxWho is how many clients may be asked for in one list, defaultWho how many are told.
const (
	maxWho     = 100
	defaultWho = 10
)

// serveWho answers GET /shield/who?shield=NAME&n=10.
func serveWho(w http.ResponseWriter, r *http.Request, shields Shields) error {
	if err := only(r, http.MethodGet); err != nil {
		return err
	}
	query, n := r.URL.Query(), defaultWho
	if text := query.Get("n"); text != "" {
		var err error
		if n, err = strconv.Atoi(text); err != nil || n < 1 || n > maxWho {
			return BadRequest(http.StatusBadRequest, "n is %s; want 1 to %d", adminapi.Shown(text), maxWho)
		}
	}
	if shields == nil {
		return answer(w, http.StatusOK, adminapi.WhoStatus{WindowSeconds: 60, Shields: []adminapi.WhoShield{}, Zones: []adminapi.WhoZone{}}, nil)
	}
	who, err := shields.Who(query.Get("shield"), n, mayChange(r))
	return answer(w, http.StatusOK, who, err)
}

// serveExplain answers GET /shield/explain?client=NAME, or POST with an object: Caddy logs URLs, and a name may be
// a credential.
func serveExplain(w http.ResponseWriter, r *http.Request, shields Shields) error {
	query := r.URL.Query()
	ask := adminapi.ExplainRequest{Shield: query.Get("shield"), Client: query.Get("client"), Handle: query.Get("handle")}
	switch r.Method {
	case http.MethodGet:
	case http.MethodPost:
		if err := readObject(w, r, &ask); err != nil {
			return err
		}
	default:
		return BadRequest(http.StatusMethodNotAllowed, "method is %s; want GET or POST", r.Method)
	}
	status, err := shields.Explain(ask, mayChange(r))
	return answer(w, http.StatusOK, status, err)
}

func serveForgive(w http.ResponseWriter, r *http.Request, shields Shields) error {
	var ask adminapi.ExplainRequest
	if err := readChange(w, r, &ask); err != nil {
		return err
	}
	status, err := shields.Forgive(ask, askedBy(r))
	return answer(w, http.StatusOK, status, err)
}

// serveOverrides puts an override in force.
func serveOverrides(w http.ResponseWriter, r *http.Request, shields Shields) error {
	var ask adminapi.OverrideRequest
	if err := readChange(w, r, &ask); err != nil {
		return err
	}
	is, err := shields.Begin(ask, askedBy(r))
	return answer(w, http.StatusCreated, is, err)
}

// serveOverride ends one.
func serveOverride(w http.ResponseWriter, r *http.Request, shields Shields) error {
	if err := only(r, http.MethodDelete); err != nil {
		return err
	}
	if !mayChange(r) {
		return errReadOnly
	}
	err := shields.End(strings.TrimPrefix(r.URL.Path, "/shield/overrides/"), askedBy(r))
	if err == nil {
		w.WriteHeader(http.StatusNoContent)
	}
	return err
}
