package caddymodule

import (
	"fmt"
	"net/http"
	"net/netip"

	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
	"go.uber.org/zap"

	"github.com/herdshield/shield"
)

// A Live shield is set up while the server runs: by a program that finds out by itself
// what there is to protect, as a Kubernetes ingress does, without a reload for each
// change. It does all that a handler of a config does.
type Live struct {
	// Handler is as in a config, but without matchers, and without names that
	// have to be different from others': Name is what metrics, logs and status call
	// the backend, those of the zones what clients are told. What it counts, it
	// counts in Backend.
	Handler Handler

	// Backend, and one of Zones for each of the handler's, is where it counts.
	// Shields that share one must limit it alike.
	Backend *LiveBackend
	Zones   []*LiveZone

	// Class is the class of all its requests but those for which a trusted proxy
	// says otherwise. "" means the default one.
	Class string

	// PerClientIPv6Prefix is how many bits of an IPv6 address tell clients apart in the
	// handler's concurrency per client: 1 to 128; 0 means 64.
	PerClientIPv6Prefix int

	// Allow reports whether neither zones nor concurrency per client count an address,
	// which is unmapped. nil: they count all.
	Allow func(netip.Addr) bool
}

// A LiveBackend is what traffic has written about one backend: who is in flight, and
// who was told what. It may be used by one Live shield after another, and by
// several at once.
type LiveBackend struct{ record backendRecord }

// NewLiveBackend returns a LiveBackend that nothing has come to yet.
func NewLiveBackend() *LiveBackend {
	return &LiveBackend{backendRecord{Backend: new(shield.Backend)}}
}

// A LiveZone is what traffic has written about one quota: what each client has used.
type LiveZone struct {
	name   string
	record zoneRecord
}

// NewLiveZone returns a LiveZone that has counted nobody yet. The name is how metrics,
// logs and status call it.
func NewLiveZone(name string) *LiveZone {
	return &LiveZone{name, zoneRecord{ZoneState: shield.NewZoneState(name)}}
}

// New returns a handler that does what l says, and that is not seen in metrics,
// logs and status before it is given to App.Show. The error names everything that is
// wrong with it. It need not be cleaned up.
func (l Live) New() (*LiveHandler, error) {
	h := l.Handler
	h.observing = h.Mode == modeObserve
	if err := shield.CheckName(h.Name); err != nil {
		return nil, err
	}
	cfg, err := h.config()
	if err == nil && len(l.Zones) != len(h.Zones) {
		err = fmt.Errorf("it has %d zones and counts in %d; want one for each", len(h.Zones), len(l.Zones))
	}
	if err != nil {
		return nil, fmt.Errorf("shield %q: %w", h.Name, err)
	}
	state := shield.State{Backend: l.Backend.record.Backend, Zones: map[string]*shield.ZoneState{}}
	for i, z := range h.Zones {
		k, err := newKeyer(z.Key, z.IPv4Prefix, z.IPv6Prefix)
		if err != nil {
			return nil, fmt.Errorf("shield %q: zone %q: %w", h.Name, z.Name, err)
		}
		h.zones = append(h.zones, handlerZone{name: z.Name, keyer: k})
		state.Zones[z.Name] = l.Zones[i].record.ZoneState
	}
	if err := h.work(cfg, &state); err != nil {
		return nil, fmt.Errorf("shield %q: %w", h.Name, err)
	}
	if bits := l.PerClientIPv6Prefix; bits != 0 && h.perClient != nil {
		if h.perClient, err = newKeyer(h.Concurrency.Per.Key, nil, &bits); err != nil {
			return nil, fmt.Errorf("shield %q: concurrency per client: %w", h.Name, err)
		}
	}
	if l.Class != "" {
		i, ok := h.guard.Classes().Index(l.Class)
		if !ok {
			return nil, fmt.Errorf("shield %q: class is %q; want one that it has", h.Name, l.Class)
		}
		h.class = uint8(1 + i)
	}
	h.allow, h.logged, h.live = l.Allow, true, true
	return &LiveHandler{&h, l}, nil
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
	backends, zones := map[*LiveBackend]bool{}, map[*LiveZone]bool{}
	for _, s := range shields {
		if b := s.live.Backend; !backends[b] {
			backends[b] = true
			r.shields = append(r.shields, s.h.entry(&b.record))
		}
		for i, z := range s.live.Zones {
			if !zones[z] {
				zones[z] = true
				r.zones = append(r.zones, &zoneEntry{s.h.Zones[i], z.name, &z.record})
			}
		}
	}
	a.live.Store(&r)
	a.logger.Debug("shields have changed", zap.Int("shields", len(r.shields)), zap.Int("zones", len(r.zones)))
}

// allowed reports whether r comes from an address that is not to be counted.
func (h *Handler) allowed(r *http.Request) bool {
	if h.allow == nil {
		return false
	}
	ip, _ := caddyhttp.GetVar(r.Context(), caddyhttp.ClientIPVarKey).(string)
	addr, err := netip.ParseAddr(ip)
	return err == nil && h.allow(addr.Unmap().WithZone(""))
}
