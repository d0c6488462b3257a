// Package demo shows what a rush of clients does to a fragile backend: without a limit, with a
// usual rate limiter, and with shield, each on real connections of this machine.
//
// It is not for measuring: "shield loadtest" and "shield simulate" are. A plan says who comes to
// which backend; its three parts are played one after the other, and a table and a picture compare
// them.
//
//	err := demo.Run(ctx, os.Stdout, true)
package demo

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"net/http"
	"net/http/httputil"
	"net/netip"
	"net/url"
	"strconv"
	"time"

	"golang.org/x/time/rate"

	"github.com/herdshield/shield"
	"github.com/herdshield/shield/limiter"
	"github.com/herdshield/shield/loadtest/clients"
	"github.com/herdshield/shield/loadtest/live"
	"github.com/herdshield/shield/loadtest/plant"
)

// longest ends a demo that hangs. The three herds end long before that: see newPlan.
// Ours: few users watch a terminal for more than a minute.
const longest = 55 * time.Second

// Short and Long say what the demo is, for the help of a command.
const (
	Short = "Show what a thundering herd does to a backend, without and with shield"
	Long  = `
See in half a minute what shield does. The demo starts a fragile backend and sends a
herd of real HTTP clients to it through a proxy, three times:
  1. without a limit
  2. with a rate limiter that sends every rejected client the same Retry-After
  3. with shield, which gives each rejected client its own Retry-After
A table and a chart compare the three.

Everything runs in this process, on free ports of 127.0.0.1, and leaves nothing
behind. The exit code is 0 only if shield served every client.
`
)

// Run shows the demo on w. terminal: what is written there can be written over. The error is
// not nil if ctx ends before the demo, or if shield has not served every client.
func Run(ctx context.Context, w io.Writer, terminal bool) error {
	ctx, cancel := context.WithTimeoutCause(ctx, longest, fmt.Errorf("the demo took longer than %v", longest))
	defer cancel()
	return newPlan().run(ctx, w, terminal)
}

// A plan is a demo that is ready to run.
type plan struct {
	backend live.BackendConfig
	herd    live.LoadConfig // without Target
	limit   limiter.Config  // of the usual limiter and of shield
}

// newPlan returns a plan of half a minute. Uncrowded, the backend can serve all clients in 3 s.
// They come within 0.1 s.
//
// Without a limit, 6 attempts of at most 2 s and 0.5 s between them end within 15 s. A
// Retry-After of 1 s ends them within 6 s. With shield, 80% of the capacity serves all
// clients in about 5 s. Patience bounds all three, at 17.1 s.
//
// The timeout is above 1 s because shield may hold back a rejection for so long.
func newPlan() plan {
	const count, workers, capacity = 300, 6, 100 // requests per second
	return plan{
		backend: live.BackendConfig{
			Config:  plant.Config{Workers: workers, Coherency: 1.0 / 100, Slowest: 3, Queue: 4 * count},
			Service: workers * time.Second / capacity,
		},
		herd: live.LoadConfig{
			Herd: count, Within: 100 * time.Millisecond, Even: true, Connected: true,
			FirstAddress: netip.AddrFrom4([4]byte{10, 0, 0, 1}),
			Mix:          plainClients(retryDelay), Timeout: 2 * time.Second, Attempts: 6, Patience: 13 * time.Second,
		},
		limit: limiter.Config{Rate: 0.8 * capacity},
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
	limit       func(http.Handler) http.Handler // around the proxy
}

// parts returns the parts in the order in which they are shown.
func (p plan) parts() []part {
	return []part{
		{name: "no limit", limit: func(next http.Handler) http.Handler { return next }, intro: "1. Without a limit: the proxy forwards every request."},
		{name: "usual limiter", limit: p.usual,
			intro: fmt.Sprintf("2. With a usual rate limiter: it admits %.0f requests per second and tells\n"+
				"   all other clients to retry in 1 s, when there is capacity again.", p.limit.Rate)},
		{name: "shield", limit: p.shield,
			intro: fmt.Sprintf("3. With shield: it admits %.0f requests per second and gives each other client\n"+
				"   its own time to retry.", p.limit.Rate)},
	}
}

// usual returns the usual rate limiter of today: a token bucket before next. Its Retry-After
// is the time until the next token, rounded up to the field's whole seconds. It is correct,
// and the same for all clients that are rejected together.
func (p plan) usual(next http.Handler) http.Handler {
	limit, err := limiter.NewCapacity(p.limit)
	if err != nil {
		panic(err) // the plan is wrong
	}
	bucket := rate.NewLimiter(rate.Limit(p.limit.Rate), limit.Burst())
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if bucket.Allow() {
			next.ServeHTTP(w, r)
			return
		}
		wait := (1 - bucket.Tokens()) / p.limit.Rate
		w.Header().Set("Retry-After", strconv.Itoa(max(1, int(math.Ceil(wait)))))
		http.Error(w, "over the limit", http.StatusServiceUnavailable)
	})
}

// shield returns shield, with a limit for all clients together. The clients of the herd have
// addresses of their own, which the proxy is told.
func (p plan) shield(next http.Handler) http.Handler {
	guard := shield.Must(shield.New(shield.Config{
		Capacity: p.limit,
		Client:   func(r *http.Request) string { return r.Header.Get("X-Forwarded-For") },
	}, nil))
	return guard.Handler(next)
}

// run shows the demo, as far as it comes before ctx ends. A bad end is an error.
func (p plan) run(ctx context.Context, w io.Writer, terminal bool) error {
	fmt.Fprintf(w, `
A backend can serve %.0f requests per second. Like many real ones, it slows down
under load and doesn't notice when a client disconnects.

Now %d clients arrive within %s. Each waits %s for a response, retries
when told to, or after %s if told nothing, and gives up after %d tries.
A proxy stands between the clients and the backend.
`, p.backend.Capacity(), p.herd.Herd, inSeconds(p.herd.Within), inSeconds(p.herd.Timeout),
		inSeconds(retryDelay), p.herd.Attempts)

	var runs []demoRun
	for _, part := range p.parts() {
		if ctx.Err() != nil {
			break
		}
		fmt.Fprintf(w, "\n%s\n", part.intro)
		run, err := p.part(ctx, w, terminal, part)
		if err != nil {
			return fmt.Errorf("%s: %w", part.name, err)
		}
		runs = append(runs, run)
	}
	fmt.Fprintln(w)
	if err := writeRuns(w, "   ", runs...); err != nil {
		return err
	}
	fmt.Fprintln(w, "\n   requests of the clients over time")
	if err := writePicture(w, "   ", runs...); err != nil {
		return err
	}
	if ctx.Err() != nil {
		return fmt.Errorf("stopped before the end: %w", context.Cause(ctx))
	}
	if err := judge(runs[0], runs[1], runs[2]); err != nil {
		return err
	}
	fmt.Fprintln(w, "\nThe backend was the same, and so were the clients.")
	return nil
}

// judge returns an error unless the run without a limit failed some clients, and the run with
// shield served all, with fewer requests than the usual limiter.
func judge(without, usual, with demoRun) error {
	w, u, s := &without.Herd.All, &usual.Herd.All, &with.Herd.All
	var errs []error
	add := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	if w.Served == w.Clients {
		add("without a limit all clients were served: they came too slowly, and there is nothing to see (too few open files?)")
	}
	if s.Served < s.Clients {
		add("with shield, %d of %d clients were served; all should be", s.Served, s.Clients)
	}
	if s.Requests >= u.Requests {
		add("with shield, the clients sent %d requests, and with the usual limiter %d; it should be fewer", s.Requests, u.Requests)
	}
	return errors.Join(errs...)
}

// part sends the herd through the limit of a part to a new backend.
func (p plan) part(ctx context.Context, w io.Writer, terminal bool, part part) (run demoRun, err error) {
	backend := live.NewBackend(p.backend)
	defer backend.Close()
	upstream, stopBackend, err := serve(backend)
	if err != nil {
		return run, fmt.Errorf("starting the backend: %w", err)
	}
	defer stopBackend()
	front, stopProxy, err := serve(part.limit(proxyTo(upstream)))
	if err != nil {
		return run, fmt.Errorf("starting the proxy: %w", err)
	}
	defer stopProxy()
	herd := p.herd
	if herd.Target, err = live.NewTarget(ctx, front.String(), false); err != nil {
		return run, err
	}
	load, err := live.NewLoad(herd)
	if err != nil {
		return run, err
	}
	stopWatch := func() {}
	if terminal {
		stopWatch = live.Watch(w, func() string {
			t, lasted := load.Progress()
			// 66 columns: a line that wraps cannot be redrawn.
			return fmt.Sprintf("%4.1f s: %4d served, %4d trying, %4d gave up; %4d in the backend",
				lasted.Seconds(), t.Served, herd.Herd-t.Served-t.GaveUp, t.GaveUp, backend.Stats().Inside)
		})
	}
	r := load.Run(ctx)
	stopWatch()
	return demoRun{Name: part.name, Herd: r, Backend: backend.Stats()}, nil
}

// serve starts an HTTP server on a free loopback port and returns its URL.
func serve(h http.Handler) (at *url.URL, stop func(), err error) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, nil, err
	}
	srv := &http.Server{Handler: h}
	go srv.Serve(ln) // until it is closed; if it ends sooner, the herd meets it
	return &url.URL{Scheme: "http", Host: ln.Addr().String()}, func() { srv.Close() }, nil
}

// proxyTo returns a proxy to a server. It says nothing of requests that fail: the herd counts
// them, and a line for each would hide all others.
func proxyTo(at *url.URL) *httputil.ReverseProxy {
	return &httputil.ReverseProxy{
		Rewrite:      func(r *httputil.ProxyRequest) { r.SetURL(at) },
		Transport:    &http.Transport{MaxIdleConnsPerHost: 1024, DisableCompression: true},
		ErrorHandler: func(w http.ResponseWriter, _ *http.Request, _ error) { w.WriteHeader(http.StatusBadGateway) },
	}
}

// inSeconds writes d in seconds: 0.5 s, not 500ms.
func inSeconds(d time.Duration) string { return fmt.Sprintf("%g s", d.Seconds()) }
