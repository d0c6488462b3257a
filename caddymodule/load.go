package caddymodule

import (
	"fmt"
	"math"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"

	"github.com/herdshield/shield"
)

func init() { caddy.RegisterModule(new(Overloaded)) }

// load returns the load of the backend in hundredths: see [shield.Guard.Load].
func (h *Handler) load(now time.Duration) float64 { return math.Round(100*h.guard().Load(now)) / 100 }

// Overloaded implements a request matcher that matches while a backend is overloaded: within the last 5 s, a
// request was rejected because the backend had no room for it, or with `mode observe`, would have been.
// Rejections for a client's own limits don't count.
//
// You can use it before the handler shield, after it, or in a route of its own.
type Overloaded struct {
	// The name of a shield with a capacity or a concurrency (default: the only one in the config).
	Shield string `json:"shield,omitempty"`

	record func() (*backendRecord, error)
}

// CaddyModule implements caddy.Module.
func (*Overloaded) CaddyModule() caddy.ModuleInfo {
	return caddy.ModuleInfo{ID: "http.matchers.shield_overloaded", New: func() caddy.Module { return new(Overloaded) }}
}

// UnmarshalCaddyfile sets up the matcher from Caddyfile tokens. Syntax:
//
//	shield_overloaded [<shield's name>]
func (m *Overloaded) UnmarshalCaddyfile(d *caddyfile.Dispenser) error {
	d.Next() // consume the matcher's name
	if d.NextArg() {
		m.Shield = d.Val()
	}
	if d.NextArg() || d.NextBlock(0) || d.Next() { // also in a second line
		return d.ArgErr()
	}
	return nil
}

// Provision implements caddy.Provisioner. Handlers may be provisioned after matchers, so the shield is looked for when the app
// starts, or at the first request if that comes before.
func (m *Overloaded) Provision(ctx caddy.Context) error {
	module, err := ctx.App("shield")
	if err == nil {
		app := module.(*App)
		m.record = sync.OnceValues(func() (*backendRecord, error) { return app.limited(m.Shield) })
		app.matched = append(app.matched, m.record)
	}
	return err
}

// MatchWithError implements caddyhttp.RequestMatcherWithError.
func (m *Overloaded) MatchWithError(*http.Request) (bool, error) {
	record, err := m.record()
	return err == nil && record.overloaded(shield.Now()), err
}

// limited returns the backend of that name that has a limit; "" means the only one of the config.
func (a *App) limited(name string) (record *backendRecord, err error) {
	names := []string{}
	for _, h := range a.configured {
		if h.Capacity == nil && h.Concurrency == nil {
			continue
		}
		if name == "" || name == h.Name {
			record = h.record
		}
		if !slices.Contains(names, h.Name) {
			names = append(names, h.Name)
		}
	}
	if record == nil || name == "" && len(names) > 1 {
		return nil, fmt.Errorf("shield_overloaded names the shield %q; use one with a capacity or a concurrency: %q", name, names)
	}
	return record, nil
}
