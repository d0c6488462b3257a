package caddymodule

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"go.uber.org/zap"

	"github.com/herdshield/shield"
	"github.com/herdshield/shield/caddymodule/adminapi"
	"github.com/herdshield/shield/limiter"
)

// asked sends one request from an address to a Live shield.
func asked(t *testing.T, h *Handler, from string, next http.HandlerFunc) *httptest.ResponseRecorder {
	t.Helper()
	w := httptest.NewRecorder()
	if err := h.ServeHTTP(w, request("/", from, nil), caddyhttp.HandlerFunc(func(w http.ResponseWriter, r *http.Request) error {
		next(w, r)
		return nil
	})); err != nil {
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

func TestLiveErrors(t *testing.T) {
	zone := shield.Zone{Name: "z", Limit: limiter.Config{Rate: 1}}
	one := []*LiveZoneState{NewLiveZoneState("z")}
	for _, tt := range []struct {
		name, want string
		live       Live
	}{
		{"name", "name is", Live{Name: "a b"}},
		{"zones", "1 zones have 0 states", Live{Name: "a", Config: shield.Config{Zones: []shield.Zone{zone}}}},
		{"key", "cannot identify a client", Live{Name: "a", Config: shield.Config{Zones: []shield.Zone{zone}}, Zones: one, Key: "{unknown}"}},
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

// Metrics tell of what is shown now, each thing once, and of nothing else.
func TestShow(t *testing.T) {
	app := &App{logger: zap.NewNop()}
	registry := prometheus.NewRegistry()
	registry.MustRegister(collector{app})
	counted := func() string {
		shields, err := testutil.GatherAndCount(registry, "caddy_shield_overloaded")
		zones, err2 := testutil.GatherAndCount(registry, "caddy_shield_zone_keys")
		return fmt.Sprint(shields, zones, err, err2)
	}
	live := Live{
		Name:   "ingress/shop/web",
		Config: shield.Config{Zones: []shield.Zone{{Name: "rate", Limit: limiter.Config{Rate: 1}}}},
		State:  new(LiveState), Zones: []*LiveZoneState{NewLiveZoneState("ingress/shop/web/rate")},
	}
	one, two := newLive(t, live), newLive(t, live)
	asked(t, one, "192.0.2.1", served)
	app.Show([]*Handler{one, two})
	if zones := app.Status(true).Zones; counted() != "1 1 <nil> <nil>" || len(zones) != 1 || zones[0].Name != "ingress/shop/web/rate" || zones[0].Admitted != 1 {
		t.Errorf("metrics of %s shields and zones, and %+v; want one each that has admitted 1", counted(), zones)
	}
	if app.Show(nil); counted() != "0 0 <nil> <nil>" {
		t.Errorf("metrics of %s shields and zones that are gone", counted())
	}
}

// A client that is blocked in a Live shield is blocked in one that takes its place, too.
func TestShownShieldsHaveOverrides(t *testing.T) {
	block := &override{client: readClient("192.0.2.1"), until: shield.Now() + time.Hour, Override: adminapi.Override{Kind: overrideBlock, Shields: []string{"web"}}}
	changes.list = append(changes.list, block)
	defer func() { changes.list = nil }()
	app, h := &App{logger: zap.NewNop()}, newLive(t, Live{Name: "web", State: new(LiveState)})
	app.Show([]*Handler{h})
	if code := asked(t, h, "192.0.2.1", served).Code; code != http.StatusTooManyRequests {
		t.Errorf("status %d, want 429", code)
	}
}
