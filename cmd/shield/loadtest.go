package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"os"
	"strings"
	"text/tabwriter"
	"time"

	caddycmd "github.com/caddyserver/caddy/v2/cmd"
	"github.com/spf13/cobra"

	"github.com/herdshield/shield/loadtest/clients"
	"github.com/herdshield/shield/loadtest/live"
	"github.com/herdshield/shield/loadtest/report"
)

func init() {
	caddycmd.RegisterCommand(caddycmd.Command{
		Name:  "loadtest",
		Usage: "<url> [--rate <n>/<s|m|h> --duration <d>] [--herd <n> --within <d>] [--policy <mix>] [--expect <what>]",
		Short: "Sends real clients to a server, which retry as real clients do",
		Long: `
Sends clients to a URL by HTTP/1.1 and shows the result. Each client wants one
answer. If it is rejected, or gets no response, it retries as its policy says, until
it is served or gives up. Served means: answered with a 2xx. Redirects are not
followed, and are failures.

Clients come at a --rate, whether or not earlier clients have been answered (an
open loop); as a --herd, many together; or both. All of them have the address of
this machine, and a server that tells clients apart by address takes them for
one. If it trusts X-Forwarded-For from here (Caddy: trusted_proxies static
127.0.0.0/8), --x-forwarded-for makes them different clients.

Latencies run from the instant at which a request was due, not from when it was
sent. So a server that is slow cannot hide it by making the load come later.

The host must be this machine, unless --allow-remote is given. Use it only for
servers that are yours.

A run is bounded: at most 20,000 clients at one time, --requests in all, and it
ends within the time in which clients come, plus --patience and --timeout.
Clients that this machine cannot start in that time never come, and are counted.
Ctrl-C ends it sooner and shows the results so far; a second one kills.

Exit code: 0 if the run came to its end and every --expect is met; 1 if a flag
is wrong or the run could not be made; 2 if an --expect is not met, or there is
one and --requests ended the run while clients were still trying; 130 if it was
interrupted, whatever was expected.

Policies, for --policy. A mix is NAME[@GAP][*ATTEMPTS][:WEIGHT],... where
all have a weight or none has, and
--policy list explains each of them. A policy that names no failures there retries
after 408, 425, 429, 5xx but 501 and 505, and no response; a policy that does not
say where it obeys Retry-After does so in 429 and 503:
` + policyNames() + `
Figures, for --expect: ` + strings.Join(live.Figures(), ", ") + `.
Times are those of clients that were served, with all retries. Other clients have
none: expect enough of served, too.
`,
		CobraFunc: loadtestCommand,
	})
}

func policyNames() string {
	var names []string
	for _, e := range clients.Catalog() {
		names = append(names, e.Name)
	}
	return wrap(strings.Join(names, " "), "  ", 76)
}

func writePolicies(w io.Writer) error {
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	for _, e := range clients.Catalog() {
		fmt.Fprintf(tw, "%s\t%s\n", e.Name, e.About)
		fmt.Fprintf(tw, "\t  %s\n", e.Source)
	}
	return tw.Flush()
}

// A loadtest is the command line of "shield loadtest".
type loadtest struct {
	policy, body, from string
	headers, expect    []string
	remote             bool
	files              outputs
	result             live.LoadResult // that the files show
	changed            func(flag string) bool
	live.LoadConfig    // flags set it directly, as far as they can
}

func loadtestCommand(cmd *cobra.Command) {
	cmd.Example = `  A thousand clients within 0.1 s, as Go programs with go-retryablehttp:
  $ shield loadtest http://127.0.0.1:8080/ --herd 1000 --within 100ms --policy go-retryablehttp

  30 clients per second for 20 s, and after 10 s a herd among them:
  $ shield loadtest http://127.0.0.1:8080/ --rate 30 --duration 20s --herd 500 --herd-after 10s

  A mix of clients with different addresses, and a build that fails if one of a
  hundred is not served:
  $ shield loadtest http://127.0.0.1:8080/ --rate 200/s --x-forwarded-for --policy curl:70,aws-full-jitter:30 --expect 'served>=99%' --expect 'p99<5s'

  The figures in a file, with those of each second:
  $ shield loadtest http://127.0.0.1:8080 --rate 100 --json load.json`
	cmd.RunE = runUntilInterrupt(loadtestFlags(cmd).run)
}

// fromDefault is the value of --x-forwarded-for if none is given.
const fromDefault = "10.0.0.1"

// loadtestFlags gives cmd its flags, and returns where their values go.
func loadtestFlags(cmd *cobra.Command) *loadtest {
	l := new(loadtest)
	f := cmd.Flags()
	l.changed = f.Changed
	rated(f, &l.Rate, "rate", 0, 0, live.MaxRate, "the rate of clients")
	lasting(f, &l.Duration, "duration", 10*time.Second, time.Millisecond, live.MaxDuration, "for how long clients come at --rate")
	whole(f, &l.Herd, "herd", 0, 0, live.MaxClients, "how many clients come together")
	lasting(f, &l.Within, "within", 100*time.Millisecond, 0, time.Minute, "the time within which the herd comes")
	lasting(f, &l.HerdAfter, "herd-after", 0, 0, live.MaxDuration, "when the herd comes, after the start")
	f.StringVar(&l.policy, "policy", "exact", "how clients retry: a policy, or a mix as curl:70,exact:30; list explains them")
	lasting(f, &l.Timeout, "timeout", 10*time.Second, time.Millisecond, live.MaxTimeout, "how long a client waits for a response")
	lasting(f, &l.Patience, "patience", time.Minute, 0, live.MaxPatience, "how long after its first attempt a client still begins one")
	whole(f, &l.Attempts, "attempts", 0, 0, 1000, "how often a client tries at most; 0: as its policy says")
	f.StringVar(&l.from, "x-forwarded-for", "", "give each client its own address, from this one on: --x-forwarded-for=10.0.0.7")
	f.Lookup("x-forwarded-for").NoOptDefVal = fromDefault
	whole(f, &l.Identities, "clients", 0, 0, live.MaxRequests, "how many addresses there are with --x-forwarded-for; 0: one for each client")
	f.BoolVar(&l.Insecure, "insecure", false, "take any TLS certificate")
	f.StringVarP(&l.Method, "method", "X", "", "HTTP method (default GET, or POST with a body)")
	f.StringArrayVarP(&l.headers, "header", "H", nil, "a header field of every request, as 'Name: value'; may be repeated")
	f.StringVar(&l.body, "body", "", "what every request sends, or @FILE; up to 1 MiB")
	whole(f, &l.Requests, "requests", 1_000_000, 1, live.MaxRequests, "end the run after this many requests, retries included; with --expect it then fails")
	f.Uint64Var(&l.Seed, "seed", 1, "of all random numbers: arrivals and waits")
	f.StringArrayVar(&l.expect, "expect", nil, "a condition that must hold, as 'served>=99%' or 'p99<2s'; may be repeated")
	l.files.flag(f, "json", "write all figures to this file as JSON, - for standard output",
		func(w io.Writer) error { return live.WriteJSON(w, l.LoadConfig, l.result) })
	f.BoolVar(&l.remote, "allow-remote", false, "let the URL be of another machine")
	cmd.Args = func(_ *cobra.Command, args []string) error {
		switch {
		case len(args) == 1 || l.policy == "list":
			return nil
		case len(args) == 0:
			return errors.New("the URL is missing; want one, as http://127.0.0.1:8080/")
		}
		for _, arg := range args {
			if _, err := netip.ParseAddr(arg); err == nil && l.from == fromDefault {
				return fmt.Errorf("arguments are %q; want one URL, and the address after a =: --x-forwarded-for=%s", args, arg)
			}
		}
		return fmt.Errorf("arguments are %q; want one URL, and flags", args)
	}
	return l
}

// run makes the run, and writes the results. args has the URL.
func (l *loadtest) run(ctx context.Context, args []string, out io.Writer, scr screen) error {
	if l.policy == "list" {
		return writePolicies(out)
	}
	expected, err := l.parse()
	if err != nil {
		return err
	}
	if l.Target, err = live.NewTarget(ctx, args[0], l.remote); err != nil {
		if errors.Is(err, live.ErrRemote) {
			err = fmt.Errorf("%w (--allow-remote)", err)
		}
		return err
	}
	load, err := live.NewLoad(l.LoadConfig)
	if err != nil {
		return err
	}
	stdout := out
	if out, err = l.files.open(stdout, scr.w); err != nil {
		return err
	}
	stopWatch := func() {}
	if scr.terminal {
		stopWatch = live.Watch(scr.w, func() string {
			t, lasted := load.Progress()
			return fmt.Sprintf("%4.1f s: %d came, %d served, %d trying, %d gave up; %s",
				lasted.Seconds(), t.Clients, t.Served, t.Trying, t.GaveUp, report.Plural(t.Requests, "request", "requests"))
		})
	}
	l.result = load.Run(ctx)
	stopWatch()
	err = live.WriteLoad(out, l.LoadConfig, l.result)
	if err := errors.Join(err, l.files.finish(stdout, scr.w)); err != nil {
		return err
	}
	return l.judge(l.result, expected)
}

// judge returns an error if the run was interrupted, or is not as expected.
func (l *loadtest) judge(r live.LoadResult, expected []live.Expectation) error {
	if errors.Is(r.Stopped, live.ErrStopped) {
		return exit{fmt.Errorf("interrupted after %.1f s; the figures are those until then", r.Took.Seconds()), exitInterrupted}
	}
	var unmet []error
	if errors.Is(r.Stopped, live.ErrRequests) && len(expected) > 0 {
		unmet = append(unmet, fmt.Errorf("--requests %d ended the run while %s still trying; want more requests, or fewer clients", l.Requests, report.Plural(r.All.Trying, "client was", "clients were")))
	}
	for _, e := range expected {
		unmet = append(unmet, e.Check(r))
	}
	if err := errors.Join(unmet...); err != nil {
		return exit{fmt.Errorf("not as expected: %w", err), exitUnexpected}
	}
	return nil
}

// parse reads the flags that set no value directly, and returns the expectations. A body is a text or,
// after an @, that of a file.
func (l *loadtest) parse() ([]live.Expectation, error) {
	var wrong problems
	for _, pair := range [][2]string{
		{"duration", "rate"}, {"within", "herd"}, {"herd-after", "herd"}, {"clients", "x-forwarded-for"},
	} {
		if l.changed(pair[0]) && !l.changed(pair[1]) {
			wrong.addf("--%s is given without --%s; want both", pair[0], pair[1])
		}
	}
	var err error
	if l.Mix, err = clients.Parse(l.policy); err != nil {
		wrong.addf("--policy: %w", err)
	}
	if l.from != "" {
		if l.FirstAddress, err = netip.ParseAddr(l.from); err != nil || !l.FirstAddress.Is4() {
			wrong.addf("--x-forwarded-for is %q; want an IPv4 address, as 10.0.0.1", l.from)
		}
	}
	l.Body = []byte(l.body)
	if file, is := strings.CutPrefix(l.body, "@"); is {
		if l.Body, err = readAtMost(file, live.MaxBody); err != nil {
			wrong.addf("--body: %w", err)
		}
	}
	if l.Method == "" && len(l.Body) > 0 {
		l.Method = http.MethodPost
	}
	l.Header = http.Header{}
	for _, h := range l.headers {
		name, value, ok := strings.Cut(h, ":")
		if !ok {
			wrong.addf("--header is %q; want 'Name: value'", h)
		}
		l.Header.Add(strings.TrimSpace(name), strings.TrimSpace(value))
	}
	var expected []live.Expectation
	for _, s := range l.expect {
		e, err := live.ParseExpectation(s)
		if err != nil {
			wrong.addf("--expect: %w", err)
		}
		expected = append(expected, e)
	}
	return expected, errors.Join(wrong...)
}

// readAtMost returns what is in a file. It is an error if that is more than so many bytes.
func readAtMost(path string, most int) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, int64(most)+1)) // it may be a log, or a device
	if err == nil && len(b) > most {
		err = fmt.Errorf("%s has more than %d bytes; want at most that", path, most)
	}
	return b, err
}
