package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/signal"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"time"

	caddycmd "github.com/caddyserver/caddy/v2/cmd"
	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/herdshield/shield/loadtest/accesslog"
	"github.com/herdshield/shield/loadtest/report"
	"github.com/herdshield/shield/loadtest/sim"
)

func init() {
	caddycmd.RegisterCommand(caddycmd.Command{
		Name:  "simulate",
		Usage: "[--clients <n> --within <d>] [--background <rate>] [--policy <mix>] [--compare <config|model>...] [--png <file>]",
		Short: "Shows what a config does to many clients, before production does",
		Long: `
Plays a herd of clients against a config in virtual time, and shows what became
of them: minutes take a second or so. What decides is shield's own code, and
the config is read as "shield run" reads it. Nothing is sent to anybody.

Without flags it plays 1,000 clients within 0.1 s against a backend that can do
125 requests per second, of which 100 are let through and 30 are taken by
others, and compares one Retry-After for all with shield.

Who comes:
  --clients, --within  the herd: clients that come together. Each wants one
                       request to be served, and retries as its policy says
  --background         strangers, at random times at that rate, with the same
                       policies, from --warmup before the herd to the end
  --policy             how they retry: a policy or a mix; "list" explains all
  --from-access-log    all of this, and the backend, as Caddy's JSON access log
                       has them (plain or .gz). Other flags overrule it

The backend is a pool of workers with a queue, the same in all runs:
  --workers, --service  it can do workers ÷ service per second
  --outage, --slow, --restart  what goes wrong, in times since the herd came:
                       30s+10s is from 30 s to 40 s, 30s+10sx4 and 4 times as
                       slow

What is compared, for --compare (arguments after it are compared, too, up to 8):
  FILE, FILE#NAME      the shield of a Caddyfile or of Caddy's JSON, or of a
                       file with a shield block alone; NAME if it has several.
                       One without a name is called after its server: srv0
  none                 everything is passed on
  shield               a shield with "capacity" at --limit, and nothing else
  shield-adaptive      a shield with "concurrency adaptive", and nothing else
  suggested            what --from-access-log leads to
Models of what others do. The first five let through --limit by a token bucket
and differ in what they say to those whom they refuse:
  fixed:SECONDS        Retry-After: SECONDS
  no-hint              no Retry-After
  next-token           Retry-After until there will be a token, rounded up
  kubernetes, mimir    as those two compute it
  gradient2            the concurrency limit of Netflix's concurrency-limits

A simulation does not know which requests a matcher would match or what is in
a header: each client is one address, and all that is left out is said.

The same flags give the same figures. A run has at most 50,000,000 clients, with
strangers. Ctrl-C ends it with what it has so far; a second one kills. A file is
replaced when the new one is whole. Exit code: 0 if all runs were made; 1 if a
flag is wrong or a run could not be made; 130 if it was interrupted.

Policies. A mix is NAME[@PARAMETER][*ATTEMPTS][:WEIGHT],...
` + policyNames(),
		CobraFunc: simulateCommand,
	})
}

// A simulation is the command line of "shield simulate".
type simulation struct {
	clients, workers, backlog, replicas, requests            int
	within, service, warmup, timeout, patience, delay, until time.Duration
	background, policy, distribution, limit                  string
	coherency                                                float64
	outage, restart, cold, shieldRestart                     string
	slow                                                     []string
	refuses, enforce, quiet                                  bool
	seed                                                     uint64
	config, log                                              string
	compare                                                  []string
	json, csv, svg, png                                      string
	changed                                                  func(flag string) bool
}

// simulateCommand gives cmd its flags and its work.
func simulateCommand(cmd *cobra.Command) {
	cmd.Example = `  What one Retry-After for all does, and what shield does:
  $ shield simulate

  What your config would do to 20,000 clients, next to nothing, as a picture:
  $ shield simulate --clients 20000 --within 5s --compare Caddyfile none --png herd.png

  An outage of 10 s, clients of two kinds that wait for 5 s, and a backend that
  is slower the more wait in it:
  $ shield simulate --clients 0 --background 100 --outage 30s+10s --timeout 5s --coherency 0.02 --policy curl:70,aws-full-jitter:30 --compare shield-adaptive,none

  The clients of your own log against two configs, every tenth of a second in
  a file:
  $ shield simulate --from-access-log access.log --compare a.caddyfile b.caddyfile --csv runs.csv`
	s := simulateFlags(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		ctx, stop := signal.NotifyContext(cmd.Context(), os.Interrupt, syscall.SIGTERM)
		defer stop()
		context.AfterFunc(ctx, stop) // a second Ctrl-C kills at once
		err := s.run(ctx, args, cmd.OutOrStdout(), screen{cmd.ErrOrStderr(), term.IsTerminal(int(os.Stderr.Fd()))})
		if code, ok := errors.AsType[exit](err); ok {
			// cobra and Caddy know no exit code but 1.
			fmt.Fprintln(cmd.ErrOrStderr(), "Error:", err)
			os.Exit(code.code)
		}
		return err
	}
}

// simulateFlags gives cmd its flags, and returns where their values go.
func simulateFlags(cmd *cobra.Command) *simulation {
	s := new(simulation)
	f := cmd.Flags()
	f.SortFlags = false
	s.changed = f.Changed
	f.IntVar(&s.clients, "clients", 1000, fmt.Sprintf("how many clients come together, 0 to %d", maxHerd))
	f.DurationVar(&s.within, "within", 100*time.Millisecond, "the time within which they come, up to 1h")
	f.StringVar(&s.background, "background", "30/s", "how many strangers come besides: 50, 50/s, 600/m or 5000/h, up to 100000/s")
	f.StringVar(&s.policy, "policy", "exact", "how clients retry: a policy, or a mix as curl:70,exact:30; list explains them")
	f.DurationVar(&s.timeout, "timeout", 10*time.Second, "how long a client waits for an answer, up to 1h; 0 for ever")
	f.DurationVar(&s.patience, "patience", 0, "how long after its first attempt a client still begins one; 0 for ever")
	f.DurationVar(&s.delay, "delay", 10*time.Millisecond, "what the network takes, each way, up to 10s")

	f.IntVar(&s.workers, "workers", 10, "of the backend: how many requests it works on at once, up to 100000")
	f.DurationVar(&s.service, "service", 80*time.Millisecond, "how long it takes for one by itself on the average, 10us to 10m")
	f.StringVar(&s.distribution, "distribution", "exponential", "of that time: exponential or deterministic")
	f.Float64Var(&s.coherency, "coherency", 0, "by what share it is slower for each request that waits in it, 0 to 100")
	f.IntVar(&s.backlog, "backlog", 0, "how many may wait in it; more are answered 502. 0: no bound")
	f.StringVar(&s.outage, "outage", "", "when it stops, as 30s+10s; what it works on goes on afterwards")
	f.BoolVar(&s.refuses, "outage-refuses", false, "let it answer 503 at once during the outage, instead of not at all")
	f.StringArrayVar(&s.slow, "slow", nil, "when it is slower, and how much, as 30s+10sx4; may be repeated")
	f.StringVar(&s.restart, "restart", "", "when it restarts, and how long that takes, as 30s+2s: what is in it is lost")
	f.StringVar(&s.cold, "cold", "", "how long it is slower after that, and how much at first, as 20sx3")

	f.StringArrayVar(&s.compare, "compare", nil, "what is compared, see above (default fixed:1 shield)")
	f.StringVar(&s.config, "config", "", "FILE or FILE#NAME: the first of what is compared")
	f.StringVar(&s.limit, "limit", "", "what shield and the models let through, as 100/s (default: the first capacity of a config, or 0.8 of the backend's)")
	f.BoolVar(&s.enforce, "enforce", false, "let configs enforce whose mode is observe")
	f.IntVar(&s.replicas, "replicas", 1, "how many servers there are before the backend, 1 to 64, with the same config each")
	f.StringVar(&s.shieldRestart, "restart-shield", "", "when they restart and forget everything, as 30s")

	f.StringVar(&s.log, "from-access-log", "", "estimate clients and backend from this access log, and show the estimate")
	f.DurationVar(&s.until, "duration", 0, "how long a run is after the herd comes, 1s to 24h (default: 3 times what it takes at best, 1m to 10m)")
	f.DurationVar(&s.warmup, "warmup", 2*time.Minute, "how long strangers come before the herd, 1s to 1h")
	f.IntVar(&s.requests, "requests", 200_000_000, "end a run after so many requests")
	f.Uint64Var(&s.seed, "seed", 1, "of everything that is random")
	f.StringVar(&s.json, "json", "", "write the figures to this file as JSON, - for standard output")
	f.StringVar(&s.csv, "csv", "", "write the runs, bin by bin, to this file as CSV, - for standard output")
	f.StringVar(&s.svg, "svg", "", "draw the runs side by side into this file")
	f.StringVar(&s.png, "png", "", "the same as PNG")
	f.BoolVar(&s.quiet, "quiet", false, "show neither table nor progress")
	cmd.SetFlagErrorFunc(flagError)
	cmd.Args = func(_ *cobra.Command, args []string) error {
		if len(args) > 0 && len(s.compare) == 0 {
			return fmt.Errorf("there are arguments, %q; want --compare before what is to be compared", args)
		}
		return nil
	}
	return s
}

// flagNamed finds the name of the flag in what pflag says of a value.
var flagNamed = regexp.MustCompile(` for "(?:-\w, )?--([a-z-]+)" flag`)

// flagError says what a flag wants that has a value of another type.
func flagError(cmd *cobra.Command, err error) error {
	wrong, ok := errors.AsType[interface {
		error
		GetValue() string
	}](err)
	name := flagNamed.FindStringSubmatch(err.Error())
	if !ok || name == nil || cmd.Flags().Lookup(name[1]) == nil {
		return err
	}
	want := map[string]string{
		"int": "a whole number", "uint64": "a whole number of at least 0", "float64": "a number", "bool": "true or false",
		"duration": "a time with a unit, as 100ms, 5s or 2m",
	}[cmd.Flags().Lookup(name[1]).Value.Type()]
	if want == "" {
		return err
	}
	return fmt.Errorf("--%s is %q; want %s", name[1], wrong.GetValue(), want)
}

// run makes the runs and shows what came of them. args are what is compared besides
// the flag. Progress goes to scr.
func (s *simulation) run(ctx context.Context, args []string, out io.Writer, scr screen) error {
	if s.policy == "list" {
		return writePolicies(out)
	}
	var estimate *accesslog.Estimate
	if s.log != "" {
		var err error
		estimate, err = readLog(ctx, s.log)
		if ctx.Err() != nil {
			return exit{errors.New("interrupted while the access log was read"), exitInterrupted}
		}
		if err != nil {
			return fmt.Errorf("--from-access-log: %w", err)
		}
	}
	p, err := s.plan(args, estimate)
	if err != nil {
		return err
	}
	stdout := out
	files := []*outputFile{
		{flag: "json", name: s.json, write: (*report.Report).WriteJSON},
		{flag: "csv", name: s.csv, write: (*report.Report).WriteCSV},
		{flag: "svg", name: s.svg, write: (*report.Report).WriteSVG, picture: true},
		{flag: "png", name: s.png, write: (*report.Report).WritePNG, picture: true},
	}
	for _, f := range files {
		if f.name == "-" {
			out = scr.w // whoever reads standard output wants nothing else there
		}
		if err := f.open(stdout); err != nil {
			return fmt.Errorf("--%s: %w", f.flag, err)
		}
	}
	if s.quiet {
		out, scr.terminal = io.Discard, false
	}
	if estimate != nil {
		if err := s.showLog(out, estimate); err != nil {
			return err
		}
	}
	if _, err := io.WriteString(out, p.text+"\n"); err != nil {
		return err
	}

	var ended []string // those that did not come to their end
	for i, server := range p.servers {
		r, err := p.play(ctx, server, bar{screen: scr, text: fmt.Sprintf("%s (%d of %d)", server.name, i+1, len(p.servers))})
		if err != nil {
			return fmt.Errorf("%s: %w", server.name, err)
		}
		run := report.Run{Name: server.name, Result: r, Notes: server.notes, EndedBy: report.Duration}
		switch {
		case r.Interrupted:
			run.EndedBy = report.Interrupt
			ended = append(ended, fmt.Sprintf("%s was interrupted %s.", server.name, when(p.report.Ended(&run))))
		case r.Decided >= s.requests:
			run.EndedBy = report.Requests
			ended = append(ended, fmt.Sprintf("%s ended after %s (--requests), %s, before its time.", server.name, plural(s.requests, "request", "requests"), when(p.report.Ended(&run))))
		}
		p.report.Runs = append(p.report.Runs, run)
		if r.Interrupted {
			break
		}
	}
	if err := p.show(out, ended); err != nil {
		return err
	}
	for _, f := range files {
		if f.name == "" {
			continue
		}
		r := p.report
		if f.picture {
			r.Runs = drawable(r)
		}
		if f.picture && len(r.Runs) == 0 {
			fmt.Fprintf(scr.w, "--%s: there is nothing to draw yet\n", f.flag)
			continue
		}
		if err := f.finish(&r); err != nil {
			return fmt.Errorf("--%s: %w", f.flag, err)
		}
	}
	if ctx.Err() != nil {
		what := fmt.Sprintf("in run %d of %d", len(p.report.Runs), len(p.servers))
		return exit{fmt.Errorf("interrupted %s; the figures are of what came until then", what), exitInterrupted}
	}
	return nil
}

// when says when a run ended, after the time since the herd came, or since the
// warm-up was over.
func when(since time.Duration) string {
	if since < 0 {
		return fmt.Sprintf("%v before its warm-up was over", -since)
	}
	return fmt.Sprintf("at %v", since)
}

// An outputFile is one that a flag asks for. What was in a file of that name stays
// until all of the new one is written.
type outputFile struct {
	flag, name string
	write      func(*report.Report, io.Writer) error
	picture    bool

	w    io.Writer // of - and of what is no regular file; nil: there will be a new file
	to   string    // the name that this is to have in the end
	mode os.FileMode
}

// open makes sure that the file can be written. stdout is what - means.
func (f *outputFile) open(stdout io.Writer) (err error) {
	switch f.name {
	case "":
		return nil
	case "-":
		f.w = stdout
		return nil
	}
	f.to, f.mode = f.name, 0o666 // less what the process takes away
	if real, err := filepath.EvalSymlinks(f.to); err == nil {
		f.to = real
	}
	info, err := os.Stat(f.to)
	if err == nil && !info.Mode().IsRegular() { // a pipe, or a device; a folder is an error
		f.w, err = os.OpenFile(f.to, os.O_WRONLY, 0)
		return err
	}
	if err == nil {
		f.mode = info.Mode().Perm()
	}
	try, err := f.temporary()
	if failed, ok := errors.AsType[*fs.PathError](err); ok {
		failed.Path = f.name // is what the reader knows
	}
	if err != nil {
		return err
	}
	return errors.Join(try.Close(), os.Remove(try.Name()))
}

// temporary returns a new file beside that which it is to replace.
func (f *outputFile) temporary() (*os.File, error) {
	name := fmt.Sprintf(".%s.%s.tmp", filepath.Base(f.to), rand.Text()[:8])
	return os.OpenFile(filepath.Join(filepath.Dir(f.to), name), os.O_WRONLY|os.O_CREATE|os.O_EXCL, f.mode)
}

// finish writes the file, and gives it its name.
func (f *outputFile) finish(r *report.Report) error {
	if f.w != nil {
		err := f.write(r, f.w)
		if file, ok := f.w.(*os.File); ok && f.name != "-" {
			err = errors.Join(err, file.Close())
		}
		return err
	}
	file, err := f.temporary()
	if err != nil {
		return err
	}
	err = errors.Join(f.write(r, file), file.Close())
	if err == nil {
		err = os.Rename(file.Name(), f.to)
	}
	if err != nil {
		err = errors.Join(err, os.Remove(file.Name()))
	}
	return err
}

// drawable returns the runs that have come as far as the herd.
func drawable(r report.Report) (runs []report.Run) {
	for _, run := range r.Runs {
		if time.Duration(len(run.Series))*r.Bin > r.Warmup {
			runs = append(runs, run)
		}
	}
	return runs
}

// play makes a run.
func (p *plans) play(ctx context.Context, s server, b bar) (sim.Result, error) {
	scenario := p.scenario
	scenario.Name, scenario.Config, scenario.Stop = s.name, s.config, ctx.Done()
	if p.restart != nil {
		change := *p.restart
		change.Config = s.config
		scenario.Changes = []sim.Change{change}
	}
	if b.terminal {
		scenario.Progress = b.progress(time.Now)
		defer b.clear()
	}
	return sim.Run(scenario, s.maker)
}

// show writes the tables, and what is to be said of each run.
func (p *plans) show(w io.Writer, ended []string) error {
	if err := p.report.WriteTable(w); err != nil {
		return err
	}
	var b strings.Builder
	for _, r := range p.report.Runs {
		for _, n := range r.Notes {
			fmt.Fprintf(&b, "%s: %s\n", r.Name, n)
		}
	}
	for _, e := range ended {
		b.WriteString(e + "\n")
	}
	if b.Len() == 0 {
		return nil
	}
	_, err := io.WriteString(w, "\n"+b.String())
	return err
}

// A bar shows how far a run is on a terminal.
type bar struct {
	screen
	text string
}

const (
	barEvery = 100 * time.Millisecond
	barWidth = 30
)

// progress returns what a Scenario calls. clock is the time of day.
func (b bar) progress(clock func() time.Time) func(now, end time.Duration) {
	begun := clock()
	drawn := begun
	return func(now, end time.Duration) {
		at := clock()
		if at.Sub(drawn) < barEvery {
			return
		}
		drawn = at
		share := min(1, float64(now)/float64(max(1, end)))
		left := ""
		if took := at.Sub(begun); took > 2*time.Second && share > 0.01 {
			left = fmt.Sprintf(", about %v left", time.Duration(float64(took)*(1/share-1)).Round(time.Second))
		}
		full := int(share * barWidth)
		b.printf("\r\x1b[K   %s [%s%s] %3.0f %%%s", b.text, strings.Repeat("#", full), strings.Repeat(".", barWidth-full), 100*share, left)
	}
}

func (b bar) clear() { b.printf("\r\x1b[K") }
