package caddymodule

import (
	"fmt"
	"net/http"
	"runtime"
	"runtime/debug"
	"strings"
	"testing"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
	dto "github.com/prometheus/client_model/go"
)

// TestDurations has requests admitted and rejected in all ways, and looks for them by outcome and status.
func TestDurations(t *testing.T) {
	proxy := proxyTo(serveBackend(t, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/none" {
			w.WriteHeader(http.StatusNotFound)
		}
	}), "")
	const quota = `"zones": [{"name": "z", "rate": 1, "per": "1h", "burst": 2}]`
	for _, c := range []struct{ name, limits, next, server, admitted, rejected string }{
		{"a quota before a proxy", quota, proxy, "", "unknown 2", "4xx 20"},
		{"a quota before a proxy, with logs", quota, proxy, `"logs": {},`, "2xx 1, 4xx 1", "4xx 20"},
		{"a capacity before a proxy", `"capacity": {"rate": 1, "per": "1h", "burst": 2}, "pushback": {"dither": false}`, proxy, "", "2xx 1, 4xx 1", "5xx 20"},
		{"another handler", quota, respondOK, "", "unknown 2", "4xx 20"},
		{"another one, with metrics", quota, respondOK, `"metrics": {},`, "2xx 2", "4xx 20"},
		{"another one, with logs and a limit", `"concurrency": {"limit": 5}, ` + quota, respondOK, `"logs": {},`, "2xx 2", "4xx 20"},
		{"an error of no kind", quota, newHook(t, func(http.ResponseWriter, *http.Request, caddyhttp.Handler) error { return errHook }), "", "5xx 2", "4xx 20"},
		{"an error", quota, `{"handler": "error", "status_code": 418}`, "", "4xx 2", "4xx 20"},
	} {
		r := start(t, setup{server: withDoor + c.server, handlers: `{"handler": "shield", "name": "s", ` + c.limits + `},` + c.next})
		r.get("/none")
		for range 21 {
			r.get("/some")
		}
		counted := func(outcome int) string {
			var all []string
			for class := range statusClasses {
				if h := r.handler().record.durations[outcome][class].Load(); h != nil {
					var is dto.Metric
					_ = (*h).Write(&is)
					all = append(all, fmt.Sprintf("%s %d", statusClasses[class], is.Histogram.GetSampleCount()))
				}
			}
			return strings.Join(all, ", ")
		}
		eventually(t, "all are counted", func() bool { return strings.Contains(counted(outcomeRejected), "20") })
		if a, b := counted(outcomeAdmitted), counted(outcomeRejected); a != c.admitted || b != c.rejected || r.atDoor() == 0 {
			t.Errorf("%s: admitted %s, rejected %s, %d at the door; want %s, %s", c.name, a, b, r.atDoor(), c.admitted, c.rejected)
		}
		r.drains()
		_ = caddy.Stop()
	}
}

func TestBuildInfo(t *testing.T) {
	r := start(t, setup{handlers: `{"handler": "shield", "zones": [{"name": "z", "rate": 1}]},` + respondOK})
	wantMetrics(t, r.app(), fmt.Sprintf("caddy_shield_build_info{goversion=%q,version=%q} 1", runtime.Version(), Version()))

	const path = "github.com/herdshield/shield"
	plugin := []*debug.Module{{Path: "other", Version: "v9.0.0"}, {Path: path, Version: "v0.2.0"}}
	for _, c := range []struct {
		main debug.Module
		deps []*debug.Module
		want string
	}{
		{debug.Module{Path: path, Version: "v0.1.0"}, nil, "v0.1.0"},
		{debug.Module{Path: path + "/k8s", Version: "v0.1.1"}, plugin, "v0.1.1"},
		{debug.Module{Path: path, Version: "(devel)"}, nil, "(devel)"},
		{debug.Module{Path: "caddy", Version: "(devel)"}, plugin, "v0.2.0"},
		{debug.Module{Path: path + "s", Version: "v3.0.0"}, nil, "unknown"},
	} {
		if got := versionIn(&debug.BuildInfo{Main: c.main, Deps: c.deps}); got != c.want {
			t.Errorf("%+v is %q, want %q", c.main, got, c.want)
		}
	}
}
