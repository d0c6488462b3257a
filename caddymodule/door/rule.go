package door

import (
	"bytes"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp/headers"
	"golang.org/x/net/http/httpguts"

	"github.com/herdshield/shield"
	"github.com/herdshield/shield/dialect"
)

// A rule is a memo of all requests of a connection that have the same method, host, Accept,
// Sec-Fetch-Mode and Origin, and whose clients speak the same dialect. Its head is their shape. It is for clients that send no request twice.
//
// There is one only where the config proves that nothing else decides: requests of the
// host reach the shield first, whatever their path and headers, and the shield tells clients
// apart by nothing but their address and the host. The rest that the Guard looks at is read
// from each request, which net/http reads: see plain.

// rule returns the rule for a chunk that is no memo's, and what to ask the Guard, or nil.
func (c *conn) rule(now time.Duration, chunk []byte) (m *memo, q shield.Request) {
	if c.memos.that(now, func(m *memo) bool { return m.head[0] == 0 }) == nil {
		return nil, q
	}
	r, ok := plain(chunk)
	if !ok {
		return nil, q
	}
	var buf [512]byte // on the stack
	if m = c.memos.find(now, 0, appendShape(buf[:0], r)); m == nil {
		return nil, q
	}
	q = m.q
	q.Agent = r.UserAgent()
	return m, q
}

// shape returns the shape of a rejected request, if a rule may be made of it now, or nil. Only shapes that
// come again are worth it.
func (t *memos) shape(chunk []byte, v rejection, q *shield.Request) []byte {
	if !v.by.ByAddress || !v.by.provenFor(v.r) {
		return nil
	}
	r, ok := plain(chunk)
	if !ok {
		return nil
	}
	shape := appendShape(nil, r)
	if !t.sees(sum(shape)) {
		return nil
	}
	return shape
}

// appendShape appends what decides on the answer to a request, besides where it comes from. No
// request begins as a shape does, with a 0.
func appendShape(b []byte, r *http.Request) []byte {
	b = append(b, 0, '0'+byte(dialect.Of(r)), '\n')
	if dialect.IsPreflight(r) {
		b = append(b, "preflight\n"...)
	}
	for _, values := range [...][]string{{r.Method, r.Host}, r.Header["Accept"], r.Header["Sec-Fetch-Mode"], r.Header["Origin"]} {
		b = append(b, 0)
		for _, value := range values {
			b = append(append(b, value...), '\n')
		}
	}
	return b
}

// decisive are the headers by which shields decide or answer otherwise, besides those that a rule knows:
// TestRulesKnowHeaders finds them. So do those that begin with X-Envoy- and Grpc-.
var decisive = map[string]bool{
	"Content-Type": true, "Shield-Retry": true, "X-Shield-Class": true, "Idempotency-Key": true, "X-Request-Timeout": true,
	"X-Stainless-Retry-Count": true, "Retry-Attempt": true, "X-Retry-Counter": true, "Amz-Sdk-Request": true,
}

// plain reads a request as net/http's server does. It reports false if the server would reject it, Caddy might
// answer it before any handler, or shields know more of it than a rule does.
func plain(chunk []byte) (r *http.Request, ok bool) {
	if r, ok = readWhole(chunk); !ok || r.RequestURI[0] != '/' || strings.HasPrefix(r.URL.Path, "/.well-known/") {
		return nil, false
	}
	hosts := 0
	for line := range bytes.SplitSeq(chunk, []byte("\n")) {
		if name, _, _ := bytes.Cut(line, []byte(":")); bytes.EqualFold(name, []byte("Host")) {
			hosts++
		}
	}
	for name, values := range r.Header {
		if decisive[name] || strings.HasPrefix(name, "X-Envoy-") || strings.HasPrefix(name, "Grpc-") || !httpguts.ValidHeaderFieldName(name) {
			return nil, false
		}
		for _, value := range values {
			ticket := name == "Cookie" && strings.Contains(value, "shield")
			if ticket || !httpguts.ValidHeaderFieldValue(value) {
				return nil, false
			}
		}
	}
	return r, hosts == 1 && httpguts.ValidHostHeader(r.Host)
}

// provenFor reports whether requests of r's sender to its host reach the shield first, and the sender is
// the client.
func (s *Shield) provenFor(r *http.Request) bool {
	trusted, known := caddyhttp.GetVar(r.Context(), caddyhttp.TrustedProxyVarKey).(bool)
	server, _ := r.Context().Value(caddyhttp.ServerCtxKey).(*caddyhttp.Server)
	return known && !trusted && server != nil && s.first(server.Routes, r)
}

// first reports whether the shield is the first handler that requests of r's host reach, whatever else
// is in them, besides those that do the same for all of them.
func (s *Shield) first(routes caddyhttp.RouteList, r *http.Request) bool {
	for i := range routes {
		takes, sure := takesHost(routes[i].MatcherSets, r)
		if sure && !takes {
			continue
		}
		if !sure || len(routes[i].Handlers) == 0 {
			return false
		}
		for _, handler := range routes[i].Handlers {
			if sub, is := handler.(*caddyhttp.Subroute); is {
				return s.first(sub.Routes, r)
			}
			if !isConstant(handler) {
				return handler == s.Handler
			}
		}
		if routes[i].Terminal || routes[i].Group != "" {
			return false
		}
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
