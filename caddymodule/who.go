package caddymodule

import (
	"fmt"
	"math"
	"net/http"
	"net/netip"
	"strings"
	"sync/atomic"
	"time"

	"github.com/herdshield/shield"
	"github.com/herdshield/shield/caddymodule/adminapi"
	"github.com/herdshield/shield/limiter"
	"github.com/herdshield/shield/oncall"
	"github.com/herdshield/shield/pushback"
)

// lazy is memory that is taken when it is first needed: most of a thousand Live shields need none.
type lazy[T any] struct{ atomic.Pointer[T] }

func (l *lazy[T]) get() *T {
	if l.Load() == nil {
		l.CompareAndSwap(nil, new(T))
	}
	return l.Load()
}

// countRejected counts a request that was rejected, or in observe mode would have been, for its client, in the shield and in
// the zone, and tells the client's name there. r is nil in the listener wrapper, which does not know names: it has one request per
// second of each client come the usual way.
func (h *Handler) countRejected(r *http.Request, q *shield.Request, d *shield.Decision) {
	count := func(by *lazy[oncall.Top], key limiter.Key, k *keyer) {
		unnamed := key != shield.NoKey && by.get().Count(d.At(), oncall.Event{
			Client: uint64(key), Early: d.Reason == shield.Early, Reason: uint8(d.Reason), Class: d.Class,
		})
		if unnamed && r != nil {
			var buf [128]byte // on the stack, for most names
			by.get().Name(d.At(), uint64(key), k.shown(buf[:0], key, r), uint8(pushback.FamilyOf(q.Agent)), r.Method, r.URL.Path)
		}
	}
	count(&h.record.rejected, q.Client, h.clients)
	if d.Zone >= 0 {
		count(&h.zones[d.Zone].record.rejected, q.Keys[d.Zone], h.zones[d.Zone].keyer)
	}
}

// noteBusy counts an admitted request of a client that has others in flight, and tells the name, for the key that counts them.
func (h *Handler) noteBusy(r *http.Request, q *shield.Request, now time.Duration, key limiter.Key) {
	by := h.record.busy.get()
	if !by.Count(now, oncall.Event{Client: uint64(key)}) {
		return
	}
	of := h.clients
	if h.perClient != nil && key == q.InFlightKey {
		of = h.perClient
	}
	var buf [128]byte // on the stack, for most names
	by.Name(now, uint64(key), of.shown(buf[:0], key, r), 0, "", "")
}

// Who implements operate.Shields.
func (a *App) Who(name string, n int, named bool) (to adminapi.WhoStatus, err error) {
	if name != "" {
		_, err = a.named(name)
	}
	now := shield.Now()
	to = adminapi.WhoStatus{WindowSeconds: 60, Masked: a.MaskAddresses || !named, Shields: []adminapi.WhoList{}, Zones: []adminapi.WhoList{}}
	wanted := map[*zoneRecord]bool{}
	for _, h := range a.handlers() {
		for i := range h.zones {
			wanted[h.zones[i].record] = wanted[h.zones[i].record] || name == "" || h.Name == name
		}
	}
	shields, zones := a.roster()
	for _, s := range shields {
		if name != "" && s.Name != name {
			continue
		}
		to.Shields = append(to.Shields, adminapi.WhoList{
			Name: s.Name, Mode: s.force.Load().mode(), Rejected: a.list(s.guard(), &s.record.rejected, now, n, named), InFlight: a.busiest(s, now, n, named),
		})
	}
	for _, z := range zones {
		if wanted[z.record] {
			to.Zones = append(to.Zones, adminapi.WhoList{Name: z.record.shown, Rejected: a.list(z.of.guard(), &z.record.rejected, now, n, named)})
		}
	}
	return to, err
}

// list words the n clients with the most rejections.
func (a *App) list(g *shield.Guard, of *lazy[oncall.Top], now time.Duration, n int, named bool) []adminapi.RejectedClient {
	list := []adminapi.RejectedClient{}
	for _, c := range oncall.Most(of.Load().Clients(now), n) {
		one := adminapi.RejectedClient{
			Client: a.shown(&c), Handle: handleOf(c.Key), LastMinute: int(math.Round(c.Events)), Early: int(math.Round(c.Early)),
			PerSecond: math.Round(100*c.PerSecond) / 100,
			Reason:    shield.Reason(c.Reason).String(), Agent: pushback.Family(c.Agent).String(), Path: adminapi.Shown(c.Path),
		}
		if !named {
			one.Client = adminapi.Anonymous(one.Handle)
		}
		if known := g.Plan().Classes(); known.Len() > 1 && int(c.Class) < known.Len() { // a reload may have left fewer
			one.Class = known.At(int(c.Class)).Name
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
			names[c.Key] = a.shown(&c)
		}
	}
	for _, c := range s.record.Busiest(n) {
		if c.InFlight < 2 {
			break // the others have one each
		}
		one := adminapi.BusyClient{Client: names[c.Key], Handle: handleOf(c.Key), InFlight: c.InFlight}
		if one.Client == "" || !named {
			one.Client = adminapi.Anonymous(one.Handle)
		}
		list = append(list, one)
	}
	return list
}

// handleOf returns the handle of a client. Its key is a hash with a seed, so it does not tell the name.
func handleOf(key uint64) string { return fmt.Sprintf("%016x", key) }

// listed returns the client with a handle, or with one that begins so, of all shields and zones; false if none has. Where its
// name does not tell its key, because it is cut or a hash, the client is known by the key.
func (a *App) listed(handle string) (c clientName, ok bool) {
	if len(handle) < adminapi.HashDigits {
		return c, false
	}
	for _, h := range a.handlers() {
		for _, of := range h.identities() {
			for _, top := range of.listed {
				for _, is := range top.Load().Clients(shield.Now()) {
					if !strings.HasPrefix(handleOf(is.Key), handle) {
						continue
					}
					c = readClient(readable(is.Name, false))
					c.shown = a.shown(&is)
					if q, _ := h.asks(c); uint64(*of.key(&q)) != is.Key {
						c = clientName{text: c.shown, shown: c.shown, by: of.by, key: limiter.Key(is.Key)}
					}
					c.handle = handleOf(is.Key)
					return c, true
				}
			}
		}
	}
	return clientName{}, false
}

// shown returns the name of a client, with its address masked if it is to be.
func (a *App) shown(c *oncall.Client) string {
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
