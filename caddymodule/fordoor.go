package caddymodule

import (
	"reflect"
	"slices"

	"github.com/caddyserver/caddy/v2/modules/caddyhttp"

	"github.com/herdshield/shield"
	"github.com/herdshield/shield/caddymodule/clientkey"
	"github.com/herdshield/shield/caddymodule/door"
)

// forDoor returns what the listener wrapper knows of h.
func (h *Handler) forDoor(byAddress bool) *door.Shield {
	return &door.Shield{Guard: h.guard, Rejected: h.rejectedAtDoor, Handler: h, ByAddress: byAddress}
}

// rejectedAtDoor counts a request that was rejected there, at once.
func (h *Handler) rejectedAtDoor(q *shield.Request, d *shield.Decision, major int) {
	h.countRejected(q, d)
	h.record.durations.observe(outcomeRejected, h.guard().Responses().Status(d.Rejection()), 0)
	if major == 2 {
		h.record.atDoorH2.Add(1)
	} else {
		h.record.atDoor.Add(1)
	}
}

// isByAddress reports whether h decides on all requests of an address to one host alike, but for
// those parts that the door reads.
func (h *Handler) isByAddress(server *caddyhttp.Server) bool {
	if server == nil || len(h.classes) > 0 || len(server.ExpectedUnderscoreHeaders)+len(server.ExpectedDotHeaders) > 0 {
		return false // those headers hide others
	}
	if list := trustedSource(server); list != nil && list != reflect.TypeFor[*caddyhttp.StaticIPRange]() {
		return false // it may depend on more than the address
	}
	return !slices.ContainsFunc(h.zones, func(z handlerZone) bool { return len(z.matchers) > 0 }) &&
		!slices.ContainsFunc(h.keyers(), func(k *keyer) bool { return !k.isOfAddress() })
}

// isOfAddress reports whether all requests of an address to one host have the same key.
func (k *keyer) isOfAddress() bool {
	return !slices.ContainsFunc(k.parts, func(p clientkey.Part) bool {
		return p.IsPlaceholder && !isAddress(p.Text) && p.Text != "http.request.host"
	})
}
