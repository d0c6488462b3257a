package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/spf13/cobra"

	"github.com/herdshield/shield/loadtest/clients"
)

// runLoadtest runs the command with args as main would, but for its exit.
func runLoadtest(ctx context.Context, out, progress io.Writer, args ...string) error {
	cmd := &cobra.Command{Use: "loadtest", SilenceUsage: true, SilenceErrors: true}
	l := loadtestFlags(cmd)
	if err := cmd.ParseFlags(args); err != nil {
		return err
	}
	if err := cmd.Args(cmd, cmd.Flags().Args()); err != nil {
		return err
	}
	return l.run(ctx, cmd.Flags().Args(), out, screen{progress, true})
}

// everySecond refuses every second request of a server.
func everySecond(t *testing.T, check func(*http.Request)) string {
	t.Helper()
	var mu sync.Mutex
	n := 0
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		if check != nil {
			check(r)
		}
		if n++; n%2 == 1 {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
	}))
	t.Cleanup(srv.Close)
	return srv.URL
}

func TestLoadtest(t *testing.T) {
	body := filepath.Join(t.TempDir(), "body")
	if err := os.WriteFile(body, []byte("hello"), 0o600); err != nil {
		t.Fatal(err)
	}
	addresses := map[string]bool{}
	url := everySecond(t, func(r *http.Request) {
		b, _ := io.ReadAll(r.Body)
		if r.Method != "POST" || string(b) != "hello" || r.Header.Get("X-A") != "b: c" {
			t.Errorf("request is %s %q %v; want POST hello, X-A: b: c", r.Method, b, r.Header)
		}
		addresses[r.Header.Get("X-Forwarded-For")] = true
	})
	var out, progress bytes.Buffer
	err := runLoadtest(t.Context(), &out, &progress, url, "--herd", "20", "--within", "10ms", "--policy", "fixed@10ms",
		"--body", "@"+body, "-H", "X-A: b: c", "--x-forwarded-for", "--clients", "4", "--json", "-", "--timeout", "1m",
		"--expect", "served>=100%", "--expect", "requests-per-success<=2")
	if err != nil {
		t.Fatal(err)
	}
	var got struct {
		All struct{ Served, Requests int }
	}
	if err := json.Unmarshal(out.Bytes(), &got); err != nil || got.All.Served != 20 || got.All.Requests < 39 {
		t.Errorf("error %v, JSON %s", err, &out)
	}
	for _, want := range []string{"20 came, 20 served", "20 (100 %)", "POST " + url} {
		if !strings.Contains(progress.String(), want) {
			t.Errorf("standard error has no %q:\n%s", want, &progress)
		}
	}
	if len(addresses) != 4 || !addresses["10.0.0.4"] {
		t.Errorf("addresses are %v; want 10.0.0.1 to 10.0.0.4", addresses)
	}
}

func TestLoadtestExitCodes(t *testing.T) {
	url := everySecond(t, nil)
	file := filepath.Join(t.TempDir(), "seconds.csv")
	var shown bytes.Buffer
	err := runLoadtest(t.Context(), &shown, io.Discard, url, "--rate", "100", "--duration", "50ms", "--policy", "give-up", "--expect", "served>=100%", "--expect", "gave-up<=100%", "--csv", file)
	for _, want := range []string{"\n✗ served >= 100%: ", "\n✓ gave-up <= 100%: "} {
		if !strings.Contains(shown.String(), want) {
			t.Errorf("no %q in\n%s", want, &shown)
		}
	}
	code, ok := err.(exit)
	if !ok || code.code != 2 || !strings.Contains(err.Error(), "not as expected: served is ") {
		t.Errorf("error is %#v; want one with exit code 2", err)
	}
	if b, _ := os.ReadFile(file); !bytes.HasPrefix(b, []byte("second,came,")) {
		t.Errorf("CSV is %q", b)
	}

	ctx, cancel := context.WithCancel(t.Context())
	interrupting := everySecond(t, func(*http.Request) { cancel() })
	var out bytes.Buffer
	err = runLoadtest(ctx, &out, io.Discard, interrupting, "--rate", "1000", "--duration", "1h", "--expect", "served>=100%")
	code, ok = err.(exit)
	if !ok || code.code != 130 || !strings.Contains(err.Error(), "interrupted after ") {
		t.Errorf("error is %#v; want one with exit code 130", err)
	}
	if !strings.Contains(out.String(), "the run ended early") {
		t.Errorf("output does not say that it was interrupted:\n%s", &out)
	}
}

// An expectation is not met by a run that --requests has cut off.
func TestLoadtestCutOffByRequests(t *testing.T) {
	args := []string{"--herd", "20", "--policy", "fixed@1ms", "--timeout", "1m", "--requests", "10"}
	var out bytes.Buffer
	if err := runLoadtest(t.Context(), &out, io.Discard, append(args, everySecond(t, nil))...); err != nil {
		t.Errorf("error is %v; want none, as nothing is expected", err)
	}
	if want := "the limit of requests was reached (--requests 10). "; !strings.Contains(out.String(), want) {
		t.Errorf("output has no %q:\n%s", want, &out)
	}
	err := runLoadtest(t.Context(), io.Discard, io.Discard, append(args, everySecond(t, nil), "--expect", "unreachable<=100%")...)
	code, ok := err.(exit)
	if !ok || code.code != 2 || !strings.Contains(err.Error(), "--requests 10 ended the run while ") {
		t.Errorf("error is %v; want one with exit code 2", err)
	}
}

func TestLoadtestChecksItsFlags(t *testing.T) {
	const url = "http://127.0.0.1:1/"
	dir := t.TempDir()
	file, link := filepath.Join(dir, "f"), filepath.Join(dir, "link")
	if err := errors.Join(os.WriteFile(file, nil, 0o600), os.Symlink(file, link)); err != nil {
		t.Fatal(err)
	}
	for _, s := range []struct{ args, want string }{
		{"", "the URL is missing; want one"},
		{url + " " + url, "; want one URL, and flags"},
		{"--policies " + url, "want no URL with it"},
		{url, "--rate and --herd are both 0"},
		{url + " --herd 20001", "--herd is 20001; want 0 to 20000"},
		{url + " --rate 5/d", `--rate is "5/d"; want a number per s, m or h`},
		{url + " --rate 5/", "--rate is"},
		{url + " --rate -1", "--rate is"},
		{url + " --rate NaN", "--rate is"},
		{url + " --rate 100001", "--rate is"},
		{url + " --herd 1 --duration 3s", "--duration is given without --rate; want both"},
		{url + " --rate 1 --within 3s", "--within is given without --herd; want both"},
		{url + " --rate 1 --herd-after 3s", "--herd-after is given without --herd"},
		{url + " --rate 1 --clients 3", "--clients is given without --x-forwarded-for"},
		{url + " --rate 1 --x-forwarded-for=::1", "want an IPv4 address"},
		{url + " --rate 1 --pace even", `--pace is "even"; want poisson or constant`},
		{url + " --rate 1 --policy culr", "near it: curl"},
		{url + " --rate 1 --requests 0", "--requests is 0; want 1 to"},
		{url + " --rate 1 --body @/nonesuch", "--body: open /nonesuch"},
		{url + " --rate 1 --header x", "--header is \"x\"; want 'Name: value'"},
		{url + " --rate 1 --header :x", `field name ""`},
		{url + " --rate 1 --expect served", "--expect: "},
		{url + " --rate 1 --json /nonesuch/x", "--json: open /nonesuch/x"},
		{url + " --rate 1 --csv /nonesuch/x", "--csv: open /nonesuch/x"},
		{url + " --rate 1 --csv - --json -", "--json and --csv are -; want one of them on standard output"},
		{url + " --rate 1 --proto h2", "want https, or h2c"},
		{url + " --rate 1 --timeout 0", "--timeout is 0s; want more than 0"},
		{url + " --rate 1 --duration 2h", "--duration is 2h0m0s; want more than 0, at most 1h"},
		{"http://192.0.2.1/ --rate 1", "want a loopback address; a load test of another machine must be allowed explicitly (--allow-remote)"},
		{url + " --herd 1 --herd-after 2h", "--herd-after is 2h0m0s; want 0 to 1h"},
		{url + " --rate 1 --proto h3", `--proto is "h3"; want h1`},
		{url + " --rate 1 --x-forwarded-for 10.0.0.7", "the address after a =: --x-forwarded-for=10.0.0.7"},
		{"--x-forwarded-for 10.0.0.7 --rate 1 " + url, "--x-forwarded-for=10.0.0.7"},
		{url + " --rate 1 --x-forwarded-for --clients -1", "--clients is -1; want 0 to"},
		{url + " --rate 1 -H Content-Length:5", "--header has Content-Length, which follows from the body"},
		{url + " --rate 1 -H transfer-encoding:chunked", "--header has Transfer-Encoding"},
		{url + " --rate 1 -H host:a -H Host:b", `--header has 2 values of Host, ["a" "b"]; want one`},
		{url + " --rate 1 --json " + dir + "/new --csv " + dir + "/./new", "--json and --csv are the same file, " + dir + "/./new; want one each"},
		{url + " --rate 1 --json " + file + " --html " + link, "--json and --html are the same file"},
		{"127.0.0.1:80 --rate 1", "want http://host:port/path"},
	} {
		err := runLoadtest(t.Context(), io.Discard, io.Discard, strings.Fields(s.args)...)
		if err == nil || !strings.Contains(err.Error(), s.want) {
			t.Errorf("loadtest %s: error is %v; want %q in it", s.args, err, s.want)
		}
	}
	for in, want := range map[string]float64{"30": 30, "30/s": 30, "600/m": 10, "1800/h": 0.5, "0": 0, "1e3": 1000} {
		if got, err := perSecond("rate", in, 0, 1000); got != want || err != nil {
			t.Errorf("perSecond(%q) = %v, %v; want %v", in, got, err, want)
		}
	}
}

// --help and --policies have every policy, in lines that fit.
func TestLoadtestNamesItsPolicies(t *testing.T) {
	names := policyNames()
	for line := range strings.Lines(names) {
		if len(line) > 80 {
			t.Errorf("line has %d bytes; want at most 80: %s", len(line), line)
		}
	}
	var b strings.Builder
	if err := writePolicies(&b); err != nil {
		t.Fatal(err)
	}
	for _, e := range clients.Catalog() {
		if !strings.Contains(names, " "+e.Name) || !strings.Contains(b.String(), e.Name+" ") || !strings.Contains(b.String(), e.About) {
			t.Errorf("policy %s is not named, or not explained", e.Name)
		}
	}
}
