package caddymodule

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"
	"github.com/caddyserver/caddy/v2/caddyconfig/httpcaddyfile"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/prometheus/client_golang/prometheus/testutil/promlint"

	"github.com/herdshield/shield"
	"github.com/herdshield/shield/caddymodule/adminapi"
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
	reload(t, caddyfile)
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
	return s.getFrom("192.0.2.1", path, headers...)
}

func (s *site) getFrom(ip, path string, headers ...string) *http.Response {
	r := httptest.NewRequest(http.MethodGet, "http://example.com"+path, nil)
	r.RemoteAddr = net.JoinHostPort(ip, "1234")
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

// Of several shields in a row, the one that rejects is heard, and one that would
// have rejected before one that admits. Each has its own mode.
func TestPlaceholdersOfTwoShields(t *testing.T) {
	const two = "shield {\nmode %s\nzone outer {\nrate %d/h\n}\n}\nshield {\nmode %s\nzone inner {\nrate %d/h\n}\n}\n"
	const say = "respond \"{http.shield.decision} {http.shield.zone}\"\n"
	for _, c := range []struct {
		outer     string
		outerRate int
		inner     string
		innerRate int
		want      string // of the second request
	}{
		{"enforce", 1, "enforce", 1, "reject outer"},
		{"enforce", 7200, "enforce", 1, "reject inner"},
		{"observe", 1, "enforce", 7200, "observe outer"},
		{"observe", 1, "enforce", 1, "reject inner"},
		{"enforce", 7200, "observe", 1, "observe inner"},
	} {
		s := serveSite(t, "{"+globalOptions+"}\n"+bound+"route {\n"+fmt.Sprintf(two, c.outer, c.outerRate, c.inner, c.innerRate)+say+"}\nhandle_errors {\n"+say+"}\n}")
		s.get("/")
		if body, _ := io.ReadAll(s.get("/").Body); string(body) != c.want {
			t.Errorf("%s %d/h, then %s %d/h: %q, want %q", c.outer, c.outerRate, c.inner, c.innerRate, body, c.want)
		}
		_ = caddy.Stop()
	}
}

// The app-wide mode holds for all handlers.
func TestObserveEverywhere(t *testing.T) {
	s := serveSite(t, "{"+globalOptions+"shield {\nmode observe\n}\n}\n"+bound+"shield 1/h {\nmode enforce\ncapacity 1/h\nconcurrency 1\n}\nrespond ok\n}")
	for i := range 5 {
		if resp := s.get("/"); resp.StatusCode != http.StatusOK || resp.Header.Get("Retry-After") != "" {
			t.Errorf("request %d: %v %v", i, resp.Status, resp.Header)
		}
	}
	if n := s.app.configured[0].record.Stats(shield.Now()).Observed[shield.Quota]; n != 4 {
		t.Errorf("%d observed, want 4", n)
	}
}

// Error routes that do not match leave no empty answer, and gRPC clients get
// theirs whatever the routes are.
func TestErrorRoutesThatDoNotMatch(t *testing.T) {
	s := serveSite(t, "{"+globalOptions+"}\n"+bound+"shield 1/h {\npushback {\nquota_max 30s\n}\n}\nrespond ok\nhandle_errors 404 {\nrespond \"not found\"\n}\nhandle_errors 429 {\nheader X-Page yes\n}\n}")
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
	if strings.HasPrefix(e.Name(), "shield_") {
		recorded = append(recorded, fmt.Sprint(e.Name(), " ", e.Data["shield"], " ", e.Data["observed"], " ", e.Data["rejected"], " ", e.Data["seconds"]))
	}
	return nil
}

// newEvents returns shield's events since the last call.
func newEvents() (all []string) {
	recordedMu.Lock()
	defer recordedMu.Unlock()
	all, recorded = recorded, nil
	return all
}

// Metrics are where Caddy serves its own, and as Prometheus wants them. TestEachCountIsShown has their values.
func TestMetrics(t *testing.T) {
	s := serveSite(t, "{"+globalOptions+"}\n"+bound+"shield 1/h {\nname shop\ncapacity 1/h\nconcurrency 7\n}\nrespond ok\n}")
	for range 3 {
		s.get("/", "User-Agent", "curl/8.1")
	}
	wantMetrics(t, s.app, `caddy_shield_family_rejections_total{family="curl",shield="shop"} 2`, `caddy_shield_fast_rejects_total{protocol="h1",shield="shop"} 0`,
		`caddy_shield_fast_rejects_total{protocol="h2",shield="shop"} 0`, `caddy_shield_overloaded{shield="shop"} 0`, `caddy_shield_overrides{kind="block",shield="shop"} 0`,
		`caddy_shield_overrides{kind="mode",shield="shop"} 0`, `caddy_shield_overrides{kind="set",shield="shop"} 0`)
	if problems, err := testutil.GatherAndLint(caddyRegistry(t)); err != nil || slices.ContainsFunc(problems, func(p promlint.Problem) bool { return strings.HasPrefix(p.Metric, "caddy_shield_") }) {
		t.Errorf("lint: %v %v", problems, err)
	}
	if n := len(series(t)); n < 40 {
		t.Errorf("%d series in Caddy's registry", n)
	}
}

// A client that would wait too long is told not to come back, in every form of a rejection,
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
	if resp.StatusCode != 503 || string(body) != "reject capacity () ()" || resp.Header.Get("Retry-After") != "" || resp.Header.Get("X-Should-Retry") != "false" {
		t.Errorf("%s %v %q; want a rejection for good", resp.Status, resp.Header, body)
	}
	if got := s.app.Status(true).Shields[0]; got.ToldNever != 1 || len(got.Clients) != 0 {
		t.Errorf("%+v; want one told never, and no client remembered", got)
	}
}

func caddyRegistry(t *testing.T) *prometheus.Registry {
	t.Helper()
	ctx := caddy.ActiveContext()
	return ctx.GetMetricsRegistry()
}

func TestAdminEndpoint(t *testing.T) {
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
	for range 3 {
		s.get("/")
	}
	var got adminapi.Status
	if status, body := administer(t, httptest.NewRequest(http.MethodGet, "/shield/", nil)); json.Unmarshal([]byte(body), &got) != nil {
		t.Fatalf("%d %s", status, body)
	}
	first, second := got.Shields[0], got.Shields[1]
	if !got.ReadOnly || first.Name != "srv0" || first.Says == "" || first.Lately == nil || first.Admitted != 1 || first.Rejected["quota"] != 2 || fmt.Sprint(first.Settings) != "[{srv0/clients rate 10/m burst 1}]" {
		t.Errorf("status: %+v", first)
	}
	if second.Name != "shop" || second.Mode != "observe" || second.Capacity.Rate != 2 || second.Concurrency != 9 || second.Admitted != 1 || second.MaxClients != 1024 || second.Tickets == nil {
		t.Errorf("status: %+v", second)
	}
	if z := got.Zones[0]; z.Name != "srv0/clients" || z.Key != "{http.vars.client_ip}" || z.Rate != 10 || z.Per != "1m0s" || z.MaxKeys != 200_000 || z.Keys != 1 || z.Rejected != 2 {
		t.Errorf("status: %+v", z)
	}
}
