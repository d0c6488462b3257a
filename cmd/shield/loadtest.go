package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"os"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"text/tabwriter"
	"time"

	caddycmd "github.com/caddyserver/caddy/v2/cmd"
	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/herdshield/shield/loadtest/clients"
	"github.com/herdshield/shield/loadtest/live"
)

// Exit codes of shield loadtest, besides 0 and the 1 of wrong flags. 130 is what
// shells give to a program that SIGINT has ended: 128 + 2.
const (
	exitUnexpected  = 2
	exitInterrupted = 130
)

func init() {
	caddycmd.RegisterCommand(caddycmd.Command{
		Name:  "loadtest",
		Usage: "<url> [--rate <n>/<s|m|h> --duration <d>] [--herd <n> --within <d>] [--policy <mix>] [--expect <what>]",
		Short: "Sends real clients to a server, which retry as real clients do",
		Long: `
Sends HTTP or gRPC clients to a URL and shows what became of them. Each client
wants one answer. If it is refused, or gets no answer, it comes again as its
policy says, until it is served or gives up. Served means: answered with a 2xx,
or with OK in gRPC. Redirects are not followed, and are failures.

Who comes:
  --rate, --duration   clients at a rate, whether or not those before them have
                       been answered (an open loop)
  --herd, --within     many clients together
Both can be given: a herd among those who come anyhow. All of them have the
address of this machine, and a server that tells clients apart by address takes
them for one. If it trusts X-Forwarded-For from here (Caddy: trusted_proxies),
--x-forwarded-for makes them different ones.

Latencies run from the instant at which a request was due, not from when it was
sent. So a server that is slow cannot hide it by making the load come later.

The host must be this machine, unless --allow-remote is given. Use it only for
servers that are yours.

A run is bounded: at most 20,000 clients at one time, --requests in all, and
it ends within the time in which clients come, plus --patience and --timeout.
Clients that this machine cannot start in that time never come, and are counted.
Ctrl-C ends it sooner and shows what there is so far; a second one kills. What
was under way then is shown as such, with the age of the oldest request.

Exit code: 0 if the run ended by itself and every --expect is met; 1 if a flag
is wrong or the run could not be made; 2 if an --expect is not met, or there is
one and --requests ended the run while clients were still trying; 130 if it was
interrupted, whatever was expected.

Policies, for --policy. A mix is NAME[@PARAMETER][*ATTEMPTS][:WEIGHT],... and
--policies says what each of them does. Those that name no failures there come
again after 408, 425, 429, 5xx but 501 and 505, and no answer; those that do not
say where they obey Retry-After do so in 429 and 503:
` + policyNames() + `
Figures, for --expect: ` + strings.Join(live.Figures(), ", ") + `.
Times are those of clients that were served, with all retries. Those who were not
have none: expect enough of served, too.
`,
		CobraFunc: loadtestCommand,
	})
}

// policyNames returns the names of all policies, in lines that fit a terminal.
func policyNames() string {
	var b strings.Builder
	line := " "
	for _, e := range clients.Catalog() {
		if len(line)+1+len(e.Name) > 78 {
			b.WriteString(line + "\n")
			line = " "
		}
		line += " " + e.Name
	}
	return b.String() + line + "\n"
}

// writePolicies writes what --policies shows.
func writePolicies(w io.Writer) error {
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	for _, e := range clients.Catalog() {
		fmt.Fprintf(tw, "%s\t%s\n", e.Name, e.About)
		if e.Param != "" {
			fmt.Fprintf(tw, "\t  @%s\n", e.Param)
		}
		fmt.Fprintf(tw, "\t  %s\n", e.Source)
	}
	return tw.Flush()
}

// A loadtest is the command line of "shield loadtest".
type loadtest struct {
	rate, policy, pace, proto, body, from string
	headers, expect                       []string
	json, csv                             string
	remote, policies                      bool
	changed                               func(flag string) bool
	live.LoadConfig                       // with what flags set directly
}

// loadtestCommand gives cmd its flags and its work.
func loadtestCommand(cmd *cobra.Command) {
	cmd.Example = `  A thousand clients within 0.1 s, as Go programs with go-retryablehttp:
  $ shield loadtest http://127.0.0.1:8080/ --herd 1000 --within 100ms --policy go-retryablehttp

  30 clients per second for 20 s, and after 10 s a herd among them:
  $ shield loadtest http://127.0.0.1:8080/ --rate 30 --duration 20s --herd 500 --herd-after 10s

  A mix of clients with addresses of their own, and a build that fails if one
  of a hundred is not served:
  $ shield loadtest http://127.0.0.1:8080/ --rate 200/s --x-forwarded-for --policy curl:70,aws-full-jitter:30 --expect 'served>=99%' --expect 'p99<5s'

  gRPC, and the figures in files:
  $ shield loadtest http://127.0.0.1:8080 --proto grpc --rate 100 --json load.json --csv seconds.csv`
	l := loadtestFlags(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if l.policies {
			return writePolicies(cmd.OutOrStdout())
		}
		ctx, stop := signal.NotifyContext(cmd.Context(), os.Interrupt, syscall.SIGTERM)
		defer stop()
		context.AfterFunc(ctx, stop) // a second Ctrl-C kills at once
		err := l.run(ctx, args[0], cmd.OutOrStdout(), screen{cmd.ErrOrStderr(), term.IsTerminal(int(os.Stderr.Fd()))})
		if code, ok := errors.AsType[exit](err); ok {
			// cobra and Caddy know no exit code but 1.
			fmt.Fprintln(cmd.ErrOrStderr(), "Error:", err)
			os.Exit(code.code)
		}
		return err
	}
}

// fromDefault is the value of --x-forwarded-for if none is given.
const fromDefault = "10.0.0.1"

// loadtestFlags gives cmd its flags, and returns where their values go.
func loadtestFlags(cmd *cobra.Command) *loadtest {
	l := new(loadtest)
	f := cmd.Flags()
	l.changed = f.Changed
	f.StringVar(&l.rate, "rate", "0", "how many clients come: 30, 30/s, 600/m or 5000/h")
	f.DurationVar(&l.Duration, "duration", 10*time.Second, "for how long clients come at --rate, up to 1h")
	f.IntVar(&l.Herd, "herd", 0, "how many clients come together, up to 20000")
	f.DurationVar(&l.Within, "within", 100*time.Millisecond, "the time within which the herd comes, up to 1m")
	f.DurationVar(&l.HerdAfter, "herd-after", 0, "when the herd comes, after the start")
	f.StringVar(&l.pace, "pace", "poisson", "how arrivals are spaced: poisson (at random) or constant")
	f.StringVar(&l.policy, "policy", "exact", "how clients retry: a policy, or a mix as curl:70,exact:30")
	f.BoolVar(&l.policies, "policies", false, "only show what each policy does, and whose it is")
	f.DurationVar(&l.Timeout, "timeout", 10*time.Second, "how long a client waits for an answer, up to 10m")
	f.DurationVar(&l.Patience, "patience", time.Minute, "how long after its first attempt a client still begins one, up to 1h")
	f.IntVar(&l.Attempts, "attempts", 0, "how often a client tries at most (default: as its policy says)")
	f.StringVar(&l.from, "x-forwarded-for", "", "give each client an address of its own, from this one on: --x-forwarded-for=10.0.0.7")
	f.Lookup("x-forwarded-for").NoOptDefVal = fromDefault
	f.IntVar(&l.Identities, "clients", 0, "how many addresses there are with --x-forwarded-for (default: one for each client)")
	f.StringVar(&l.proto, "proto", "h1", "h1, h2 (over TLS), h2c (by prior knowledge) or grpc (unary calls)")
	f.BoolVar(&l.Insecure, "insecure", false, "take any TLS certificate")
	f.IntVar(&l.Connections, "connections", 0, "how many connections clients share in h2, h2c and grpc, up to 1000 (default 32)")
	f.BoolVar(&l.KeepAlive, "keep-alive", false, "let clients share connections in h1 (default: one for each attempt)")
	f.BoolVar(&l.Connected, "connected", false, "open connections beforehand: in h1 one for each of the herd, shortly before it comes")
	f.StringVarP(&l.Method, "method", "X", "", "HTTP method (default GET, or POST with a body), or that of gRPC, which gets an empty message (default "+live.HealthCheck+")")
	f.StringArrayVarP(&l.headers, "header", "H", nil, "a header field of every request, as 'Name: value'; may be repeated")
	f.StringVar(&l.body, "body", "", "what every request sends, or @FILE; up to 1 MiB")
	f.IntVar(&l.Requests, "requests", 1_000_000, "end the run after so many requests, retries included, up to 10000000; with --expect it then fails")
	f.Uint64Var(&l.Seed, "seed", 1, "of everything that is random: arrivals and waits")
	f.StringArrayVar(&l.expect, "expect", nil, "what must be, as 'served>=99%' or 'p99<2s'; may be repeated")
	f.StringVar(&l.json, "json", "", "write everything to this file as JSON, - for standard output")
	f.StringVar(&l.csv, "csv", "", "write the run second by second to this file as CSV, - for standard output")
	f.BoolVar(&l.remote, "allow-remote", false, "let the URL be of another machine")
	cmd.Args = func(_ *cobra.Command, args []string) error {
		switch {
		case l.policies && len(args) == 0, !l.policies && len(args) == 1:
			return nil
		case l.policies:
			return fmt.Errorf("--policies is given with %q; want no URL with it", args)
		case len(args) == 0:
			return errors.New("the URL is missing; want one, as http://127.0.0.1:8080/")
		}
		for _, arg := range args {
			if _, err := netip.ParseAddr(arg); err == nil && l.from == fromDefault {
				return fmt.Errorf("there are %d arguments, %q; want one URL, and the address after a =: --x-forwarded-for=%s", len(args), args, arg)
			}
		}
		return fmt.Errorf("there are %d arguments, %q; want one URL, and flags", len(args), args)
	}
	return l
}

// An exit is an error with an exit code of its own.
type exit struct {
	error
	code int
}

// run makes the run, and writes what came of it. Progress goes to scr.
func (l *loadtest) run(ctx context.Context, url string, out io.Writer, scr screen) error {
	expected, err := l.parse()
	if err != nil {
		return err
	}
	if l.Target, err = live.NewTarget(ctx, url, l.remote); err != nil {
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
	if l.json == "-" || l.csv == "-" { // whoever reads standard output wants nothing else there
		out = scr.w
	}
	jsonFile, err := sink(l.json, stdout)
	if err != nil {
		return fmt.Errorf("--json: %w", err)
	}
	defer jsonFile.Close()
	csvFile, err := sink(l.csv, stdout)
	if err != nil {
		return fmt.Errorf("--csv: %w", err)
	}
	defer csvFile.Close()

	stopWatch := func() {}
	if scr.terminal {
		stopWatch = live.WatchLoad(scr.w, true, load)
	}
	r := load.Run(ctx)
	stopWatch()
	if err := errors.Join(
		live.WriteLoad(out, l.LoadConfig, r),
		live.WriteJSON(jsonFile, l.LoadConfig, r), jsonFile.Close(),
		live.WriteCSV(csvFile, r), csvFile.Close(),
	); err != nil {
		return err
	}
	if errors.Is(r.Stopped, live.ErrStopped) {
		return exit{fmt.Errorf("interrupted after %.1f s; the figures are of what came until then", r.Took.Seconds()), exitInterrupted}
	}
	var unmet []error
	if errors.Is(r.Stopped, live.ErrRequests) && len(expected) > 0 {
		unmet = append(unmet, fmt.Errorf("--requests %d ended the run while %d clients were still trying; want more requests, or fewer clients", l.Requests, r.All.Trying))
	}
	for _, e := range expected {
		unmet = append(unmet, e.Check(r))
	}
	if err := errors.Join(unmet...); err != nil {
		return exit{fmt.Errorf("not as expected: %w", err), exitUnexpected}
	}
	return nil
}

// parse reads the flags that are not their values as they are, and returns what
// is expected.
func (l *loadtest) parse() ([]live.Expectation, error) {
	var errs []error
	wrong := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	for _, pair := range [][2]string{
		{"duration", "rate"}, {"within", "herd"}, {"herd-after", "herd"}, {"clients", "x-forwarded-for"},
	} {
		if l.changed(pair[0]) && !l.changed(pair[1]) {
			wrong("--%s is given without --%s; want both", pair[0], pair[1])
		}
	}
	var err error
	if l.Rate, err = parseRate(l.rate); err != nil {
		errs = append(errs, err)
	}
	switch l.pace {
	case "poisson":
	case "constant":
		l.Even = true
	default:
		wrong("--pace is %q; want poisson or constant", l.pace)
	}
	if l.Mix, err = clients.Parse(l.policy); err != nil {
		wrong("--policy: %w", err)
	}
	l.Proto = live.Proto(l.proto)
	if l.from != "" {
		if l.FirstAddress, err = netip.ParseAddr(l.from); err != nil || !l.FirstAddress.Is4() {
			wrong("--x-forwarded-for is %q; want an IPv4 address, as 10.0.0.1", l.from)
		}
	}
	if l.Requests == 0 { // which means the default to a LoadConfig
		wrong("--requests is 0; want 1 to %d", live.MaxRequests)
	}
	if l.Body, err = readBody(l.body); err != nil {
		errs = append(errs, err)
	}
	if l.Method == "" && len(l.Body) > 0 && l.Proto != live.GRPC {
		l.Method = http.MethodPost
	}
	l.Header = http.Header{}
	for _, h := range l.headers {
		name, value, ok := strings.Cut(h, ":")
		if !ok {
			wrong("--header is %q; want 'Name: value'", h)
			continue
		}
		l.Header.Add(strings.TrimSpace(name), strings.TrimSpace(value))
	}
	if l.json == "-" && l.csv == "-" {
		wrong("--json and --csv are both -; want one of them on standard output")
	} else if sameFile(l.json, l.csv) {
		wrong("--json and --csv are both %s; want two files", l.json)
	}
	var expected []live.Expectation
	for _, s := range l.expect {
		e, err := live.ParseExpectation(s)
		if err != nil {
			wrong("--expect: %w", err)
		}
		expected = append(expected, e)
	}
	return expected, errors.Join(errs...)
}

// parseRate returns how many there are per second.
func parseRate(s string) (float64, error) {
	number, per, _ := strings.Cut(s, "/")
	seconds, known := map[string]float64{"": 1, "s": 1, "m": 60, "h": 3600}[per]
	rate, err := strconv.ParseFloat(number, 64)
	if err != nil || !known || strings.HasSuffix(s, "/") || !(rate >= 0 && rate/seconds <= live.MaxRate) {
		return 0, fmt.Errorf("--rate is %q; want a number of clients per s, m or h, as 30/s, up to %d/s", s, live.MaxRate)
	}
	return rate / seconds, nil
}

// readBody returns the text of --body, or of the file that it names.
func readBody(s string) ([]byte, error) {
	name, ok := strings.CutPrefix(s, "@")
	if !ok {
		return []byte(s), nil
	}
	f, err := os.Open(name)
	if err != nil {
		return nil, fmt.Errorf("--body: %w", err)
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, live.MaxBody+1))
	if err != nil {
		return nil, fmt.Errorf("--body: %w", err)
	}
	if len(b) > live.MaxBody {
		return nil, fmt.Errorf("--body: %s has more than %d bytes; want at most so many", name, live.MaxBody)
	}
	return b, nil
}

// sameFile reports whether two names, neither of them empty, are of one file. Of
// devices and pipes it says that they are not.
func sameFile(a, b string) bool {
	if a == "" || b == "" {
		return false
	}
	if one, err := os.Stat(a); err == nil {
		other, err := os.Stat(b)
		return err == nil && one.Mode().IsRegular() && os.SameFile(one, other)
	}
	one, err1 := filepath.Abs(a)
	other, err2 := filepath.Abs(b)
	return err1 == nil && err2 == nil && one == other
}

// sink returns a file that has just been created, stdout if its name is -, and
// a place for what nobody wants if it is empty.
func sink(name string, stdout io.Writer) (io.WriteCloser, error) {
	switch name {
	case "":
		return stays{io.Discard}, nil
	case "-":
		return stays{stdout}, nil
	}
	f, err := os.Create(name)
	if err != nil {
		return nil, err
	}
	return &once{File: f}, nil
}

// stays is not closed.
type stays struct{ io.Writer }

func (stays) Close() error { return nil }

// once is a file that can be closed again.
type once struct {
	*os.File
	closed bool
}

func (o *once) Close() error {
	if o.closed {
		return nil
	}
	o.closed = true
	return o.File.Close()
}
