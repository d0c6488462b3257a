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

// count counts an event of a client, and tells the client's name if it is not known. r is nil in the listener wrapper, which does
// not know names: it has one request per second of each client come the usual way.
func count(by *lazy[oncall.Top], now time.Duration, e oncall.Event, k *keyer, r *http.Request) {
	if e.Client == uint64(shield.NoKey) || !by.get().Count(now, e) || r == nil {
		return
	}
	var buf [128]byte // on the stack, for most names
	by.get().Name(now, e.Client, k.shown(buf[:0], limiter.Key(e.Client), r), uint8(pushback.FamilyOf(r.UserAgent())), r.Method, r.URL.Path)
}

// countRejected counts a request that was rejected, or in observe mode would have been, for its client, in the shield and in
// the zone.
func (h *Handler) countRejected(r *http.Request, q *shield.Request, d *shield.Decision) {
	if !isClientsFault(d.Reason) {
		h.record.shortAt.Store(max(1, int64(d.At())))
	}
	e := oncall.Event{Client: uint64(q.Client), Early: d.Reason == shield.Early, Reason: uint8(d.Reason), Class: d.Class}
	count(&h.record.rejected, d.At(), e, h.clients, r)
	if d.Zone >= 0 {
		e.Client = uint64(q.Keys[d.Zone])
		count(&h.zones[d.Zone].record.rejected, d.At(), e, h.zones[d.Zone].keyer, r)
	}
}

// Who implements operate.Shields.
func (a *App) Who(name string, n int, named bool) (to adminapi.WhoStatus, err error) {
	handlers, now := a.handlers(), shield.Now()
	if name != "" {
		handlers, err = a.named(name)
	}
	to = adminapi.WhoStatus{WindowSeconds: 60, Masked: a.MaskAddresses || !named, Shields: []adminapi.WhoList{}, Zones: []adminapi.WhoList{}}
	shields, zones := firsts(handlers)
	for _, s := range shields {
		to.Shields = append(to.Shields, adminapi.WhoList{
			Name: s.Name, Mode: s.force.Load().mode(), Rejected: a.list(s.guard(), &s.record.rejected, now, n, named), InFlight: a.busiest(s, now, n, named),
		})
	}
	for _, z := range zones {
		to.Zones = append(to.Zones, adminapi.WhoList{Name: z.record.shown, Rejected: a.list(z.of.guard(), &z.record.rejected, now, n, named)})
	}
	return to, err
}

// list words the n clients with the most rejections.
func (a *App) list(g *shield.Guard, of *lazy[oncall.Top], now time.Duration, n int, named bool) []adminapi.RejectedClient {
	list := []adminapi.RejectedClient{}
	for _, c := range oncall.Most(of.Load().Clients(now), n) {
		one := adminapi.RejectedClient{
			Client: a.shown(&c, named), Handle: handleOf(c.Key), LastMinute: int(math.Round(c.Events)), Early: int(math.Round(c.Early)),
			PerSecond: math.Round(100*c.PerSecond) / 100,
			Reason:    shield.Reason(c.Reason).String(), Agent: pushback.Family(c.Agent).String(), Path: adminapi.Shown(c.Path),
		}
		if known := g.Plan().Classes; len(known) > 1 && int(c.Class) < len(known) { // a reload may have left fewer
			one.Class = known[c.Class].Name
		}
		list = append(list, one)
	}
	return list
}

// busiest returns the n clients with the most requests in flight. One that has
// sent none for a minute is told by its handle.
func (a *App) busiest(s *Handler, now time.Duration, n int, named bool) []adminapi.BusyClient {
	names, list := map[uint64]string{}, []adminapi.BusyClient{}
	for _, of := range []*lazy[oncall.Top]{&s.record.rejected, &s.record.busy} {
		for _, c := range of.Load().Clients(now) {
			names[c.Key] = a.shown(&c, named)
		}
	}
	for _, c := range s.record.Busiest(n) {
		if c.InFlight < 2 {
			break // the others have one each
		}
		one := adminapi.BusyClient{Client: names[c.Key], Handle: handleOf(c.Key), InFlight: c.InFlight}
		if one.Client == "" {
			one.Client = adminapi.Anonymous(one.Handle)
		}
		list = append(list, one)
	}
	return list
}

// listed returns the client with a handle, or with one that begins so, of all shields and zones, or an error. Where its
// name does not tell its key, because it is cut or a hash, the client is known by the key.
func (a *App) listed(handle string) (clientName, error) {
	for _, h := range a.handlers() {
		for _, of := range h.identities() {
			for _, top := range of.listed {
				for _, is := range top.Load().Clients(shield.Now()) {
					if is := handleOf(is.Key); len(handle) < len(adminapi.Anonymous(is)) || !strings.HasPrefix(is, handle) {
						continue
					}
					c := readClient(readable(is.Name, false))
					c.shown = a.shown(&is, true)
					if q, _ := h.asks(c); uint64(*of.key(&q)) != is.Key {
						c = clientName{text: c.shown, shown: c.shown, by: of.by, key: limiter.Key(is.Key)}
					}
					c.handle = handleOf(is.Key)
					return c, nil
				}
			}
		}
	}
	return clientName{}, operate.BadRequest(http.StatusNotFound, "handle is %.40q; use one that GET /shield/who lists now, or the client's name", handle)
}

// shown returns the name of a client, with its address masked if it is to be; not named, its handle.
func (a *App) shown(c *oncall.Client, named bool) string {
	if !named {
		return adminapi.Anonymous(handleOf(c.Key))
	}
	text := readable(c.Name, a.MaskAddresses)
	if c.Cut {
		text += "…"
	}
	return adminapi.Shown(text)
}

// readable returns the name that a keyer has made with the addresses in it as text: see
// shield.AppendNetwork.
func readable(name string, masked bool) string {
	var b strings.Builder
	for len(name) > 0 {
		if n := name[0]; (n == 4 || n == 6) && len(name) >= 17 {
			b.WriteString(address(netip.AddrFrom16([16]byte([]byte(name[1:17]))), masked))
			name = name[17:]
			continue
		}
		b.WriteByte(name[0])
		name = name[1:]
	}
	if addr, err := netip.ParseAddr(b.String()); masked && err == nil { // of a header, say
		return address(addr, masked)
	}
	return b.String()
}

// address returns an address as text. Masked ones keep so many bits as many providers give to
// more than one of their customers: 24 of IPv4, 48 of IPv6. They are written as networks, so that
// no person takes one for the client's address, and blocks another client.
func address(a netip.Addr, masked bool) string {
	a = a.Unmap().WithZone("")
	if masked {
		bits := 48
		if a.Is4() {
			bits = 24
		}
		p, _ := a.Prefix(bits) // they are in range
		return p.String()
	}
	return a.String()
}

// concerned returns the handlers of one shield, or of all if the name is "", and the client, which
// is told by its name or by its handle.
func (a *App) concerned(ask adminapi.ExplainRequest) (handlers []*Handler, c clientName, err error) {
	if handlers, err = a.named(ask.Shield); err != nil {
		return nil, c, err
	}
	if c, err = a.client(ask.Client); err == nil && c.text == "" {
		err = operate.BadRequest(http.StatusBadRequest, "client is missing; use an address, or the key by which the shield identifies clients")
	}
	return handlers, c, err
}

// client reads the name of a client, or finds it by its handle.
func (a *App) client(name string) (clientName, error) {
	switch name = strings.TrimSpace(name); {
	case strings.HasPrefix(name, adminapi.HashPrefix):
		return a.listed(name)
	case len(name) > 1024: // ours: longer than keys of APIs are
		return clientName{}, operate.BadRequest(http.StatusBadRequest, "client has %d bytes; use an address, or the key by which the shield identifies clients, of at most 1024", len(name))
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
		return nil, operate.BadRequest(http.StatusNotFound, "shield is %.80q; use one of %q", name, slices.Compact(names))
	}
	return handlers, nil
}

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

// named returns the key that requests of a client have by a template, before it is hashed; false if
// that cannot be known. It can if all placeholders of the template are the client's
// address, or if there is one other, whose value is the client's name. The name may also be the whole key, as GET /shield/who has it.
func (k *keyer) named(c clientName) (name []byte, ok bool) {
	if value, whole := k.valueIn(c.text); whole {
		c = readClient(value)
	}
	known := "" // the placeholder that c is the value of
	for _, p := range k.parts {
		of := p.Text
		switch {
		case !p.IsPlaceholder:
			name = append(name, p.Text...)
			continue
		case !isAddress(of):
			name = appendFolded(name, c.text)
		case !c.addr.IsValid():
			return nil, false
		default:
			name, of = shield.AppendNetwork(name, c.addr, k.v4, k.v6), clientkey.ClientIP
		}
		if known != "" && known != of {
			return nil, false
		}
		known = of
	}
	return name, true
}

// valueIn returns the value of the only placeholder of a template with more text, if a name is a whole
// key by it: bob in user:bob.
func (k *keyer) valueIn(name string) (value string, ok bool) {
	before, rest, _ := strings.Cut(k.template, "{")
	_, after, _ := strings.Cut(rest, "}")
	value, begins := strings.CutPrefix(name, before)
	value, ends := strings.CutSuffix(value, after)
	return value, begins && ends && value != "" && value != name && !strings.Contains(after, "{")
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
