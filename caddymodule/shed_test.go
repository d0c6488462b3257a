package caddymodule

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/herdshield/shield"
	"github.com/herdshield/shield/caddymodule/adminapi"
	"github.com/herdshield/shield/loadshed"
)

// shed is a shield of that name whose refusals are not held back, with more
// fields, and a comma at the end.
func shed(more string) string {
	return `{"handler": "shield", "name": "s", "pushback": {"dither": false}, "retries": {"key": "{http.request.header.X-Key}"}, ` + more + `},`
}

// scrape returns the sample of that name and labels, as they stand in the text
// format.
func (r *rig) scrape(sample string) string {
	r.Helper()
	return sampleOf(r.T, r.app(), sample)
}

func sampleOf(t *testing.T, app *App, sample string) string {
	t.Helper()
	registry := prometheus.NewPedanticRegistry()
	registry.MustRegister(collector{app})
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			var labels []string
			for _, l := range m.GetLabel() {
				labels = append(labels, fmt.Sprintf("%s=%q", l.GetName(), l.GetValue()))
			}
			if f.GetName()+"{"+strings.Join(labels, ",")+"}" == sample {
				return fmt.Sprint(m.GetCounter().GetValue() + m.GetGauge().GetValue())
			}
		}
	}
	return "none"
}

// A backend that asks for a pause gets one, from all clients, and each client gets a time
// after it. Each case has its own shield, and all run at once.
func TestBackendIsPaused(t *testing.T) {
	const limits = `"concurrency": {"limit": 5}`
	asks := []string{"Retry-After", "50"}
	cases := []struct {
		name           string
		limits, proxy  string // fields of the handlers
		status         int
		header         []string
		first, others  int // what clients get
		pauses, shown  bool
		wantRetryAfter bool // readable or not
	}{
		{"503 with seconds", limits, "", 503, asks, 503, 503, true, true, true},
		{"503 with a date", limits, "", 503, []string{"Retry-After", "a date"}, 503, 503, true, true, true},
		{"capacity only", `"capacity": {"rate": 1000}`, "", 503, asks, 503, 503, true, true, true},
		{"adaptive", `"concurrency": {"adaptive": true}`, "", 503, asks, 503, 503, true, true, true},
		{"a response that is replaced", limits, `, "handle_response": [{"match": {"status_code": [5]}, "routes": [{"handle": [{"handler": "static_response", "status_code": 200, "body": "sorry"}]}]}]`,
			503, asks, 200, 503, true, true, true},
		{"a response that becomes an error", limits, `, "handle_response": [{"match": {"status_code": [5]}, "routes": [{"handle": [{"handler": "error", "status_code": 404}]}]}]`,
			503, asks, 404, 503, true, true, true},
		{"503 without", limits, "", 503, nil, 503, 503, false, true, false},
		{"503 with an invalid value", limits, "", 503, []string{"Retry-After", "soon"}, 503, 503, false, true, true},
		{"one client's appointment", limits, "", 503, []string{"Retry-After", "50", "Retry-After-Ms", "49500"}, 503, 503, false, true, true},
		{"429, which is about one client", limits, "", 429, asks, 429, 429, false, true, true},
		{"500", limits, "", 500, asks, 500, 500, false, true, true},
		{"only zones", `"zones": [{"name": "z", "rate": 1000}]`, "", 503, asks, 503, 503, false, false, true},
		{"observe", `"mode": "observe", ` + limits, "", 503, asks, 503, 503, false, true, true},
	}
	asked := make([]atomic.Int64, len(cases))
	backend := serveBackend(t, func(w http.ResponseWriter, r *http.Request) {
		i, err := strconv.Atoi(r.URL.Path[1:])
		if err != nil {
			t.Error(err)
		}
		asked[i].Add(1)
		for j := 0; j < len(cases[i].header); j += 2 {
			value := cases[i].header[j+1]
			if value == "a date" {
				value = time.Now().Add(50 * time.Second).UTC().Format(http.TimeFormat)
			}
			w.Header().Set(cases[i].header[j], value)
		}
		w.WriteHeader(cases[i].status)
	})
	var routes []string
	for i, c := range cases {
		routes = append(routes, fmt.Sprintf(`{"match": [{"path": ["/%d"]}], "handle": [{"handler": "shield", "name": "s%d", "pushback": {"dither": false, "max": "59s"},
			"retries": {"key": "{http.request.header.X-Key}", "max_clients": 1024}, %s}, %s]}`, i, i, c.limits, proxyTo(backend, c.proxy)))
	}
	r := start(t, setup{handlers: `{"handler": "subroute", "routes": [` + strings.Join(routes, ",") + `]}`})
	began := time.Now()
	for _, s := range r.app().configured.shields {
		askedForPause(s)
	}
	const first = loadshed.RefusalsToPause - 1 // after the one of askedForPause
	for n := range first {
		for i, c := range cases {
			if a := r.get(fmt.Sprint("/", i), "X-Key", fmt.Sprint("first ", n)); a.StatusCode != c.first {
				t.Errorf("%s: the first got %d, want %d", c.name, a.StatusCode, c.first)
			}
		}
	}
	for i, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			const others = 20
			name := fmt.Sprint("s", i)
			eventually(t, "no request in flight", func() bool { return r.app().configured.shields[i].record.Stats(shield.Now()).InFlight == 0 })
			for n := range others {
				a := r.get(fmt.Sprint("/", i), "X-Key", fmt.Sprint(n))
				if c.pauses && a.StatusCode == c.first && c.first != c.others {
					continue // a probe, whose number is checked below
				}
				if a.StatusCode != c.others {
					t.Errorf("client %d got %d, want %d", n, a.StatusCode, c.others)
				}
				if (a.Header.Get("Retry-After") != "") != c.wantRetryAfter {
					t.Errorf("client %d: Retry-After %q", n, a.Header.Get("Retry-After"))
				}
			}
			eventually(t, "no request in flight", func() bool { return r.app().configured.shields[i].record.Stats(shield.Now()).InFlight == 0 })
			s := r.shieldStatus(name)
			elapsed := time.Since(began)
			n, most := asked[i].Load(), int64(first+2*(elapsed/time.Second)) // two probes in each second
			wantPaused := map[bool]string{false: "0", true: "1"}[c.pauses]
			if !c.shown {
				wantPaused = "none"
			}
			if c.pauses && elapsed > 45*time.Second {
				t.Skipf("needs a machine that asks all backends within 45 s, before the pause of 50 s is over; this took %v", elapsed)
			}
			if got := r.scrape(`caddy_shield_paused{shield="` + name + `"}`); got != wantPaused {
				t.Errorf("paused: %s, want %s", got, wantPaused)
			}
			if !c.pauses {
				if n != first+others || s.PausedSeconds != 0 {
					t.Errorf("the backend was asked %d times, want %d; %+v", n, first+others, s)
				}
				return
			}
			if n > most || s.Refused["pause"] != uint64(others+first-n) {
				t.Errorf("the backend was asked %d times, want at most %d; refused: %v", n, most, s.Refused)
			}
			// A date has whole seconds.
			if s.Pauses != 1 || s.PausedSeconds > 50 || s.PausedSeconds < 49-elapsed.Seconds() {
				t.Errorf("%+v; want one pause of 50 s", s)
			}
		})
	}
}

// askedForPause has a shield believe that its backend has asked to be left alone for as long as a
// pause needs, but not yet as often.
func askedForPause(s *shieldEntry) { asksForPause(s, shield.Now()-loadshed.RefusalsSpan, time.Second) }

// asksForPause has the backend of a shield ask in the answer to a request to be left alone.
func asksForPause(s *shieldEntry, now, wait time.Duration) {
	d := s.guard().Admit(now, shield.Request{})
	d.Done(now, shield.Overloaded)
	d.Pause(now, wait)
}

// After the pause the backend is asked again, and both are told.
func TestBackendIsAskedAgain(t *testing.T) {
	var failing atomic.Bool
	failing.Store(true)
	backend := serveBackend(t, func(w http.ResponseWriter, _ *http.Request) {
		if failing.Load() {
			w.Header().Set("Retry-After", "1")
			w.WriteHeader(http.StatusServiceUnavailable)
		}
	})
	r := start(t, setup{handlers: shed(`"concurrency": {"adaptive": true, "initial": 20}`) + proxyTo(backend, "")})
	askedForPause(r.app().configured.shields[0])
	for i := range loadshed.RefusalsToPause {
		r.get("/", "X-Key", fmt.Sprint("a", i))
	}
	failing.Store(false)
	eventually(t, "the backend is asked again", func() bool { return r.get("/", "X-Key", "b").StatusCode == http.StatusOK })
	// The probe may come just before the pause is over.
	eventually(t, "the limit begins at less", func() bool {
		s := r.shieldStatus("s")
		return s.PausedSeconds == 0 && r.get("/", "X-Key", "b").StatusCode == http.StatusOK && s.Concurrency < 20 &&
			r.scrape(`caddy_shield_concurrency_changes_total{reason="restarted",shield="s"}`) == "1"
	})
	if got := r.scrape(`caddy_shield_pauses_total{shield="s"}`); got != "1" {
		t.Errorf("%s pauses, want 1", got)
	}
}

// A pause is reported once, when it begins and when it is over.
func TestPauseIsReportedOnce(t *testing.T) {
	var p pauseReport
	for i, c := range []struct {
		at, left time.Duration
		times    uint64
		want     string
	}{
		{1 * time.Second, 0, 0, ""},
		{2 * time.Second, 4 * time.Second, 1, "backend asked for a pause for=4s"},
		{3 * time.Second, 3 * time.Second, 1, ""},
		{4 * time.Second, 5 * time.Second, 1, ""},
		{10 * time.Second, 0, 1, "pause of the backend ended after=8s"},
		{11 * time.Second, 0, 1, ""},
		{20 * time.Second, 0, 2, "backend asked for a pause; pause of the backend ended"}, // it has come and gone since
		{21 * time.Second, 0, 2, ""},
	} {
		if got := saying(p.step(c.at, c.left, c.times)); got != c.want {
			t.Errorf("step %d: %q, want %q", i, got, c.want)
		}
	}
}

// Each change of the backend or of the limit is a line of the log, and an event.
func TestShedLogsAndEvents(t *testing.T) {
	file := filepath.Join(t.TempDir(), "shield.log")
	s := serveSite(t, "{\n	admin off\n	persist_config off\n"+`
	log {
		output file `+file+`
		format json
		level DEBUG
		include shield
	}
	events {
		on * shield_test_recorder
	}
}
`+bound+`
	shield {
		name shop
		concurrency adaptive {
			initial 20
			per {header.X-Key} 1
		}
		pushback {
			dither off
		}
		herd {
			detect off
		}
	}
	shield_test_hold
}`)
	s.app.stopReports()
	recordedMu.Lock()
	recorded = nil
	recordedMu.Unlock()
	held, release := make(chan struct{}), make(chan struct{})
	hold.Store(&holding{held, release})
	defer hold.Store(nil)
	done := make(chan struct{})
	go func() { defer close(done); s.get("/hold", "X-Key", "a") }()
	<-held
	for range 3 {
		s.get("/", "X-Key", "a")
	}
	close(release)
	<-done
	b := s.app.configured.shields[0]
	askedForPause(b)
	now := shield.Now()
	for range loadshed.RefusalsToPause - 1 {
		asksForPause(b, now, 10*time.Second)
	}
	s.get("/", "X-Key", "b")
	s.app.reportOnce(now)
	later := now + 10*time.Second
	b.guard().Tick(later)
	s.app.reportOnce(later)
	s.app.reportOnce(later)
	_ = caddy.Stop()

	var got []string
	for _, e := range logEntries(t, file) {
		if e["logger"] == "shield" {
			got = append(got, fmt.Sprint(e["level"], ": ", e["msg"], " ", e["shield"], " ", e["requests"], " ", e["pause"], " ", e["reason"], " ", e["from"], " ", e["to"]))
		}
	}
	want := []string{
		"info: refusing over per_client shop 3 <nil> <nil> <nil> <nil>",
		"warn: overload started shop <nil> 1 <nil> <nil> <nil>",
		"warn: backend asked for a pause shop <nil> <nil> <nil> <nil> <nil>",
		"info: overload ended shop <nil> <nil> <nil> <nil> <nil>",
		"info: pause of the backend ended shop <nil> <nil> <nil> <nil> <nil>",
		"debug: limit in flight changed shop <nil> <nil> restarted 20 10",
	}
	if !slices.Equal(got, want) {
		t.Errorf("log lines:\n%s\nwant:\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	recordedMu.Lock()
	defer recordedMu.Unlock()
	events := slices.DeleteFunc(slices.Clone(recorded), func(e string) bool { return !strings.HasPrefix(e, "shield_backend") })
	if len(events) != 2 || events[0] != "shield_backend_paused shop <nil> <nil> 10" || events[1] != "shield_backend_resumed shop <nil> <nil> 10" {
		t.Errorf("events: %q", events)
	}
}

// A backend that cannot be reached, that is late, or that refuses cuts the limit;
// one that is in error does not.
func TestFailuresCutTheLimit(t *testing.T) {
	closed := httptest.NewServer(nil)
	closed.Close()
	silent := func(w http.ResponseWriter, r *http.Request) { <-r.Context().Done() }
	answers := func(status int) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(status) }
	}
	for _, c := range []struct {
		name     string
		backend  *httptest.Server
		proxy    string
		status   int
		failures uint64
		cuts     bool
	}{
		{"no server listens", closed, "", 502, 1, true},
		{"502", serveBackend(t, answers(502)), "", 502, 1, true},
		{"503", serveBackend(t, answers(503)), "", 503, 1, true},
		{"500", serveBackend(t, answers(500)), "", 500, 0, false},
		{"429", serveBackend(t, answers(429)), "", 429, 0, false},
		{"it is late", serveBackend(t, silent), `, "transport": {"protocol": "http", "response_header_timeout": "20ms"}`, 504, 0, false}, // latency, not a cut
	} {
		for _, accept := range []string{"*/*", "text/event-stream"} { // with and without a Tracker
			t.Run(c.name+", Accept "+accept, func(t *testing.T) {
				// One request uses half of the limit: refusals cut none that is used less.
				r := start(t, setup{handlers: shed(`"concurrency": {"adaptive": true, "min": 1, "initial": 2}`) + proxyTo(c.backend, c.proxy)})
				n, began := uint64(0), time.Now()
				for ; n < 5 || c.cuts && (n < 30 || time.Since(began) < 300*time.Millisecond); n++ { // a window of the limit
					if a := r.get("/", "X-Key", fmt.Sprint(n), "Accept", accept); a.StatusCode != c.status {
						t.Errorf("%d, want %d", a.StatusCode, c.status)
					}
				}
				r.drains()
				s := r.shieldStatus("s")
				if s.Failures != n*c.failures {
					t.Errorf("%d failures, want %d", s.Failures, n*c.failures)
				}
				if (s.Concurrency < 2) != c.cuts {
					t.Errorf("limit %d of 2; cut: %v", s.Concurrency, c.cuts)
				}
				if got := r.scrape(`caddy_shield_concurrency_limit_requests{shield="s"}`); got != fmt.Sprint(s.Concurrency) {
					t.Errorf("the metric says %s, the status %d", got, s.Concurrency)
				}
				if c.cuts {
					if got := r.scrape(`caddy_shield_concurrency_changes_total{reason="refusing",shield="s"}`); got == "0" || s.Search.Last == nil || s.Search.Last.Reason != "refusing" {
						t.Errorf("%s cuts, last %+v; want one for refusing", got, s.Search.Last)
					}
				}
			})
		}
	}
}

// The result of a request follows from what Caddy leaves behind.
func TestOutcome(t *testing.T) {
	responded := func(latency time.Duration, status int, header ...string) func(*caddy.Replacer) {
		return func(repl *caddy.Replacer) {
			repl.Set(proxyLatency, latency)
			repl.DeleteByPrefix("http.reverse_proxy.header.")
			for i := 0; i < len(header); i += 2 {
				repl.Set("http.reverse_proxy.header."+header[i], header[i+1])
			}
			repl.Set(proxyStatus, status)
		}
	}
	nothing := func(*caddy.Replacer) {}
	failed := func(status int) error { return caddyhttp.Error(status, errHook) }
	type result struct {
		outcome shield.Outcome
		pause   time.Duration
		begun   time.Duration
	}
	for _, c := range []struct {
		name          string
		before, after func(*caddy.Replacer)
		err           error
		gone, broken  bool
		want          result
	}{
		{"no proxy", nothing, nothing, nil, false, false, result{outcome: shield.Served}},
		{"served", nothing, responded(5, 200), nil, false, false, result{outcome: shield.Served}},
		{"not found", nothing, responded(5, 404), nil, false, false, result{outcome: shield.Served}},
		{"in error", nothing, responded(5, 500), nil, false, false, result{outcome: shield.Served}},
		{"unavailable", nothing, responded(5, 503), nil, false, false, result{outcome: shield.Overloaded}},
		{"to be left alone", nothing, responded(5, 503, "Retry-After", "7"), nil, false, false, result{outcome: shield.Overloaded, pause: 7 * time.Second}},
		{"an appointment", nothing, responded(5, 503, "Retry-After", "7", "Retry-After-Ms", "6400"), nil, false, false, result{outcome: shield.Overloaded}},
		{"too many", nothing, responded(5, 429, "Retry-After", "7"), nil, false, false, result{outcome: shield.Served}},
		{"bad gateway", nothing, responded(5, 502, "Retry-After", "7"), nil, false, false, result{outcome: shield.Overloaded}},
		{"late", nothing, responded(5, 504), nil, false, false, result{outcome: shield.TimedOut}},
		{"not reached", nothing, nothing, failed(502), false, false, result{outcome: shield.Overloaded}},
		{"no upstream", nothing, nothing, failed(503), false, false, result{outcome: shield.Overloaded}},
		{"no answer", nothing, nothing, failed(504), false, false, result{outcome: shield.TimedOut}},
		{"another's error", nothing, nothing, failed(404), false, false, result{outcome: shield.Served}},
		{"an error of no kind", nothing, nothing, errHook, false, false, result{outcome: shield.Served}},
		{"not reached after another try", nothing, responded(5, 200), failed(502), false, false, result{outcome: shield.Overloaded}},
		{"an error made of a 503", nothing, responded(5, 503, "Retry-After", "7"), failed(404), false, false, result{outcome: shield.Overloaded, pause: 7 * time.Second}},
		{"of an earlier proxy", responded(5, 503, "Retry-After", "7"), nothing, nil, false, false, result{outcome: shield.Served}},
		{"after an earlier proxy", responded(5, 503, "Retry-After", "7"), responded(6, 200), nil, false, false, result{outcome: shield.Served}},
		{"after an earlier proxy, as it did", responded(5, 503, "Retry-After", "7"), responded(6, 503, "Retry-After", "7"), nil, false, false, result{outcome: shield.Overloaded, pause: 7 * time.Second}},
		{"a stream of events", nothing, responded(5, 200, "Content-Type", "text/event-stream; charset=utf-8"), nil, false, false, result{begun: 5}},
		{"a stream of events, closed by the client", nothing, responded(5, 200, "Content-Type", "text/event-stream"), nil, true, false, result{outcome: shield.Detached, begun: 5}},
		{"an error that calls itself events", nothing, responded(5, 500, "Content-Type", "text/event-stream"), nil, false, false, result{}},
		{"broken off", nothing, responded(5, 200), nil, false, true, result{outcome: shield.Detached}},
		{"broken off by the client", nothing, responded(5, 200), nil, true, true, result{outcome: shield.Detached}},
		{"gone before the response", nothing, nothing, nil, true, false, result{outcome: shield.Aborted}},
		{"gone, as an error", nothing, nothing, failed(499), true, false, result{outcome: shield.Aborted}},
		{"refused behind", nothing, func(r *caddy.Replacer) { r.Set(placeholders[0], "refuse") }, nil, false, false, result{outcome: shield.Detached}},
		{"refused behind, as an error", nothing, func(r *caddy.Replacer) { r.Set(placeholders[0], "refuse") }, failed(503), false, false, result{outcome: shield.Detached}},
		{"observed behind", nothing, func(r *caddy.Replacer) { r.Set(placeholders[0], "observe"); responded(5, 503)(r) }, nil, false, false, result{outcome: shield.Overloaded}},
	} {
		repl := caddy.NewReplacer()
		repl.Map(admitted)
		c.before(repl)
		ctx, cancel := context.WithCancel(context.WithValue(t.Context(), caddy.ReplacerCtxKey, repl))
		r := httptest.NewRequestWithContext(ctx, http.MethodGet, "/", nil)
		proxy := newProxyResult(r)
		c.after(repl)
		if c.gone {
			cancel()
		}
		outcome, pause := proxy.result(r, c.err, !c.broken)
		if got := (result{outcome, pause, proxy.begun}); got != c.want {
			t.Errorf("%s: %+v, want %+v", c.name, got, c.want)
		}
		cancel()
	}
	// Without a replacer, as in tests of other handlers, only the error tells.
	r := httptest.NewRequest(http.MethodGet, "/", nil)
	proxy := newProxyResult(r)
	lost, _ := proxy.result(r, failed(502), true)
	if served, _ := proxy.result(r, nil, true); lost != shield.Overloaded || served != shield.Served {
		t.Error("without a replacer")
	}
}

// The look-ups for every admitted request allocate no memory.
func TestProxyResultDoesNotAllocate(t *testing.T) {
	repl := caddy.NewReplacer()
	repl.Map(admitted)
	repl.Set(proxyLatency, 5*time.Millisecond)
	repl.Set(proxyStatus, 200)
	repl.Set(proxyContentType, "text/html")
	r := httptest.NewRequestWithContext(context.WithValue(t.Context(), caddy.ReplacerCtxKey, repl), http.MethodGet, "/", nil)
	if n := testing.AllocsPerRun(1000, func() {
		proxy := newProxyResult(r)
		proxy.before = 0
		if outcome, _ := proxy.result(r, nil, true); outcome != shield.Served {
			t.Fatal(outcome)
		}
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func BenchmarkProxyResult(b *testing.B) {
	repl := caddy.NewReplacer()
	repl.Map(admitted)
	repl.Set(proxyLatency, 5*time.Millisecond)
	repl.Set(proxyStatus, 200)
	repl.Set(proxyContentType, "text/html")
	r := httptest.NewRequestWithContext(context.WithValue(b.Context(), caddy.ReplacerCtxKey, repl), http.MethodGet, "/", nil)
	b.ReportAllocs()
	for b.Loop() {
		proxy := newProxyResult(r)
		proxy.before = 0
		proxy.result(r, nil, true)
	}
}

// A shield behind another that refuses is not the backend, and its refusal no
// sign of anything.
func TestShieldBehindShield(t *testing.T) {
	for _, respond := range []string{"direct", "error"} {
		inner := fmt.Sprintf(`{"handler": "shield", "name": "inner", "capacity": {"rate": 1, "per": "1h"}, "pushback": {"dither": false, "respond": %q}, "retries": {"key": "{http.request.header.X-Key}"}},`, respond)
		r := start(t, setup{handlers: shed(`"concurrency": {"adaptive": true, "initial": 20}`) + inner + respondOK})
		for i := range 10 {
			want := http.StatusServiceUnavailable
			if i == 0 {
				want = http.StatusOK
			}
			if a := r.get("/", "X-Key", fmt.Sprint(i)); a.StatusCode != want {
				t.Errorf("%s: request %d got %d, want %d", respond, i, a.StatusCode, want)
			}
		}
		r.drains()
		if s := r.shieldStatus("s"); s.Failures != 0 || s.Concurrency != 20 || s.Pauses != 0 || s.Admitted != 10 {
			t.Errorf("%s: %+v; want the outer one unmoved", respond, s)
		}
		_ = caddy.Stop()
	}
}

// getting requests path in the background.
func (r *rig) getting(path string, headers ...string) <-chan answered {
	got := make(chan answered, 1)
	go func() { got <- r.get(path, headers...) }()
	return got
}

// serves lets all that are at the gate go on, in whatever order, and those that
// follow them.
func (g *gate) serves(all ...<-chan answered) {
	g.t.Helper()
	for range all {
		g.goOn <- struct{}{}
	}
	for i, got := range all {
		if a := receive(g.t, "an answer", got); a.StatusCode != http.StatusOK || a.body != "served" {
			g.t.Errorf("request %d: %d %q, want it served", i+1, a.StatusCode, a.body)
		}
	}
}

func (r *rig) queues(n int) {
	r.Helper()
	eventually(r.T, fmt.Sprintf("%d in the queue", n), func() bool { return r.shieldStatus("s").Queue.Length == n })
}

const oneAndAQueue = `"concurrency": {"limit": 1}, "queue": {"size": 1, "timeout": "1m"}`

// A request that finds no room waits for the place of another.
func TestQueueLetsIn(t *testing.T) {
	g := newGate(t)
	r := start(t, setup{handlers: shed(oneAndAQueue) + proxyTo(g.Server, "")})
	first := r.getting("/1", "X-Key", "1")
	receive(t, "the first at the backend", g.entered)
	second := r.getting("/2", "X-Key", "2")
	r.queues(1)
	if a := r.get("/3", "X-Key", "3"); a.StatusCode != http.StatusServiceUnavailable || a.Header.Get("Retry-After") == "" {
		t.Errorf("with the queue full: %d, want a refusal", a.StatusCode)
	}
	if got := r.scrape(`caddy_shield_queue_requests{shield="s"}`); got != "1" {
		t.Errorf("%s in the queue, want 1", got)
	}
	g.goOn <- struct{}{}
	if a := receive(t, "the first answer", first); a.body != "served" {
		t.Errorf("the first: %d %q", a.StatusCode, a.body)
	}
	if path := receive(t, "the second at the backend", g.entered); path != "/2" {
		t.Errorf("%s at the backend, want /2", path)
	}
	g.goOn <- struct{}{}
	if a := receive(t, "the second answer", second); a.body != "served" {
		t.Errorf("the second: %d %q", a.StatusCode, a.body)
	}
	r.drains()
	s := r.shieldStatus("s")
	if q := *s.Queue; q.Admitted != 1 || q.Timeout+q.Dropped+q.Gone != 0 || q.Length != 0 || q.Size != 1 || q.WaitSeconds <= 0 {
		t.Errorf("%+v; want one that was let in after a wait", q)
	}
	if s.Admitted != 2 || s.Refused["concurrency"] != 1 {
		t.Errorf("%d admitted, %v refused; want 2 and 1", s.Admitted, s.Refused)
	}
}

// A request that waits too long, or longer than its client, is refused.
func TestQueueTimesOut(t *testing.T) {
	g := newGate(t)
	for _, c := range []struct {
		name, timeout string
		headers       []string
	}{
		{"the queue's timeout", "50ms", nil},
		{"the client's", "1m", []string{"X-Request-Timeout", "50ms"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := start(t, setup{handlers: shed(`"concurrency": {"limit": 1}, "queue": {"size": 1, "timeout": "`+c.timeout+`"}`) + proxyTo(g.Server, "")})
			first := r.getting("/1", "X-Key", "1")
			receive(t, "the first at the backend", g.entered)
			if a := receive(t, "an answer", r.getting("/2", append(c.headers, "X-Key", "2")...)); a.StatusCode != http.StatusServiceUnavailable || a.Header.Get("Retry-After") == "" {
				t.Errorf("%d, want a refusal", a.StatusCode)
			}
			if q := *r.shieldStatus("s").Queue; q.Timeout != 1 || q.Length != 0 {
				t.Errorf("%+v; want one that waited in vain", q)
			}
			g.goOn <- struct{}{}
			receive(t, "the first answer", first)
			r.drains()
		})
	}
}

// A client that goes while it waits leaves nothing behind, in the queue or in
// flight.
func TestGoneWhileQueued(t *testing.T) {
	g := newGate(t)
	r := start(t, setup{handlers: shed(`"concurrency": {"limit": 1, "per": {"key": "{http.request.header.X-Key}", "limit": 1}}, "queue": {"size": 1, "timeout": "1m"}`) + proxyTo(g.Server, "")})
	first := r.getting("/1", "X-Key", "1")
	receive(t, "the first at the backend", g.entered)
	for range 3 {
		w := r.dial()
		w.send("GET /2 HTTP/1.1\nHost: x\nX-Key: 2\n\n")
		r.queues(1)
		_ = w.Close()
		r.queues(0)
	}
	if q := *r.shieldStatus("s").Queue; q.Gone != 3 {
		t.Errorf("%+v; want three gone", q)
	}
	if n := r.inFlight(); n != 1 {
		t.Errorf("%d in flight, want 1", n)
	}
	g.goOn <- struct{}{}
	receive(t, "the first answer", first)
	r.drains()
	last := r.getting("/3", "X-Key", "2") // its client has nothing in flight any more
	if path := receive(t, "the last at the backend", g.entered); path != "/3" {
		t.Errorf("%s at the backend, want /3", path)
	}
	g.goOn <- struct{}{}
	if a := receive(t, "the last answer", last); a.body != "served" {
		t.Errorf("%d %q", a.StatusCode, a.body)
	}
	r.drains()
}

// A request in the queue is admitted after a reload, by the new limit.
func TestReloadWhileQueued(t *testing.T) {
	g := newGate(t)
	r := start(t, setup{handlers: shed(oneAndAQueue) + proxyTo(g.Server, "")})
	first := r.getting("/1", "X-Key", "1")
	receive(t, "the first at the backend", g.entered)
	second := r.getting("/2", "X-Key", "2")
	r.queues(1)
	r.load(setup{handlers: shed(`"concurrency": {"limit": 3}, "queue": {"size": 2, "timeout": "1m"}`) + proxyTo(g.Server, "")})
	r.client.CloseIdleConnections()
	third := r.getting("/3", "X-Key", "3") // the first by the new limit
	receive(t, "the second or third at the backend", g.entered)
	receive(t, "the other at the backend", g.entered)
	g.serves(first, second, third)
	r.drains()
	if q := *r.shieldStatus("s").Queue; q.Admitted < 1 || q.Length != 0 {
		t.Errorf("%+v; want one let in at least", q)
	}
}

// showClass answers with the class, and with the header that says it.
const showClass = `{"handler": "static_response", "body": "{http.shield.class} ({http.request.header.X-Shield-Class})"}`

const classes = `"concurrency": {"limit": 5}, "classes": [
	{"name": "critical", "match": [{"path": ["/pay/*"]}, {"header": {"X-Plan": ["gold"]}}]},
	{"name": "batch", "share": 0.6},
	{"name": "sheddable", "match": [{"path": ["/pay/later", "/feed/*"]}]}
]`

// The first class that fits counts, and what trusted proxies say before all.
func TestClasses(t *testing.T) {
	const trusting = `"trusted_proxies": {"source": "static", "ranges": ["127.0.0.0/8"]},`
	for _, c := range []struct {
		name, server, path string
		headers            []string
		want               string
	}{
		{"nothing fits", "", "/", nil, "default ()"},
		{"the first", "", "/pay/later", nil, "critical ()"},
		{"another matcher of it", "", "/feed/1", []string{"X-Plan", "gold"}, "critical ()"},
		{"the last", "", "/feed/1", nil, "sheddable ()"},
		{"a header that no proxy vouches for", "", "/feed/1", []string{"X-Shield-Class", "critical"}, "sheddable ()"},
		{"one that the proxy vouches for", trusting, "/feed/1", []string{"X-Shield-Class", "critical"}, "critical (critical)"},
		{"one that is only for the header", trusting, "/pay/1", []string{"X-Shield-Class", "batch"}, "batch (batch)"},
		{"the default", trusting, "/pay/1", []string{"X-Shield-Class", "default"}, "default (default)"},
		{"one that is not there", trusting, "/feed/1", []string{"X-Shield-Class", "royal"}, "sheddable (royal)"},
		{"one that no sender can choose", trusting, "/feed/1", []string{"X-Shield-Class", "unpaid"}, "sheddable (unpaid)"},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := start(t, setup{server: c.server, handlers: shed(classes) + showClass})
			if a := r.get(c.path, c.headers...); a.body != c.want {
				t.Errorf("%q, want %q", a.body, c.want)
			}
			class, _, _ := strings.Cut(c.want, " ")
			if got := r.scrape(fmt.Sprintf(`caddy_shield_class_requests_total{class=%q,outcome="admitted",shield="s"}`, class)); got != "1" {
				t.Errorf("%s counted, want 1", got)
			}
		})
	}
	// Where there are no classes, the header is taken off as well, and the
	// placeholder is empty.
	r := start(t, setup{handlers: shed(`"concurrency": {"limit": 5}`) + showClass})
	if a := r.get("/", "X-Shield-Class", "critical"); a.body != " ()" {
		t.Errorf("%q, want none", a.body)
	}
}

// A share of the clients is drawn, and each of them stays in its class.
func TestClassOfSomeClients(t *testing.T) {
	r := start(t, setup{handlers: shed(`"concurrency": {"limit": 5}, "classes": [{"name": "sheddable", "clients": 0.3, "match": [{"path": ["/x"]}]}]`) + showClass})
	drawn := 0
	for i := range 1000 {
		key := fmt.Sprint(i)
		class := r.get("/x", "X-Key", key).body
		if class == "sheddable ()" {
			drawn++
		} else if class != "default ()" {
			t.Fatalf("%q", class)
		}
		if i%100 == 0 {
			if again := r.get("/x", "X-Key", key).body; again != class {
				t.Errorf("client %d: %s, and then %s", i, class, again)
			}
			if other := r.get("/y", "X-Key", key).body; other != "default ()" {
				t.Errorf("client %d elsewhere: %s", i, other)
			}
		}
	}
	if drawn < 230 || drawn > 370 { // 5 standard deviations
		t.Errorf("%d of 1000 clients were drawn, want about 300", drawn)
	}
}

// While higher classes come, a lower one may not take all the room.
func TestLowerClassLeavesRoom(t *testing.T) {
	g := newGate(t)
	r := start(t, setup{handlers: shed(`"concurrency": {"limit": 4}, "classes": [
		{"name": "critical", "match": [{"path": ["/pay"]}]}, {"name": "batch", "share": 0.5, "match": [{"path": ["/batch"]}]}
	]`) + proxyTo(g.Server, "")})
	var held []<-chan answered
	take := func(path string) {
		held = append(held, r.getting(path, "X-Key", fmt.Sprint(len(held))))
		receive(t, path+" at the backend", g.entered)
	}
	take("/pay")
	take("/batch")
	if a := r.get("/batch", "X-Key", "late"); a.StatusCode != http.StatusServiceUnavailable {
		t.Errorf("a third in flight, of the lower class: %d, want 503", a.StatusCode)
	}
	take("/pay")
	take("/pay")
	if a := r.get("/pay", "X-Key", "later"); a.StatusCode != http.StatusServiceUnavailable {
		t.Errorf("a fifth in flight: %d, want 503", a.StatusCode)
	}
	g.serves(held...)
	r.drains()
}

// A client that has its number of requests in flight is told so with 429: it is its
// own doing.
func TestPerClientInFlight(t *testing.T) {
	g := newGate(t)
	r := start(t, setup{handlers: shed(`"concurrency": {"limit": 10, "per": {"key": "{http.request.header.X-Key}", "limit": 1}}`) + proxyTo(g.Server, "")})
	first := r.getting("/1", "X-Key", "a")
	receive(t, "the first at the backend", g.entered)
	a := r.get("/2", "X-Key", "a")
	if a.StatusCode != http.StatusTooManyRequests || a.Header.Get("Retry-After") == "" || !strings.Contains(a.Header.Get("RateLimit-Policy"), `"in_flight";q=1`) {
		t.Errorf("%d %v; want 429 for what it has in flight", a.StatusCode, a.Header)
	}
	other := r.getting("/3", "X-Key", "b")
	receive(t, "another client's at the backend", g.entered)
	g.serves(first, other)
	r.drains()
	again := r.getting("/4", "X-Key", "a")
	receive(t, "the first client's next at the backend", g.entered)
	g.goOn <- struct{}{}
	if a := receive(t, "its answer", again); a.body != "served" {
		t.Errorf("%d %q", a.StatusCode, a.body)
	}
	if got := r.scrape(`caddy_shield_requests_total{outcome="refused",reason="per_client",shield="s"}`); got != "1" {
		t.Errorf("%s refused, want 1", got)
	}
}

// In early data a sender may claim any address, and would count against its owner.
func TestEarlyDataCountsAgainstNoClient(t *testing.T) {
	for _, c := range []struct {
		name, more, key string
		status          int
	}{
		{"the default key", "", "", 425},
		{"the client's address", "", "{http.vars.client_ip}", 425},
		{"a header", "", "{http.request.header.X-Key}", 200},
		{"observe mode", `"mode": "observe", `, "", 200},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := start(t, setup{handlers: shed(c.more+fmt.Sprintf(`"concurrency": {"limit": 5, "per": {"key": %q, "limit": 1}}`, c.key)) + respondOK})
			early := request("/early", "192.0.2.1", http.Header{"X-Key": {"k"}})
			early.TLS = &tls.ConnectionState{HandshakeComplete: false}
			err := r.handler().ServeHTTP(httptest.NewRecorder(), early, caddyhttp.HandlerFunc(func(http.ResponseWriter, *http.Request) error { return nil }))
			status := http.StatusOK
			var refusal caddyhttp.HandlerError
			if errors.As(err, &refusal) {
				status = refusal.StatusCode
			}
			if status != c.status {
				t.Errorf("%v; want %d", err, c.status)
			}
			if n := r.inFlight(); n != 0 {
				t.Errorf("%d in flight", n)
			}
		})
	}
}

// Open WebSockets hold no place and are no sample: the limit knows nothing of
// them.
func TestWebSocketsUnderAdaptiveLimit(t *testing.T) {
	r := start(t, setup{handlers: shed(`"concurrency": {"adaptive": true, "initial": 2}, "queue": {"off": true}`) + proxyTo(serveBackend(t, echoSocket), "")})
	var open []*wire
	for i := range 100 {
		w := r.dial()
		w.send(upgrade, i)
		if resp := w.head(); resp.StatusCode != http.StatusSwitchingProtocols {
			t.Fatalf("WebSocket %d: %d, want 101", i, resp.StatusCode)
		}
		if n := r.inFlight(); n != 0 {
			t.Fatalf("WebSocket %d: %d in flight after the switch, want 0", i, n)
		}
		open = append(open, w)
	}
	for i, w := range open {
		w.echoes(fmt.Sprintf("still here: %d", i))
		_ = w.Close()
	}
	r.drains()
	s := r.shieldStatus("s")
	if s.Concurrency != 2 || s.Search.Last != nil || s.Search.Ghosts != 0 || s.Admitted != 100 {
		t.Errorf("%+v; want 100 admitted, and the limit as it was", s)
	}
}

// In observe mode no request waits or is refused, and all are counted.
func TestObserveShedding(t *testing.T) {
	g := newGate(t)
	r := start(t, setup{handlers: shed(`"mode": "observe", "concurrency": {"limit": 1, "per": {"key": "{http.request.header.X-Key}", "limit": 2}}, "queue": {"size": 5, "timeout": "1m"}, "classes": [{"name": "critical"}]`) + proxyTo(g.Server, "")})
	var held []<-chan answered
	for i, key := range []string{"a", "b", "a"} {
		held = append(held, r.getting(fmt.Sprint("/", i), "X-Key", key))
		receive(t, "a request at the backend", g.entered)
	}
	s := r.shieldStatus("s")
	if s.InFlight != 1 || s.Admitted != 1 || s.Observed["concurrency"] != 2 || s.Queue.Length != 0 || s.Classes[1] != (shield.ClassStats{Name: "default", Share: .9, Admitted: 1, Observed: 2}) {
		t.Errorf("%+v %+v; want one in flight, and two that would not be", s, s.Classes)
	}
	g.serves(held...)
	r.drains()
}

// Everything that is shown of a limit that is found is there, and well named.
func TestShedMetrics(t *testing.T) {
	s := serveSite(t, "{"+globalOptions+"}\n"+bound+`
	shield {
		name shop
		concurrency slo 250ms {
			initial 5
		}
		class critical
	}
	respond ok
}`)
	s.get("/")
	registry := prometheus.NewPedanticRegistry()
	registry.MustRegister(collector{s.app})
	if problems, err := testutil.GatherAndLint(registry); err != nil || len(problems) > 0 {
		t.Errorf("lint: %v %v", problems, err)
	}
	for sample, want := range map[string]string{
		`caddy_shield_concurrency_limit_requests{shield="shop"}`:                               "5",
		`caddy_shield_concurrency_changes_total{reason="late",shield="shop"}`:                  "0",
		`caddy_shield_concurrency_changes_total{reason="grown",shield="shop"}`:                 "0",
		`caddy_shield_concurrency_latency_seconds{shield="shop"}`:                              "0",
		`caddy_shield_concurrency_baseline_seconds{shield="shop"}`:                             "0",
		`caddy_shield_ghost_requests{shield="shop"}`:                                           "0",
		`caddy_shield_queue_requests{shield="shop"}`:                                           "0",
		`caddy_shield_queue_waits_total{outcome="admitted",shield="shop"}`:                     "0",
		`caddy_shield_queue_waits_total{outcome="timeout",shield="shop"}`:                      "0",
		`caddy_shield_queue_waits_total{outcome="dropped",shield="shop"}`:                      "0",
		`caddy_shield_queue_waits_total{outcome="gone",shield="shop"}`:                         "0",
		`caddy_shield_queue_wait_seconds_total{shield="shop"}`:                                 "0",
		`caddy_shield_class_requests_total{class="critical",outcome="admitted",shield="shop"}`: "0",
		`caddy_shield_class_requests_total{class="default",outcome="admitted",shield="shop"}`:  "1",
		`caddy_shield_class_requests_total{class="unpaid",outcome="refused",shield="shop"}`:    "0",
		`caddy_shield_paused{shield="shop"}`:                                                   "0",
		`caddy_shield_pauses_total{shield="shop"}`:                                             "0",
		`caddy_shield_backend_failures_total{shield="shop"}`:                                   "0",
		`caddy_shield_requests_total{outcome="refused",reason="retry_budget",shield="shop"}`:   "0",
	} {
		if got := sampleOf(t, s.app, sample); got != want {
			t.Errorf("%s %s, want %s", sample, got, want)
		}
	}
	var status adminapi.Status
	s.app.fill(&status)
	got := status.Shields[0]
	if got.Concurrency != 5 || got.Search == nil || *got.Search != (adminapi.SearchStatus{By: "slo", TargetSeconds: .25}) || got.Queue.Size != loadshed.DefaultQueue || len(got.Classes) != 3 {
		t.Errorf("status: %+v", got)
	}
}

// The class is in the access log, where there are classes.
func TestAccessLogTellsTheClass(t *testing.T) {
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
		concurrency 5
		class sheddable {
			match path /feed
		}
	}
	handle_errors {
		respond "{http.shield.class}"
	}
	respond ok
}`)
	s.get("/feed")
	if body, err := io.ReadAll(s.get("/feed").Body); err != nil || string(body) != "sheddable" {
		t.Errorf("error routes see the class %q", body)
	}
	_ = caddy.Stop() // closes the log
	entries := logEntries(t, file)
	if len(entries) != 2 || fmt.Sprint(entries[1]["shield"]) != "map[class:sheddable decision:refuse reason:quota retry_after_ms:30000 zone:srv0/per_client]" {
		t.Errorf("%v", entries)
	}
}

// A backend that answers a call over HTTP/2 before the client has said all, as gRPC
// servers do with an error, has answered: its client has not broken off anything.
func TestEarlyAnswerOverHTTP2(t *testing.T) {
	if raceEnabled {
		t.Skip("needs a build without the race detector: Caddy 2.11.9's reverse_proxy races with itself when a backend answers early (bodyNopCloserIfNotRead)")
	}
	backend := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.ReadFull(r.Body, make([]byte, 5))
		w.WriteHeader(http.StatusServiceUnavailable)
	}))
	backend.Config.Protocols = new(http.Protocols)
	backend.Config.Protocols.SetUnencryptedHTTP2(true)
	backend.Start()
	t.Cleanup(func() { backend.CloseClientConnections(); backend.Close() })
	r := start(t, setup{
		server:   `"protocols": ["h1", "h2c"],`,
		handlers: `{"handler": "shield", "name": "s", "concurrency": {"adaptive": true}},` + proxyTo(backend, `, "transport": {"protocol": "http", "versions": ["h2c"]}`),
	})
	tr := &http.Transport{Protocols: new(http.Protocols)}
	tr.Protocols.SetUnencryptedHTTP2(true)
	defer tr.CloseIdleConnections()
	const n = 20
	for range n {
		pr, pw := io.Pipe()
		go func() { _, _ = pw.Write([]byte("the first bytes")) }()
		req, err := http.NewRequestWithContext(t.Context(), "POST", "http://"+r.addr+"/", pr)
		if err != nil {
			t.Fatal(err)
		}
		resp, err := tr.RoundTrip(req)
		if err != nil {
			t.Fatal(err)
		}
		if resp.ProtoMajor != 2 || resp.StatusCode != http.StatusServiceUnavailable {
			t.Fatalf("%s %d", resp.Proto, resp.StatusCode)
		}
		_, _ = io.Copy(io.Discard, resp.Body)
		_ = resp.Body.Close()
		_ = pw.Close()
	}
	eventually(t, "all are the backend's failures", func() bool {
		return r.scrape(`caddy_shield_backend_failures_total{shield="s"}`) == fmt.Sprint(n)
	})
}

// A refusal is not held beyond its client's deadline, whether or not there is a queue.
func TestHoldEndsBeforeTheDeadline(t *testing.T) {
	r := start(t, setup{handlers: `{"handler": "shield", "name": "s", "capacity": {"rate": 3, "burst": 1}, "herd": {"detect": false},
		"retries": {"key": "{http.request.header.X-Key}"}},` + respondOK})
	r.inVirtualTime(t, func(r *rig, _ func(func())) {
		held := 0
		for i := range 12 {
			// Slots are a third of a second apart: a hold would be that long, or twice.
			for _, headers := range [][]string{{"X-Request-Timeout", "50ms"}, nil} {
				began := time.Now()
				a := r.get("/", append(headers, "X-Key", fmt.Sprint(i, headers))...)
				took := time.Since(began)
				if headers != nil && a.StatusCode == http.StatusServiceUnavailable && took > 50*time.Millisecond {
					r.Errorf("request %d, whose client waits for 50ms, was answered after %v", i, took)
				}
				if headers == nil && took > 100*time.Millisecond {
					held++
				}
			}
		}
		if held == 0 {
			r.Error("no refusal was held for a client without a deadline")
		}
	})
}
