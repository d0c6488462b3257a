package caddymodule

import (
	"net/netip"
	"slices"
	"strings"

	"github.com/herdshield/shield"
	"github.com/herdshield/shield/caddymodule/clientkey"
	"github.com/herdshield/shield/limiter"
)

// A clientName is what an operator calls a client: its address, or the value of a placeholder
// that tells clients apart.
type clientName struct {
	text  string
	shown string     // what people are shown: the text, or as `mask_addresses` has it
	addr  netip.Addr // not valid: the text is no address

	by  *keyer      // what made its key; nil: its text tells that
	key limiter.Key // by it
}

// readClient reads the name of a client. A network, as of an IPv6 customer, is named by
// any of its addresses.
func readClient(text string) clientName {
	c := clientName{text: strings.TrimSpace(text)}
	c.shown = c.text
	c.addr, _ = netip.ParseAddr(strings.Trim(c.text, "[]"))
	return c
}

func isAddress(placeholder string) bool {
	return placeholder == clientkey.ClientIP || placeholder == clientkey.RemoteHost
}

// named returns the key that requests of a client have by a template, before it is hashed; false if
// that cannot be known. It can if all placeholders of the template are the client's
// address, or if there is one other, whose value is the client's name. The name may also be the whole key, as GET /shield/who has it.
func (k *keyer) named(c clientName) (name []byte, ok bool) {
	if value, whole := k.valueIn(c.text); whole {
		c = readClient(value)
	}
	other := ""
	for _, p := range k.parts {
		switch {
		case !p.IsPlaceholder:
		case isAddress(p.Text):
			if ok = c.addr.IsValid(); !ok {
				return nil, false
			}
		case other != "" && other != p.Text:
			return nil, false
		default:
			other = p.Text
		}
	}
	if ok && other != "" { // an address, and more
		return nil, false
	}
	for _, p := range k.parts {
		switch {
		case !p.IsPlaceholder:
			name = append(name, p.Text...)
		case isAddress(p.Text):
			name = shield.AppendNetwork(name, c.addr, k.v4, k.v6)
		default:
			name = appendFolded(name, c.text)
		}
	}
	return name, ok || other != ""
}

// valueIn returns the value of the only placeholder of a template with more text, if a name is a whole
// key by it: bob in user:bob.
func (k *keyer) valueIn(name string) (value string, ok bool) {
	before, after, found := "", "", false
	for _, p := range k.parts {
		switch {
		case p.IsPlaceholder && found:
			return "", false
		case p.IsPlaceholder:
			found = true
		case found:
			after += p.Text
		default:
			before += p.Text
		}
	}
	value, begins := strings.CutPrefix(name, before)
	value, ends := strings.CutSuffix(value, after)
	return value, found && begins && ends && value != "" && value != name
}

// asks returns the request that a client would send, as far as its name says. unknown are the
// templates of which it does not, by what they are for.
func (h *Handler) asks(c clientName) (q shield.Request, unknown map[string]string) {
	unknown = map[string]string{}
	// An address is a key where any template is made of addresses, and then no name of another kind.
	isAddress := c.addr.IsValid() && slices.ContainsFunc(h.keyers(), (*keyer).isMadeOfAddresses)
	key := func(what string, k *keyer) limiter.Key {
		if c.by != nil && c.by.same(k) {
			return c.key
		}
		name, ok := k.named(c)
		ok = ok && c.by == nil
		if !ok || isAddress && !k.isMadeOfAddresses() {
			unknown[what] = k.template
			return shield.NoKey
		}
		return h.guard().Hasher().KeyOfBytes(name)
	}
	q.Client, q.Class = key("appointments", h.clients), h.class
	counted := h.allow == nil || !c.addr.IsValid() || !h.allow(c.addr.Unmap().WithZone(""))
	for i := range h.zones {
		z := &h.zones[i]
		is := shield.NoKey
		if counted {
			is = key(z.name, z.keyer)
		}
		q.Keys = append(q.Keys, is)
	}
	if h.perClient != nil && counted {
		q.InFlightKey = key("in_flight", h.perClient)
	}
	return q, unknown
}

// isMadeOfAddresses reports whether addresses are all that the template has.
func (k *keyer) isMadeOfAddresses() bool {
	return !slices.ContainsFunc(k.parts, func(p clientkey.Part) bool { return p.IsPlaceholder && !isAddress(p.Text) })
}
