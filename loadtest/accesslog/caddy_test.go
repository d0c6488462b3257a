package accesslog

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"testing"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig"
	_ "github.com/caddyserver/caddy/v2/modules/standard"

	_ "github.com/herdshield/shield/caddymodule"
	"github.com/herdshield/shield/share/redis/testserver"
)

// The log of a real Caddy with a real shield is read.
func TestRealCaddy(t *testing.T) {
	addr, file := testserver.FreeAddress(t), filepath.Join(t.TempDir(), "access.log")
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
	http://%s {
		log {
			output file %q
			format json
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
	}`, addr, file), map[string]any{"filename": "Caddyfile"})
	if err != nil {
		t.Fatal(err)
	}
	if err := caddy.Load(config, true); err != nil {
		t.Fatal(err)
	}
	stopped := false
	stop := func() {
		if !stopped {
			stopped = true
			if err := caddy.Stop(); err != nil {
				t.Error(err)
			}
		}
	}
	t.Cleanup(stop)

	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	get := func(i int, path string, want int) {
		t.Helper()
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+addr+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("X-Forwarded-For", fmt.Sprintf("192.0.2.%d", i))
		resp, err := client.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		_, _ = io.Copy(io.Discard, resp.Body)
		if resp.StatusCode != want {
			t.Fatalf("%s: %d, want %d", path, resp.StatusCode, want)
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
	stop() // and all lines are written

	log, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	e := read(t, log)
	var table bytes.Buffer
	if err := e.WriteTable(&table); err != nil {
		t.Error(err)
	}
	if want := (Lines{Read: 5 * n}); e.Lines != want || e.Requests != 5*n || e.Clients != n || e.Pieces != 1 {
		t.Errorf("%+v", e)
	}
	if e.Quota != n || e.Overload != 2*n || e.Failed != 0 {
		t.Errorf("%d of 429, %d of 502 to 504, %d other 5xx; want %d, %d and none", e.Quota, e.Overload, e.Failed, n, 2*n)
	}
	if e.Retries != n || e.Judged != n || e.Undecided != 2*n || honour(e) != 0 || e.Service <= 0 || e.Timed != 2*n {
		t.Errorf("%d retries of %d clients, %d undecided, service %v of %d, returns %+v", e.Retries, e.Judged, e.Undecided, e.Service, e.Timed, e.Returns)
	}

	// Every rejection says when to come back: Caddy's header here, shield's there.
	hints := map[int]int{}
	for _, text := range bytes.Split(bytes.TrimSpace(log), []byte("\n")) {
		r, err := parse(text)
		if err != nil || r.untimed {
			t.Errorf("%+v, %v: %s", r, err, text)
		}
		if r.rejected() {
			hints[int(r.seconds.Seconds())]++
		}
		if r.status == 429 && r.millis == 0 {
			t.Errorf("no milliseconds: %s", text)
		}
	}
	if hints[7] != 2*n || hints[0] != 0 {
		t.Errorf("seconds that were told, and how often: %v", hints)
	}
	if t.Failed() {
		t.Logf("%s\n%.2000s", table.String(), log)
	}
}
