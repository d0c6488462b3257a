package caddymodule

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"net/textproto"
	"net/url"
	"reflect"
	"slices"
	"strings"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
	"go.uber.org/zap"

	"github.com/herdshield/shield"
	"github.com/herdshield/shield/caddymodule/adminapi"
	"github.com/herdshield/shield/caddymodule/clientkey"
	"github.com/herdshield/shield/limiter"
	"github.com/herdshield/shield/oncall"
)

// A keyer makes the key that tells clients apart from a compiled template.
type keyer struct {
	template string
	parts    []clientkey.Part // the placeholder of a header has its canonical name
	v4, v6   int              // bits of an address that count

	// verified: the key contains the client's address, which must be verified. In the early
	// data of HTTP/3 a sender may claim any address, and spend the quotas of others.
	verified bool

	hides bool // it has a credential: only a hash is shown
}

// newKeyer compiles a template and checks its placeholders. An unknown one would be empty,
// and all clients would silently share one bucket.
func newKeyer(template string, v4, v6 *int) (*keyer, error) {
	template = cmp.Or(template, clientkey.Default)
	k := &keyer{template: template, v4: *cmp.Or(v4, new(32)), v6: *cmp.Or(v6, new(64))}
	if k.v4 < 1 || k.v4 > 32 {
		return nil, fmt.Errorf("ipv4_prefix is %d; use 1 to 32", k.v4)
	}
	if k.v6 < 1 || k.v6 > 128 {
		return nil, fmt.Errorf("ipv6_prefix is %d; use 1 to 128", k.v6)
	}
	var err error
	if k.parts, err = clientkey.Parse(template); err != nil {
		return nil, fmt.Errorf("key is %q: %w", template, err)
	}
	for i, p := range k.parts {
		if !p.IsPlaceholder {
			continue
		}
		if !known(p.Text) {
			return nil, fmt.Errorf("key is %q: placeholder {%s} cannot identify a client; use one that Caddy has and that stays the same for a client, not one of a request or connection, "+
				"like {%sX-Api-Key}; a header with an underscore or a dot in its name is deleted by Caddy",
				template, p.Text, clientkey.HeaderPrefix)
		}
		if header, ok := strings.CutPrefix(p.Text, clientkey.HeaderPrefix); ok {
			k.parts[i].Text = clientkey.HeaderPrefix + http.CanonicalHeaderKey(header)
		}
		k.hides = k.hides || clientkey.IsCredential(k.parts[i].Text)
		k.verified = k.verified || p.Text == clientkey.ClientIP || strings.HasPrefix(p.Text, "http.request.remote")
	}
	return k, nil
}

// key makes the key of r.
func (k *keyer) key(hasher limiter.Hasher, r *http.Request) limiter.Key {
	var buf [128]byte // on the stack, for most keys
	return hasher.KeyOfBytes(k.name(buf[:0], r))
}

// name appends the key of r before it is hashed. The common ones take no allocation.
func (k *keyer) name(b []byte, r *http.Request) []byte {
	for _, p := range k.parts {
		switch {
		case !p.IsPlaceholder:
			b = append(b, p.Text...)
		case p.Text == clientkey.ClientIP:
			ip, _ := caddyhttp.GetVar(r.Context(), caddyhttp.ClientIPVarKey).(string)
			if addr, err := netip.ParseAddr(ip); err == nil {
				b = shield.AppendNetwork(b, addr, k.v4, k.v6)
			} else {
				b = append(b, ip...) // empty for a client on a Unix socket
			}
		case p.Text == clientkey.RemoteHost:
			if remote, err := netip.ParseAddrPort(r.RemoteAddr); err == nil {
				b = shield.AppendNetwork(b, remote.Addr(), k.v4, k.v6)
			} else {
				b = append(b, r.RemoteAddr...)
			}
		default:
			b = appendFolded(b, value(p.Text, r))
		}
	}
	return b
}

// identify sets by which keys a client is remembered: whose appointments it has, unless that awaits a verified address,
// and whose requests in flight. It appends the key of r in every zone.
func (h *Handler) identify(r *http.Request, is *inForce, q *shield.Request, keys []limiter.Key) (_ []limiter.Key, err error) {
	early := r.TLS != nil && !r.TLS.HandshakeComplete
	if !(early && h.clients.verified) {
		var buf [128]byte // on the stack, for most names
		name := h.clients.name(buf[:0], r)
		q.Client = is.guard.Hasher().KeyOfBytes(name)
		if is.guard.Tickets() {
			q.ClientID = bytes.Clone(name)
		}
	}
	if h.allow != nil {
		text, _ := caddyhttp.GetVar(r.Context(), caddyhttp.ClientIPVarKey).(string)
		if ip, _ := netip.ParseAddr(text); h.allows(ip) {
			return keys, nil
		}
	}
	for i := range h.zones {
		z := &h.zones[i]
		key, matched := shield.NoKey, true
		if len(z.matchers) > 0 {
			matched, err = z.matchers.AnyMatchWithError(r)
		}
		if err == nil && matched {
			key, err = h.key(z.keyer, r, early, is, q)
		}
		if err != nil {
			return nil, err
		}
		keys = append(keys, key)
	}
	if h.perClient != nil {
		q.InFlightKey, err = h.key(h.perClient, r, early, is, q)
	}
	return keys, err
}

// key returns the key of r. If that is early, so that its address is not verified yet, and the key needs one, the client is told
// to come again at once, after the handshake (RFC 8470), as by Caddy's client_ip matcher.
func (h *Handler) key(k *keyer, r *http.Request, early bool, is *inForce, q *shield.Request) (limiter.Key, error) {
	switch {
	case k == h.clients && q.Client != shield.NoKey: // it has been named already
		return q.Client, nil
	case !(early && k.verified):
		return k.key(is.guard.Hasher(), r), nil
	case is.config.Observe:
		return shield.NoKey, nil
	}
	return shield.NoKey, caddyhttp.HandlerError{StatusCode: http.StatusTooEarly, Err: errors.New("the client's address isn't verified yet")}
}

// same reports whether two keyers make the same key of each request, with one Hasher.
func (k *keyer) same(other *keyer) bool {
	return k.template == other.template && k.v4 == other.v4 && k.v6 == other.v6
}

// shown appends the name of r for people to read. They need no credentials to tell clients apart: in their place is a part of the key, which
// is a hash with a seed, so that guesses cannot be tried. With a secret, as replicas have it, it is the same in all processes.
func (k *keyer) shown(b []byte, key limiter.Key, r *http.Request) []byte {
	if k.hides {
		return append(b, adminapi.Anonymous(handleOf(uint64(key)))...)
	}
	return k.name(b, r)
}

// value returns what the backend is sent for a placeholder. A header, cookie or parameter
// that is sent several times has none: backends differ in which of them they take.
func value(placeholder string, r *http.Request) string {
	switch placeholder {
	case "http.request.host", "http.request.header.Host": // net/http keeps it out of the headers
		host := r.Host
		if i := strings.LastIndexByte(host, ':'); i > strings.LastIndexByte(host, ']') {
			host = host[:i] // without the port; net.SplitHostPort allocates if there is none
		}
		return host
	case "http.request.method":
		return r.Method
	case "http.request.uri.path":
		return r.URL.Path
	}
	if name, ok := strings.CutPrefix(placeholder, clientkey.HeaderPrefix); ok {
		return single(passedOn(r.Header, name))
	}
	if name, ok := strings.CutPrefix(placeholder, clientkey.CookiePrefix); ok {
		cookies := r.CookiesNamed(name) // names differ by case, unlike those of Caddy's placeholder
		if len(cookies) != 1 || passedOn(r.Header, "Cookie") == nil {
			return ""
		}
		if text, err := url.PathUnescape(cookies[0].Value); err == nil { // as many frameworks do
			return text
		}
		return cookies[0].Value
	}
	if name, ok := strings.CutPrefix(placeholder, clientkey.QueryPrefix); ok {
		return single(r.URL.Query()[name])
	}
	text := ""
	if repl, _ := r.Context().Value(caddy.ReplacerCtxKey).(*caddy.Replacer); repl != nil {
		text, _ = repl.GetString(placeholder)
	}
	return text
}

// passedOn returns the lines of a header that the backend is sent. Proxies take off headers
// that the request's Connection names (RFC 9110, section 7.6.1).
func passedOn(h http.Header, name string) []string {
	for _, line := range h["Connection"] {
		for other := range strings.SplitSeq(line, ",") {
			if other = textproto.TrimString(other); len(other) == len(name) && strings.EqualFold(other, name) {
				return nil
			}
		}
	}
	return h[name]
}

// single returns the only one of the values, or "".
func single(values []string) string {
	if len(values) != 1 {
		return ""
	}
	return values[0]
}

// appendFolded appends text in lower case, with one blank between words. A client can vary
// case and blanks, folded lines included, and be the same to many backends.
func appendFolded(b []byte, text string) []byte {
	start := len(b)
	for word := range strings.FieldsSeq(text) {
		if len(b) > start {
			b = append(b, ' ')
		}
		for i := range len(word) {
			c := word[i]
			if 'A' <= c && c <= 'Z' {
				c += 'a' - 'A'
			}
			b = append(b, c)
		}
	}
	return b
}

// known reports whether Caddy knows a placeholder that a key may have.
func known(name string) bool {
	others := []string{clientkey.JSONPrefix, "http.vars.", "http.auth.", "http.regexp.", "http.url_pattern.", "env."}
	return clientkey.OfRequest(name) || slices.Contains([]string{"system.hostname", "system.os", "system.arch"}, name) ||
		clientkey.HasPrefix(name, others) && name != "http.auth.user"
}

// warnOfAddresses warns, once for each server, if its clients can choose the address by which h tells them apart, as far as is known.
func (a *App) warnOfAddresses(h *Handler, server *caddyhttp.Server) {
	// Most proxies append to what a client has sent, and the first address is taken.
	first := server.TrustedProxiesStrict <= 0 && (server.TrustedProxiesUnix || trustsProxies(server))
	for _, is := range h.identities() {
		for _, p := range is.by.parts {
			warning := ""
			if p.Text == clientkey.ClientIP && first {
				warning = "clients can choose the address they are counted by; set trusted_proxies_strict next to trusted_proxies"
			}
			if header, of := strings.CutPrefix(p.Text, clientkey.HeaderPrefix); of && slices.ContainsFunc(server.ClientIPHeaders, func(name string) bool { return http.CanonicalHeaderKey(name) == header }) {
				warning = "clients can choose the header they are counted by; use {client_ip}, and list your proxies in trusted_proxies"
			}
			if once := [2]string{server.Name(), warning}; warning != "" && !a.warned[once] {
				a.warned[once] = true
				a.logger.Warn(warning, zap.String("server", server.Name()), zap.String("shield", h.Name), zap.String("key", is.by.template))
			}
		}
	}
}

// trustsProxies reports whether a server has a list of proxies. Caddy shows it
// nowhere once the option has been loaded, and reflection may look at fields that are not exported.
func trustsProxies(server *caddyhttp.Server) bool {
	source := reflect.ValueOf(server).Elem().FieldByName("trustedProxies")
	return source.Kind() == reflect.Interface && !source.IsNil()
}

// handleOf returns the handle of a client. Its key is a hash with a seed, so it does not tell the name.
func handleOf(key uint64) string { return fmt.Sprintf("%s%016x", adminapi.HashPrefix, key) }

// An identity is one of those that a client has for a handler.
type identity struct {
	what   string // has it: appointments, in_flight, or a zone
	by     *keyer
	key    func(*shield.Request) *limiter.Key // where a request has it
	listed []*lazy[oncall.Top]                // where clients have names by it
}

// identities returns all of them, that of appointments first.
func (h *Handler) identities() []identity {
	all := []identity{{"appointments", h.clients, func(q *shield.Request) *limiter.Key { return &q.Client }, []*lazy[oncall.Top]{&h.record.rejected}}}
	if h.perClient != nil {
		all = append(all, identity{"in_flight", h.perClient, func(q *shield.Request) *limiter.Key { return &q.InFlightKey }, nil})
	}
	last := &all[len(all)-1]
	last.listed = append(last.listed, &h.record.busy)
	for i, z := range h.zones {
		all = append(all, identity{z.name, z.keyer, func(q *shield.Request) *limiter.Key { return &q.Keys[i] }, []*lazy[oncall.Top]{&z.record.rejected}})
	}
	return all
}

func isAddress(placeholder string) bool {
	return placeholder == clientkey.ClientIP || placeholder == clientkey.RemoteHost
}

// isMadeOfAddresses reports whether the template has no other placeholders than addresses.
func (k *keyer) isMadeOfAddresses() bool {
	return !slices.ContainsFunc(k.parts, func(p clientkey.Part) bool { return p.IsPlaceholder && !isAddress(p.Text) })
}
