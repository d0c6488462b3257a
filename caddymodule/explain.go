package caddymodule

import (
	"math"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/herdshield/shield"
	"github.com/herdshield/shield/caddymodule/adminapi"
	"github.com/herdshield/shield/caddymodule/clientkey"
	"github.com/herdshield/shield/caddymodule/operate"
	"github.com/herdshield/shield/limiter"
	"github.com/herdshield/shield/oncall"
	"github.com/herdshield/shield/pushback"
)

// maxClientName is how long the name of a client may be. Ours: longer than keys of APIs are.
const maxClientName = 1024

// concerned returns the handlers of one shield, or of all if the name is "", and the client, which
// is told by its name or by its handle.
func (a *App) concerned(ask adminapi.ExplainRequest) (handlers []*Handler, c clientName, err error) {
	if handlers, err = a.named(ask.Shield); err != nil {
		return nil, c, err
	}
	if c, err = a.client(ask.Client, ask.Handle); err == nil && c.text == "" {
		err = operate.BadRequest(http.StatusBadRequest, "client is missing; want an address, or what the shield tells clients apart by")
	}
	return handlers, c, err
}

// client reads the name of a client, or finds it by its handle. Without both the name is "".
func (a *App) client(name, handle string) (clientName, error) {
	if handle != "" && name != "" {
		return clientName{}, operate.BadRequest(http.StatusBadRequest, "client and handle are both set; want one of them")
	}
	name = strings.TrimSpace(name)
	if part, is := strings.CutPrefix(name, adminapi.HashPrefix); is {
		handle = part
	}
	switch {
	case handle != "":
		c, ok := a.listed(handle)
		if !ok {
			return c, operate.BadRequest(http.StatusNotFound, "handle is %.40q; want that of a client in GET /shield/who now, or its name", handle)
		}
		return c, nil
	case len(name) > maxClientName:
		return clientName{}, operate.BadRequest(http.StatusBadRequest, "client has %d bytes; want an address, or what the shield tells clients apart by, of at most %d", len(name), maxClientName)
	}
	c := readClient(name)
	c.shown = a.mask(c) // all who look at the log and the list of overrides see it
	return c, nil
}

// mask returns the name of a client that a person has typed, as others may see it.
func (a *App) mask(c clientName) string {
	switch {
	case c.addr.IsValid() && a.MaskAddresses:
		return address(c.addr, true)
	case c.addr.IsValid() || c.text == "":
		return c.text
	}
	for _, h := range a.handlers() {
		for _, is := range h.identities() {
			if is.by.hides {
				name, ok := is.by.named(c)
				if !ok {
					name = appendFolded(nil, c.text)
				}
				return adminapi.Anonymous(handleOf(uint64(h.guard().Hasher().KeyOfBytes(name))))
			}
		}
	}
	return c.text
}

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

// named returns the handlers of one shield, or of all if the name is "".
func (a *App) named(name string) (handlers []*Handler, err error) {
	var names []string
	for _, h := range a.handlers() {
		if name == "" || h.Name == name {
			handlers = append(handlers, h)
		}
		names = append(names, h.Name)
	}
	switch slices.Sort(names); {
	case len(names) == 0:
		return nil, operate.BadRequest(http.StatusNotFound, "the running config has no shield")
	case len(handlers) == 0:
		return nil, operate.BadRequest(http.StatusNotFound, "shield is %.80q; want one of %q", name, slices.Compact(names))
	}
	return handlers, nil
}

// Explain implements operate.Shields.
func (a *App) Explain(ask adminapi.ExplainRequest, named bool) (adminapi.ExplainStatus, error) {
	handlers, c, err := a.concerned(ask)
	if c.handle != "" && !named {
		c.shown = adminapi.Anonymous(c.handle) // as who has it
	}
	status := adminapi.ExplainStatus{Client: c.shown}
	for _, h := range handlers {
		status.Shields = append(status.Shields, h.explain(shield.Now(), c))
	}
	return status, err
}

func (h *Handler) explain(now time.Duration, c clientName) adminapi.ExplanationStatus {
	q, unknown := h.asks(c)
	e := h.guard().Explain(now, q)
	out := adminapi.ExplanationStatus{
		Name: h.Name, Mode: h.force.Load().mode(), Would: "reject", Status: e.Status, Class: e.Class, RetryAfter: int(e.RetryAfter / time.Second),
		Standing: standing(now, &e), Promised: promised(now, &e.Client), Deferred: e.Client.Deferred,
		InFlight: e.InFlight, Blocked: tenths(e.Blocked), Zones: []adminapi.ZoneExplanation{}, Unknown: unknown,
	}
	switch {
	case e.Queued:
		out.Would = "queue"
	case e.Admit:
		out.Would = "admit"
	}
	if e.Reason != shield.None && !e.Queued {
		out.Reason = e.Reason.String()
	}
	if e.Zone >= 0 {
		out.Zone = h.zones[e.Zone].name
	}
	if out.Standing != "new" {
		out.Kind = e.Client.Kind.String()
	}
	for i, z := range e.Zones {
		if z.Counted {
			out.Zones = append(out.Zones, adminapi.ZoneExplanation{
				Name: h.zones[i].name, BucketExplanation: bucketStatus(z.BucketExplanation), Shared: z.Shared, Matches: len(h.zones[i].matchers) > 0,
				Promised: promised(now, &z.Client),
			})
		}
	}
	if e.Capacity.Burst > 0 {
		out.Capacity = new(bucketStatus(e.Capacity))
	}
	if e.Occupancy.Limit > 0 {
		out.Concurrency = &e.Occupancy
	}
	return out
}

func promised(now time.Duration, c *pushback.Client) (p adminapi.Promised) {
	if p.Promises = c.Promises; p.Promises > 0 {
		p.Promise = new(tenths(c.Due - now))
	}
	return p
}

// standing is how a client compares with what it was promised.
func standing(now time.Duration, e *shield.Explanation) string {
	switch c := &e.Client; {
	case c.Shared:
		return "shared_address"
	case c.Promises > 0 && now < c.Due:
		return "early"
	case c.Promises > 0:
		return "due"
	case c.Proven:
		return "proven"
	}
	return "new"
}

func bucketStatus(b shield.BucketExplanation) adminapi.BucketExplanation {
	return adminapi.BucketExplanation{Tokens: b.Tokens, Burst: b.Burst, Wait: tenths(b.Wait)}
}

// tenths returns seconds, rounded up to tenths: a client that waits for less is too early.
func tenths(d time.Duration) float64 { return math.Ceil(d.Seconds()*10) / 10 }

// A clientName is what an operator calls a client: its address, or the value of a placeholder
// that tells clients apart.
type clientName struct {
	text  string
	shown string     // what people are shown: the text, or as `mask_addresses` has it
	addr  netip.Addr // not valid: the text is no address

	handle string      // by which it was found in a list; "": it is named
	by     *keyer      // what made its key; nil: its text tells that
	key    limiter.Key // by it
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
	kinds := map[string]bool{} // of placeholders; "": the address
	for _, p := range k.parts {
		if p.IsPlaceholder && isAddress(p.Text) {
			kinds[""] = true
		} else if p.IsPlaceholder {
			kinds[p.Text] = true
		}
	}
	if len(kinds) > 1 || kinds[""] && !c.addr.IsValid() {
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
	return name, true
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
	q.Class, q.Keys, unknown = h.class, slices.Repeat([]limiter.Key{shield.NoKey}, len(h.zones)), map[string]string{}
	all := h.identities()
	// An address is a key where any template is made of addresses, and then no name of another kind.
	isAddress := c.addr.IsValid() && slices.ContainsFunc(all, func(is identity) bool { return is.by.isMadeOfAddresses() })
	if h.allows(c.addr) {
		all = all[:1]
	}
	for _, is := range all {
		name, ok := is.by.named(c)
		switch {
		case c.by != nil && c.by.same(is.by):
			*is.key(&q) = c.key
		case !ok, c.by != nil, isAddress && !is.by.isMadeOfAddresses():
			unknown[is.what] = is.by.template
		default:
			*is.key(&q) = h.guard().Hasher().KeyOfBytes(name)
		}
	}
	return q, unknown
}

// isMadeOfAddresses reports whether addresses are all that the template has, besides other placeholders that are given.
func (k *keyer) isMadeOfAddresses(others ...string) bool {
	return !slices.ContainsFunc(k.parts, func(p clientkey.Part) bool {
		return p.IsPlaceholder && !isAddress(p.Text) && !slices.Contains(others, p.Text)
	})
}
