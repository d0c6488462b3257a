package ingress

import (
	"context"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"testing"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"

	"github.com/herdshield/shield"
	"github.com/herdshield/shield/k8s/model"
	"github.com/herdshield/shield/k8s/policy"
	"github.com/herdshield/shield/limiter"
)

// nowhere is a reverse_proxy that asks where to go, and does not go there.
type nowhere struct{ upstreams Upstreams }

func (n nowhere) ServeHTTP(w http.ResponseWriter, r *http.Request, _ caddyhttp.Handler) error {
	_, err := n.upstreams.GetUpstreams(r)
	w.WriteHeader(http.StatusNoContent)
	return err
}

// BenchmarkHandler measures what the ingress adds to Caddy's server and reverse_proxy:
// routing, shields, the choice of an endpoint, and headers.
func BenchmarkHandler(b *testing.B) {
	plenty := limiter.Config{Rate: 1e9, Burst: 1e9}
	for _, bb := range []struct {
		name    string
		origin  policy.Ingress
		service policy.Service
	}{
		{"no limits", policy.Ingress{}, policy.Service{}},
		{"client rate", policy.Ingress{Zones: []policy.Zone{{Name: "rate", Limit: plenty}}}, policy.Service{}},
		{"client rate, capacity and endpoint concurrency", policy.Ingress{Zones: []policy.Zone{{Name: "rate", Limit: plenty}}}, policy.Service{Capacity: plenty, EndpointConcurrency: 100}},
		{"refused", policy.Ingress{Zones: []policy.Zone{{Name: "rate", Limit: limiter.Config{Rate: 1, Per: 24 * time.Hour}}}}, policy.Service{}},
	} {
		b.Run(bb.name, func(b *testing.B) {
			back := &model.Backend{Service: service("web", bb.service), Port: "http"}
			for i := range 10 {
				back.Endpoints = append(back.Endpoints, model.Endpoint{Addr: netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 244, 0, byte(i)}), 8080)})
			}
			c := &controller{live: newLive(), measures: newMeasures(), log: caddy.Log()}
			var d policy.Division
			c.snapshot.Store(c.live.apply(shield.Now(), all(origin("web", bb.origin), back), &d, ""))
			h := &Handler{app: &App{controller: c}}
			for i := range h.proxies {
				h.proxies[i] = nowhere{}
			}
			r := httptest.NewRequest(http.MethodGet, "http://shop.example.com/a/b", nil)
			vars := map[string]any{caddyhttp.ClientIPVarKey: "192.0.2.1", caddyhttp.TrustedProxyVarKey: false}
			header := http.Header{}
			b.ReportAllocs()
			for b.Loop() {
				// Caddy's server gives each request its own: eight of the allocations, and
				// 0.4 us, are not the handler's.
				ctx := context.WithValue(context.Background(), caddyhttp.VarsCtxKey, vars)
				r := r.WithContext(context.WithValue(ctx, caddy.ReplacerCtxKey, caddy.NewEmptyReplacer()))
				clear(header)
				if err := h.ServeHTTP(recorder{header}, r, nil); err != nil { // not by must.Do, whose t.Helper takes 200 ns
					b.Fatal(err)
				}
			}
		})
	}
}

// recorder forgets what is written.
type recorder struct{ header http.Header }

func (r recorder) Header() http.Header         { return r.header }
func (r recorder) Write(b []byte) (int, error) { return len(b), nil }
func (r recorder) WriteHeader(int)             {}
