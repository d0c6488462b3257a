// Command live overloads real backends behind shield's own program, over real
// sockets, and compares what they serve with what package overload has simulated.
//
// Three times what a backend can serve comes, as a Poisson process, from clients
// that wait one second and do not try again. It comes to the backend without shield,
// with a fixed limit that is tuned by hand to the backend's eight workers,
// and with a limit that shield finds. There are two backends: PHP-FPM, and
// this project's own.
//
// Before each of the runs the backend's capacity is measured: at what rate it works
// off a queue. The simulated backend has as
// many workers, and takes for a request what gives it that capacity.
//
// The exit code is 0 only if the limit that shield has found serves what it does in
// the simulation, to within 10%. With -quick, which takes 10 s for each instead of
// 60 s and is for busy machines, half of the capacity is enough.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"math"
	"net/netip"
	"os"
	"os/signal"
	"runtime"
	"syscall"
	"text/tabwriter"
	"time"

	"github.com/herdshield/shield"
	"github.com/herdshield/shield/loadtest/clients"
	"github.com/herdshield/shield/loadtest/lab/overload"
	"github.com/herdshield/shield/loadtest/lab/process"
	"github.com/herdshield/shield/loadtest/live"
	"github.com/herdshield/shield/loadtest/plant"
	"github.com/herdshield/shield/loadtest/sim"
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
	simulated shield.Config
	checked   bool // what it serves must be what is simulated
}

var variants = []variant{
	{"no shield", "", overload.None.Config, false},
	{"concurrency 12", "shield {\n\t\tconcurrency 12\n\t}", shield.Config{Concurrency: 12}, false},
	{"concurrency adaptive", "shield {\n\t\tconcurrency adaptive\n\t}", overload.Shield.Config, true},
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

// A load comes as a Poisson process.
type load struct {
	rate  float64 // requests per second
	lasts time.Duration
}

// A result is one line of the table.
type result struct {
	backend   string
	variant   variant
	load      load
	capacity  float64 // requests per second
	live      live.Tally
	simulated overload.Stats
}

// run overloads each backend behind each variant and prints a table. The error
// names what is not as it should be.
func run(ctx context.Context, out io.Writer, program string, backends []backend, quick bool) error {
	seconds, measured := 60, 800 // requests
	if quick {
		seconds, measured = 10, 320
	}
	fmt.Fprintf(out, "%d processors; %d times the capacity for %d s; clients wait %v\n", runtime.NumCPU(), times, seconds, timeout)
	var results []result
	for _, b := range backends {
		capacity := 0.0
		first := len(results)
		for _, v := range variants {
			// A busy machine can only take away from what a backend can serve: the
			// best of the measurements counts.
			met, err := behind(ctx, program, b, "", live.LoadConfig{Herd: measured, Timeout: time.Minute})
			if err != nil {
				return err
			}
			capacity = max(capacity, float64(met.Served)/met.LastServed.Seconds())
			if met.Served == 0 {
				return fmt.Errorf("%s serves nothing", b.name)
			}
			r := result{backend: b.name, variant: v, load: load{times * capacity, time.Duration(seconds) * time.Second}}
			if r.live, err = behind(ctx, program, b, v.caddyfile, live.LoadConfig{Rate: r.load.rate, Duration: r.load.lasts, Timeout: timeout}); err != nil {
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

// behind plays a load while a new backend runs behind a new proxy, in a folder that
// is removed afterwards, and returns what the clients have met with.
func behind(ctx context.Context, program string, b backend, caddyfile string, c live.LoadConfig) (met live.Tally, err error) {
	folder, err := os.MkdirTemp("", "overload")
	if err != nil {
		return met, err
	}
	defer os.RemoveAll(folder)
	if err := os.Chmod(folder, 0o755); err != nil { // PHP's workers may be another user
		return met, err
	}
	directive, stop, err := b.start(ctx, folder)
	if err != nil {
		return met, err
	}
	defer stop()
	url, stopProxy, err := process.Shield(ctx, program, folder, caddyfile, directive)
	if err != nil {
		return met, err
	}
	defer stopProxy()
	// Connections are kept: one for each request would use up this machine's ports.
	c.KeepAlive, c.FirstAddress, c.Requests, c.Seed = true, netip.AddrFrom4([4]byte{10, 0, 0, 1}), live.MaxRequests, seed
	c.Mix = clients.All(clients.GiveUp{})
	if c.Target, err = live.NewTarget(ctx, url, false); err != nil {
		return met, err
	}
	l, err := live.NewLoad(c)
	if err != nil {
		return met, err
	}
	result := l.Run(ctx)
	return result.All, result.Stopped
}

// simulate plays the same load before a simulated backend of the same capacity.
func simulate(v variant, l load, capacity float64) overload.Stats {
	s := overload.Scenario{Capacity: capacity, Scenario: sim.Scenario{
		Mix: clients.Population{{Weight: 1, Policy: clients.GiveUp{}, SaysTimeout: true}}, Background: l.rate, Until: l.lasts, Timeout: timeout,
		Plant: &plant.Config{Workers: workers}, Service: sim.Service{Mean: time.Duration(workers / capacity * float64(time.Second))},
	}}
	return overload.Row{Config: v.simulated}.Run(s, seed).Between(0, int(l.lasts/time.Second))
}

func (r result) served() float64 { return float64(r.live.Served) / r.load.lasts.Seconds() }

// expected returns how many are served per second in the simulation.
func (r result) expected() float64 { return float64(r.simulated.Good) / r.load.lasts.Seconds() }

// difference returns how much more is served live than simulated, as a part of
// the latter.
func (r result) difference() float64 {
	return r.served()/r.expected() - 1
}

// table prints the results. Times are of those served, since they were due; "late"
// is how long after that this process has sent 99% of all.
func table(out io.Writer, results []result) error {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(w, "\nbackend\tin front\toffered/s\tserved/s\tof capacity\tp50\tp99\trejected\ttimed out\tfailed\tlate\tsimulated/s\tp50\tp99\tlive/simulated\t")
	for _, r := range results {
		m := &r.live
		share := func(n int) float64 { return 100 * float64(n) / float64(max(1, m.Requests)) }
		round := func(d time.Duration) time.Duration { return d.Round(time.Millisecond) }
		fmt.Fprintf(w, "%s\t%s\t%.0f\t%.1f\t%.1f%%\t%v\t%v\t%.1f%%\t%.1f%%\t%.1f%%\t%v\t%.1f\t%v\t%v\t%+.1f%%\t\n",
			r.backend, r.variant.name, float64(m.Requests)/r.load.lasts.Seconds(), r.served(), 100*r.served()/r.capacity,
			round(m.Wait.P50), round(m.Wait.P99),
			share(m.Rejected), share(m.TimedOut), share(m.Requests-m.Served-m.Rejected-m.TimedOut), m.Late.P99.Round(100*time.Microsecond),
			r.expected(), round(r.simulated.P50), round(r.simulated.P99), 100*r.difference())
	}
	return w.Flush()
}

func check(results []result, quick bool) error {
	var errs []error
	for _, r := range results {
		switch {
		case !r.variant.checked:
		case quick && r.served() < quickShare*r.capacity:
			errs = append(errs, fmt.Errorf("%s, %s: %.1f served per second; must be at least %.1f",
				r.backend, r.variant.name, r.served(), quickShare*r.capacity))
		case !quick && !(math.Abs(r.difference()) <= maxDifference): // NaN must fail too
			errs = append(errs, fmt.Errorf("%s, %s: %.1f served per second, %+.1f%% of what is simulated; must be %.0f%% at most",
				r.backend, r.variant.name, r.served(), 100*r.difference(), 100*maxDifference))
		}
	}
	return errors.Join(errs...)
}
