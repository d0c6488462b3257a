package caddymodule

import (
	"fmt"
	"math"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"runtime"
	"runtime/debug"
	"sort"
	"strings"
	"testing"
	"time"

	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"google.golang.org/protobuf/proto"

	"github.com/herdshield/shield"
)

// TestDurationHistogram compares both kinds of buckets with those of the library.
func TestDurationHistogram(t *testing.T) {
	theirs := prometheus.NewHistogram(prometheus.HistogramOpts{
		Name: "d", Help: "d", Buckets: classicBounds[:], NativeHistogramBucketFactor: 1.1, NativeHistogramZeroThreshold: nativeBound(0),
	})
	ours, random := new(durationHistogram), rand.New(rand.NewPCG(1, 2))
	observe := func(took time.Duration) {
		ours.observe(took)
		theirs.Observe(float64(took) / 1e9)
	}
	for range 20_000 {
		observe(time.Duration(math.Exp2(46 * random.Float64())))
	}
	for _, seconds := range classicBounds { // a bound is in its bucket
		for off := range time.Duration(3) {
			observe(time.Duration(seconds*1e9) + off - 1)
		}
	}
	for _, took := range []time.Duration{0, -1, 1, 2, 3, 7, 8, 9, time.Second, time.Minute} {
		observe(took)
	}
	var got, want dto.Metric
	if err := ours.metric(theirs.Desc()).Write(&got); err != nil {
		t.Fatal(err)
	}
	if err := theirs.Write(&want); err != nil {
		t.Fatal(err)
	}
	sum := want.Histogram.GetSampleSum()
	if s := got.Histogram.GetSampleSum(); s < sum*.999999 || s > sum*1.000001 {
		t.Errorf("the sum is %v, want %v", s, sum)
	}
	got.Histogram.SampleSum, want.Histogram.CreatedTimestamp, got.Histogram.CreatedTimestamp = want.Histogram.SampleSum, nil, nil
	if got.Histogram.GetSchema() != want.Histogram.GetSchema() || fmt.Sprint(got.Histogram.Bucket) != fmt.Sprint(want.Histogram.Bucket) {
		t.Errorf("classic buckets are %v, want %v", got.Histogram.Bucket, want.Histogram.Bucket)
	}
	if !proto.Equal(&got, &want) {
		t.Errorf("got %v, want %v", &got, &want)
	}
}

// Every time has the cell that a search in all bounds finds.
func TestDurationCells(t *testing.T) {
	check := func(ns int64) {
		want := min(sort.Search(durationCells, func(i int) bool { return cellBounds[i] >= ns }), durationCells-1)
		if got := cellOf(ns); cellBounds[got] != cellBounds[want] {
			t.Fatalf("%d ns are in cell %d, want %d", ns, got, want)
		}
	}
	for ns := range int64(10_000) {
		check(ns)
	}
	for _, bound := range cellBounds {
		check(bound - 1)
		check(bound)
		check(bound + 1)
	}
	check(1<<63 - 1)
}

// TestDurations has requests admitted and refused in all ways, and looks for them by outcome and status.
func TestDurations(t *testing.T) {
	backend := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/none" {
			w.WriteHeader(http.StatusNotFound)
		}
	}))
	defer backend.Close()
	proxy := fmt.Sprintf(`{"handler": "reverse_proxy", "upstreams": [{"dial": %q}]}`, strings.TrimPrefix(backend.URL, "http://"))
	for _, c := range []struct {
		name, limits, next, server string
		admitted                   string
	}{
		{"a quota before a proxy", `"zones": [{"name": "z", "rate": 1, "per": "1h", "burst": 2}]`, proxy, "", "unknown 2"},
		{"a quota before a proxy, with logs", `"zones": [{"name": "z", "rate": 1, "per": "1h", "burst": 2}]`, proxy, `"logs": {},`, "2xx 1, 4xx 1"},
		{"a capacity before a proxy", `"capacity": {"rate": 1, "per": "1h", "burst": 2}, "pushback": {"dither": false}`, proxy, "", "2xx 1, 4xx 1"},
		{"another handler", `"zones": [{"name": "z", "rate": 1, "per": "1h", "burst": 2}]`, respondOK, "", "unknown 2"},
		{"another one, with logs", `"zones": [{"name": "z", "rate": 1, "per": "1h", "burst": 2}]`, respondOK, `"logs": {},`, "2xx 2"},
		{"another one, with metrics", `"zones": [{"name": "z", "rate": 1, "per": "1h", "burst": 2}]`, respondOK, `"metrics": {},`, "2xx 2"},
		{"another one, with logs and a limit", `"concurrency": {"limit": 5}, "zones": [{"name": "z", "rate": 1, "per": "1h", "burst": 2}]`, respondOK, `"logs": {},`, "2xx 2"},
		{"an error", `"zones": [{"name": "z", "rate": 1, "per": "1h", "burst": 2}]`, `{"handler": "error", "status_code": 418}`, "", "4xx 2"},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := start(t, setup{server: withDoor + c.server, handlers: `{"handler": "shield", "name": "s", ` + c.limits + `},` + c.next})
			r.get("/none")
			r.get("/some")
			for range 20 {
				r.get("/some")
			}
			counted := func(outcome int) string {
				var all []string
				for class := range statusClasses {
					if h := r.handler().record.durations[outcome][class].Load(); h != nil {
						n := uint64(0)
						for i := range h.cells {
							n += h.cells[i].Load()
						}
						all = append(all, fmt.Sprintf("%s %d", statusClasses[class], n))
					}
				}
				return strings.Join(all, ", ")
			}
			eventually(t, "all are counted", func() bool { return strings.Contains(counted(outcomeRefused), "20") })
			refused := "4xx 20"
			if strings.Contains(c.limits, "capacity") {
				refused = "5xx 20"
			}
			if a, b := counted(outcomeAdmitted), counted(outcomeRefused); a != c.admitted || b != refused {
				t.Errorf("admitted %s, refused %s; want %s, %s", a, b, c.admitted, refused)
			}
			if n := r.atDoor(); n == 0 {
				t.Error("the door has refused none")
			}
			r.drains()
		})
	}
}

func TestBuildInfo(t *testing.T) {
	r := start(t, setup{handlers: `{"handler": "shield", "zones": [{"name": "z", "rate": 1}]},` + respondOK})
	is := Build()
	wantMetrics(t, r.app(), fmt.Sprintf("caddy_shield_build_info{commit=%q,date=%q,goversion=%q,version=%q} 1\n", is.Commit, is.Date, runtime.Version(), is.Version), "caddy_shield_build_info")

	const path = "github.com/herdshield/shield"
	git := []debug.BuildSetting{{Key: "-trimpath", Value: "true"}, {Key: "vcs.revision", Value: "0123456789abcdef0123456789abcdef01234567"}, {Key: "vcs.time", Value: "2026-11-23T09:51:12Z"}}
	caddy, plugin := debug.Module{Path: "caddy", Version: "(devel)"}, []*debug.Module{{Path: path, Version: "v0.2.0"}}
	for what, c := range map[string]struct {
		info debug.BuildInfo
		is   BuildInfo
		text string
	}{
		"the program":           {debug.BuildInfo{Main: debug.Module{Path: path, Version: "v0.1.0"}, Settings: git}, BuildInfo{"v0.1.0", "0123456789ab", "2026-11-23T09:51:12Z"}, "v0.1.0 (0123456789ab, 2026-11-23T09:51:12Z)"},
		"the ingress":           {debug.BuildInfo{Main: debug.Module{Path: path + "/k8s", Version: "v0.1.1"}, Deps: plugin, Settings: git}, BuildInfo{"v0.1.1", "0123456789ab", "2026-11-23T09:51:12Z"}, "v0.1.1 (0123456789ab, 2026-11-23T09:51:12Z)"},
		"without a repository":  {debug.BuildInfo{Main: debug.Module{Path: path, Version: "(devel)"}}, BuildInfo{"(devel)", unknown, unknown}, "(devel)"},
		"a plugin":              {debug.BuildInfo{Main: caddy, Deps: plugin, Settings: git}, BuildInfo{"v0.2.0", unknown, unknown}, "v0.2.0"}, // the commit is another module's
		"a module of that name": {debug.BuildInfo{Main: debug.Module{Path: path + "s", Version: "v3.0.0"}, Settings: git}, BuildInfo{unknown, unknown, unknown}, unknown},
		"nothing known":         {debug.BuildInfo{}, BuildInfo{unknown, unknown, unknown}, unknown},
	} {
		if is := buildOf(&c.info); is != c.is || is.String() != c.text {
			t.Errorf("%s is %+v, %q; want %+v, %q", what, is, is, c.is, c.text)
		}
	}
}

func BenchmarkObserve(b *testing.B) {
	next := caddyhttp.HandlerFunc(func(http.ResponseWriter, *http.Request) error { return nil })
	h, w := &Handler{record: new(backendRecord)}, httptest.NewRecorder()
	r := httptest.NewRequest(http.MethodGet, "/", nil)
	b.Run("no histogram", func(b *testing.B) {
		for b.Loop() {
			_ = next.ServeHTTP(w, r)
		}
	})
	b.Run("admitted", func(b *testing.B) {
		now := shield.Now()
		b.ReportAllocs()
		for b.Loop() {
			_ = h.serve(w, r, next, now)
		}
	})
	b.Run("refused", func(b *testing.B) {
		b.ReportAllocs()
		for took := time.Duration(0); b.Loop(); took += 1000 {
			h.record.durations.observe(outcomeRefused, 429, took%time.Second)
		}
	})
	b.Run("the library's", func(b *testing.B) {
		theirs := prometheus.NewHistogram(prometheus.HistogramOpts{Name: "d", Help: "d", NativeHistogramBucketFactor: 1.1})
		for took := time.Duration(0); b.Loop(); took += 1000 {
			theirs.Observe((took % time.Second).Seconds())
		}
	})
}
