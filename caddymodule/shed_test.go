package caddymodule

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/herdshield/shield"
	"github.com/herdshield/shield/loadshed"
)

// shed is a shield of that name whose rejections are not held back, with more
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
	for _, line := range samplesOf(t, registry) {
		if value, is := strings.CutPrefix(line, sample+" "); is {
			return value
		}
	}
	return "none"
}

// samplesOf returns all samples as they stand in the text format; of histograms the number and the sum.
func samplesOf(t *testing.T, of prometheus.Gatherer) (lines []string) {
	t.Helper()
	families, err := of.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			var labels []string
			for _, l := range m.GetLabel() {
				labels = append(labels, fmt.Sprintf("%s=%q", l.GetName(), l.GetValue()))
			}
			line := fmt.Sprintf("%s{%s} %v", f.GetName(), strings.Join(labels, ","), m.GetCounter().GetValue()+m.GetGauge().GetValue())
			if h := m.GetHistogram(); h != nil {
				line = fmt.Sprintf("%s{%s} %d, %v", f.GetName(), strings.Join(labels, ","), h.GetSampleCount(), h.GetSampleSum())
			}
			lines = append(lines, line)
		}
	}
	return lines
}

// askedForPause has a shield believe that its backend has asked to be left alone for as long as a
// pause needs, but not yet as often.
func askedForPause(s *Handler) { asksForPause(s, shield.Now()-loadshed.RefusalsSpan, time.Second) }

// asksForPause has the backend of a shield ask in the answer to a request to be left alone.
func asksForPause(s *Handler, at, wait time.Duration) {
	now := shield.Now() // limits have no token for a time that has passed
	d := s.guard().Admit(now, shield.Request{})
	d.Done(now, shield.Overloaded)
	d.Pause(at, wait)
}

// After the pause the backend is asked again, by a lower limit.
func TestBackendIsAskedAgain(t *testing.T) {
	failing := true
	backend := func(w http.ResponseWriter, _ *http.Request) {
		pass(10 * time.Millisecond)
		if failing {
			w.Header().Set("Retry-After", "20")
			w.WriteHeader(http.StatusServiceUnavailable)
		}
	}
	r := start(t, setup{handlers: shed(`"concurrency": {"adaptive": true, "initial": 20}`) + proxyOnWires("")})
	r.onWires(t, new(http.Server), backend, func(r *rig) {
		askedForPause(r.app().configured[0])
		for i := range loadshed.RefusalsToPause + 3 { // one in a second is a probe
			r.wantStatus(http.StatusServiceUnavailable, "/", "X-Key", fmt.Sprint("a", i))
		}
		failing = false
		pass(19 * time.Second)
		if s := r.shieldStatus("s"); s.PausedSeconds == 0 || s.Pauses != 1 || s.Rejected["pause"] < 2 {
			t.Errorf("%+v; want a pause, for which 2 were rejected", s)
		}
		pass(2 * time.Second)
		r.wantStatus(http.StatusOK, "/", "X-Key", "b")
		if s := r.shieldStatus("s"); s.PausedSeconds != 0 || s.Concurrency >= 20 || s.Search.Last == nil || s.Search.Last.Reason != "restarted" {
			t.Errorf("%+v, last %+v; want a lower limit to begin with", s, s.Search.Last)
		}
	})
}

// Each change of the backend or of the limit is a line of the log, and an event.
func TestShedLogsAndEvents(t *testing.T) {
	file := filepath.Join(t.TempDir(), "shield.log")
	s := serveSite(t, `{
	admin off
	persist_config off
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
	}
	shield_test_hold
}`)
	s.app.stopReports()
	newEvents()
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
	b := s.app.configured[0]
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
		got = append(got, fmt.Sprint(e["level"], ": ", e["msg"], " ", e["shield"], " ", e["pause"], " ", e["reason"], " ", e["from"], " ", e["to"]))
	}
	if want := []string{
		"warn: overload started shop 1 <nil> <nil> <nil>",
		"warn: backend asked for a pause shop <nil> <nil> <nil> <nil>",
		"info: overload ended shop <nil> <nil> <nil> <nil>",
		"info: backend pause ended shop <nil> <nil> <nil> <nil>",
		"debug: in-flight limit changed shop <nil> restarted 20 10",
	}; !slices.Equal(got, want) {
		t.Errorf("log lines:\n%s\nwant:\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	if events, want := newEvents(), []string{
		"shield_overload_started shop false <nil> <nil>", "shield_backend_paused shop <nil> <nil> 10",
		"shield_overload_ended shop false 1 0", "shield_backend_resumed shop <nil> <nil> 10",
	}; !slices.Equal(events, want) {
		t.Errorf("events: %q, want %q", events, want)
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
	rejects := func(repl *caddy.Replacer) { repl.Set(placeholders[0], "reject") }
	observes := func(repl *caddy.Replacer) { repl.Set(placeholders[0], "observe") }
	failed := func(status int) error { return caddyhttp.Error(status, errHook) }
	const pause = 7 * time.Second
	for _, c := range []struct {
		name          string
		before, after func(*caddy.Replacer)
		err           error
		gone, broken  bool
		outcome       shield.Outcome
		pause         time.Duration
	}{
		{"no proxy", nothing, nothing, nil, false, false, shield.Served, 0},
		{"served", nothing, responded(5, 200), nil, false, false, shield.Served, 0},
		{"in error", nothing, responded(5, 500), nil, false, false, shield.Served, 0},
		{"to be left alone", nothing, responded(5, 503, "Retry-After", "7"), nil, false, false, shield.Overloaded, pause},
		{"an appointment", nothing, responded(5, 503, "Retry-After", "7", "Retry-After-Ms", "6400"), nil, false, false, shield.Overloaded, 0},
		{"too many", nothing, responded(5, 429, "Retry-After", "7"), nil, false, false, shield.Limited, 0},
		{"too many of one client", nothing, responded(5, 429, "Ratelimit", `"a";r=0;t=7`), nil, false, false, shield.Detached, 0},
		{"dropped by llm-d", nothing, responded(5, 429, "Retry-After", "7", "X-Llm-D-Request-Dropped-Reason", "rejected-saturated"), nil, false, false, shield.Limited, pause},
		{"bad gateway", nothing, responded(5, 502, "Retry-After", "7"), nil, false, false, shield.Overloaded, 0},
		{"late", nothing, responded(5, 504), nil, false, false, shield.TimedOut, 0},
		{"not reached", nothing, nothing, failed(502), false, false, shield.Overloaded, 0},
		{"no response", nothing, nothing, failed(504), false, false, shield.TimedOut, 0},
		{"another's error", nothing, nothing, failed(404), false, false, shield.Served, 0},
		{"an error of no kind", nothing, nothing, errHook, false, false, shield.Served, 0},
		{"not reached after another try", nothing, responded(5, 200), failed(502), false, false, shield.Overloaded, 0},
		{"an error made of a 503", nothing, responded(5, 503, "Retry-After", "7"), failed(404), false, false, shield.Overloaded, pause},
		{"of an earlier proxy", responded(5, 503, "Retry-After", "7"), nothing, nil, false, false, shield.Served, 0},
		{"after an earlier proxy, as it did", responded(5, 503, "Retry-After", "7"), responded(6, 503, "Retry-After", "7"), nil, false, false, shield.Overloaded, pause},
		{"broken off", nothing, responded(5, 200), nil, false, true, shield.Detached, 0},
		{"broken off by the client", nothing, responded(5, 200), nil, true, true, shield.Detached, 0},
		{"gone before the response", nothing, nothing, nil, true, false, shield.Aborted, 0},
		{"gone, as an error", nothing, nothing, failed(499), true, false, shield.Aborted, 0},
		{"rejected behind", nothing, rejects, nil, false, false, shield.Detached, 0},
		{"rejected behind, as an error", nothing, rejects, failed(503), false, false, shield.Detached, 0},
		{"observed behind", observes, responded(5, 503), nil, false, false, shield.Overloaded, 0},
		{"late for a shield behind", nothing, func(repl *caddy.Replacer) { repl.Set(lateKey, true) }, nil, false, true, shield.Overloaded, 0},
	} {
		repl := caddy.NewReplacer()
		repl.Map(new(Handler).placeholdersOf(""))
		c.before(repl)
		ctx, cancel := context.WithCancel(context.WithValue(t.Context(), caddy.ReplacerCtxKey, repl))
		before, _ := repl.Get(proxyLatency)
		x, _ := shield.Must(shield.New(shield.Config{}, nil)).Begin(httptest.NewRecorder(), httptest.NewRequestWithContext(ctx, http.MethodGet, "/", nil), new(shield.Decision), false, 0)
		c.after(repl)
		if c.gone {
			cancel()
		}
		if outcome, _, pause := (proxyResult{repl: repl, before: before}).result(x, false, c.err, !c.broken); outcome != c.outcome || pause != c.pause {
			t.Errorf("%s: %v, pause %v; want %v, %v", c.name, outcome, pause, c.outcome, c.pause)
		}
		cancel()
	}
}

// showClass answers with the class, and with the header that says it.
const showClass = `{"handler": "static_response", "body": "{http.shield.class} ({http.request.header.X-Shield-Class})"}`

const classes = `"concurrency": {"limit": 5}, "classes": [
	{"name": "critical", "match": [{"path": ["/pay/*"]}, {"header": {"X-Plan": ["gold"]}}]},
	{"name": "batch", "share": 0.6},
	{"name": "sheddable", "match": [{"path": ["/pay/later", "/feed/*"]}, {"header": {"Sec-Purpose": ["prefetch*"]}}]}
]`

// The first class that fits counts, and what trusted proxies say before all. Where there are no classes, the header is taken off
// as well, and the placeholder is empty.
func TestClasses(t *testing.T) {
	const trusting = `"trusted_proxies": {"source": "static", "ranges": ["127.0.0.0/8"]},`
	gold, asks := []string{"X-Plan", "gold"}, func(class string) []string { return []string{"X-Shield-Class", class} }
	for _, c := range []struct {
		name, server, path string
		headers            []string
		want               string
	}{
		{"nothing fits", "", "/", nil, "default ()"},
		{"the first", "", "/pay/later", nil, "critical ()"},
		{"another matcher of it", "", "/feed/1", gold, "critical ()"},
		{"the last", "", "/feed/1", nil, "sheddable ()"},
		{"a prefetch", "", "/", []string{"Sec-Purpose", "prefetch;prerender"}, "sheddable ()"},
		{"a header that no proxy vouches for", "", "/feed/1", asks("critical"), "sheddable ()"},
		{"one that the proxy vouches for", trusting, "/feed/1", asks("critical"), "critical (critical)"},
		{"one that is only for the header", trusting, "/pay/1", asks("batch"), "batch (batch)"},
		{"the default", trusting, "/pay/1", asks("default"), "default (default)"},
		{"one that is not there", trusting, "/feed/1", asks("royal"), "sheddable (royal)"},
		{"one that no sender can choose", trusting, "/feed/1", asks("unpaid"), "sheddable (unpaid)"},
	} {
		r := start(t, setup{server: c.server, handlers: shed(classes) + showClass})
		class, _, _ := strings.Cut(c.want, " ")
		got := r.get(c.path, c.headers...).body
		if n := r.scrape(fmt.Sprintf(`caddy_shield_class_requests_total{class=%q,outcome="admitted",shield="s"}`, class)); got != c.want || n != "1" {
			t.Errorf("%s: %q, and %s counted; want %q and 1", c.name, got, n, c.want)
		}
		_ = caddy.Stop()
	}
	r := start(t, setup{handlers: shed(`"concurrency": {"limit": 5}`) + showClass})
	if a := r.get("/", asks("critical")...); a.body != " ()" {
		t.Errorf("%q, want none", a.body)
	}
}

// The access log says why a request was rejected, and its class, where there are classes.
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
	if len(entries) != 2 || entries[0]["shield"] != nil || fmt.Sprint(entries[1]["shield"]) != "map[class:sheddable decision:reject reason:quota retry_after_ms:30000 zone:srv0/clients]" {
		t.Errorf("%v", entries)
	}
}
