package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"strings"
	"sync/atomic"
	"time"

	caddycmd "github.com/caddyserver/caddy/v2/cmd"
	"github.com/spf13/cobra"

	"github.com/herdshield/shield/caddymodule/commands"
	"github.com/herdshield/shield/loadtest/accesslog"
	"github.com/herdshield/shield/loadtest/edge"
	"github.com/herdshield/shield/loadtest/live"
	"github.com/herdshield/shield/loadtest/plant"
	"github.com/herdshield/shield/loadtest/report"
	"github.com/herdshield/shield/loadtest/sim"
)

func init() {
	caddycmd.RegisterCommand(caddycmd.Command{
		Name:      "simulate",
		Usage:     "[--clients <n> --within <d>] [--background <rate>] [--policy <mix>] [--compare <config|model>...] [--svg <file>]",
		Short:     "Shows what a config does to many clients, before production does",
		Long:      simulateHelp,
		CobraFunc: simulateCommand,
	})
}

var simulateHelp = `
Plays a thundering herd against a config in virtual time, and shows the result:
minutes take a second or so. Shield's own code decides, and the config is read
as "shield run" reads it. Nothing is sent over the network.

Without flags it plays 1,000 clients within 0.1 s against a backend that can
serve 125 requests per second, of which 100 are admitted and 30 are taken by
background clients, and compares one Retry-After for all with shield.

The herd are clients that come together. Each wants one request to be served, and
retries as its policy says. Background clients come at random times, from --warmup
before the herd to the end. --from-access-log takes all of this, and the backend,
from Caddy's JSON access log (plain or .gz); other flags overrule it. The backend
is a pool of workers with a queue, the same in all runs. Its faults begin at times
since the herd came: 30s+10s is from 30 s to 40 s, 30s+10sx4 and 4 times as slow.

What to compare, with --compare (further arguments are compared, too, up to 8):
  FILE, FILE#NAME      the shield of a Caddyfile or of Caddy's JSON, or of a
                       file with a shield block alone; NAME if it has several.
                       One without a name is called after its server: srv0
  none                 every request is passed on
  shield               a shield with "capacity" at --limit, and nothing else
  shield-adaptive      a shield with "concurrency adaptive", and nothing else
Models of other rate limiters, which admit --limit by a token bucket and differ
in what they tell the clients that they reject:
  fixed:SECONDS        Retry-After: SECONDS
  no-hint              no Retry-After
  next-token           Retry-After until the next token, rounded up

A simulation does not know which requests a matcher would match, or their
headers: a client is its address, and the output lists all that is left out.

With --edge it finds the smallest push after which the service does not come back,
as the retries of clients that waited in vain keep the backend full. A push is a
backend that is up to 16 times as slow, or up to 16 times as many clients, for 1
to 64 s. The service is back if 90 % of what is asked for the first time is served
in time from a minute after the push on. What --compare names, or else
shield-adaptive, is compared with none. There is no herd, and --background is 0.75
of what the backend can serve unless it is given. For a backend of 100 requests
per second this takes less than a minute.

The same flags give the same figures. A run has at most 50,000,000 clients,
background included. Ctrl-C ends it with the results so far; a second one kills.
Exit code: 0 if all runs were made; 1 if a flag is wrong or a run could not be
made; 130 if it was interrupted.

Policies. A mix is NAME[@GAP][*ATTEMPTS][:WEIGHT],...
` + policyNames()

// A simulation is the command line of "shield simulate".
type simulation struct {
	report.Report // flags set its Scenario directly, as far as they can
	pool          plant.Config
	servers       []server
	text          string // describes the simulation
	files         outputs

	policy, others       string
	outage, restart, log string
	slow, compare        []string
	limit                float64
	shares               bool
	changed              func(flag string) bool

	edge  bool // look for the edge
	edges edge.Report
}

func simulateCommand(cmd *cobra.Command) {
	shapeRoot(demoCommand.Root())
	cmd.Example = `  One Retry-After for all clients, compared with shield:
  $ shield simulate

  What your config does to 20,000 clients, next to no limit, as a picture:
  $ shield simulate --clients 20000 --within 5s --compare Caddyfile none --svg herd.svg

  An outage of 10 s, clients of two kinds that wait for 5 s, and a backend that
  becomes slower as its queue grows:
  $ shield simulate --clients 0 --background 100 --outage 30s+10s --timeout 5s --coherency 0.02 --policy curl:70,aws-full-jitter:30 --compare shield-adaptive,none

  The clients of your own log against two configs, every tenth of a second in
  a file:
  $ shield simulate --from-access-log access.log --compare a.caddyfile b.caddyfile --json runs.json

  The smallest pushes from which a service does not come back whose clients wait
  for 2 s and try four times at once, without and with your config:
  $ shield simulate --edge --workers 10 --service 100ms --background 90 --timeout 2s --policy fixed@0s*4 --compare Caddyfile --svg edge.svg`
	cmd.RunE = runUntilInterrupt(simulateFlags(cmd).run)
}

// simulateFlags gives cmd its flags, and returns where their values go.
func simulateFlags(cmd *cobra.Command) *simulation {
	s := new(simulation)
	f := cmd.Flags()
	f.SortFlags = false
	s.changed = f.Changed
	whole(f, &s.Clients, "clients", 1000, 0, maxHerd, "how many clients come together")
	lasting(f, &s.Within, "within", 100*time.Millisecond, 0, time.Hour, "the time within which they come")
	whole(f, &s.Addresses, "addresses", 0, 0, maxHerd, "how many addresses they share; 0: each has its own")
	rated(f, &s.Background, "background", 30, 0, maxBackground, "the rate of background clients")
	f.StringVar(&s.policy, "policy", "exact", "how clients retry: a policy, or a mix as curl:70,exact:30; list explains them")
	f.StringVar(&s.others, "background-policy", "", "how background clients retry (default: as --policy)")
	whole(f, &s.NewClientsAddresses, "background-addresses", 0, 0, maxHerd, "how many addresses background clients share; 0: each has its own")
	lasting(f, &s.Timeout, "timeout", 10*time.Second, 0, time.Hour, "how long a client waits for a response; 0: without a limit")
	lasting(f, &s.Patience, "patience", 0, 0, maxUntil, "how long after its first attempt a client still begins one; 0: without a limit")
	lasting(f, &s.Delay, "delay", 10*time.Millisecond, 0, 10*time.Second, "latency of the network, each way")

	whole(f, &s.pool.Workers, "workers", 10, 1, maxPool, "of the backend: how many requests it works on at once")
	lasting(f, &s.Service.Mean, "service", 80*time.Millisecond, minService, maxService, "its mean time for one request alone; times are exponential")
	f.Float64Var(&s.Cost, "cost", 0, "the mean cost of a request in zones that settle it, as tokens; exponential. 0: what was taken is the cost")
	bound(f, "cost", &s.Cost, 0, 1e9)
	f.Float64Var(&s.pool.Coherency, "coherency", 0, "by what share it is slower for each request in its queue")
	bound(f, "coherency", &s.pool.Coherency, 0, 100)
	whole(f, &s.pool.Queue, "backlog", 0, 0, 1<<22, "the size of its queue; further requests are answered 502. 0: no bound")
	f.StringVar(&s.outage, "outage", "", "when it stops, as 30s+10s; requests in work go on afterwards")
	f.StringArrayVar(&s.slow, "slow", nil, "when it is slower, and how much, as 30s+10sx4; may be repeated")
	f.StringVar(&s.restart, "restart", "", "when it restarts, and how long that takes, as 30s+2s: requests in it are lost")

	f.StringArrayVar(&s.compare, "compare", nil, "what to compare, see above (default fixed:1 shield)")
	rated(f, &s.limit, "limit", 0, 0.001, maxBackground, "the rate that shield and the models admit (default: the first capacity of a config, or 0.8 of the backend's)")
	whole(f, &s.Replicas, "replicas", 1, 1, 64, "how many servers there are before the backend, with the same config each")
	f.BoolVar(&s.shares, "store", false, "let them share limits and appointments through a store, such as Redis")

	f.BoolVar(&s.edge, "edge", false, "find the smallest pushes after which the service does not come back, see above")

	f.StringVar(&s.log, "from-access-log", "", "estimate clients and backend from this access log, and show the estimate")
	lasting(f, &s.Until, "duration", 0, time.Second, maxUntil, "how long a run is after the herd comes (default: 3 times what it takes at best, 1m to 10m)")
	lasting(f, &s.Warmup, "warmup", 2*time.Minute, time.Second, time.Hour, "how long background clients come before the herd")
	whole(f, &s.MaxRequests, "requests", 200_000_000, 1, math.MaxInt32, "end a run after this many requests")
	f.Uint64Var(&s.Seed, "seed", 1, "of all random numbers")
	s.files.flag(f, "json", "write the runs, bin by bin, or the edges to this file as JSON, - for standard output", s.either((*report.Report).WriteJSON, (*edge.Report).WriteJSON))
	s.files.flag(f, "svg", "draw charts of the runs, or of the edges, side by side into this file", s.either((*report.Report).WriteSVG, (*edge.Report).WriteSVG))
	cmd.SetFlagErrorFunc(commands.FlagError)
	cmd.Args = func(_ *cobra.Command, args []string) error {
		if len(args) > 0 && len(s.compare) == 0 {
			return fmt.Errorf("arguments are %q; want --compare before the names of what to compare", args)
		}
		return nil
	}
	return s
}

// run makes the runs and shows the results. args are further names of servers to compare.
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
	err := s.plan(args, estimate)
	if err != nil {
		return err
	}
	stdout := out
	if out, err = s.files.open(stdout, scr.w, s.inputs()...); err != nil {
		return err
	}
	if estimate != nil {
		if err := s.showLog(out, estimate); err != nil {
			return err
		}
	}
	if _, err := io.WriteString(out, s.text+"\n"); err != nil {
		return err
	}
	play, show := s.runs, s.show
	if s.edge {
		play, show = s.findEdges, s.edges.WriteTable
	}
	if err := play(ctx, scr); err != nil {
		return err
	}
	if err := errors.Join(show(out), s.files.finish(stdout, scr.w)); err != nil {
		return err
	}
	if ctx.Err() != nil && !s.edge {
		which := fmt.Sprintf("in run %d of %d", len(s.Runs), len(s.servers))
		return exit{fmt.Errorf("interrupted %s; the figures are those until then", which), exitInterrupted}
	}
	return nil
}

func (s *simulation) runs(ctx context.Context, scr screen) error {
	for i, server := range s.servers {
		r, err := s.play(ctx, server, scr, fmt.Sprintf("%s (%d of %d)", server.name, i+1, len(s.servers)))
		if err != nil {
			return fmt.Errorf("%s: %w", server.name, err)
		}
		s.Runs = append(s.Runs, report.Run{Result: r, Notes: server.notes, Label: server.label})
		if r.Interrupted {
			break
		}
	}
	return nil
}

// play makes a run. Its progress is shown after text.
func (s *simulation) play(ctx context.Context, one server, scr screen, text string) (sim.Result, error) {
	scenario := s.Scenario
	scenario.Name, scenario.Config, scenario.Stop = one.name, one.config, ctx.Done()
	if scr.terminal {
		var share atomic.Int64 // in percent
		scenario.Progress = func(now, end time.Duration) { share.Store(int64(100 * min(now, end) / max(1, end))) }
		defer live.Watch(scr.w, func() string { return fmt.Sprintf("%s %d %%", text, share.Load()) })()
	}
	return sim.Run(scenario, one.maker)
}

// show writes the tables, the notes on each run, and which of them ended early.
func (s *simulation) show(w io.Writer) error {
	var notes []string
	for _, r := range s.Runs {
		for _, n := range r.Notes {
			notes = append(notes, r.Name+": "+n)
		}
	}
	text := strings.Join(append(notes, s.EndedEarly()...), "\n")
	if text != "" {
		text = "\n" + text + "\n"
	}
	if err := s.WriteTable(w); err != nil {
		return err
	}
	_, err := io.WriteString(w, text)
	return err
}
