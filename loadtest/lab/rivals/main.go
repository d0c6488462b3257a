package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	caddycmd "github.com/caddyserver/caddy/v2/cmd"
	_ "github.com/caddyserver/caddy/v2/modules/standard"
	_ "github.com/mholt/caddy-ratelimit"
	"golang.org/x/sync/errgroup"

	_ "github.com/herdshield/shield/caddymodule"
)

func main() {
	if os.Getenv(caddyVar) != "" {
		caddycmd.Main()
		return
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Stdout, os.Stderr, os.Args[1:]); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			return
		}
		fmt.Fprintln(os.Stderr, "Error:", err)
		os.Exit(1)
	}
}

// run is the command. It ends early with ctx, with a table of what it has.
func run(ctx context.Context, out, progress io.Writer, args []string) error {
	flags := flag.NewFlagSet("rivals", flag.ContinueOnError)
	flags.SetOutput(progress)
	small := flags.Bool("quick", false, "a small version, several at a time: whether it still holds")
	markdown := flags.Bool("markdown", false, "print the table as Markdown")
	only := flags.String("only", "", "only those whose name contains `text`")
	seed := flags.Uint64("seed", full.Seed, "of the moments at which the background comes, at least 1")
	timeout := flags.Duration("timeout", full.Timeout, "that a client waits for a response")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if flags.NArg() > 0 {
		return fmt.Errorf("argument %q is unexpected; use flags only", flags.Arg(0))
	}
	s, together := full, 1
	if *small {
		s, together = quick, 4
	}
	s.Seed, s.Timeout = *seed, *timeout
	if err := s.check(); err != nil {
		return err
	}
	var chosen []rival
	for _, r := range rivals {
		if strings.Contains(r.name, *only) {
			chosen = append(chosen, r)
		}
	}
	if len(chosen) == 0 {
		return fmt.Errorf("no rival's name contains %q", *only)
	}

	before := loadAverage()
	results, err := runAll(ctx, progress, s, chosen, together)
	describe(out, s, results, before)
	if err := writeTable(out, *markdown, results); err != nil {
		return err
	}
	errs := []error{err}
	for _, r := range results {
		errs = append(errs, r.check())
	}
	return errors.Join(errs...)
}

// apart is how long after another a run starts, if several are on: their herds must
// not come in the same moment.
const apart = 1500 * time.Millisecond

// runAll runs the rivals, so many at a time, and returns the results of those that
// have ended on their own, in their order.
func runAll(ctx context.Context, progress io.Writer, s scenario, chosen []rival, together int) ([]result, error) {
	var (
		running errgroup.Group
		mu      sync.Mutex
		results = make([]result, len(chosen))
		errs    []error
	)
	running.SetLimit(together)
	for i, r := range chosen {
		running.Go(func() error {
			if ctx.Err() != nil {
				return nil
			}
			start := time.Now()
			res, err := s.run(ctx, r)
			mu.Lock()
			defer mu.Unlock()
			switch {
			case err == nil:
				results[i] = res
				fmt.Fprintf(progress, "%2d of %d: %s: %d served in %d requests; took %.1f s\n",
					i+1, len(chosen), r.name, res.herd.All.Served, res.herd.All.Requests, time.Since(start).Seconds())
			case ctx.Err() == nil:
				errs = append(errs, err)
			}
			return nil
		})
		if together > 1 {
			until(ctx, time.Now().Add(apart))
		}
	}
	running.Wait()
	results = slices.DeleteFunc(results, func(r result) bool { return r.rival.name == "" })
	if ctx.Err() != nil {
		errs = append(errs, fmt.Errorf("stopped with %d of %d done", len(results), len(chosen)))
	}
	return results, errors.Join(errs...)
}

// describe writes what was measured, and with what.
func describe(w io.Writer, s scenario, results []result, before string) {
	b := s.backend()
	fmt.Fprintf(w, "%d clients arrive within %v; limits are %d/s; a background of %d/s (Poisson, seed %d).\n",
		s.Clients, s.Window, s.Capacity, s.Background, s.Seed)
	fmt.Fprintf(w, "Clients try %d times at most, wait %v for a response, obey Retry-After, and retry after %v without one.\n",
		s.Attempts, s.Timeout, s.RetryDelay)
	fmt.Fprintf(w, "The backend has %d workers of %v: %.0f/s, or %.0f/s when crowded. At best, all are served after %.1f s.\n",
		b.Workers, b.Service, b.Capacity(), b.Capacity()/b.Slowest, s.optimum().Seconds())
	var late time.Duration
	for _, r := range results {
		late = max(late, r.herd.All.Late.Max)
	}
	fmt.Fprintf(w, "No request of a herd left later than %v after it was due.\n", late.Round(time.Millisecond))
	fmt.Fprintf(w, "%s. %s, %d processors; load average %s before, %s after.\n\n",
		strings.Join(versions(results), ", "), runtime.Version(), runtime.NumCPU(), before, loadAverage())
}

// versions names what stood in front.
func versions(results []result) (all []string) {
	modules := map[string]string{}
	if build, ok := debug.ReadBuildInfo(); ok {
		for _, m := range build.Deps {
			modules[m.Path] = m.Version
		}
	}
	for _, m := range []struct{ name, path string }{
		{"Caddy", "github.com/caddyserver/caddy/v2"},
		{"caddy-ratelimit", "github.com/mholt/caddy-ratelimit"},
		{"httprate", "github.com/go-chi/httprate"},
		{"chi", "github.com/go-chi/chi/v5"},
	} {
		all = append(all, m.name+" "+modules[m.path])
	}
	used := map[string]bool{}
	for _, r := range results {
		used[r.rival.program] = true
	}
	for _, p := range []struct{ name, flag string }{{"nginx", "-v"}, {"haproxy", "-v"}} {
		if path, err := find(p.name); err == nil && used[p.name] {
			said, _ := exec.Command(path, p.flag).CombinedOutput()
			line, _, _ := strings.Cut(string(said), "\n")
			line = strings.TrimPrefix(strings.TrimSpace(line), "nginx version: ")
			line, _, _ = strings.Cut(line, " 20") // the date of HAProxy's
			all = append(all, line)
		}
	}
	return all
}

// loadAverage returns how many processes wanted a processor in the last minute, on
// Linux.
func loadAverage() string {
	content, err := os.ReadFile("/proc/loadavg")
	first, _, _ := strings.Cut(string(content), " ")
	if err != nil {
		return "unknown"
	}
	return first
}
