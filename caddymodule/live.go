package caddymodule

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"go.uber.org/zap"

	"github.com/herdshield/shield"
	"github.com/herdshield/shield/caddymodule/clientkey"
)

// A Live shield is set up while the server runs, without a reload, by a program such as a Kubernetes ingress
// controller. It does everything a handler from a config does, and writes its rejections directly.
type Live struct {
	// Name is the backend's name in metrics, logs and status. Live shields can share one.
	Name string

	// Config is what it enforces. Clients see the names of its zones, which needn't differ from those of other
	// shields. Its Key is ignored: see the other Key.
	Config shield.Config

	// State, and one of Zones for each zone of Config, is what traffic writes. Shields that share one must
	// limit it identically.
	State *LiveState
	Zones []*LiveZoneState

	// Key is the template that identifies clients in all zones and in Config.PerClient. IPv6Prefix is how many
	// bits of an IPv6 address count in it: 1 to 128. Empty and 0 mean the defaults of a zone. Appointments go
	// by the client's address.
	Key        string
	IPv6Prefix int

	// Class is the class of its requests, unless a trusted proxy names another one. "" means the default class.
	Class string

	// Allow reports whether zones and PerClient leave out an address, which is unmapped. nil means that they
	// count all.
	Allow func(netip.Addr) bool
}

// A LiveState is what traffic has written about one backend: the requests in flight and the appointments. One
// Live shield after another can use it, or several concurrently. The zero LiveState is ready to use.
type LiveState struct{ record backendRecord }

// A LiveZoneState is what traffic has written about one quota: what each client has used.
type LiveZoneState = zoneRecord

// NewLiveZoneState returns an empty LiveZoneState with a name for metrics, logs and status.
func NewLiveZoneState(name string) *LiveZoneState {
	return &zoneRecord{ZoneState: shield.NewZoneState(name), shown: name}
}

// New returns a handler that does what l says. Metrics, logs and status show it after App.Show. The error names
// everything that is wrong with l. The handler needs no cleanup.
func (l Live) New() (h *Handler, err error) {
	defer func() {
		if err != nil {
			h, err = nil, fmt.Errorf("shield %q: %w", l.Name, err)
		}
	}()
	h = &Handler{Name: l.Name, allow: l.Allow, logged: true, live: true, readsJSON: strings.Contains(l.Key, clientkey.JSONPrefix)}
	h.atDoor = h.forDoor()
	if err := shield.CheckName(l.Name); err != nil {
		return nil, err
	}
	if len(l.Zones) != len(l.Config.Zones) {
		return nil, fmt.Errorf("%d zones have %d states; use one for each", len(l.Config.Zones), len(l.Zones))
	}
	clients, err := newKeyer(l.Key, nil, new(cmp.Or(l.IPv6Prefix, 64)))
	if err != nil {
		return nil, err
	}
	h.clients, _ = newKeyer("", nil, nil)
	for i, z := range l.Config.Zones {
		h.zones = append(h.zones, handlerZone{name: z.Name, keyer: clients, record: l.Zones[i]})
	}
	if l.Config.PerClient > 0 {
		h.perClient = clients
	}
	if err := h.newGuard(l.Config, &l.State.record); err != nil || l.Class == "" {
		return h, err
	}
	i, ok := h.guard().Plan().ClassNamed(l.Class)
	if !ok {
		return nil, fmt.Errorf("class is %q; use a class of shield %q", l.Class, l.Name)
	}
	h.class = uint8(1 + i)
	return h, nil
}

// Show adds these Live shields to metrics, logs, events and status, in place of those that
// it was given before. After it, the listener wrapper has forgotten which requests they have
// rejected, so it is to be called after requests take other ways, too. It must not be called before the app has been provisioned.
func (a *App) Show(shields []*Handler) {
	shields = slices.Clone(shields)
	now := shield.Now()
	if before := a.live.Swap(&shields); before != nil {
		for _, h := range *before {
			h.atDoor.Forget(now)
		}
	}
	changes.mu.Lock()
	a.fit(now)
	changes.mu.Unlock()
	desk.Tend(now)
	a.logger.Debug("shields have changed", zap.Int("shields", len(shields)))
}

// allows reports whether the quotas do not count an address.
func (h *Handler) allows(ip netip.Addr) bool {
	return h.allow != nil && ip.IsValid() && h.allow(ip.Unmap().WithZone(""))
}
