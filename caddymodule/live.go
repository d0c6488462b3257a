package caddymodule

import (
	"cmp"
	"fmt"
	"net/http"
	"net/netip"

	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
	"go.uber.org/zap"

	"github.com/herdshield/shield"
)

// A Live shield is set up while the server runs, by a program that learns what to protect
// without a reload for each change, such as a Kubernetes ingress. It does all that a
// handler of a config does, and writes its refusals directly.
type Live struct {
	// Name is what metrics, logs and status call the backend. Other Live shields may
	// have the same name.
	Name string

	// Config is what it enforces. The names of its zones are what clients are told, and
	// need not differ from those of other shields. Key is not used: see the other Key.
	Config shield.Config

	// State, and one of Zones for each of Config's, is what traffic writes. Shields that
	// share one must limit it alike.
	State *LiveState
	Zones []*LiveZoneState

	// Key is the template that tells clients apart in all zones and in Config.PerClient.
	// IPv6Prefix is how many bits of an IPv6 address count in it: 1 to 128. Empty and 0 mean
	// the defaults of a zone. Appointments are kept by the client's address.
	Key        string
	IPv6Prefix int

	// Class is the class of all its requests but those for which a trusted proxy
	// says otherwise. "" means the default one.
	Class string

	// Allow reports whether neither zones nor PerClient count an address, which is
	// unmapped. nil: they count all.
	Allow func(netip.Addr) bool
}

// A LiveState is what traffic has written about one backend: the requests in flight and
// the appointments. It may be used by one Live shield after another, and by
// several at once.
type LiveState struct{ record backendRecord }

// NewLiveState returns an empty LiveState.
func NewLiveState() *LiveState {
	return &LiveState{backendRecord{Backend: new(shield.Backend)}}
}

// A LiveZoneState is what traffic has written about one quota: what each client has used.
type LiveZoneState struct {
	name   string
	record zoneRecord
}

// NewLiveZoneState returns an empty LiveZoneState. The name is how metrics, logs and
// status call it.
func NewLiveZoneState(name string) *LiveZoneState {
	return &LiveZoneState{name, zoneRecord{ZoneState: shield.NewZoneState(name)}}
}

// New returns a handler that does what l says. Metrics, logs and status show it after
// App.Show. The error names everything that is wrong with l. The handler needs no cleanup.
func (l Live) New() (*LiveHandler, error) {
	h, err := l.handler()
	if err != nil {
		return nil, fmt.Errorf("shield %q: %w", l.Name, err)
	}
	return &LiveHandler{h, l}, nil
}

func (l Live) handler() (*Handler, error) {
	if err := shield.CheckName(l.Name); err != nil {
		return nil, err
	}
	if len(l.Zones) != len(l.Config.Zones) {
		return nil, fmt.Errorf("%d zones have %d states; want one for each", len(l.Config.Zones), len(l.Zones))
	}
	var bits *int
	if l.IPv6Prefix != 0 {
		bits = &l.IPv6Prefix
	}
	clients, err := newKeyer(l.Key, nil, bits)
	if err != nil {
		return nil, err
	}
	h := &Handler{
		Name: l.Name, allow: l.Allow, respond: respondDirect, logged: true,
	}
	if h.clients, err = newKeyer("", nil, nil); err != nil {
		return nil, err
	}
	state := shield.State{Backend: l.State.record.Backend, Zones: map[string]*shield.ZoneState{}}
	for i, z := range l.Config.Zones {
		h.zones = append(h.zones, handlerZone{name: z.Name, keyer: clients})
		state.Zones[z.Name] = l.Zones[i].record.ZoneState
	}
	if l.Config.PerClient > 0 {
		h.perClient = clients
	}
	if err := h.newGuard(l.Config, &state); err != nil {
		return nil, err
	}
	if l.Class != "" {
		i, ok := h.guard.Classes().Index(l.Class)
		if !ok {
			return nil, fmt.Errorf("class is %q; want one that it has", l.Class)
		}
		h.class = uint8(1 + i)
	}
	return h, nil
}

// A LiveHandler is a Live shield at work. It is safe for concurrent use.
type LiveHandler struct {
	h    *Handler
	live Live
}

// ServeHTTP implements caddyhttp.MiddlewareHandler.
func (l *LiveHandler) ServeHTTP(w http.ResponseWriter, r *http.Request, next caddyhttp.Handler) error {
	return l.h.ServeHTTP(w, r, next)
}

// Show has metrics, logs, events and status tell of these shields beside those of the
// config, and no more of those that it was given before. It must not be called before
// the app has been provisioned.
func (a *App) Show(shields []*LiveHandler) {
	var r roster
	states, zones := map[*LiveState]bool{}, map[*LiveZoneState]bool{}
	for _, s := range shields {
		if state := s.live.State; !states[state] {
			states[state] = true
			entry := newEntry(s.live.Name, s.live.Config, s.h.guard, &state.record)
			entry.live = true
			r.shields = append(r.shields, entry)
		}
		for i, z := range s.live.Zones {
			if !zones[z] {
				zones[z] = true
				c := s.live.Config.Zones[i]
				r.zones = append(r.zones, &zoneEntry{
					z.name, cmp.Or(s.live.Key, defaultKey), c.Limit, cmp.Or(c.MaxKeys, shield.DefaultMaxKeys), &z.record,
				})
			}
		}
	}
	a.live.Store(&r)
	a.logger.Debug("shields have changed", zap.Int("shields", len(r.shields)), zap.Int("zones", len(r.zones)))
}

// allowed reports whether r comes from an address that is not counted.
func (h *Handler) allowed(r *http.Request) bool {
	if h.allow == nil {
		return false
	}
	ip, _ := caddyhttp.GetVar(r.Context(), caddyhttp.ClientIPVarKey).(string)
	addr, err := netip.ParseAddr(ip)
	return err == nil && h.allow(addr.Unmap().WithZone(""))
}
