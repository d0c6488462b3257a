package matchers

import (
	"net/http"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
)

func init() { caddy.RegisterModule(new(Overloaded)) }

// Shields is the app shield.
type Shields interface {
	// Overloaded returns what tells whether the backend of the shield of that name is overloaded; "" means the only one of the
	// config. The config is not loaded if there is no such shield.
	Overloaded(name string) func() (bool, error)
}

// Overloaded implements a request matcher that matches while a backend is overloaded: within the last 5 s, a
// request was rejected because the backend had no room for it, or with `mode observe`, would have been.
// Rejections for a client's own limits don't count.
//
// You can use it before the handler shield, after it, or in a route of its own.
type Overloaded struct {
	// The name of a shield with a capacity or a concurrency (default: the only one in the config).
	Shield string `json:"shield,omitempty"`

	is func() (bool, error)
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
	return end(d)
}

// end returns an error if a matcher has anything more, be it in a second line.
func end(d *caddyfile.Dispenser) error {
	if d.NextArg() || d.NextBlock(0) || d.Next() {
		return d.ArgErr()
	}
	return nil
}

// Provision implements caddy.Provisioner.
func (m *Overloaded) Provision(ctx caddy.Context) error {
	app, err := ctx.App("shield")
	if err == nil {
		m.is = app.(Shields).Overloaded(m.Shield)
	}
	return err
}

// MatchWithError implements caddyhttp.RequestMatcherWithError.
func (m *Overloaded) MatchWithError(*http.Request) (bool, error) { return m.is() }

// Match implements caddyhttp.RequestMatcher.
func (m *Overloaded) Match(r *http.Request) bool {
	is, _ := m.MatchWithError(r)
	return is
}

var _ caddyhttp.RequestMatcherWithError = (*Overloaded)(nil)
