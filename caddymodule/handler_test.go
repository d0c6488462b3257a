package caddymodule

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig"
	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"
	"github.com/caddyserver/caddy/v2/caddyconfig/httpcaddyfile"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/herdshield/shield"
	"github.com/herdshield/shield/caddymodule/adminapi"
	"github.com/herdshield/shield/internal/metrics"
	"github.com/herdshield/shield/limiter"
	"github.com/herdshield/shield/pushback"
)

// site runs a Caddyfile site without a socket. Requests go through Caddy's
// server as if they had come from one.
type site struct {
	t      *testing.T
	server *caddyhttp.Server
	app    *App
}

func serveSite(t *testing.T, caddyfile string) *site {
	t.Helper()
	config, _, err := caddyconfig.GetAdapter("caddyfile").Adapt([]byte(caddyfile), nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := caddy.Load(config, true); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = caddy.Stop() })
	return activeSite(t)
}

func activeSite(t *testing.T) *site {
	t.Helper()
	app, err := caddy.ActiveContext().App("http")
	if err != nil {
		t.Fatal(err)
	}
	shieldApp, err := caddy.ActiveContext().AppIfConfigured("shield")
	if err != nil {
		t.Fatal(err)
	}
	return &site{t, app.(*caddyhttp.App).Servers["srv0"], shieldApp.(*App)}
}

// get sends a request for path with headers given as name, value, name, value.
func (s *site) get(path string, headers ...string) *http.Response {
	s.t.Helper()
	r := httptest.NewRequest(http.MethodGet, "http://example.com"+path, nil)
	r.RemoteAddr = "192.0.2.1:1234"
	for i := 0; i < len(headers); i += 2 {
		r.Header.Set(headers[i], headers[i+1])
	}
	w := httptest.NewRecorder()
	s.server.ServeHTTP(w, r)
	return w.Result()
}

// globalOptions keep a test's Caddy away from the admin port and the disk.
const globalOptions = `
	admin off
	persist_config off
	log {
		level ERROR
	}
`

// bound is a site on an unused port: requests come another way.
const bound = "http://:0 {\n\tbind 127.0.0.1\n"

func TestPlaceholders(t *testing.T) {
	const show = `
	shield {
		mode %s
		name shop
		zone per_client {
			rate 1/h
			burst 1
		}
		pushback {
			quota_max 30s
		}
	}
	handle_errors {
		respond "{http.error.status_code} {http.shield.decision} {http.shield.reason} {http.shield.zone} {http.shield.retry_after} {http.shield.retry_after_ms}"
	}
	respond "200 {http.shield.decision} {http.shield.reason} {http.shield.zone} {http.shield.retry_after} {http.shield.retry_after_ms}"
}`
	for mode, want := range map[string][2]string{
		"enforce": {"200 admit    ", "429 refuse quota per_client 30 30000"},
		"observe": {"200 admit    ", "200 observe quota per_client 30 30000"},
	} {
		t.Run(mode, func(t *testing.T) {
			s := serveSite(t, "{"+globalOptions+"}\n"+bound+fmt.Sprintf(show, mode))
			for i, want := range want {
				body, _ := io.ReadAll(s.get("/").Body)
				if string(body) != want {
					t.Errorf("request %d: %q, want %q", i, body, want)
				}
			}
			_ = caddy.Stop()
		})
	}
}

// Of several shields in a row, the one that refuses is heard, and one that would
// have refused before one that admits.
func TestPlaceholdersOfTwoShields(t *testing.T) {
	const two = `
	route {
		shield {
			mode %s
			zone outer {
				rate %d/h
			}
		}
		shield {
			zone inner {
				rate %d/h
			}
		}
		respond "{http.shield.decision} {http.shield.zone}"
	}
	handle_errors {
		respond "{http.shield.decision} {http.shield.zone}"
	}
}`
	for _, c := range []struct {
		mode         string
		outer, inner int
		want         string // of the second request
	}{
		{"enforce", 1, 1, "refuse outer"},
		{"enforce", 7200, 1, "refuse inner"},
		{"observe", 1, 7200, "observe outer"},
		{"observe", 1, 1, "refuse inner"},
	} {
		s := serveSite(t, "{"+globalOptions+"}\n"+bound+fmt.Sprintf(two, c.mode, c.outer, c.inner))
		s.get("/")
		if body, _ := io.ReadAll(s.get("/").Body); string(body) != c.want {
			t.Errorf("%s %d/h, then %d/h: %q, want %q", c.mode, c.outer, c.inner, body, c.want)
		}
		_ = caddy.Stop()
	}
}

// The app-wide mode holds for all handlers.
func TestObserveEverywhere(t *testing.T) {
	s := serveSite(t, "{"+globalOptions+"shield {\nmode observe\n}\n}\n"+bound+`
	shield {
		mode enforce
		zone per_client {
			rate 1/h
		}
		capacity 1/h
		concurrency 1
	}
	respond ok
}`)
	for i := range 5 {
		if resp := s.get("/"); resp.StatusCode != http.StatusOK || resp.Header.Get("Retry-After") != "" {
			t.Errorf("request %d: %v %v", i, resp.Status, resp.Header)
		}
	}
	if n := s.app.configured.shields[0].record.Stats(shield.Now()).Observed[shield.Quota]; n != 4 {
		t.Errorf("%d observed, want 4", n)
	}
}

// Error routes that do not match leave no empty answer, and gRPC clients get
// theirs whatever the routes are.
func TestErrorRoutesThatDoNotMatch(t *testing.T) {
	s := serveSite(t, "{"+globalOptions+"}\n"+bound+`
	shield 1/h {
		pushback {
			quota_max 30s
		}
	}
	respond ok
	handle_errors 404 {
		respond "not found"
	}
	handle_errors 429 {
		header X-Page yes
	}
}`)
	s.get("/")
	resp := s.get("/")
	body, _ := io.ReadAll(resp.Body)
	if resp.StatusCode != 429 || resp.Header.Get("Retry-After") != "30" || resp.Header.Get("X-Page") != "yes" || !strings.Contains(string(body), `"retry-after":30`) {
		t.Errorf("%s %v %q, want shield's own body", resp.Status, resp.Header, body)
	}
	resp = s.get("/", "Content-Type", "application/grpc+proto")
	if resp.StatusCode != 200 || resp.Header.Get("Grpc-Status") != "8" || resp.Header.Get("X-Page") != "" {
		t.Errorf("gRPC: %s %v", resp.Status, resp.Header)
	}
}

func TestBodies(t *testing.T) {
	for kind, want := range map[string]string{"problem": "application/problem+json", "html": "text/html; charset=utf-8", "text": "text/plain; charset=utf-8", "none": ""} {
		s := serveSite(t, "{"+globalOptions+"}\n"+bound+`
	shield 1/h {
		pushback {
			body `+kind+`
		}
	}
	respond ok
}`)
		s.get("/")
		resp := s.get("/")
		body, _ := io.ReadAll(resp.Body)
		if got := resp.Header.Get("Content-Type"); got != want || (len(body) == 0) != (kind == "none") {
			t.Errorf("body %s: Content-Type %q, %d bytes; want %q", kind, got, len(body), want)
		}
		_ = caddy.Stop()
	}
}

// Status and metrics show requests in flight, and those that would have been refused.
func TestStatusAndMetricsWhileBusy(t *testing.T) {
	s := serveSite(t, "{"+globalOptions+"}\n"+bound+`
	shield {
		name shop
		concurrency 1
	}
	shield {
		name look
		mode observe
		zone tiny {
			key  {header.X-Key}
			rate 1/h
			max_keys 10000
		}
		capacity 1/h
	}
	shield_test_hold
}`)
	held, release := make(chan struct{}), make(chan struct{})
	hold.Store(&holding{held, release})
	defer hold.Store(nil)
	done := make(chan struct{})
	go func() { defer close(done); s.get("/hold", "X-Key", "a") }()
	<-held
	s.get("/", "X-Key", "b") // refused by shop
	var status adminapi.Status
	s.app.reportOnce(shield.Now())
	s.app.fill(&status)
	if got := status.Shields[0]; got.InFlight != 1 || !got.Overloaded || got.Refused["concurrency"] != 1 {
		t.Errorf("shop: %+v, want 1 in flight, overloaded, 1 refused", got)
	}
	wantMetrics(t, s.app, `
caddy_shield_in_flight_requests{shield="shop"} 1
`, "caddy_shield_in_flight_requests")
	close(release)
	<-done
	hold.Store(nil)
	for range 3 {
		s.get("/", "X-Key", "a") // over its quota, only observed
	}
	const keys = 12_000 // each is over the capacity, and observed; the zone has no room for all
	for i := range keys {
		s.get("/", "X-Key", fmt.Sprint(i))
	}
	status = adminapi.Status{}
	s.app.fill(&status)
	if got := status.Shields[1]; got.Observed["quota"] != 3 || got.Observed["capacity"] != keys || got.Admitted != 1 {
		t.Errorf("look: %+v, want 1 admitted, 3 and %d observed", got, keys)
	}
	if got := status.Zones[0]; got.Observed != 3 || got.Refused != 0 || got.Admitted != 1 {
		t.Errorf("tiny: %+v, want 1 admitted, 3 observed", got)
	}
}

// Clients forgotten early, and those without room, are counted.
func TestMetricsOfAFullZone(t *testing.T) {
	s := serveSite(t, "{"+globalOptions+"}\n"+bound+`
	shield {
		zone roomy {
			key   {header.X-Key}
			rate  2/h
			burst 2
			max_keys 10000
		}
		zone tight {
			key   {header.X-Key}
			rate  1/h
			max_keys 10000
		}
	}
	respond ok
}`)
	for i := range 15_000 {
		s.get("/", "X-Key", fmt.Sprint(i))
	}
	registry := prometheus.NewPedanticRegistry()
	registry.MustRegister(collector{s.app})
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]float64{}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			if m.GetCounter() != nil {
				got[f.GetName()+" "+m.GetLabel()[0].GetValue()] = m.GetCounter().GetValue()
			}
		}
	}
	if n := got["caddy_shield_zone_evictions_total roomy"]; n == 0 {
		t.Errorf("no evictions from the zone whose clients could send more: %v", got)
	}
	if n := got["caddy_shield_zone_shared_requests_total tight"]; n == 0 {
		t.Errorf("no shared requests in the zone whose clients are over their limit: %v", got)
	}
	if n := got["caddy_shield_zone_evictions_total tight"]; n != 0 {
		t.Errorf("%v clients that were over their limit were forgotten", n)
	}
}

// hold makes the handler shield_test_hold wait, where the path is /hold.
var hold atomic.Pointer[holding]

type holding struct{ held, release chan struct{} }

type holdHandler struct{}

func init() {
	caddy.RegisterModule(holdHandler{})
	httpcaddyfile.RegisterHandlerDirective("shield_test_hold", func(httpcaddyfile.Helper) (caddyhttp.MiddlewareHandler, error) {
		return holdHandler{}, nil
	})
	httpcaddyfile.RegisterDirectiveOrder("shield_test_hold", httpcaddyfile.After, "basic_auth")
}

func (holdHandler) CaddyModule() caddy.ModuleInfo {
	return caddy.ModuleInfo{ID: "http.handlers.shield_test_hold", New: func() caddy.Module { return new(holdHandler) }}
}

func (holdHandler) ServeHTTP(w http.ResponseWriter, r *http.Request, _ caddyhttp.Handler) error {
	if h := hold.Load(); h != nil && r.URL.Path == "/hold" {
		close(h.held)
		<-h.release
	}
	w.WriteHeader(http.StatusOK)
	return nil
}

// logEntries reads a log that has been closed.
func logEntries(t *testing.T, file string) (entries []map[string]any) {
	t.Helper()
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(b)) {
		var entry map[string]any
		if err := json.Unmarshal([]byte(line), &entry); err != nil {
			t.Fatal(err)
		}
		entries = append(entries, entry)
	}
	return entries
}

func TestAccessLogTellsWhy(t *testing.T) {
	file := filepath.Join(t.TempDir(), "access.log")
	s := serveSite(t, "{"+globalOptions+"}\n"+bound+`
	log {
		output file `+file+`
		format json
	}
	shield 1/h {
		pushback {
			quota_max 30s
		}
	}
	respond ok
}`)
	s.get("/")
	s.get("/")
	_ = caddy.Stop() // closes the log
	var shields []any
	for _, entry := range logEntries(t, file) {
		shields = append(shields, entry["shield"])
	}
	if len(shields) != 2 || shields[0] != nil {
		t.Fatalf("shield fields: %v, want none and one", shields)
	}
	got := fmt.Sprint(shields[1])
	if want := "map[decision:refuse reason:quota retry_after_ms:30000 zone:srv0/per_client]"; got != want {
		t.Errorf("shield field: %v, want %v", got, want)
	}
}

// recorder is an event handler that keeps what it is given.
type recorder struct{}

var (
	recordedMu sync.Mutex
	recorded   []string // guarded by recordedMu
)

func init() { caddy.RegisterModule(recorder{}) }

func (recorder) CaddyModule() caddy.ModuleInfo {
	return caddy.ModuleInfo{ID: "events.handlers.shield_test_recorder", New: func() caddy.Module { return new(recorder) }}
}

func (*recorder) UnmarshalCaddyfile(d *caddyfile.Dispenser) error { return nil }

func (*recorder) Handle(_ context.Context, e caddy.Event) error {
	recordedMu.Lock()
	defer recordedMu.Unlock()
	recorded = append(recorded, fmt.Sprint(e.Name(), " ", e.Data["shield"], " ", e.Data["observed"], " ", e.Data["refused"], " ", e.Data["seconds"]))
	return nil
}

func TestLogsAndEventsAreFewAndTrue(t *testing.T) {
	file := filepath.Join(t.TempDir(), "shield.log")
	s := serveSite(t, "{"+globalOptions+`
	log shield {
		output file `+file+`
		format json
		include shield
	}
	events {
		on * shield_test_recorder
	}
}
`+bound+`
	shield {
		name shop
		zone per_key {
			key {header.X-Key}
			rate 1/h
			burst 1
		}
		capacity 1/h burst 2
		pushback {
			dither off
		}
	}
	respond ok
}`)
	s.app.stopReports()
	recordedMu.Lock()
	recorded = nil
	recordedMu.Unlock()
	for i := range 1_000 {
		s.get("/", "X-Key", fmt.Sprint(i%4)) // two are admitted; of the others, two keys are over quota
	}
	now := shield.Now()
	s.app.reportOnce(now)
	s.app.reportOnce(now + 2*reportEvery)
	s.app.reportOnce(now + overloadQuiet)
	_ = caddy.Stop()

	var got []string
	for _, e := range logEntries(t, file) {
		if e["logger"] == "shield" {
			got = append(got, fmt.Sprint(e["level"], ": ", e["msg"], " ", e["zone"], " ", e["requests"], " ", e["shield"], " ", e["capacity"], " ", e["refused"]))
		}
	}
	want := []string{
		"info: refusing over quota per_key 498 <nil> <nil> <nil>",
		"warn: overload started <nil> <nil> shop 500 <nil>",
		"info: overload ended <nil> <nil> shop <nil> 500",
	}
	if !slices.Equal(got, want) {
		t.Errorf("log lines:\n%s\nwant:\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	recordedMu.Lock()
	defer recordedMu.Unlock()
	events := slices.DeleteFunc(slices.Clone(recorded), func(e string) bool { return !strings.HasPrefix(e, "shield_") })
	if want := []string{"shield_overload_started shop false <nil> <nil>", "shield_overload_ended shop false 500 0"}; !slices.Equal(events, want) {
		t.Errorf("events: %q, want %q", events, want)
	}
}

func TestMetrics(t *testing.T) {
	s := serveSite(t, "{"+globalOptions+"}\n"+bound+`
	shield {
		name shop
		zone per_key {
			key {header.X-Key}
			rate 1/h
			burst 1
			max_keys 50000
		}
		capacity 1/h burst 3
		concurrency 7
		pushback {
			max 10s
			quota_max 10s
			dither off
		}
		retries {
			key {header.X-Key}
			max_clients 65536
			tickets on
		}
		herd {
			detect off
		}
	}
	respond ok
}`)
	buckets, sum := map[int]int{}, 0                             // what clients were told
	for i, key := range []string{"a", "a", "b", "c", "d", "d"} { // a is over its quota; for d there is no room, twice
		if i == 5 {
			awaitTransit()
		}
		resp := s.get("/", "X-Key", key, "User-Agent", map[string]string{"a": "curl/8.1"}[key])
		if seconds, err := strconv.Atoi(resp.Header.Get("Retry-After")); err == nil {
			buckets[seconds]++
			sum += seconds
		}
	}
	s.app.reportOnce(shield.Now())
	registry := prometheus.NewPedanticRegistry()
	registry.MustRegister(collector{s.app})
	told, upTo := "", 0
	for _, seconds := range metrics.HintBuckets {
		n := 0
		for is, of := range buckets {
			if is <= seconds {
				n += of
			}
		}
		told += fmt.Sprintf("caddy_shield_retry_after_seconds_bucket{shield=\"shop\",le=\"%d\"} %d\n", seconds, n)
		upTo = n
	}
	if upTo != 3 || buckets[10] < 1 || sum < 26 {
		t.Errorf("told %v, want three times, once 10 s, and else 8 s to 10 s", buckets)
	}
	want := `
caddy_shield_backlog_seconds{shield="shop"} 0
caddy_shield_backend_failures_total{shield="shop"} 0
caddy_shield_clients{policy="early",shield="shop"} 1
caddy_shield_clients{policy="hammer",shield="shop"} 0
caddy_shield_clients{policy="honours",shield="shop"} 0
caddy_shield_clients{policy="late",shield="shop"} 0
caddy_shield_clients{policy="own",shield="shop"} 0
caddy_shield_clients{policy="unknown",shield="shop"} 0
caddy_shield_concurrency_limit_requests{shield="shop"} 7
caddy_shield_deferrals_total{shield="shop"} 1
caddy_shield_deferred_clients{shield="shop"} 1
caddy_shield_family_refusals_total{family="curl",shield="shop"} 1
caddy_shield_family_refusals_total{family="other",shield="shop"} 1
caddy_shield_family_returns_total{family="curl",outcome="early",shield="shop"} 0
caddy_shield_family_returns_total{family="curl",outcome="kept",shield="shop"} 0
caddy_shield_family_returns_total{family="curl",outcome="late",shield="shop"} 0
caddy_shield_family_returns_total{family="other",outcome="early",shield="shop"} 1
caddy_shield_family_returns_total{family="other",outcome="kept",shield="shop"} 0
caddy_shield_family_returns_total{family="other",outcome="late",shield="shop"} 0
caddy_shield_ghost_requests{shield="shop"} 0
caddy_shield_door_total{protocol="h1",shield="shop"} 0
caddy_shield_door_total{protocol="h2",shield="shop"} 0
caddy_shield_held_refusals{shield="shop"} 0
caddy_shield_lost_refusals_total{shield="shop"} 0
caddy_shield_in_flight_requests{shield="shop"} 0
caddy_shield_kept_ratio{shield="shop"} 1
caddy_shield_max_clients{shield="shop"} 65536
caddy_shield_overloaded{shield="shop"} 1
caddy_shield_overrides{kind="block",shield="shop"} 0
caddy_shield_overrides{kind="mode",shield="shop"} 0
caddy_shield_overrides{kind="set",shield="shop"} 0
caddy_shield_paused{shield="shop"} 0
caddy_shield_pauses_total{shield="shop"} 0
caddy_shield_promise_outcomes_total{outcome="broken",shield="shop"} 0
caddy_shield_promise_outcomes_total{outcome="early",shield="shop"} 0
caddy_shield_promise_outcomes_total{outcome="kept",shield="shop"} 0
caddy_shield_promise_outcomes_total{outcome="late",shield="shop"} 0
caddy_shield_promise_outcomes_total{outcome="no_show",shield="shop"} 0
caddy_shield_promises_total{shield="shop"} 0
caddy_shield_requests_total{outcome="admitted",reason="none",shield="shop"} 3
caddy_shield_requests_total{outcome="observed",reason="blocked",shield="shop"} 0
caddy_shield_requests_total{outcome="observed",reason="capacity",shield="shop"} 0
caddy_shield_requests_total{outcome="observed",reason="concurrency",shield="shop"} 0
caddy_shield_requests_total{outcome="observed",reason="early",shield="shop"} 0
caddy_shield_requests_total{outcome="observed",reason="pause",shield="shop"} 0
caddy_shield_requests_total{outcome="observed",reason="per_client",shield="shop"} 0
caddy_shield_requests_total{outcome="observed",reason="quota",shield="shop"} 0
caddy_shield_requests_total{outcome="observed",reason="retry_budget",shield="shop"} 0
caddy_shield_requests_total{outcome="refused",reason="blocked",shield="shop"} 0
caddy_shield_requests_total{outcome="refused",reason="capacity",shield="shop"} 2
caddy_shield_requests_total{outcome="refused",reason="concurrency",shield="shop"} 0
caddy_shield_requests_total{outcome="refused",reason="early",shield="shop"} 0
caddy_shield_requests_total{outcome="refused",reason="pause",shield="shop"} 0
caddy_shield_requests_total{outcome="refused",reason="per_client",shield="shop"} 0
caddy_shield_requests_total{outcome="refused",reason="quota",shield="shop"} 1
caddy_shield_requests_total{outcome="refused",reason="retry_budget",shield="shop"} 0
` + told + `caddy_shield_retry_after_seconds_bucket{shield="shop",le="+Inf"} 3
caddy_shield_retry_after_seconds_sum{shield="shop"} ` + strconv.Itoa(sum) + `
caddy_shield_retry_after_seconds_count{shield="shop"} 3
caddy_shield_spare_requests_per_second{shield="shop"} 0.0002722222222222222
caddy_shield_tickets_total{outcome="honoured",shield="shop"} 0
caddy_shield_tickets_total{outcome="worthless",shield="shop"} 0
caddy_shield_told_never_total{shield="shop"} 0
caddy_shield_zone_evictions_total{zone="per_key"} 0
caddy_shield_zone_keys{zone="per_key"} 3
caddy_shield_zone_max_keys{zone="per_key"} 50000
caddy_shield_zone_requests_total{outcome="admitted",zone="per_key"} 3
caddy_shield_zone_requests_total{outcome="observed",zone="per_key"} 0
caddy_shield_zone_requests_total{outcome="refused",zone="per_key"} 1
caddy_shield_zone_shared_requests_total{zone="per_key"} 0
`
	wantMetrics(t, s.app, want)
	problems, err := testutil.GatherAndLint(registry)
	if err != nil || len(problems) > 0 {
		t.Errorf("lint: %v %v", problems, err)
	}
	// They are where Caddy serves its own.
	families, err := caddyRegistry(t).Gather()
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for _, f := range families {
		if strings.HasPrefix(f.GetName(), "caddy_shield_") {
			n++
		}
	}
	// Without those of herds, which are not looked for here, of a limit that is
	// found, of a queue, of classes and of a store.
	if want := len(descs) - 2 - 3 - 3 - 1 - 4 - 3 - 4 - 1; n != want {
		t.Errorf("%d families in Caddy's registry, want %d", n, want)
	}
}

// A client that would wait too long is told not to come back, in every form of a refusal,
// and is counted.
func TestToldNever(t *testing.T) {
	s := serveSite(t, "{"+globalOptions+"}\n"+bound+`
	shield {
		capacity 1/h
		pushback {
			give_up 1m
		}
	}
	handle_errors {
		respond "{http.shield.decision} {http.shield.reason} ({http.shield.retry_after}) ({http.shield.retry_after_ms})"
	}
	respond ok
}`)
	s.get("/")
	resp := s.get("/")
	body, _ := io.ReadAll(resp.Body)
	if resp.StatusCode != 503 || string(body) != "refuse capacity () ()" || resp.Header.Get("Retry-After") != "" || resp.Header.Get("X-Should-Retry") != "false" {
		t.Errorf("%s %v %q; want a refusal for good", resp.Status, resp.Header, body)
	}
	wantMetrics(t, s.app, `
caddy_shield_told_never_total{shield="srv0"} 1
caddy_shield_retry_after_seconds_bucket{shield="srv0",le="1"} 0
caddy_shield_retry_after_seconds_bucket{shield="srv0",le="2"} 0
caddy_shield_retry_after_seconds_bucket{shield="srv0",le="3"} 0
caddy_shield_retry_after_seconds_bucket{shield="srv0",le="5"} 0
caddy_shield_retry_after_seconds_bucket{shield="srv0",le="8"} 0
caddy_shield_retry_after_seconds_bucket{shield="srv0",le="13"} 0
caddy_shield_retry_after_seconds_bucket{shield="srv0",le="21"} 0
caddy_shield_retry_after_seconds_bucket{shield="srv0",le="30"} 0
caddy_shield_retry_after_seconds_bucket{shield="srv0",le="45"} 0
caddy_shield_retry_after_seconds_bucket{shield="srv0",le="59"} 0
caddy_shield_retry_after_seconds_bucket{shield="srv0",le="+Inf"} 0
caddy_shield_retry_after_seconds_sum{shield="srv0"} 0
caddy_shield_retry_after_seconds_count{shield="srv0"} 0
`, "caddy_shield_told_never_total", "caddy_shield_retry_after_seconds")
	var status adminapi.Status
	s.app.fill(&status)
	if got := status.Shields[0]; got.ToldNever != 1 || len(got.Clients) != 0 {
		t.Errorf("%+v; want one told never, and no client remembered", got)
	}
}

func caddyRegistry(t *testing.T) *prometheus.Registry {
	t.Helper()
	ctx := caddy.ActiveContext()
	return ctx.GetMetricsRegistry()
}

func TestAdminEndpoint(t *testing.T) {
	ask := func(method, path string) (*httptest.ResponseRecorder, error) {
		w := httptest.NewRecorder()
		return w, serveStatus(w, httptest.NewRequest(method, path, nil))
	}
	status := func() (s adminapi.Status) {
		w, err := ask(http.MethodGet, "/shield/")
		if err != nil {
			t.Fatal(err)
		}
		if err := json.Unmarshal(w.Body.Bytes(), &s); err != nil {
			t.Fatal(err)
		}
		return s
	}
	_ = caddy.Stop()
	if s := status(); len(s.Shields) != 0 || s.Shields == nil {
		t.Errorf("nothing runs: %+v", s)
	}
	s := serveSite(t, "{"+globalOptions+"}\n"+bound+`
	shield 10/m burst 1 {
		pushback {
			dither off
		}
	}
	shield {
		name shop
		mode observe
		capacity 2/s
		concurrency 9
		retries {
			max_clients 1024
			tickets on
		}
	}
	respond ok
}`)
	s.get("/", "User-Agent", "curl/8.1")
	s.get("/", "User-Agent", "curl/8.1")
	awaitTransit()
	s.get("/", "User-Agent", "curl/8.1")
	got := status()
	zeros := map[string]uint64{"quota": 0, "capacity": 0, "concurrency": 0, "early": 0, "per_client": 0, "retry_budget": 0, "pause": 0, "blocked": 0}
	overQuota := maps.Clone(zeros)
	overQuota["quota"] = 2
	want := adminapi.Status{
		Shields: []adminapi.ShieldStatus{
			{
				Name: "srv0", Mode: "enforce", Admitted: 1, Refused: overQuota, Observed: zeros,
				Clients: map[string]int{"early": 1}, MaxClients: 524288, Families: map[string]pushback.FamilyStats{"curl": {Told: 1}},
			},
			{
				Name: "shop", Mode: "observe", Capacity: &adminapi.RateStatus{Rate: 2, Per: "1s", Burst: 2}, Concurrency: 9, Admitted: 1, Refused: zeros, Observed: zeros,
				Line: &adminapi.LineStatus{Spare: 1.96, KeptRatio: 1}, Clients: map[string]int{}, MaxClients: 1024, Tickets: &adminapi.TicketStatus{},
			},
		},
		Zones: []adminapi.ZoneStatus{
			{Name: "srv0/per_client", Key: "{http.vars.client_ip}", RateStatus: adminapi.RateStatus{Rate: 10, Per: "1m0s", Burst: 1}, MaxKeys: 200_000, ZoneStats: shield.ZoneStats{Stats: limiter.Stats{Keys: 1, Admitted: 1}, Refused: 2}},
		},
	}
	if c := got.Shields[1].Line; c.Spare > 0 && c.Spare < 1.96 { // on a slow machine a second has passed
		c.Spare = 1.96
	}
	if a, b := fmt.Sprintf("%+v", mustJSON(t, got)), mustJSON(t, want); a != b {
		t.Errorf("status:\n%s\nwant:\n%s", a, b)
	}
	for method, path := range map[string]string{http.MethodPost: "/shield/", http.MethodGet: "/shield/nothing"} {
		if _, err := ask(method, path); err == nil {
			t.Errorf("%s %s: no error", method, path)
		}
	}
}

func mustJSON(t *testing.T, v any) string {
	t.Helper()
	b, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}
