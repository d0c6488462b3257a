package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig"

	"github.com/herdshield/shield/loadtest/accesslog"
	"github.com/herdshield/shield/loadtest/clients"
	"github.com/herdshield/shield/share/redis/testserver"
)

// loads checks that Caddy takes a Caddyfile.
func loads(t *testing.T, caddyfile string) {
	t.Helper()
	config, warnings, err := caddyconfig.GetAdapter("caddyfile").Adapt([]byte(caddyfile), map[string]any{"filename": "Caddyfile"})
	if err != nil {
		t.Fatalf("%v\n%s", err, caddyfile)
	}
	for _, w := range warnings {
		t.Errorf("%v\n%s", w, caddyfile)
	}
	var c caddy.Config
	if err := caddy.StrictUnmarshalJSON(config, &c); err != nil {
		t.Fatal(err)
	}
	c.Admin = &caddy.AdminConfig{Disabled: true}
	if err := caddy.Validate(&c); err != nil {
		t.Errorf("%v\n%s", err, caddyfile)
	}
}

// The Caddyfile that a log suggests loads, and has the expected content.
func TestSuggestions(t *testing.T) {
	for _, c := range []struct {
		name string
		e    accesslog.Estimate
		want []string
		not  []string
	}{
		{"nothing known", accesslog.Estimate{}, []string{"\tconcurrency adaptive {", "initial 4\n", "not in the log"}, []string{"capacity"}},
		{"never full", accesslog.Estimate{Responses: accesslog.Responses{Peak: 481.7}, Concurrency: accesslog.Concurrency{Peak: 12.3}}, []string{"\t# capacity 481/s\n", "initial 25\n"}, []string{"\tcapacity"}},
		{"full", accesslog.Estimate{Responses: accesslog.Responses{Peak: 500, Full: 98.76}, Concurrency: accesslog.Concurrency{Peak: 12.3}}, []string{"\n\t\tcapacity 98.7/s\n"}, []string{"# capacity", "\tmax "}},
		{"very slow", accesslog.Estimate{Responses: accesslog.Responses{Full: 0.012345}}, []string{"capacity 0.0123/s\n"}, nil},
		{"very fast", accesslog.Estimate{Responses: accesslog.Responses{Full: 1234567}, Concurrency: accesslog.Concurrency{Peak: 3e6}}, []string{"capacity 1230000/s\n", "initial 25000\n", "max 100000\n"}, nil},
		{"large", accesslog.Estimate{Concurrency: accesslog.Concurrency{Peak: 200}}, []string{"initial 400\n", "max 1600\n"}, nil},
		{"give up", accesslog.Estimate{Judged: 10, Returns: []accesslog.Behaviour{
			{Policy: clients.Fixed{Gap: time.Second}, Share: 0.6},
			{Policy: clients.MaxAttempts{N: 3, Policy: clients.Exact{}}, Share: 0.4},
		}}, []string{"max 59s\n", "# 40.0 % of the clients", "10 rejected clients"}, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			got := c.e.Suggest()
			for _, want := range c.want {
				if !strings.Contains(got, want) {
					t.Errorf("no %q in:\n%s", want, got)
				}
			}
			for _, not := range c.not {
				if strings.Contains(got, not) {
					t.Errorf("%q in:\n%s", not, got)
				}
			}
			loads(t, got)
		})
	}
}

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

	for _, format := range []string{"floats", "texts"} {
		e, err := readLog(t.Context(), filepath.Join(folder, format))
		if err != nil {
			t.Fatal(err)
		}
		if want := (accesslog.Lines{Read: 5 * n}); e.Lines != want || e.Requests != 5*n || e.Clients != n || e.Pieces != 1 {
			t.Errorf("%s: %+v", format, e)
		}
		if want := (accesslog.Responses{Served: 2 * n, Quota: n, Overload: 2 * n, Peak: e.Responses.Peak, Full: e.Responses.Full}); e.Responses != want {
			t.Errorf("%s: %+v, want %+v", format, e.Responses, want)
		}
		if e.Retries != n || e.Judged != n || e.Undecided != 2*n || e.Honour() != 0 || e.Service <= 0 || e.Times.Of != 2*n {
			t.Errorf("%s: %d retries of %d clients, %d undecided, service %v of %d, returns %+v", format, e.Retries, e.Judged, e.Undecided, e.Service, e.Times.Of, e.Returns)
		}
	}
	log, err := os.ReadFile(filepath.Join(folder, "floats"))
	if err != nil {
		t.Fatal(err)
	}
	told := map[string]int{}
	for line := range bytes.Lines(log) {
		var r struct {
			Headers http.Header `json:"resp_headers"`
		}
		if err := json.Unmarshal(line, &r); err != nil {
			t.Fatal(err)
		}
		told[fmt.Sprint(r.Headers.Get("Retry-After") != "", r.Headers.Get("Retry-After") == "7", r.Headers.Get("Retry-After-Ms") != "")]++
	}
	if told["true true false"] != 2*n || told["true false true"] != n || len(told) != 3 {
		t.Errorf("which lines have a Retry-After, one of 7, and milliseconds: %v", told)
	}
}
