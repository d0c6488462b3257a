package main

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig"

	"github.com/herdshield/shield/loadtest/accesslog"
	"github.com/herdshield/shield/loadtest/clients"
	"github.com/herdshield/shield/share/redis/testserver"
)

// The log of a real Caddy with a real shield is read, in two formats. Each rejection in it says when to come
// back: Caddy's header here, shield's there.
func TestAccessLogOfCaddy(t *testing.T) {
	addr, folder := testserver.FreeAddress(t), t.TempDir()
	config, _, err := caddyconfig.GetAdapter("caddyfile").Adapt(fmt.Appendf(nil, `{
		admin off
		persist_config off
		auto_https off
		servers {
			trusted_proxies static 127.0.0.1
		}
		log {
			output discard
		}
	}
	http://%[1]s {
		log floats {
			output file %[2]s/floats
			format json
		}
		log texts {
			output file %[2]s/texts
			format json {
				time_format     iso8601
				duration_format string
			}
		}
		shield {
			zone strict {
				match path /quota
				rate  1/h
			}
			pushback {
				dither off
			}
		}
		header /full Retry-After 7
		respond /full 503
		respond ok
	}`, addr, folder), map[string]any{"filename": "Caddyfile"})
	if err != nil {
		t.Fatal(err)
	}
	if err := caddy.Load(config, true); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = caddy.Stop() })
	get := func(i int, path string, want int) {
		t.Helper()
		r, _ := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+addr+path, nil)
		r.Header.Set("X-Forwarded-For", fmt.Sprintf("192.0.2.%d", i))
		if got := statusOf(r); got != want {
			t.Fatalf("%s: %d, want %d", path, got, want)
		}
	}
	const n = 10
	for i := range n {
		get(i, "/", 200)
		get(i, "/full?first", 503)
		get(i, "/full?again", 503) // an immediate retry does not obey Retry-After
		get(i, "/quota", 200)
		get(i, "/quota", 429)
	}
	if err := caddy.Stop(); err != nil { // and all lines are written
		t.Fatal(err)
	}

	for _, format := range []string{"floats", "texts"} {
		e, err := readLog(filepath.Join(folder, format))
		if err != nil {
			t.Fatal(err)
		}
		if want := (accesslog.Lines{Read: 5 * n}); e.Lines != want || e.Requests != 5*n || e.Clients != n || e.Pieces != 1 {
			t.Errorf("%s: %+v", format, e)
		}
		if e.Quota != n || e.Overload != 2*n || e.Failed != 0 {
			t.Errorf("%s: %d of 429, %d of 502 to 504, %d other 5xx; want %d, %d and none", format, e.Quota, e.Overload, e.Failed, n, 2*n)
		}
		obeys := slices.ContainsFunc(e.Returns, func(b accesslog.Behaviour) bool { return b.Policy == clients.Exact{} })
		if obeys || e.Retries != n || e.Judged != n || e.Service <= 0 || e.Timed != 2*n {
			t.Errorf("%s: %d retries of %d clients, service %v of %d, returns %+v", format, e.Retries, e.Judged, e.Service, e.Timed, e.Returns)
		}
	}
	log, err := os.ReadFile(filepath.Join(folder, "floats"))
	for want, times := range map[string]int{`"Retry-After":["7"]`: 2 * n, `"Retry-After":["`: 3 * n, `"Retry-After-Ms":["`: n} {
		if got := strings.Count(string(log), want); err != nil || got != times {
			t.Errorf("%d lines have %s, %v; want %d", got, want, err, times)
		}
	}
}
