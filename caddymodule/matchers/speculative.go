package matchers

import (
	"net/http"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
	"github.com/dunglas/httpsfv"
)

func init() { caddy.RegisterModule(new(Speculative)) }

// Speculative implements a request matcher for requests that nobody waits for, according to the client:
// prefetches and prerenderings of browsers (`Sec-Purpose: prefetch`, also with `;prerender`, or `Purpose:
// prefetch`), and background work (`Priority: u=7`, RFC 9218).
type Speculative struct{}

// CaddyModule implements caddy.Module.
func (*Speculative) CaddyModule() caddy.ModuleInfo {
	return caddy.ModuleInfo{ID: "http.matchers.speculative", New: func() caddy.Module { return new(Speculative) }}
}

// UnmarshalCaddyfile sets up the matcher from Caddyfile tokens. Syntax:
//
//	speculative
func (*Speculative) UnmarshalCaddyfile(d *caddyfile.Dispenser) error {
	d.Next() // consume the matcher's name
	return end(d)
}

// MatchWithError implements caddyhttp.RequestMatcherWithError.
func (m *Speculative) MatchWithError(r *http.Request) (bool, error) { return m.Match(r), nil }

// Match implements caddyhttp.RequestMatcher.
//
// The other half of a Priority, i, does not count: it says that a response is of use as it arrives, and Chromium sends it with all
// requests: `u=0, i` with a page, `u=1, i` with fetch(), and `u=4, i` with prefetches, which have a Sec-Purpose, and with beacons.
func (*Speculative) Match(r *http.Request) bool {
	for _, name := range []string{"Sec-Purpose", "Purpose"} {
		if said := r.Header[name]; said != nil {
			if purpose, err := httpsfv.UnmarshalItem(said); err == nil && purpose.Value == httpsfv.Token("prefetch") {
				return true
			}
		}
	}
	if said := r.Header["Priority"]; said != nil {
		if priority, err := httpsfv.UnmarshalDictionary(said); err == nil {
			member, _ := priority.Get("u")
			urgency, _ := member.(httpsfv.Item)
			return urgency.Value == int64(7)
		}
	}
	return false
}

var _ caddyhttp.RequestMatcherWithError = (*Speculative)(nil)
