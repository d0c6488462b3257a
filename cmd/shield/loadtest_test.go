package main

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	"github.com/spf13/cobra"

	"github.com/herdshield/shield/caddymodule/commands"
)

// runLoadtest runs the command with args as main would, but for its exit.
func runLoadtest(ctx context.Context, out, progress io.Writer, args ...string) error {
	cmd := &cobra.Command{Use: "loadtest", SilenceUsage: true, SilenceErrors: true}
	l := loadtestFlags(cmd)
	cmd.SetFlagErrorFunc(commands.FlagError)
	if err := cmd.ParseFlags(args); err != nil {
		return cmd.FlagErrorFunc()(cmd, err)
	}
	if err := cmd.Args(cmd, cmd.Flags().Args()); err != nil {
		return err
	}
	return l.run(ctx, cmd.Flags().Args(), out, screen{progress, true})
}

// everySecond rejects every second request of a server.
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
	body := write(t, "body", "hello")
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
	for _, want := range []string{"20 came, 20 served", "20 (100%)", "POST " + url} {
		if !strings.Contains(progress.String(), want) {
			t.Errorf("standard error has no %q:\n%s", want, &progress)
		}
	}
	if len(addresses) != 4 || !addresses["10.0.0.4"] {
		t.Errorf("addresses are %v; want 10.0.0.1 to 10.0.0.4", addresses)
	}
}

// A run fails if it was interrupted, is not as expected, or if --requests has cut it off before that is known.
func TestLoadtestExitCodes(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	few := "--herd 20 --policy fixed@1ms --timeout 1m --requests 10"
	for _, c := range []struct {
		args        string
		check       func(*http.Request)
		code        int
		wrong, says string // the error, and a part of the output
	}{
		{"--rate 100 --duration 50ms --policy give-up --expect served>=100%", nil, 2, "not as expected: served is ", ""},
		{few, nil, 0, "", "the limit of requests was reached (--requests 10). "},
		{few + " --expect unreachable<=100%", nil, 2, "--requests 10 ended the run while ", ""},
		{"--rate 1000 --duration 1h --expect served>=100%", func(*http.Request) { cancel() }, 130, "interrupted after ", "the run ended early"},
	} {
		var out bytes.Buffer
		err := runLoadtest(ctx, &out, io.Discard, append(strings.Fields(c.args), everySecond(t, c.check))...)
		if code, _ := err.(exit); code.code != c.code || (err != nil) != (c.code > 0) || err != nil && !strings.Contains(err.Error(), c.wrong) {
			t.Errorf("loadtest %s: error is %v; want exit code %d and %q", c.args, err, c.code, c.wrong)
		}
		if !strings.Contains(out.String(), c.says) {
			t.Errorf("loadtest %s: output has no %q:\n%s", c.args, c.says, &out)
		}
	}
}

func TestLoadtestChecksItsFlags(t *testing.T) {
	const url = "http://127.0.0.1:1/"
	for _, s := range []struct{ args, want string }{
		{"", "the URL is missing; add one"},
		{url + " " + url, "; use one URL, and flags"},
		{url, "--rate and --herd are both 0"},
		{url + " --herd 20001", `--herd is "20001"; use a number: size of the herd, in clients that arrive together (0 to 20000)`},
		{url + " --rate 5/d", `--rate is "5/d"; use a rate: rate at which clients arrive, such as 30/s`},
		{url + " --herd 1 --duration 3s", "--duration is given without --rate; use both"},
		{url + " --rate 1 --within 3s", "--within is given without --herd; use both"},
		{url + " --rate 1 --herd-after 3s", "--herd-after is given without --herd"},
		{url + " --rate 1 --clients 3", "--clients is given without --x-forwarded-for"},
		{url + " --rate 1 --x-forwarded-for=::1", "use an IPv4 address"},
		{url + " --rate 1 --policy culr", "use one of: exact,"},
		{url + " --rate 1 --requests 0", `--requests is "0"; use a number: stop after`},
		{url + " --rate 1 --body @/nonesuch", "--body: open /nonesuch"},
		{url + " --rate 1 --header x", "--header is \"x\"; use 'Name: value'"},
		{url + " --rate 1 --header Content-Length:1", "--header has Content-Length, which follows from the body"},
		{url + " --rate 1 --header Host:a --header Host:b", `--header has 2 values of Host, ["a" "b"]; use one`},
		{url + " --rate 1 --header A{b:x", `--header has the field name "A{b"; use a valid HTTP field name`},
		{url + " --rate 1 --header C:a\x01b", `--header C has the value "a\x01b"; remove the control characters`},
		{url + " --rate 1 --method G(T", `--method is "G(T"; use an HTTP method`},
		{url + " --rate 1 --insecure", "--insecure is set, but the target is http"},
		{url + " --rate 1 --expect served", "--expect: "},
		{url + " --rate 1 --json /nonesuch/x", "--json: open /nonesuch/x"},
		{"http://192.0.2.1/ --rate 1", "use a loopback address, or allow another machine explicitly (--allow-remote)"},
		{url + " --rate 1 --x-forwarded-for 10.0.0.7", "the address after a =: --x-forwarded-for=10.0.0.7"},
		{"--x-forwarded-for 10.0.0.7 --rate 1 " + url, "--x-forwarded-for=10.0.0.7"},
		{"127.0.0.1:80 --rate 1", "use http://host:port/path"},
	} {
		err := runLoadtest(t.Context(), io.Discard, io.Discard, strings.Fields(s.args)...)
		if err == nil || !strings.Contains(err.Error(), s.want) {
			t.Errorf("loadtest %s: error is %v; want %q in it", s.args, err, s.want)
		}
	}
}
