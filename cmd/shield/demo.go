package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/caddyserver/caddy/v2"
	caddycmd "github.com/caddyserver/caddy/v2/cmd"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/herdshield/shield/loadtest/live"
)

// maxDemo ends a demo that hangs. The two herds end by themselves long before:
// see newPlan. Ours: nobody watches a terminal for more than a minute.
const maxDemo = 55 * time.Second

func init() {
	caddycmd.RegisterCommand(caddycmd.Command{
		Name:  "demo",
		Usage: "[--clients <n>]",
		Short: "Shows what a rush of clients does to a backend, without and with shield",
		Long: `
Starts a fragile backend and sends a herd of real HTTP clients to it through
Caddy, twice: first without shield, then with it. A table compares the two.

All of it runs in this process, on free ports of 127.0.0.1, takes about half a
minute and leaves nothing behind. The exit code is 0 only if shield has served
every client.`,
		CobraFunc: demoCommand,
	})
}

// demoCommand gives cmd its flags and its work. The work returns its errors to
// cobra, which prints them: Caddy's own wrapper logs them, and a log is not
// where the reader of a story looks.
func demoCommand(cmd *cobra.Command) {
	clients := cmd.Flags().Int("clients", 300, "How many clients come: 50 to 1000. The backend grows with them")
	cmd.Args = cobra.NoArgs
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if *clients < 50 || *clients > 1000 {
			return fmt.Errorf("--clients is %d; want 50 to 1000", *clients)
		}
		ctx, stop := signal.NotifyContext(cmd.Context(), os.Interrupt, syscall.SIGTERM)
		defer stop()
		context.AfterFunc(ctx, stop) // a second Ctrl-C kills at once
		ctx, cancel := context.WithTimeoutCause(ctx, maxDemo, fmt.Errorf("the demo took longer than %v", maxDemo))
		defer cancel()
		// Caddy's Load and Stop know no context.
		lastResort := time.AfterFunc(maxDemo+3*time.Second, func() {
			fmt.Fprintln(os.Stderr, "Error: the demo hangs; Caddy did not start or stop in time")
			os.Exit(1)
		})
		defer lastResort.Stop()
		return newPlan(*clients).run(ctx, screen{os.Stdout, term.IsTerminal(int(os.Stdout.Fd()))})
	}
}

// A plan is everything a demo is made of.
type plan struct {
	backend live.BackendConfig
	herd    live.HerdConfig // without URL
	shield  json.RawMessage // the handler before reverse_proxy in the second part
}

// newPlan returns a plan that takes the same time for any number of clients,
// because the backend grows with them: uncrowded, it could serve them all in
// 3 s. They come within 1 s, which is the whole problem.
//
// Without shield, 12 attempts of at most 1 s and 0.5 s between them end within
// 19 s. With it, 80 % of the capacity serves everyone in about 5 s; patience
// bounds that part, too, at 23 s.
func newPlan(clients int) plan {
	workers := max(1, clients/50)
	capacity := float64(clients) / 3 // requests per second
	return plan{
		backend: live.BackendConfig{
			Workers:     workers,
			Service:     time.Duration(float64(workers) / capacity * float64(time.Second)),
			Crowd:       clients / 3,
			MaxSlowdown: 3,
			Queue:       4 * clients,
		},
		herd: live.HerdConfig{
			Clients:    clients,
			Window:     time.Second,
			Timeout:    time.Second,
			RetryDelay: 500 * time.Millisecond,
			Attempts:   12,
			Patience:   21 * time.Second,
		},
		shield: shieldJSON(0.8*capacity, max(1, clients/20), 3*workers),
	}
}

// shieldJSON returns the config of a shield handler: rate in requests per
// second, burst and concurrency in requests.
func shieldJSON(rate float64, burst, concurrency int) json.RawMessage {
	return fmt.Appendf(nil, `{
		"handler": "shield",
		"capacity": {"rate": %g, "per": "1s", "burst": %d},
		"concurrency": {"limit": %d},
		"pushback": {"max": "30s"}
	}`, rate, burst, concurrency)
}

// run tells the whole story on scr and returns an error unless it ended well.
// When ctx ends, it shows what it has.
func (p plan) run(ctx context.Context, scr screen) error {
	scr.printf(`
A backend can serve %.0f requests per second. Like many real ones, it becomes
slower when it is crowded, and it does not notice when a client has gone away.

Now %d clients come within %s. Each waits %s for an answer, tries again
%s later, and gives up after %d tries. Caddy stands in between.
`, p.backend.Capacity(), p.herd.Clients, inSeconds(p.herd.Window), inSeconds(p.herd.Timeout),
		inSeconds(p.herd.RetryDelay), p.herd.Attempts)

	runs, err := p.compare(ctx, scr)
	if err != nil {
		return err
	}
	scr.printf("\n")
	if err := live.WriteTable(scr.w, "   ", runs...); err != nil {
		return err
	}
	if ctx.Err() != nil {
		return fmt.Errorf("stopped before the end: %w", context.Cause(ctx))
	}
	if err := judge(runs[0], runs[1]); err != nil {
		return err
	}
	scr.printf("\nThe backend was the same, and so were the clients.\n")
	return nil
}

// compare runs the two parts. It returns fewer runs if ctx ends in the first,
// and an error only if something broke.
func (p plan) compare(ctx context.Context, scr screen) (runs []live.Run, err error) {
	parts := []struct {
		name, intro string
		handlers    []json.RawMessage // before reverse_proxy
	}{
		{"without shield", "1. Without shield: Caddy passes every request on.", nil},
		{"with shield", "2. With shield: Caddy passes on what the backend can do, and tells everyone\n" +
			"   else when to come back. The same clients, a new backend.", []json.RawMessage{p.shield}},
	}
	for _, part := range parts {
		if ctx.Err() != nil {
			break
		}
		scr.printf("\n%s\n", part.intro)
		run, err := p.part(ctx, scr, part.handlers)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", part.name, err)
		}
		run.Name = part.name
		runs = append(runs, run)
	}
	return runs, nil
}

// judge returns an error unless the run without shield failed somebody, and the
// one with shield served everyone and was in nothing worse.
func judge(without, with live.Run) error {
	w, s := without, with
	var errs []error
	if w.Herd.Served == w.Herd.Clients {
		errs = append(errs, errors.New("without shield all clients were served: something held them back, and there is nothing to see (too few open files?)"))
	}
	if s.Herd.Served < s.Herd.Clients {
		errs = append(errs, fmt.Errorf("with shield, %d of %d clients were served; want all", s.Herd.Served, s.Herd.Clients))
	}
	if s.Herd.Served < w.Herd.Served {
		errs = append(errs, fmt.Errorf("with shield, %d clients were served, without it %d; want no fewer", s.Herd.Served, w.Herd.Served))
	}
	if s.Backend.Peak > w.Backend.Peak {
		errs = append(errs, fmt.Errorf("with shield, %d requests were inside the backend, without it %d; want no more", s.Backend.Peak, w.Backend.Peak))
	}
	if s.Backend.Wasted > w.Backend.Wasted {
		errs = append(errs, fmt.Errorf("with shield, the backend wasted %d requests, without it %d; want no more", s.Backend.Wasted, w.Backend.Wasted))
	}
	return errors.Join(errs...)
}

// part sends the herd through Caddy, with handlers before its reverse_proxy, to
// a backend of its own.
func (p plan) part(ctx context.Context, scr screen, handlers []json.RawMessage) (run live.Run, err error) {
	backend, err := live.NewBackend(p.backend)
	if err != nil {
		return run, err
	}
	defer backend.Close()
	upstream, stopServer, err := serve(backend)
	if err != nil {
		return run, fmt.Errorf("starting the backend: %w", err)
	}
	defer stopServer()
	herd := p.herd
	herd.URL, err = startCaddy(upstream, handlers)
	if err != nil {
		return run, fmt.Errorf("starting Caddy: %w", err)
	}
	defer func() { err = errors.Join(err, caddy.Stop()) }()
	clients, err := live.NewHerd(herd)
	if err != nil {
		return run, err
	}
	stopWatch := live.Watch(scr.w, scr.terminal, clients, backend)
	clients.Run(ctx)
	stopWatch()
	return live.Run{Herd: clients.Result(), Backend: backend.Stats()}, nil
}

// serve starts an HTTP server on a free loopback port and returns its address.
func serve(h http.Handler) (addr string, stop func(), err error) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", nil, err
	}
	srv := &http.Server{Handler: h}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = srv.Serve(ln) // ends with ErrServerClosed; if sooner, the herd meets it
	}()
	return ln.Addr().String(), func() { srv.Close(); <-ended }, nil
}

// startCaddy runs Caddy with one server on a free loopback port and returns its
// URL. The caller must caddy.Stop.
func startCaddy(upstream string, handlers []json.RawMessage) (string, error) {
	proxy := fmt.Appendf(nil, `{"handler": "reverse_proxy", "upstreams": [{"dial": %q}]}`, upstream)
	config, err := json.Marshal(map[string]any{
		"admin": map[string]any{"disabled": true, "config": map[string]any{"persist": false}},
		// What is wrong with Caddy is shown. What is wrong with a request is not:
		// the herd counts it, and a line for each would drown the story.
		"logging": map[string]any{"logs": map[string]any{"default": map[string]any{
			"level": "ERROR", "exclude": []string{"http.log.error"},
		}}},
		"apps": map[string]any{
			"tls": map[string]any{"disable_storage_clean": true}, // leave the user's certificates alone
			"http": map[string]any{
				"grace_period": "1s", // Caddy's default waits for ever
				"servers": map[string]any{"demo": map[string]any{
					"listen":          []string{"127.0.0.1:0"},
					"protocols":       []string{"h1"},
					"automatic_https": map[string]any{"disable": true},
					"routes":          []any{map[string]any{"handle": append(handlers, proxy)}},
				}},
			},
		},
	})
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
	listeners := app.(*caddyhttp.App).Servers["demo"].Listeners()
	return "http://" + listeners[0].Addr().String(), nil
}

// A screen is where the story is told.
type screen struct {
	w        io.Writer
	terminal bool // w can redraw a line
}

func (s screen) printf(format string, args ...any) { fmt.Fprintf(s.w, format, args...) }

// inSeconds writes d as people do: 0.5 s, not 500ms.
func inSeconds(d time.Duration) string { return fmt.Sprintf("%g s", d.Seconds()) }
