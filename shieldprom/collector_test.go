package shieldprom_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/herdshield/shield"
	"github.com/herdshield/shield/limiter"
	"github.com/herdshield/shield/loadshed"
	"github.com/herdshield/shield/shieldprom"
)

// A program's own registry shows its Guard.
func ExampleCollector() {
	guard := shield.Must(shield.New(shield.Config{
		Zones: []shield.Zone{{Name: "per_client", Limit: limiter.Config{Rate: 1, Burst: 2}, Key: func(*http.Request) string { return "all" }}},
	}, nil))
	registry := prometheus.NewRegistry()
	registry.MustRegister(shieldprom.Collector(guard, "shop"))
	handler := guard.Handler(http.NotFoundHandler()) // of the server, beside promhttp.HandlerFor(registry, ...)
	for range 3 {
		handler.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest("GET", "/", nil))
	}
	err := testutil.GatherAndCompare(registry, strings.NewReader(`
# HELP shield_zone_requests_total Requests that the zone counted, by decision: admitted, rejected by this zone, or observed.
# TYPE shield_zone_requests_total counter
shield_zone_requests_total{outcome="admitted",shield="shop",zone="per_client"} 2
shield_zone_requests_total{outcome="observed",shield="shop",zone="per_client"} 0
shield_zone_requests_total{outcome="rejected",shield="shop",zone="per_client"} 1
`), "shield_zone_requests_total")
	fmt.Println(err)
	// Output: <nil>
}

// The metrics are those of the Caddy module, in the words of its page: zones have the label shield, too.
func TestMetricsAreThoseOfCaddy(t *testing.T) {
	page, err := os.ReadFile("../docs/reference/metrics-logs-events.md")
	if err != nil {
		t.Fatal(err)
	}
	registry := prometheus.NewPedanticRegistry()
	for _, name := range []string{"a", "b"} { // several, in one registry
		guard, err := shield.New(shield.Config{
			Zones:    []shield.Zone{{Name: name, Limit: limiter.Config{Rate: 1, Burst: 2}, Key: func(*http.Request) string { return "all" }}},
			Adaptive: &loadshed.AdaptiveConfig{}, Classes: []loadshed.Class{{Name: "gold", Share: 1}, {Name: loadshed.Default, Share: 0.5}},
		}, nil)
		if err != nil {
			t.Fatal(err)
		}
		registry.MustRegister(shieldprom.Collector(guard, name))
	}
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		row := fmt.Sprintf("(?m)^\\| `caddy_%s` \\| %s \\| .* \\| %s \\|$", f.GetName(), strings.ToLower(f.GetType().String()), regexp.QuoteMeta(f.GetHelp()))
		at := regexp.MustCompile(row).Find(page)
		if at == nil {
			t.Errorf("docs/reference/metrics-logs-events.md has no caddy_%s, a %v: %s", f.GetName(), f.GetType(), f.GetHelp())
		}
		for _, l := range f.Metric[0].Label {
			if name := l.GetName(); name != "shield" && !strings.Contains(string(at), "`"+name+"`") {
				t.Errorf("%s has the label %s, and that of Caddy has not", f.GetName(), name)
			}
		}
	}
	if len(families) < 32 {
		t.Errorf("%d metrics; want all that a Guard has with these options", len(families))
	}
}
