package caddymodule

import (
	"encoding/json"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyevents"
	"go.uber.org/zap"

	"github.com/herdshield/shield"
)

func init() { caddy.RegisterModule(new(App)) }

// App is what all shield handlers of one config share. It need not be
// configured.
//
// It emits these events, with the name of the handler as `shield`:
//
// Event | When | Data
// ------|------|-----
// `shield_overload_started` | requests begin to be refused for anything but `quota` and `per_client` | `shield`, `observed`
// `shield_overload_ended` | none has been for 5 s | `shield`, `observed`, `seconds`, `refused`
// `shield_backend_paused` | the backend has asked to be left alone | `shield`, `seconds` to go
// `shield_backend_resumed` | that time is over | `shield`, `seconds` that it has taken
// `shield_herd_detected` | a herd is there | `shield`, `kind`, `size`, `period`, `phase`
// `shield_herd_ended` | it has gone | the same, and `seconds`
type App struct {
	// `enforce` (default), or `observe`: no handler refuses anybody, whatever
	// its own mode is.
	Mode string `json:"mode,omitempty"`

	logger *zap.Logger
	events *caddyevents.App
	ctx    caddy.Context

	// Written while the config is provisioned, which Caddy does in one
	// goroutine, and only read afterwards.
	unnamed     map[string]int        // handlers without a name, by server
	definitions map[string]definition // of zones and handlers, by kind and name
	configured  roster

	live *atomic.Pointer[roster] // see Show

	stop, stopped chan struct{}
}

// backend is one protected backend as this config defines it.
type backend struct {
	name        string
	observing   bool
	capacity    *Rate
	concurrency *Concurrency
	classes     bool
	tickets     bool
	detects     bool          // herds
	guard       *shield.Guard // of the first handler of that name
	state       *backendState
	live        bool // it is not of the config: see Live
}

// limited reports whether there is a limit to what the backend is to take, and
// so something that can be spared.
func (b *backend) limited() bool { return b.capacity != nil || b.concurrency != nil }

// searches reports whether the limit in flight is found, not set.
func (b *backend) searches() bool { return b.concurrency != nil && b.guard.Adapts() }

// zone is one zone as this config defines it, and how it is called in metrics, logs
// and status.
type zone struct {
	*Zone
	name  string
	state *zoneState
}

// A roster is who is seen in metrics, logs and status, each state once.
type roster struct {
	backends []*backend
	zones    []*zone
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
	a.live = new(atomic.Pointer[roster])
	return ctx.GetMetricsRegistry().Register(collector{a})
}

// Start implements caddy.App.
func (a *App) Start() error {
	a.stop, a.stopped = make(chan struct{}), make(chan struct{})
	go a.report()
	for server, n := range a.unnamed {
		if n > 1 {
			a.logger.Warn("several shields have no name; name them, or adding one may hand the counts of one to another on a reload",
				zap.String("server", server), zap.Int("shields", n))
		}
	}
	return nil
}

// Stop implements caddy.App. It waits for the last report, but not for long: the
// subscriber of an event may itself be waiting for the reload that stops this
// app. The reporter then ends when the subscriber returns.
func (a *App) Stop() error {
	close(a.stop)
	select {
	case <-a.stopped:
	case <-time.After(stopPatience):
	}
	return nil
}

// Validate implements caddy.Validator.
func (a *App) Validate() error { return checkMode(a.Mode) }

// nextName names a handler that has no name. The name is that of its server, if it is
// valid in labels, with a number from the second handler on.
func (a *App) nextName(server string) string {
	if shield.CheckName(server) != nil {
		server = "shield"
	}
	if a.unnamed == nil {
		a.unnamed = map[string]int{}
	}
	a.unnamed[server]++
	if n := a.unnamed[server]; n > 1 {
		return fmt.Sprintf("%s-%d", server, n)
	}
	return server
}

// A definition is what a config says that a zone or a handler is.
type definition struct{ where, is, secret string }

// define reports an error if this config defines one name in two ways. where
// is for the error. A secret is compared, and not shown.
func (a *App) define(kind, name, where string, v any, secret []byte) error {
	b, err := json.Marshal(v)
	if err != nil {
		return err
	}
	d, key := definition{where, string(b), string(secret)}, kind+" "+name
	first, ok := a.definitions[key]
	switch {
	case ok && first.is != d.is:
		return fmt.Errorf("%s %q is defined twice: %sas %s, and %sas %s; want one definition, or two names",
			kind, name, first.where, first.is, d.where, d.is)
	case ok && first.secret != d.secret:
		return fmt.Errorf("%s %q is defined twice, with different secrets; want one secret, or two names", kind, name)
	}
	if a.definitions == nil {
		a.definitions = map[string]definition{}
	}
	a.definitions[key] = d
	return nil
}

// roster returns who is to be seen now: the handlers of the config, and those that
// live beside it.
func (a *App) roster() roster {
	live := a.live.Load()
	if live == nil {
		return a.configured
	}
	return roster{
		slices.Concat(a.configured.backends, live.backends),
		slices.Concat(a.configured.zones, live.zones),
	}
}

// backend returns what is to be seen of the backend of h.
func (h *Handler) backend(state *backendState) *backend {
	return &backend{
		h.Name, h.observing, h.Capacity, h.Concurrency, len(h.Classes) > 0, h.guard.Tickets(), h.guard.DetectsHerds(), h.guard, state, h.live,
	}
}

// add registers a handler for reports, metrics and status.
func (r *roster) add(h *Handler, b *backendState, zones []*zoneState) {
	if !slices.ContainsFunc(r.backends, func(old *backend) bool { return old.state == b }) {
		r.backends = append(r.backends, h.backend(b))
	}
	for i, state := range zones {
		if !slices.ContainsFunc(r.zones, func(old *zone) bool { return old.state == state }) {
			r.zones = append(r.zones, &zone{h.Zones[i], h.Zones[i].Name, state})
		}
	}
}

var (
	_ caddy.App         = (*App)(nil)
	_ caddy.Provisioner = (*App)(nil)
	_ caddy.Validator   = (*App)(nil)
)
