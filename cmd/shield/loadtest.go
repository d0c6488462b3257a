package main

import (
	"context"
	"encoding/json"
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
		Usage: "<url> [--rate <rate> --duration <time>] [--herd <n> --within <time>] [--policy <mix>] [--expect <condition>]... [flags]",
		Short: "Load-test a server with clients that retry as real ones do",
		Long: `
Send clients to a URL over HTTP/1.1 and report how they fare. Each client wants one
successful response (2xx). If it gets anything else, or nothing, it retries as its
policy says, until it is served or gives up. Redirects aren't followed and count as
failures.

Clients arrive at a --rate, together as a --herd, or both. They arrive at that rate
whether or not earlier clients have been served (an open loop).

Because all clients share this machine's address, a server that limits by address sees
a single client. If the server trusts X-Forwarded-For from here (in Caddy:
"trusted_proxies static 127.0.0.0/8"), use --x-forwarded-for to give each client its
own address.

Latency is measured from when a request was due, not from when it was sent. That way,
a slow server can't hide its latency by slowing down the load (coordinated omission).

The target must be this machine unless you add --allow-remote. Only test servers that
you are responsible for.

Every run ends. At most 20,000 clients are active at a time, --requests caps the total,
and --patience and --timeout bound how long the last clients keep trying. The results
also say how many clients this machine couldn't start in time. Press Ctrl-C to stop
early and see the results so far. Pressing it again kills the run.

Exit code:
  0    the run finished, and every --expect is met
  1    a flag is wrong, or the run failed
  2    an --expect isn't met, or --requests ended a run with --expect while
       clients were still trying
  130  interrupted

A policy says how clients retry. The policies are those of simulate, and "--policy
list" explains each. To mix several, write NAME[@GAP][*ATTEMPTS][:WEIGHT],... with a
weight for each of them or for none. Unless the list says otherwise, clients retry
after 408, 425, 429, 5xx (not 501 or 505), or no response. Those that honor Retry-After
do so for 429 and 503.

--expect compares one of these figures:
` + wrap(strings.Join(live.Figures(), " "), "  ", 76) + `
Times include all retries, but they cover only the clients that were served. So if you
set an --expect for a time, also set one for served.
`,
		CobraFunc: loadtestCommand,
	})
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
	json               outputFile
	result             live.LoadResult // that the file shows
	changed            func(flag string) bool
	live.LoadConfig    // flags set it directly, as far as they can
}

func loadtestCommand(cmd *cobra.Command) {
	cmd.DisableFlagsInUseLine = true // Usage has them
	cmd.Example = `  Send a thousand clients that retry like Go's go-retryablehttp, all within 0.1 s:
  $ shield loadtest http://127.0.0.1:8080/ --herd 1000 --within 100ms --policy go-retryablehttp

  Send 30 clients per second for 20 s, with a herd after 10 s:
  $ shield loadtest http://127.0.0.1:8080/ --rate 30/s --duration 20s --herd 500 --herd-after 10s

  Mix clients with different addresses, and fail a build if more than 1% of them
  aren't served:
  $ shield loadtest http://127.0.0.1:8080/ --rate 200/s --x-forwarded-for --policy curl:70,aws-full-jitter:30 --expect 'served>=99%' --expect 'p99<5s'

  Save the result, second by second:
  $ shield loadtest http://127.0.0.1:8080 --rate 100/s --json load.json`
	cmd.RunE = runUntilInterrupt(loadtestFlags(cmd).run)
}

// fromDefault is the value of --x-forwarded-for if none is given.
const fromDefault = "10.0.0.1"

// loadtestFlags gives cmd its flags, and returns where their values go.
func loadtestFlags(cmd *cobra.Command) *loadtest {
	l := new(loadtest)
	f := cmd.Flags()
	l.changed = f.Changed
	rated(f, &l.Rate, "rate", 0, 0, live.MaxRate, "rate at which clients arrive")
	lasting(f, &l.Duration, "duration", 10*time.Second, time.Millisecond, live.MaxDuration, "how long clients keep arriving at --rate")
	whole(f, &l.Herd, "herd", 0, 0, live.MaxClients, "size of the herd, in clients that arrive together")
	lasting(f, &l.Within, "within", 100*time.Millisecond, 0, time.Minute, "time within which the herd arrives")
	lasting(f, &l.HerdAfter, "herd-after", 0, 0, live.MaxDuration, "when the herd arrives, counted from the start")
	f.StringVar(&l.policy, "policy", "exact", "how clients retry: a `policy`, or a mix such as curl:70,exact:30; \"list\" explains them")
	lasting(f, &l.Timeout, "timeout", 10*time.Second, time.Millisecond, live.MaxTimeout, "how long a client waits for a response")
	lasting(f, &l.Patience, "patience", time.Minute, 0, live.MaxPatience, "how long after its first attempt a client still retries")
	whole(f, &l.Attempts, "attempts", 0, 0, 1000, "attempts per client; 0: as its policy says")
	f.StringVar(&l.from, "x-forwarded-for", "", "give each client its own `address`, counting up from this one (10.0.0.1 if you give none): --x-forwarded-for=10.0.0.7")
	f.Lookup("x-forwarded-for").NoOptDefVal = fromDefault
	whole(f, &l.Identities, "clients", 0, 0, live.MaxRequests, "number of addresses for --x-forwarded-for, which clients share; 0: one per client")
	f.BoolVar(&l.Insecure, "insecure", false, "accept any TLS certificate")
	f.StringVarP(&l.Method, "method", "X", "", "HTTP `method` (default GET, or POST with a body)")
	f.StringArrayVarP(&l.headers, "header", "H", nil, "header `field` to send, as 'Name: value'; repeat for several")
	f.StringVar(&l.body, "body", "", "request body, or @FILE to read it from a file; up to 1 MiB")
	whole(f, &l.Requests, "requests", 1_000_000, 1, live.MaxRequests, "stop after this many requests, including retries; with --expect, that fails the run")
	f.Uint64Var(&l.Seed, "seed", 1, "seed of the random numbers; the same seed repeats a run's arrivals and waits")
	f.StringArrayVar(&l.expect, "expect", nil, "`condition` to meet, such as 'served>=99%' or 'p99<2s'; repeat for several")
	l.json.flag(f, "write the result, second by second, to this `file` as JSON; - is standard output",
		func(w io.Writer) error { return json.NewEncoder(w).Encode(l.result) })
	f.BoolVar(&l.remote, "allow-remote", false, "allow a target on another machine")
	cmd.Args = func(_ *cobra.Command, args []string) error {
		switch {
		case len(args) == 1 || l.policy == "list":
			return nil
		case len(args) == 0:
			return errors.New("the URL is missing; add one, like http://127.0.0.1:8080/")
		}
		for _, arg := range args {
			if _, err := netip.ParseAddr(arg); err == nil && l.from == fromDefault {
				return fmt.Errorf("arguments are %q; use one URL, and the address after a =: --x-forwarded-for=%s", args, arg)
			}
		}
		return fmt.Errorf("arguments are %q; use one URL, and flags", args)
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
	if out, err = l.json.open(stdout, scr.w); err != nil {
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
	if err := errors.Join(err, l.json.finish(stdout)); err != nil {
		return err
	}
	return l.judge(l.result, expected)
}

// judge returns an error if the run was interrupted, or is not as expected.
func (l *loadtest) judge(r live.LoadResult, expected []live.Expectation) error {
	if errors.Is(r.Stopped, live.ErrStopped) {
		return exit{fmt.Errorf("interrupted after %.1f s; the figures cover the time until then", r.Took.Seconds()), exitInterrupted}
	}
	var unmet []error
	if errors.Is(r.Stopped, live.ErrRequests) && len(expected) > 0 {
		unmet = append(unmet, fmt.Errorf("--requests %d ended the run while %s still trying; raise --requests, or use fewer clients", l.Requests, report.Plural(r.All.Trying, "client was", "clients were")))
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
			wrong.addf("--%s is given without --%s; use both", pair[0], pair[1])
		}
	}
	var err error
	if l.Mix, err = clients.Parse(l.policy); err != nil {
		wrong.addf("--policy: %w", err)
	}
	if l.from != "" {
		if l.FirstAddress, err = netip.ParseAddr(l.from); err != nil || !l.FirstAddress.Is4() {
			wrong.addf("--x-forwarded-for is %q; use an IPv4 address, like 10.0.0.1", l.from)
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
			wrong.addf("--header is %q; use 'Name: value'", h)
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
		err = fmt.Errorf("%s has more than %d bytes; use a smaller file", path, most)
	}
	return b, err
}
