package caddymodule

import (
	"net/http"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp/headers"

	"github.com/herdshield/shield"
	"github.com/herdshield/shield/caddymodule/clientkey"
)

// A rule is a memo of all requests of an address that have the same method, host, Accept and
// Sec-Fetch-Mode. Its head is their shape. It is for clients that send no request twice.
//
// There is one only where the config proves that nothing else decides: requests of the
// host reach the shield first, whatever their path and headers, and the shield tells clients
// apart by nothing but their address and the host. The rest that the Guard looks at is read
// from each request: see parseStrict.

// rule returns the rule for a chunk that is no memo's, and what to ask the Guard, or nil.
func (c *doorConn) rule(chunk []byte, now time.Duration) (m *memo, q shield.Request) {
	head, ok := parseStrict(chunk)
	if !ok {
		return nil, q
	}
	var buf [512]byte // on the stack
	shape := head.appendShape(buf[:0])
	if m = c.memos.find(c.origin.sum(shape)); !m.counts(&c.origin, c.serial, shape, now) {
		return nil, q
	}
	q = m.q
	if q.Agent != string(head.agent) {
		q.Agent = string(head.agent)
	}
	return m, q
}

// shape returns the shape of a refused request, and its sum, if a rule may be made of it now. Only
// shapes that come again are worth it.
func (c *doorConn) shape(chunk []byte, h *Handler, r *http.Request, q *shield.Request) (shape []byte, sum uint64) {
	if q.Deadline > 0 || !h.atDoor.byAddress || !h.provenFor(r) {
		return nil, 0
	}
	head, ok := parseStrict(chunk)
	if !ok {
		return nil, 0
	}
	shape = head.appendShape(nil)
	sum = c.origin.sum(shape)
	if !c.memos.knows(sum) {
		c.memos.see(sum)
		return nil, 0
	}
	return shape, sum
}

// provenFor reports whether requests of r's sender to its host reach h first, and the sender is the client.
func (h *Handler) provenFor(r *http.Request) bool {
	trusted, known := caddyhttp.GetVar(r.Context(), caddyhttp.TrustedProxyVarKey).(bool)
	server, _ := r.Context().Value(caddyhttp.ServerCtxKey).(*caddyhttp.Server)
	return known && !trusted && server != nil && h.first(server.Routes, r)
}

// isByAddress reports whether h decides on all requests of an address to one host alike, but for
// those parts that parseStrict reads.
func (h *Handler) isByAddress(server *caddyhttp.Server) bool {
	if server == nil || len(h.classes) > 0 || len(server.ExpectedUnderscoreHeaders)+len(server.ExpectedDotHeaders) > 0 {
		return false // those headers hide others
	}
	if list := trustedSource(server); list != nil && list != reflect.TypeFor[*caddyhttp.StaticIPRange]() {
		return false // it may depend on more than the address
	}
	for i := range h.zones {
		if len(h.zones[i].matchers) > 0 || !h.zones[i].keyer.isOfAddress() {
			return false
		}
	}
	return h.clients.isOfAddress() && (h.perClient == nil || h.perClient.isOfAddress())
}

// isOfAddress reports whether all requests of an address to one host have the same key.
func (k *keyer) isOfAddress() bool {
	return !slices.ContainsFunc(k.parts, func(p clientkey.Part) bool {
		return p.IsPlaceholder && p.Text != clientkey.ClientIP && p.Text != clientkey.RemoteHost && p.Text != "http.request.host"
	})
}

// first reports whether h is the first handler that requests of r's host reach, whatever else
// is in them, besides those that do the same for all of them.
func (h *Handler) first(routes caddyhttp.RouteList, r *http.Request) bool {
	for i := range routes {
		takes, sure := takesHost(routes[i].MatcherSets, r)
		if sure && !takes {
			continue
		}
		if !sure || len(routes[i].Handlers) == 0 {
			return false
		}
		for _, handler := range routes[i].Handlers {
			if !isConstant(handler) {
				return h.isOrHas(handler, r)
			}
		}
		if routes[i].Terminal || routes[i].Group != "" {
			return false
		}
	}
	return false
}

// isOrHas reports whether h is the handler, or the first one in it.
func (h *Handler) isOrHas(handler caddyhttp.MiddlewareHandler, r *http.Request) bool {
	switch first := handler.(type) {
	case *Handler:
		return first == h
	case *caddyhttp.Subroute:
		return h.first(first.Routes, r)
	}
	return false
}

// isConstant reports whether a handler passes all requests on alike, and does the same for all
// answers: `header` without placeholders, and `root`.
func isConstant(handler caddyhttp.MiddlewareHandler) bool {
	switch is := handler.(type) {
	case *headers.Handler:
		ops := is.Response
		if is.Request != nil || ops == nil || ops.Require != nil || ops.HeaderOps == nil || len(ops.Replace) > 0 {
			return false
		}
		said := slices.Clone(ops.Delete)
		for _, header := range []http.Header{ops.Add, ops.Set} {
			for name, values := range header {
				said = append(append(said, name), values...)
			}
		}
		return !strings.Contains(strings.Join(said, ""), "{")
	case *caddyhttp.VarsMiddleware:
		_, root := (*is)["root"]
		return root && len(*is) == 1
	}
	return false
}

// takesHost reports whether matchers take all requests of r's host, or none of them. It is not
// sure if they look at anything else.
func takesHost(sets caddyhttp.MatcherSets, r *http.Request) (takes, sure bool) {
	takes, sure = len(sets) == 0, true
	for _, set := range sets {
		all, none := true, false
		for _, m := range set {
			host, is := m.(*caddyhttp.MatchHost)
			if !is || slices.ContainsFunc(*host, func(h string) bool { return strings.Contains(h, "{") }) {
				all = false
			} else if ok, err := host.MatchWithError(r); !ok || err != nil {
				none = true
			}
		}
		takes, sure = takes || all && !none, sure && (all || none)
	}
	return takes, sure
}
