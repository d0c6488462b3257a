package main

import (
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/herdshield/shield/loadtest/live"
	"github.com/herdshield/shield/share/redis/testserver"
)

func TestMain(m *testing.M) {
	if os.Getenv(caddyVar) != "" {
		main()
		return
	}
	os.Exit(m.Run())
}

// named returns the rival of that name.
func named(t *testing.T, name string) rival {
	t.Helper()
	for _, r := range rivals {
		if r.name == name {
			return r
		}
	}
	t.Fatalf("no rival is called %q", name)
	return rival{}
}

// A small herd behind the real thing is served as a whole. The others are run by
// run -quick: they need Debian's packages.
func TestShieldServesAll(t *testing.T) {
	if testing.Short() {
		t.Skip("needs 13 s, and no -short")
	}
	machine := testserver.Watch(t)
	for try := 1; try <= 3; try++ {
		machine.Lap()
		got, err := quick.run(t.Context(), named(t, shieldName))
		if err != nil {
			t.Fatal(err)
		}
		t.Log(strings.Join(got.cells(), " | "))
		if err = got.check(); err == nil && got.background.All.GaveUp == 0 {
			return
		}
		if machine.Prompt() {
			t.Fatalf("%v; %d of the background gave up, want none", err, got.background.All.GaveUp)
		}
		t.Logf("try %d says nothing, as the machine was busy: %v", try, err)
	}
}

func TestCheckNamesWhatIsWrong(t *testing.T) {
	of := func(name string, served, busiest, refused int) result {
		return result{
			rival: named(t, name), scenario: full,
			herd:    live.LoadResult{All: live.Tally{Clients: 1000, Served: served, GaveUp: 1000 - served, Refused: refused}},
			backend: live.Stats{Busiest: busiest},
		}
	}
	for _, c := range []struct {
		result result
		want   string // part of the error; "": none
	}{
		{of(shieldName, 1000, 110, 1000), ""},
		{of(shieldName, 999, 110, 1000), "shield: 999 of 1000 served, 1 gave up; want all, 0"},
		{of(shieldName, 1000, 122, 1000), "122 reached the backend in its busiest second; want at most 121, as configured"},
		{of(shieldName, 1000, 110, 0), "it has refused no request"},
		{of("caddy-ratelimit", 300, 100, 3000), ""},
		{of("caddy-ratelimit", 300, 201, 3000), "want at most 200"},
		{of("caddy-ratelimit", 0, 0, 4000), "it does not work"},
		{of("nothing", 300, 1030, 0), ""},
		{of("nothing", 300, 500, 0), "want most of the 1000"},
		{of("nginx limit_req, which delays", 900, 100, 0), ""},
	} {
		err := c.result.check()
		switch {
		case c.want == "" && err != nil:
			t.Errorf("%s: error %q; want none", c.result.rival.name, err)
		case c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)):
			t.Errorf("%s: error %v; want %q", c.result.rival.name, err, c.want)
		}
	}
}

// Each config can be written, and says what the scenario says.
func TestConfigsNameTheScenario(t *testing.T) {
	for _, r := range rivals {
		if r.program == "" {
			continue
		}
		for _, s := range []scenario{full, quick} {
			path := filepath.Join(t.TempDir(), "config")
			if err := writeConfig(path, r, configData{s, "127.0.0.1:1", "127.0.0.1:2", "/folder"}); err != nil {
				t.Errorf("%s: %v", r.name, err)
				continue
			}
			text, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			for _, want := range []string{"127.0.0.1:1", "127.0.0.1:2"} {
				if !strings.Contains(string(text), want) {
					t.Errorf("%s: the config does not name %s:\n%s", r.name, want, text)
				}
			}
			if strings.Contains(string(text), "<no value>") || strings.Contains(string(text), "{{") {
				t.Errorf("%s: the config is not complete:\n%s", r.name, text)
			}
		}
	}
}

// Fifteen answers, as likely as two decimals allow.
func TestSpreadFitsTheHerd(t *testing.T) {
	path := filepath.Join(t.TempDir(), "config")
	if err := writeConfig(path, named(t, "nginx limit_req, random Retry-After fitted to this herd"), configData{scenario: full}); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if n := strings.Count(string(text), "6.66% "); n != 14 || !strings.Contains(string(text), "* 15;") {
		t.Errorf("%d shares of 6.66 %%; want 14 and the rest for 15:\n%s", n, text)
	}
}

// Those in this process let the burst through, and refuse with Retry-After: 1.
func TestMiddlewareLimits(t *testing.T) {
	for name, through := range map[string]int{"fixed Retry-After (our own handler)": full.Burst, "httprate, in a chi router": full.Capacity} {
		served := 0
		h := named(t, name).middleware(full, http.HandlerFunc(func(http.ResponseWriter, *http.Request) { served++ }))
		for range 1000 {
			w := httptest.NewRecorder()
			h.ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/", nil))
			if w.Code != http.StatusOK && (w.Code != http.StatusTooManyRequests || w.Header().Get("Retry-After") != "1") {
				t.Fatalf("%s: status %d, Retry-After %q; want 429, 1", name, w.Code, w.Header().Get("Retry-After"))
			}
		}
		// A slow machine refills while it asks.
		if served < through || served > 2*through {
			t.Errorf("%s: %d of 1000 at once are let through; want %d", name, served, through)
		}
	}
}

// A run ends in time whatever its clients are told, and scenarios that cannot be are
// refused.
func TestScenariosEndInTime(t *testing.T) {
	for _, s := range []scenario{full, quick} {
		if err := s.check(); err != nil {
			t.Error(err)
		}
		if s.Lasts > time.Minute {
			t.Errorf("a run may take %v; want at most a minute", s.Lasts)
		}
		if told := 2 * time.Duration(s.Spread()) * time.Second; told > s.patience() {
			t.Errorf("clients are patient for %v; who is told to wait for %v twice must be", s.patience(), told)
		}
	}
}

func TestCommandSaysWhatIsWrong(t *testing.T) {
	for args, want := range map[string]string{
		"-seed 0":             "seed is 0; want at least 1",
		"-timeout 1h":         "timeout is 1h0m0s; want 1s to",
		"-timeout 10ms":       "timeout is 10ms; want 1s to",
		"-only something":     `no rival's name contains "something"`,
		"nginx":               `argument "nginx" is unexpected; want flags only`,
		"-quick=maybe":        "invalid boolean value",
		"-markdown -only=mod": `no rival's name contains "mod"`,
	} {
		err := run(t.Context(), io.Discard, io.Discard, strings.Fields(args))
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: error %v; want %q", args, err, want)
		}
	}
}

// A program that does not start says why, and at once.
func TestProgramThatDoesNotStart(t *testing.T) {
	r := rival{name: "wrong", program: "caddy", parts: map[string]string{"limit": "no_such_directive"}}
	_, err := quick.run(t.Context(), r)
	if err == nil || !strings.Contains(err.Error(), "wrong: caddy has ended: exit status 1") || !strings.Contains(err.Error(), "no_such_directive") {
		t.Errorf("error %v; want what Caddy says of its config", err)
	}
}

// A run that is cut off ends, and gives what it has.
func TestCommandEndsWithItsContext(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	var out strings.Builder
	err := run(ctx, &out, io.Discard, []string{"-quick", "-only", "nothing"})
	if err == nil || !strings.Contains(err.Error(), "stopped with 0 of 1 done") {
		t.Errorf("error %v; want how much is done", err)
	}
	if !strings.Contains(out.String(), head[0]) {
		t.Errorf("no table:\n%s", &out)
	}
}

func TestMarkdownHasAsManyCellsInEachLine(t *testing.T) {
	var out strings.Builder
	one := result{rival: named(t, shieldName), herd: live.LoadResult{All: live.Tally{Clients: 10, Served: 10, Requests: 20, LastServed: 1500 * time.Millisecond}}}
	if err := writeTable(&out, true, []result{one, {rival: named(t, "nothing")}}); err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSpace(out.String()), "\n")
	if len(lines) != 4 {
		t.Fatalf("%d lines; want 4:\n%s", len(lines), &out)
	}
	for _, line := range lines {
		if got := strings.Count(line, "|"); got != len(head)+1 {
			t.Errorf("%d bars; want %d: %s", got, len(head)+1, line)
		}
	}
	if !strings.Contains(lines[2], "| 10 of 10 | 2.00 | 0 | 0 | 1.5 s |") {
		t.Errorf("line is %s", lines[2])
	}
}
