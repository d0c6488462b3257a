package caddymodule

import (
	"context"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"go.uber.org/zap"

	"github.com/herdshield/shield"
	"github.com/herdshield/shield/caddymodule/adminapi"
	"github.com/herdshield/shield/limiter"
	"github.com/herdshield/shield/loadshed"
)

// asked sends one request from an address to a Live shield.
func asked(t *testing.T, h *Handler, from string, next http.HandlerFunc) *httptest.ResponseRecorder {
	t.Helper()
	r := httptest.NewRequest(http.MethodGet, "/", nil)
	ctx := context.WithValue(r.Context(), caddyhttp.VarsCtxKey, map[string]any{caddyhttp.ClientIPVarKey: from})
	ctx = context.WithValue(ctx, caddy.ReplacerCtxKey, caddy.NewReplacer())
	w := httptest.NewRecorder()
	err := h.ServeHTTP(w, r.WithContext(ctx), caddyhttp.HandlerFunc(func(w http.ResponseWriter, r *http.Request) error {
		next(w, r)
		return nil
	}))
	if err != nil {
		t.Fatal(err)
	}
	return w
}

func served(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNoContent) }

func newLive(t *testing.T, l Live) *Handler {
	t.Helper()
	h, err := l.New()
	if err != nil {
		t.Fatal(err)
	}
	return h
}

// A shield that takes the place of another one keeps all quotas.
func TestLiveKeepsWhatItCounts(t *testing.T) {
	zone, state := NewLiveZoneState("ingress/shop/web/rate"), new(LiveState)
	live := func(burst int) Live {
		return Live{
			Name:   "ingress/shop/web",
			Config: shield.Config{Zones: []shield.Zone{{Name: "rate", Limit: limiter.Config{Rate: 1, Per: time.Hour, Burst: burst}}}},
			State:  state, Zones: []*LiveZoneState{zone},
			Allow: netip.MustParsePrefix("10.0.0.0/8").Contains,
		}
	}
	h := newLive(t, live(2))
	for i, want := range []int{204, 204, 429} {
		if got := asked(t, h, "192.0.2.1", served); got.Code != want {
			t.Errorf("request %d: got %d, want %d", i+1, got.Code, want)
		}
	}
	w := asked(t, h, "192.0.2.1", served)
	if w.Header().Get("Retry-After") == "" || !strings.Contains(w.Header().Get("Ratelimit-Policy"), `"rate";q=2`) {
		t.Errorf("the refusal says %v; want a time, and the zone's own name", w.Header())
	}
	for range 5 {
		if got := asked(t, h, "10.1.2.3", served); got.Code != 204 {
			t.Errorf("an address that is not counted got %d, want 204", got.Code)
		}
	}
	h = newLive(t, live(3))
	for i, want := range []int{204, 429} { // one token more than before
		if got := asked(t, h, "192.0.2.1", served); got.Code != want {
			t.Errorf("request %d to the next shield: got %d, want %d", i+1, got.Code, want)
		}
	}
}

// All that share a backend count in it together, each with a class of its own.
func TestLiveShieldsShareABackend(t *testing.T) {
	state := new(LiveState)
	live := func(class string) Live {
		return Live{
			Name: "service/shop/web",
			Config: shield.Config{
				Concurrency: 10,
				Classes:     []loadshed.Class{{Name: "critical"}, {Name: "default"}, {Name: "sheddable"}},
			},
			State: state, Class: class,
		}
	}
	low, high := newLive(t, live("sheddable")), newLive(t, live("critical"))
	classes := map[string]uint64{}
	asked(t, low, "192.0.2.1", func(w http.ResponseWriter, r *http.Request) {
		asked(t, high, "192.0.2.2", func(w http.ResponseWriter, r *http.Request) {
			if got := state.record.Stats(shield.Now()).InFlight; got != 2 {
				t.Errorf("%d requests in flight; want 2, from two shields", got)
			}
			served(w, r)
		})
		served(w, r)
	})
	for _, c := range high.guard().ClassStats() {
		classes[c.Name] = c.Admitted
	}
	if classes["critical"] != 1 || classes["sheddable"] != 1 || classes["default"] != 0 {
		t.Errorf("admitted by class: %v; want one critical, one sheddable", classes)
	}
}

func TestLiveErrors(t *testing.T) {
	zone := shield.Zone{Name: "z", Limit: limiter.Config{Rate: 1}}
	one := []*LiveZoneState{NewLiveZoneState("z")}
	for _, tt := range []struct {
		name, want string
		live       Live
	}{
		{"name", "name is", Live{Name: "a b"}},
		{"zones", "1 zones have 0 states", Live{Name: "a", Config: shield.Config{Zones: []shield.Zone{zone}}}},
		{"key", "is not known", Live{Name: "a", Config: shield.Config{Zones: []shield.Zone{zone}}, Zones: one, Key: "{unknown}"}},
		{"config", "concurrency is -1", Live{Name: "a", Config: shield.Config{Concurrency: -1}}},
		{"class", `class is "gold"`, Live{Name: "a", Config: shield.Config{Concurrency: 1}, Class: "gold"}},
		{"prefix", "ipv6_prefix is 129", Live{Name: "a", Config: shield.Config{PerClient: 1}, IPv6Prefix: 129}},
	} {
		tt.live.State = new(LiveState)
		if _, err := tt.live.New(); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: got %v, want an error with %q", tt.name, err, tt.want)
		}
	}
}

// Clients of IPv6 are told apart by as many bits as Live says.
func TestLivePerClient(t *testing.T) {
	h := newLive(t, Live{
		Name:       "a",
		Config:     shield.Config{Concurrency: 100, PerClient: 1},
		State:      new(LiveState),
		IPv6Prefix: 128,
		Allow:      netip.MustParsePrefix("10.0.0.0/8").Contains,
	})
	asked(t, h, "2001:db8::1", func(w http.ResponseWriter, r *http.Request) {
		if got := asked(t, h, "2001:db8::1", served); got.Code != 429 {
			t.Errorf("the client's second request got %d, want 429", got.Code)
		}
		if got := asked(t, h, "2001:db8::2", served); got.Code != 204 {
			t.Errorf("its neighbour got %d, want 204", got.Code)
		}
	})
	asked(t, h, "10.0.0.1", func(w http.ResponseWriter, r *http.Request) {
		if got := asked(t, h, "10.0.0.1", served); got.Code != 204 {
			t.Errorf("an address that is not counted got %d, want 204", got.Code)
		}
	})
}

// Metrics tell of what is shown now, each thing once, and of nothing else.
func TestShow(t *testing.T) {
	app := &App{live: new(atomic.Pointer[roster]), logger: zap.NewNop()}
	registry := prometheus.NewRegistry()
	registry.MustRegister(collector{app})
	count := func() (shields, zones int) {
		n, err := testutil.GatherAndCount(registry, "caddy_shield_overloaded")
		if err != nil {
			t.Fatal(err)
		}
		m, err := testutil.GatherAndCount(registry, "caddy_shield_zone_keys")
		if err != nil {
			t.Fatal(err)
		}
		return n, m
	}
	live := Live{
		Name:   "ingress/shop/web",
		Config: shield.Config{Zones: []shield.Zone{{Name: "rate", Limit: limiter.Config{Rate: 1}}}},
		State:  new(LiveState), Zones: []*LiveZoneState{NewLiveZoneState("ingress/shop/web/rate")},
	}
	one, two := newLive(t, live), newLive(t, live)
	asked(t, one, "192.0.2.1", served)
	app.Show([]*Handler{one, two})
	if shields, zones := count(); shields != 1 || zones != 1 {
		t.Errorf("metrics of %d shields and %d zones; want 1 and 1", shields, zones)
	}
	var status adminapi.Status
	app.fill(&status)
	if len(status.Zones) != 1 || status.Zones[0].Name != "ingress/shop/web/rate" || status.Zones[0].Admitted != 1 {
		t.Errorf("status of zones is %+v; want one that has admitted 1", status.Zones)
	}
	app.Show(nil)
	if shields, zones := count(); shields != 0 || zones != 0 {
		t.Errorf("metrics of %d shields and %d zones that are gone", shields, zones)
	}
}
