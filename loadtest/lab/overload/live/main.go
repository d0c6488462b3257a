// Command live overloads real backends behind shield's own program, over real
// sockets, and compares what they serve with what package overload has simulated.
//
// Three times what a backend can serve comes, as a Poisson process, from clients
// that wait one second and do not try again. It comes to the backend without shield,
// with a fixed limit that somebody has tuned by hand to the backend's eight workers,
// and with a limit that shield finds by itself. There are two backends: PHP-FPM, and
// this project's own.
//
// Before each of the runs the backend's capacity is measured: what it serves with
// twice as many requests in flight as it has workers. The simulated backend has as
// many workers, and takes for a request what gives it that capacity.
//
// The exit code is 0 only if the limit that shield has found serves what it does in
// the simulation, to within 10 %. With -quick, which takes 10 s for each instead of
// 60 s and is for busy machines, half of the capacity is enough.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"math"
	"os"
	"os/signal"
	"runtime"
	"syscall"
	"text/tabwriter"
	"time"

	"github.com/herdshield/shield"
	"github.com/herdshield/shield/loadshed"
	"github.com/herdshield/shield/loadtest/lab/overload"
)

const (
	times   = 3 // the capacity comes
	timeout = time.Second
	seed    = 1

	maxDifference = .10 // between what is served live and simulated
	quickShare    = .50 // of the capacity, at least, on a machine of which nothing is known
)

// A variant is what stands before the backend.
type variant struct {
	name      string
	caddyfile string
	simulated func(*overload.World) overload.Limiter
	checked   bool // what it serves must be what is simulated
}

var variants = []variant{
	{"no shield", "", overload.None, false},
	{"concurrency 12", "shield {\n\t\tconcurrency 12\n\t}", overload.Guard(shield.Config{Concurrency: 12}), false},
	{"concurrency adaptive", "shield {\n\t\tconcurrency adaptive\n\t}", overload.Guard(shield.Config{Adaptive: &loadshed.AdaptiveConfig{}}), true},
}

func main() {
	program := flag.String("shield", "", "shield's `program`")
	php := flag.String("php", "php-fpm", "PHP-FPM's `program`")
	quick := flag.Bool("quick", false, "10 s instead of 60 s for each, and only see whether it works")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Stdout, *program, []backend{phpFPM(*php), pool}, *quick); err != nil {
		fmt.Fprintln(os.Stderr, "Error:", err)
		os.Exit(1)
	}
}

// A result is one line of the table.
type result struct {
	backend   string
	variant   variant
	load      load
	capacity  float64 // requests per second
	live      tally
	simulated overload.Stats
}

// run overloads each backend behind each variant and prints a table. The error
// names what is not as it should be.
func run(ctx context.Context, out io.Writer, program string, backends []backend, quick bool) error {
	seconds, measure := 60, 5*time.Second
	if quick {
		seconds, measure = 10, 2*time.Second
	}
	fmt.Fprintf(out, "%d processors; %d times the capacity for %d s; clients wait %v\n", runtime.NumCPU(), times, seconds, timeout)
	var results []result
	for _, b := range backends {
		capacity := 0.0
		first := len(results)
		for _, v := range variants {
			// A busy machine can only take away from what a backend can serve: the
			// best of the measurements counts.
			if err := behind(ctx, program, b, "", func(p *proxy) {
				capacity = max(capacity, saturate(ctx, 2*workers, measure, p.send))
			}); err != nil {
				return err
			}
			if capacity == 0 {
				return fmt.Errorf("%s serves nothing", b.name)
			}
			r := result{backend: b.name, variant: v}
			r.load = load{rate: times * capacity, lasts: time.Duration(seconds) * time.Second, timeout: timeout, seed: seed}
			if err := behind(ctx, program, b, v.caddyfile, func(p *proxy) { r.live = r.load.run(ctx, p.send) }); err != nil {
				return err
			}
			results = append(results, r)
		}
		fmt.Fprintf(out, "%s: %d workers serve %.1f requests per second\n", b.name, workers, capacity)
		for i := range results[first:] {
			r := &results[first+i]
			r.capacity = capacity
			r.simulated = simulate(r.variant, r.load, capacity)
		}
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	if err := table(out, results); err != nil {
		return err
	}
	return check(results, quick)
}

// behind calls do while a new backend runs behind a new proxy, in a folder that is
// removed afterwards.
func behind(ctx context.Context, program string, b backend, caddyfile string, do func(*proxy)) error {
	folder, err := os.MkdirTemp("", "overload")
	if err != nil {
		return err
	}
	defer os.RemoveAll(folder)
	if err := os.Chmod(folder, 0o755); err != nil { // PHP's workers may be another user
		return err
	}
	directive, stop, err := b.start(ctx, folder)
	if err != nil {
		return err
	}
	defer stop()
	p, err := startProxy(ctx, program, folder, caddyfile, directive)
	if err != nil {
		return err
	}
	defer p.stop()
	do(p)
	return nil
}

// simulate plays the same load before a simulated backend of the same capacity.
func simulate(v variant, l load, capacity float64) overload.Stats {
	s := overload.Scenario{
		Plant:    overload.Plant{Workers: workers},
		Routes:   []overload.Route{{Share: 1, Service: overload.Deterministic(time.Duration(workers / capacity * float64(time.Second)))}},
		Rate:     overload.Steps{{Value: l.rate}},
		Lasts:    l.lasts,
		Timeout:  l.timeout,
		Capacity: capacity,
	}
	return overload.Run(s, v.simulated, l.seed).Between(0, int(l.lasts/time.Second))
}

// expected returns how many are served per second in the simulation.
func (r result) expected() float64 { return float64(r.simulated.Good) / r.load.lasts.Seconds() }

// difference returns how much more is served live than simulated, as a part of
// the latter.
func (r result) difference() float64 {
	return r.live.goodput()/r.expected() - 1
}

// table prints the results. Times are of those served, since they were due; "late"
// is how long after that this process has sent 99 % of all.
func table(out io.Writer, results []result) error {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(w, "\nbackend\tin front\toffered/s\tserved/s\tof capacity\tp50\tp99\trefused\ttimed out\tfailed\tlate\tsimulated/s\tp50\tp99\tlive/simulated\t")
	for _, r := range results {
		share := func(o outcome) float64 {
			return 100 * float64(r.live.count[o]) / max(1, r.live.offered()*r.load.lasts.Seconds())
		}
		round := func(d time.Duration) time.Duration { return d.Round(time.Millisecond) }
		fmt.Fprintf(w, "%s\t%s\t%.0f\t%.1f\t%.1f %%\t%v\t%v\t%.1f %%\t%.1f %%\t%.1f %%\t%v\t%.1f\t%v\t%v\t%+.1f %%\t\n",
			r.backend, r.variant.name, r.live.offered(), r.live.goodput(), 100*r.live.goodput()/r.capacity,
			round(quantile(r.live.latencies, .5)), round(quantile(r.live.latencies, .99)),
			share(refused), share(timedOut), share(failed), quantile(r.live.late, .99).Round(100*time.Microsecond),
			r.expected(), round(r.simulated.P50), round(r.simulated.P99), 100*r.difference())
	}
	return w.Flush()
}

// check returns an error for each result that is not what it should be.
func check(results []result, quick bool) error {
	var errs []error
	for _, r := range results {
		switch {
		case !r.variant.checked:
		case quick && r.live.goodput() < quickShare*r.capacity:
			errs = append(errs, fmt.Errorf("%s, %s: %.1f served per second; want at least %.1f",
				r.backend, r.variant.name, r.live.goodput(), quickShare*r.capacity))
		case !quick && !(math.Abs(r.difference()) <= maxDifference): // NaN must fail too
			errs = append(errs, fmt.Errorf("%s, %s: %.1f served per second, %+.1f %% of what is simulated; want %.0f %% at most",
				r.backend, r.variant.name, r.live.goodput(), 100*r.difference(), 100*maxDifference))
		}
	}
	return errors.Join(errs...)
}
