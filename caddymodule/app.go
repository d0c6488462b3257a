package caddymodule

import (
	"net/http"
	"sync/atomic"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyevents"
	"go.uber.org/zap"

	"github.com/herdshield/shield"
	"github.com/herdshield/shield/caddymodule/operate"
	"github.com/herdshield/shield/caddymodule/store"
	"github.com/herdshield/shield/oncall"
)

func init() { caddy.RegisterModule(new(App)) }

// App is what all shield handlers of one config share. It need not be configured.
//
// It emits these events, with the name of the handler as `shield`:
//
// Event | When | Data
// ------|------|-----
// `shield_overload_started` | an overload begins: a request is rejected for any reason but `quota`, `per_client` and `blocked` | `shield`, `observed`
// `shield_overload_ended` | for 5 s no request has been, and no rejected client is still expected; none if the shield is no longer in the config | `shield`, `observed`, `seconds`, `rejected`
// `shield_backend_paused` | the backend has asked for a pause | `shield`, `seconds` to go
// `shield_backend_resumed` | the pause is over | `shield`, `seconds` that it has taken
// `shield_herd_detected` | a herd was detected | `shield`, `kind`, `size`, `period`, `phase`
// `shield_herd_ended` | it is gone | the same, and `seconds`
//
// and, with the addresses of the store as `store`:
//
// Event | When | Data
// ------|------|-----
// `shield_store_lost` | the store has not answered in time for 1 s | `store`, `error`
// `shield_store_back` | it answers again | `store`, `seconds` that it was lost
type App struct {
	// `enforce` (default), or `observe`: no handler rejects anything, whatever its own mode is.
	Mode string `json:"mode,omitempty"`

	// The server through which replicas share quotas, backend limits and appointments (default: none, so each
	// replica has its own).
	Store *Store `json:"store,omitempty"`

	// What to keep across restarts (default: nothing).
	State *State `json:"state,omitempty"`

	// Show client addresses without their last part: IPv4 by its first 24 bits, IPv6 by its first 48 (default
	// false). This applies to `GET /shield/who` and everything that shows its response. For logs, use Caddy's
	// log filters.
	MaskAddresses bool `json:"mask_addresses,omitempty"`

	// Show and log keys that are credentials as a short hash (default true): Authorization, cookies, headers
	// and parameters with a word like key, token or secret in their name, and the claims of {http.auth.*}.
	MaskCredentials *bool `json:"mask_credentials,omitempty"`

	// Where to serve the live page, for browsers and commands: an address like `localhost:2020` (default: only
	// Caddy's admin endpoint, which rejects browsers).
	Page string `json:"page,omitempty"`

	adapts bool // it checks the shields of a Caddyfile, which is not loaded yet

	page   *http.Server  // of Page; nil: there is none
	store  *storeConfig  // of Store, once it is checked
	keeper *keeper       // of State, once it is read; nil: it has none
	shares *store.Config // once the app is started; nil: it has no store
	logger *zap.Logger
	events *caddyevents.App
	ctx    caddy.Context

	// Written while the config is provisioned, which Caddy does in one
	// goroutine, and only read afterwards.
	unnamed     map[string]int    // handlers without a name, by server
	definitions map[string][]byte // of zones and handlers, by kind and name: what a config says of them
	configured  []*Handler
	warned      map[[2]string]bool               // of a server, with this text: see warnOfAddresses
	matched     []func() (*backendRecord, error) // those that matchers ask for

	live atomic.Pointer[[]*Handler] // see Show

	stop, stopped chan struct{} // the second is closed when there are no more reports
}

// CaddyModule implements caddy.Module.
func (*App) CaddyModule() caddy.ModuleInfo {
	return caddy.ModuleInfo{ID: "shield", New: func() caddy.Module { return new(App) }}
}

// Provision implements caddy.Provisioner.
func (a *App) Provision(ctx caddy.Context) error {
	events, err := ctx.App("events")
	if err != nil {
		return err
	}
	a.ctx, a.logger, a.events = ctx, ctx.Logger(), events.(*caddyevents.App)
	a.warned = map[[2]string]bool{}
	if a.Store != nil {
		if a.store, err = a.Store.check(); err != nil {
			return err
		}
	}
	if a.State != nil {
		if a.keeper, err = a.State.open(); err != nil {
			return err
		}
	}
	return ctx.GetMetricsRegistry().Register(collector{a})
}

// Start implements caddy.App.
func (a *App) Start() (err error) {
	for _, find := range a.matched {
		if _, err := find(); err != nil {
			return err
		}
	}
	if a.keeper != nil {
		if err = a.keeper.start(a); err != nil {
			return err
		}
	}
	if a.Page != "" {
		if a.page, err = operate.ServePage(a.Page, a.ctx.GetMetricsRegistry(), a.logger); err != nil {
			return err
		}
	}
	now := shield.Now()
	if a.store != nil {
		if a.shares, err = desk.Open(&a.store.Settings, shield.Now, a.duties); err != nil {
			a.leave()
			return err
		}
	}
	changes.mu.Lock()
	changes.apps[a] = true
	a.fit(now)
	changes.mu.Unlock()
	desk.Tend(now)
	seq := oncall.Second(now)
	shields, _ := a.roster()
	for _, s := range shields {
		if !s.live { // events wait for the first report: their app may not have started, and a subscriber may wait for this one
			s.record.history.Observe(seq, s.reading(now).facts(nil))
			s.record.history.Note(seq, oncall.Plain, "config loaded")
		}
	}
	operate.Announce(seq)
	a.stop, a.stopped = make(chan struct{}), make(chan struct{})
	go a.report()
	for server, n := range a.unnamed {
		if n > 1 {
			a.logger.Warn("several shields have no name; name them, because a reload that adds one may mix up their counts",
				zap.String("server", server), zap.Int("shields", n))
		}
	}
	return nil
}

// Cleanup implements caddy.CleanerUpper.
func (a *App) Cleanup() error {
	if a.keeper != nil {
		a.keeper.leave(a)
	}
	changes.mu.Lock()
	defer changes.mu.Unlock()
	if delete(changes.apps, a); len(changes.apps) == 0 {
		changes.list = nil
	}
	return nil
}

// Stop implements caddy.App. It does not wait for a report that goes on: an event's
// subscriber may itself wait for the reload that stops this app.
func (a *App) Stop() error {
	close(a.stop)
	a.leave()
	return nil
}

// leave ends what the app holds beside the memory of its config.
func (a *App) leave() {
	if a.page != nil {
		_ = a.page.Close()
	}
	desk.Leave(a.shares, shield.Now())
}

// Validate implements caddy.Validator.
func (a *App) Validate() error { return checkMode(a.Mode) }

var _ operate.Shields = (*App)(nil)
