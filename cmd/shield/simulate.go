package main

import (
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"strings"
	"sync/atomic"
	"time"

	caddycmd "github.com/caddyserver/caddy/v2/cmd"
	"github.com/spf13/cobra"

	"github.com/herdshield/shield/caddymodule/commands"
	"github.com/herdshield/shield/loadtest/accesslog"
	"github.com/herdshield/shield/loadtest/clients"
	"github.com/herdshield/shield/loadtest/edge"
	"github.com/herdshield/shield/loadtest/live"
	"github.com/herdshield/shield/loadtest/plant"
	"github.com/herdshield/shield/loadtest/report"
	"github.com/herdshield/shield/loadtest/sim"
)

func init() {
	caddycmd.RegisterCommand(caddycmd.Command{
		Name:      "simulate",
		Usage:     "[--clients <n> --within <time>] [--background <rate>] [--policy <mix>] [--compare {<config> | <model>}...] [--json <file>] [flags]",
		Short:     "Simulate what a config does to a thundering herd",
		Long:      simulateHelp,
		CobraFunc: simulateCommand,
	})
}

var simulateHelp = `
Simulate what a config does to a thundering herd, before a real one arrives. shield's
own code makes the decisions. Because time is virtual, simulating minutes takes about
a second, and nothing is sent over the network.

Without flags, a herd of 1,000 clients arrives within 0.1 s, while background clients
use 30 requests per second. The backend can serve 125 requests per second, and the
limit admits 100. The result compares shield with a limiter that sends everyone the
same Retry-After.

A herd of --clients arrives together, and background clients arrive at random. Each
client wants one request served and retries as its --policy says. The backend has
--workers, and each of them needs --service for a request.

To break the backend for a while, use --outage, --slow, or --restart. Give a start,
counted from the herd's arrival, and a length: 30s+10s lasts from 30 s to 40 s. For
--slow, add a factor: 30s+10sx4 makes the backend 4 times as slow.

To compare up to 8 limits, name them after --compare:
  FILE, FILE#NAME      the shield of a Caddyfile, of Caddy's JSON, or of a file with
                       only a shield block; NAME picks one of several. A shield
                       without a name is called after its server, such as srv0
  none                 no limit
  shield               a shield with "capacity" at --limit
  shield-adaptive      a shield with "concurrency adaptive"
You can also compare models of other rate limiters. All of them admit --limit with a
token bucket, but they differ in what they tell rejected clients:
  fixed:SECONDS        Retry-After: SECONDS
  no-hint              no Retry-After
  next-token           Retry-After until the next token, rounded up

Simulated clients are identified by address. All their requests reach the
shield, because they have no paths or headers for matchers to look at.

With --from-access-log, shield estimates clients and backend from your own traffic, in
Caddy's JSON access log (plain or .gz). Other flags override the estimate.

With --edge, shield looks for the smallest push that a service doesn't recover from
because retries keep its backend full (a metastable failure). A push slows the backend
down by up to 16 times, or multiplies clients by up to 16, for 1 to 64 s. The service has
recovered if at least 90% of new requests are served in time, beginning a minute after
the push. Each limit in --compare, by default shield-adaptive, is compared with no limit
at all. There is no herd, and --background defaults to 75% of the backend's capacity.

The same flags give the same figures. A run has at most 50,000,000 clients, including
background clients.

A policy says how clients retry. "--policy list" explains each. To mix several, write
NAME[@GAP][*ATTEMPTS][:WEIGHT],... with the names of these policies:
` + wrap(strings.Join(clients.Names(), " "), "  ", 76)

// A simulation is the command line of "shield simulate".
type simulation struct {
	report.Report // flags set its Scenario directly, as far as they can
	pool          plant.Config
	servers       []server
	text          string // describes the simulation
	json          outputFile

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
	cmd.DisableFlagsInUseLine = true // Usage has them
	cmd.Example = `  Compare one Retry-After for everyone with shield:
  $ shield simulate

  See what happens to 20,000 clients with your config, and without a limit:
  $ shield simulate --clients 20000 --within 5s --compare Caddyfile none

  Play a 10 s outage with two kinds of clients that wait 5 s for a response, and a
  backend that slows down as its queue grows:
  $ shield simulate --clients 0 --background 100 --outage 30s+10s --timeout 5s --coherency 0.02 --policy curl:70,aws-full-jitter:30 --compare shield-adaptive none

  Play the clients of your own log against two configs, and save the course of
  both runs:
  $ shield simulate --from-access-log access.log --compare a.caddyfile b.caddyfile --json runs.json

  Find the smallest pushes that keep a service down, with and without your config, if
  clients wait 2 s for a response and retry three times without a pause:
  $ shield simulate --edge --workers 10 --service 100ms --background 90 --timeout 2s --policy fixed@0s*4 --compare Caddyfile`
	s := simulateFlags(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		return s.run(args, cmd.OutOrStdout(), terminal(os.Stderr))
	}
}

// simulateFlags gives cmd its flags, and returns where their values go.
func simulateFlags(cmd *cobra.Command) *simulation {
	s := new(simulation)
	f := cmd.Flags()
	f.SortFlags = false
	s.changed = f.Changed
	whole(f, &s.Clients, "clients", 1000, 0, maxHerd, "size of the herd, in clients")
	lasting(f, &s.Within, "within", 100*time.Millisecond, 0, time.Hour, "time within which the herd arrives")
	whole(f, &s.Addresses, "addresses", 0, 0, maxHerd, "addresses that the herd shares; 0: one per client")
	rated(f, &s.Background, "background", 30, 0, maxBackground, "rate at which background clients arrive")
	f.StringVar(&s.policy, "policy", "exact", "how clients retry: a `policy`, or a mix such as curl:70,exact:30; \"list\" explains them")
	f.StringVar(&s.others, "background-policy", "", "`policy` of background clients (default: like --policy)")
	whole(f, &s.NewClientsAddresses, "background-addresses", 0, 0, maxHerd, "addresses that background clients share; 0: one per client")
	lasting(f, &s.Timeout, "timeout", 10*time.Second, 0, time.Hour, "how long a client waits for a response; 0: forever")
	lasting(f, &s.Patience, "patience", 0, 0, maxUntil, "how long after its first attempt a client still retries; 0: forever")
	lasting(f, &s.Delay, "delay", 10*time.Millisecond, 0, 10*time.Second, "network latency, each way")

	whole(f, &s.pool.Workers, "workers", 10, 1, maxPool, "requests the backend works on concurrently")
	lasting(f, &s.Service.Mean, "service", 80*time.Millisecond, minService, maxService, "the backend's mean time for a request, exponentially distributed")
	f.Float64Var(&s.Cost, "cost", 0, "mean cost of a request in zones with settle, exponentially distributed; 0: what the zone reserved")
	bound(f, "cost", &s.Cost, 0, 1e9)
	f.Float64Var(&s.pool.Coherency, "coherency", 0, "slowdown of the backend per queued request; with 0.02 and 10 queued, a request takes 1.2 times as long")
	bound(f, "coherency", &s.pool.Coherency, 0, 100)
	whole(f, &s.pool.Queue, "backlog", 0, 0, 1<<22, "size of the backend's queue; further requests get a 502. 0: unbounded")
	f.StringVar(&s.outage, "outage", "", "`period` in which the backend stands still, such as 30s+10s; requests in progress continue afterward")
	f.StringArrayVar(&s.slow, "slow", nil, "`period` in which the backend is slow, and how slow, such as 30s+10sx4; repeat for several")
	f.StringVar(&s.restart, "restart", "", "`period` in which the backend restarts, such as 30s+2s; it loses its requests")

	f.StringArrayVar(&s.compare, "compare", nil, "`limit` or model to compare, as described above (default fixed:1 shield)")
	rated(f, &s.limit, "limit", 0, 0.001, maxBackground, "rate that shield and the models admit")
	f.Lookup("limit").Usage += " (default: the first capacity in a config, or 80% of the backend's)"
	whole(f, &s.Replicas, "replicas", 1, 1, 64, "servers in front of the backend, each with the same config")
	f.BoolVar(&s.shares, "store", false, "let replicas share limits and appointments through a store such as Redis")

	f.BoolVar(&s.edge, "edge", false, "find the smallest pushes that the service doesn't recover from, as described above")

	f.StringVar(&s.log, "from-access-log", "", "access log `file` from which to estimate clients and backend; prints the estimate")
	lasting(f, &s.Until, "duration", 0, time.Second, maxUntil, "length of a run after the herd arrives")
	f.Lookup("duration").Usage += " (default: 3 times the best possible, 1m to 10m)"
	lasting(f, &s.Warmup, "warmup", 2*time.Minute, time.Second, time.Hour, "how long background clients arrive before the herd does")
	whole(f, &s.MaxRequests, "requests", 200_000_000, 1, math.MaxInt32, "stop a run after this many requests")
	f.Uint64Var(&s.Seed, "seed", 1, "seed of the random numbers")
	s.json.flag(f, "write the course of the runs, or the edges, to this `file` as JSON; - is standard output", func(w io.Writer) error {
		if s.edge {
			return s.edges.WriteJSON(w)
		}
		return s.WriteJSON(w)
	})
	cmd.SetFlagErrorFunc(commands.FlagError)
	cmd.Args = func(_ *cobra.Command, args []string) error {
		if len(args) > 0 && len(s.compare) == 0 {
			return fmt.Errorf("arguments are %q; put --compare before the names of what to compare", args)
		}
		return nil
	}
	return s
}

// run makes the runs and shows the results. args are further names of servers to compare.
func (s *simulation) run(args []string, out io.Writer, scr screen) error {
	if s.policy == "list" {
		return writePolicies(out)
	}
	var estimate *accesslog.Estimate
	if s.log != "" {
		var err error
		if estimate, err = readLog(s.log); err != nil {
			return fmt.Errorf("--from-access-log: %w", err)
		}
	}
	err := s.plan(args, estimate)
	if err != nil {
		return err
	}
	stdout := out
	if out, err = s.json.open(stdout, scr.w, s.inputs()...); err != nil {
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
	if err := play(scr); err != nil {
		return err
	}
	return errors.Join(show(out), s.json.finish(stdout))
}

func (s *simulation) runs(scr screen) error {
	for i, server := range s.servers {
		r, err := s.play(server, scr, fmt.Sprintf("%s (%d of %d)", server.name, i+1, len(s.servers)))
		if err != nil {
			return fmt.Errorf("%s: %w", server.name, err)
		}
		s.Runs = append(s.Runs, report.Run{Result: r, Notes: server.notes})
	}
	return nil
}

// play makes a run. Its progress is shown after text.
func (s *simulation) play(one server, scr screen, text string) (sim.Result, error) {
	scenario := s.Scenario
	scenario.Name, scenario.Config = one.name, one.config
	if scr.terminal {
		var share atomic.Int64 // in percent
		scenario.Progress = func(now, end time.Duration) { share.Store(int64(100 * min(now, end) / max(1, end))) }
		defer live.Watch(scr.w, func() string { return fmt.Sprintf("%s %d%%", text, share.Load()) })()
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
