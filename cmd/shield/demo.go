package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"net/http"
	"net/netip"
	"os"
	"strconv"
	"time"

	"github.com/caddyserver/caddy/v2"
	caddycmd "github.com/caddyserver/caddy/v2/cmd"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
	"github.com/spf13/cobra"
	"golang.org/x/time/rate"

	"github.com/herdshield/shield/caddymodule/commands"
	"github.com/herdshield/shield/limiter"
	"github.com/herdshield/shield/loadtest/clients"
	"github.com/herdshield/shield/loadtest/live"
	"github.com/herdshield/shield/loadtest/plant"
)

// maxDemo ends a demo that hangs. The three herds end long before that: see newPlan.
// Ours: few users watch a terminal for more than a minute.
const maxDemo = 55 * time.Second

func init() {
	caddycmd.RegisterCommand(caddycmd.Command{
		Name:  "demo",
		Usage: "[--clients <n>]",
		Short: "Shows what a rush of clients does to a backend, without and with shield",
		Long: `
Starts a fragile backend and sends a herd of real HTTP clients to it through
Caddy, three times: without a limit, with a rate limiter that gives all refused
clients the same Retry-After, and with shield, which gives each client its own.
A table and a picture compare the three.

All of it runs in this process, on free ports of 127.0.0.1, takes about half a
minute and leaves nothing behind. The exit code is 0 only if shield has served
every client.`,
		CobraFunc: demoCommand,
	})
}

var demo *cobra.Command // see shapeRoot

// demoCommand gives cmd its flags and its work. The work returns its errors to cobra,
// which prints them: Caddy's own wrapper logs them, and users do not look there.
func demoCommand(cmd *cobra.Command) {
	demo = cmd
	count := cmd.Flags().Int("clients", 300, "How many clients come: 50 to 1000. The backend grows with them")
	cmd.Args = commands.Args(0, 0, "none")
	cmd.RunE = runUntilInterrupt(func(ctx context.Context, _ []string, _ io.Writer, _ screen) error {
		if *count < 50 || *count > 1000 {
			return fmt.Errorf("--clients is %d; want 50 to 1000", *count)
		}
		ctx, cancel := context.WithTimeoutCause(ctx, maxDemo, fmt.Errorf("the demo took longer than %v", maxDemo))
		defer cancel()
		// Caddy's Load and Stop know no context.
		lastResort := time.AfterFunc(maxDemo+3*time.Second, func() {
			fmt.Fprintln(os.Stderr, "Error: the demo hangs; Caddy did not start or stop in time")
			os.Exit(1)
		})
		defer lastResort.Stop()
		return newPlan(*count).run(ctx, terminal(os.Stdout))
	})
}

// A plan is a demo that is ready to run.
type plan struct {
	backend live.BackendConfig
	herd    live.LoadConfig // without Target
	limit   limiter.Config  // of the usual limiter and of shield
}

// newPlan returns a plan that takes the same time for any number of clients. The backend
// grows with them: uncrowded, it can serve all of them in 3 s. They come within 0.1 s.
//
// Without a limit, 6 attempts of at most 2 s and 0.5 s between them end within 15 s. A
// Retry-After of 1 s ends them within 6 s. With shield, 80 % of the capacity serves all
// clients in about 5 s. Patience bounds all three, at 17.1 s.
//
// The timeout is above 1 s because shield may hold back a refusal for so long.
func newPlan(count int) plan {
	workers := max(1, count/50)
	capacity := float64(count) / 3 // requests per second
	return plan{
		backend: live.BackendConfig{
			Config:  plant.Config{Workers: workers, Coherency: 1 / float64(count/3), Slowest: 3, Queue: 4 * count},
			Service: time.Duration(float64(workers) / capacity * float64(time.Second)),
		},
		herd: live.LoadConfig{
			Herd: count, Within: 100 * time.Millisecond, Even: true, Connected: true,
			FirstAddress: netip.AddrFrom4([4]byte{10, 0, 0, 1}),
			Mix:          plainClients(retryDelay), Timeout: 2 * time.Second, Attempts: 6, Patience: 13 * time.Second,
		},
		limit: limiter.Config{Rate: 0.8 * capacity, Per: time.Second},
	}
}

// retryDelay is how long a client of the demo waits that is told nothing.
const retryDelay = 500 * time.Millisecond

// plainClients retry as most programs do: by Retry-After, or else after a fixed time.
func plainClients(delay time.Duration) clients.Population {
	return clients.All(clients.Client{
		On: clients.Lost | clients.Server | clients.S408 | clients.S429, Obeys: clients.S429 | clients.S503,
		Reads: clients.Seconds, Own: clients.Fixed{Gap: delay},
	})
}

// A part is one of the runs: the limit between the herd and the backend.
type part struct {
	name, intro string
	directive   string                          // of a Caddyfile, before reverse_proxy
	limit       func(http.Handler) http.Handler // around the backend; nil: none
}

// parts returns the parts in the order in which they are shown.
func (p plan) parts() []part {
	return []part{
		{name: "no limit", intro: "1. Without a limit: every request is passed on."},
		{name: "usual limiter", limit: p.usual,
			intro: fmt.Sprintf("2. With a usual rate limiter: %.0f requests per second are passed on, and all\n"+
				"   others are told to come back when there is capacity again, in 1 s.", p.limit.Rate)},
		{name: "shield", directive: fmt.Sprintf("shield {\n capacity %g/s\n}", p.limit.Rate),
			intro: fmt.Sprintf("3. With shield: %.0f requests per second are passed on, and each other client\n"+
				"   is given its own time to come back.", p.limit.Rate)},
	}
}

// usual returns the usual rate limiter of today: a token bucket before next. Its Retry-After
// is the time until the next token, rounded up to the field's whole seconds. It is correct,
// and the same for all clients that are refused together.
func (p plan) usual(next http.Handler) http.Handler {
	limit, err := limiter.NewCapacity(p.limit)
	if err != nil {
		panic(err) // the plan is wrong
	}
	bucket := rate.NewLimiter(rate.Limit(perSec(p.limit)), limit.Burst())
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if bucket.Allow() {
			next.ServeHTTP(w, r)
			return
		}
		wait := (1 - bucket.Tokens()) / perSec(p.limit)
		w.Header().Set("Retry-After", strconv.Itoa(max(1, int(math.Ceil(wait)))))
		http.Error(w, "over the limit", http.StatusServiceUnavailable)
	})
}

// run shows the demo, as far as it comes before ctx ends. A bad end is an error.
func (p plan) run(ctx context.Context, scr screen) error {
	scr.printf(`
A backend can serve %.0f requests per second. Like many real ones, it becomes
slower when it is crowded, and it does not notice when a client has gone away.

Now %d clients come within %s. Each waits %s for an answer. It retries when
it is told to, or after %s if it is told nothing, and gives up after %d tries.
Caddy stands in between.
`, p.backend.Capacity(), p.herd.Herd, inSeconds(p.herd.Within), inSeconds(p.herd.Timeout),
		inSeconds(retryDelay), p.herd.Attempts)

	runs, err := p.compare(ctx, scr)
	if err != nil {
		return err
	}
	scr.printf("\n")
	if err := writeRuns(scr.w, "   ", runs...); err != nil {
		return err
	}
	scr.printf("\n   requests of the clients over time\n")
	if err := writePicture(scr.w, "   ", runs...); err != nil {
		return err
	}
	if ctx.Err() != nil {
		return fmt.Errorf("stopped before the end: %w", context.Cause(ctx))
	}
	if err := judge(runs[0], runs[1], runs[2]); err != nil {
		return err
	}
	scr.printf("\nThe backend was the same, and so were the clients.\n")
	return nil
}

// compare runs the parts. It returns fewer runs if ctx ends before the last, and an
// error only if a part could not run.
func (p plan) compare(ctx context.Context, scr screen) (runs []demoRun, err error) {
	for _, part := range p.parts() {
		if ctx.Err() != nil {
			break
		}
		scr.printf("\n%s\n", part.intro)
		run, err := p.part(ctx, scr, part)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", part.name, err)
		}
		run.Name = part.name
		runs = append(runs, run)
	}
	return runs, nil
}

// judge returns an error unless the run without a limit failed some clients, and the run
// with shield served all. That must take fewer requests than the usual limiter, and no
// figure may be worse than without a limit.
func judge(without, usual, with demoRun) error {
	w, u, s := &without.Herd.All, &usual.Herd.All, &with.Herd.All
	var errs problems
	if w.Served == w.Clients {
		errs.addf("without a limit all clients were served: they came too slowly, and there is nothing to see (too few open files?)")
	}
	if s.Served < s.Clients {
		errs.addf("with shield, %d of %d clients were served; want all", s.Served, s.Clients)
	}
	if s.Requests >= u.Requests {
		errs.addf("with shield, the clients sent %d requests, with the usual limiter %d; want fewer", s.Requests, u.Requests)
	}
	noMore := func(what string, with, without int) {
		if with > without {
			errs.addf("with shield, %s %d, without a limit %d; want no more", what, with, without)
		}
	}
	noMore("the requests sent were", s.Requests, w.Requests)
	noMore("the requests inside the backend were", with.Backend.Peak, without.Backend.Peak)
	noMore("the requests reaching it in one second were", with.Backend.Busiest, without.Backend.Busiest)
	noMore("the requests it worked on in vain were", with.Backend.Wasted, without.Backend.Wasted)
	return errors.Join(errs...)
}

// part sends the herd through the limit of a part to a new backend.
func (p plan) part(ctx context.Context, scr screen, part part) (run demoRun, err error) {
	backend, err := live.NewBackend(p.backend)
	if err != nil {
		return run, err
	}
	defer backend.Close()
	var server http.Handler = backend
	if part.limit != nil {
		server = part.limit(backend)
	}
	upstream, stopServer, err := serve(server)
	if err != nil {
		return run, fmt.Errorf("starting the backend: %w", err)
	}
	defer stopServer()
	url, err := startCaddy(upstream, part.directive)
	if err != nil {
		return run, fmt.Errorf("starting Caddy: %w", err)
	}
	defer func() { err = errors.Join(err, caddy.Stop()) }()
	herd := p.herd
	if herd.Target, err = live.NewTarget(ctx, url, false); err != nil {
		return run, err
	}
	load, err := live.NewLoad(herd)
	if err != nil {
		return run, err
	}
	stopWatch := live.Watch(scr.w, scr.terminal, func() string {
		p := load.Progress()
		// 66 columns: a line that wraps cannot be redrawn.
		return fmt.Sprintf("%4.1f s: %4d served, %4d trying, %4d gave up; %4d in the backend",
			p.At.Seconds(), p.Served, herd.Herd-p.Served-p.GaveUp, p.GaveUp, backend.Stats().Inside)
	})
	r := load.Run(ctx)
	stopWatch()
	return demoRun{Herd: r, Backend: backend.Stats()}, nil
}

// serve starts an HTTP server on a free loopback port and returns its address.
func serve(h http.Handler) (addr string, stop func(), err error) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", nil, err
	}
	srv := &http.Server{Handler: h}
	go srv.Serve(ln) // until it is closed; if it ends sooner, the herd meets it
	return ln.Addr().String(), func() { srv.Close() }, nil
}

// demoCaddyfile shows errors of Caddy. Errors of requests are not shown: the herd counts
// them, and a line for each would hide all others. The user's certificates stay as they
// are, the grace period has an end, and the herd's X-Forwarded-For is trusted.
const demoCaddyfile = `{
	admin off
	persist_config off
	auto_https off
	storage_clean_interval off
	grace_period 1s
	log default {
		format shield
		level ERROR
		exclude http.log.error
	}
	servers {
		protocols h1
		trusted_proxies static 127.0.0.0/8
		trusted_proxies_strict
		listener_wrappers {
			shield
		}
	}
}
http://:0 {
	bind 127.0.0.1
	%s
	reverse_proxy %s {
		transport http {
			keepalive_idle_conns_per_host %d
			compression off
		}
	}
}
`

// startCaddy runs Caddy with one server on a free loopback port and returns its
// URL. The caller must caddy.Stop.
func startCaddy(upstream, directive string) (string, error) {
	config, err := adapt(fmt.Sprintf(demoCaddyfile, directive, upstream, idleConns))
	if err != nil {
		return "", err
	}
	if err := caddy.Load(config, true); err != nil {
		return "", err
	}
	app, err := caddy.ActiveContext().App("http")
	if err != nil {
		return "", errors.Join(err, caddy.Stop())
	}
	for _, server := range app.(*caddyhttp.App).Servers {
		return "http://" + server.Listeners()[0].Addr().String(), nil
	}
	return "", errors.Join(errors.New("no server runs in Caddy; want one"), caddy.Stop())
}

// inSeconds writes d in seconds: 0.5 s, not 500ms.
func inSeconds(d time.Duration) string { return fmt.Sprintf("%g s", d.Seconds()) }
