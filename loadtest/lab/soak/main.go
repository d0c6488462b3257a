// Command soak plays faults under a mixed load, one after the other, for as long as it is told: with the real
// program, a real redis-server, a backend and clients over sockets. It prints the table of README.md, with
// what was measured, and fails if a bound does not hold.
//
//	go run ./soak [-time 1h]
//
// Replica a has all faults but one, and its memory is looked at; replica b is the one that is killed.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"math"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/herdshield/shield/loadtest/lab/process"
)

func main() {
	length := flag.Duration("time", 0, "repeat all rows for so long, up to an hour; 0: once")
	only := flag.String("only", "", "a regular expression: play only faults that it matches")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	var program string
	os.Exit(process.Main(command(func() int {
		if err := run(ctx, os.Stdout, program, *length, *only); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		return 0
	}), &program))
}

type command func() int

func (c command) Run() int { return c() }

// A world is everything that runs.
type world struct {
	ctx           context.Context
	a, b          *replica
	store         *store
	backend       *backend
	crowds        [2]*crowd
	reloadsFailed atomic.Int64
	noFiles       atomic.Bool // replica a may open none
}

// run plays the rows, writes the table, and returns an error that says which bounds do not hold.
func run(ctx context.Context, out io.Writer, program string, length time.Duration, only string) (err error) {
	folder, err := os.MkdirTemp("", "soak")
	if err != nil {
		return err
	}
	defer func() {
		if err == nil {
			os.RemoveAll(folder)
		} else {
			err = fmt.Errorf("%w\nlogs are in %s", err, folder)
		}
	}()
	w, stop, err := newWorld(ctx, folder, program)
	defer stop()
	if err != nil {
		return err
	}
	loads, end := context.WithCancel(ctx)
	defer end()
	var all sync.WaitGroup
	idle, err := w.a.state()
	if err != nil {
		return err
	}
	for _, c := range w.crowds {
		all.Go(func() { c.run(loads) })
	}
	all.Go(func() {
		for sleep(loads, 10*time.Second) {
			if w.a.reload() != nil && !w.noFiles.Load() { // it needs some
				w.reloadsFailed.Add(1)
			}
			_ = w.b.reload() // it may have been killed
		}
	})
	time.Sleep(2 * time.Second) // a new store begins with empty buckets
	began, measured := time.Now(), make([]map[string]float64, len(rows))
	var early state
	wanted := regexp.MustCompile(only)
	rows := slices.DeleteFunc(slices.Clone(rows), func(r row) bool { return !wanted.MatchString(r.fault) })
	var cycle time.Duration // of all rows
	for n := 0; n == 0 || time.Since(began)+cycle < length; n++ {
		if n > 0 {
			time.Sleep(15 * time.Second) // until the part of the replica that was killed is the others'
		}
		for i, r := range rows {
			if r.play == nil {
				continue
			}
			figures, err := r.play(w)
			if err != nil {
				return fmt.Errorf("%s: %w", r.fault, err)
			}
			r.note(&measured[i], figures)
			fmt.Fprintf(os.Stderr, "%v: %s: %s\n", time.Since(began).Round(time.Second), r.fault, fmt.Sprint(figures))
			if n == 0 && (early.heap == 0 || length > 0) { // after the first row, or the first time that all have been played
				if early, err = w.a.state(); err != nil {
					return err
				}
			}
		}
		cycle = max(cycle, time.Since(began)/time.Duration(n+1))
	}
	end()
	all.Wait()
	figures, err := w.rest(idle, early)
	if err != nil {
		return err
	}
	for i, r := range rows {
		if r.play == nil {
			r.note(&measured[i], figures)
		}
	}
	return table(out, rows, measured)
}

// note keeps the worst of each figure that has a bound.
func (r *row) note(worst *map[string]float64, figures map[string]float64) {
	if *worst == nil {
		*worst = map[string]float64{}
	}
	for _, b := range r.bounds() {
		value, measured := figures[b.figure]
		if !measured {
			value = math.NaN() // holds no bound
		}
		if was, again := (*worst)[b.figure]; again {
			value = b.worse(was, value)
		}
		(*worst)[b.figure] = value
	}
}

// table writes the rows with what was measured, and returns which bounds do not hold.
func table(out io.Writer, rows []row, measured []map[string]float64) error {
	var errs []error
	fmt.Fprint(out, header)
	for i, r := range rows {
		var values []string
		for _, b := range r.bounds() {
			value := measured[i][b.figure]
			values = append(values, fmt.Sprintf("%.4g%s", math.Round(10*value)/10, b.unit))
			if !b.holds(value) {
				errs = append(errs, fmt.Errorf("%s: %s is %.4g%s; must be %v", r.fault, b.figure, value, b.unit, b))
			}
		}
		fmt.Fprintf(out, "%s %s |\n", r, strings.Join(values, "; "))
	}
	return errors.Join(errs...)
}

const header = "| fault | what is done | what users get | measured |\n|---|---|---|---|\n"

// String returns the row as on the page, but for what was measured.
func (r row) String() string {
	var bounds []string
	if r.usual && r.fault != rows[0].fault {
		bounds = append(bounds, "as without a fault")
	} else {
		r.own = r.bounds()
	}
	for _, b := range r.own {
		bounds = append(bounds, b.String())
	}
	return fmt.Sprintf("| %s | %s | %s |", r.fault, r.done, strings.Join(bounds, "; "))
}

// newWorld starts everything but the clients. stop ends all that has been started.
func newWorld(ctx context.Context, folder, program string) (w *world, stop func(), err error) {
	var stops []func()
	stop = func() {
		for i := len(stops) - 1; i >= 0; i-- {
			stops[i]()
		}
	}
	var addresses [6]string
	for i := range addresses {
		if addresses[i], err = process.FreeAddress(ctx); err != nil {
			return nil, stop, err
		}
	}
	l, err := new(net.ListenConfig).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return nil, stop, err
	}
	stops = append(stops, func() { l.Close() })
	w = &world{
		ctx:     ctx,
		store:   &store{address: l.Addr().String(), server: addresses[0], folder: folder},
		backend: &backend{address: addresses[1], received: map[string]int{}, finished: map[string]int{}},
	}
	go w.store.proxy(l)
	if err := w.store.start(ctx); err != nil {
		return nil, stop, err
	}
	stops = append(stops, func() { w.store.stop() })
	if err := w.backend.start(ctx); err != nil {
		return nil, stop, err
	}
	stops = append(stops, func() { w.backend.stop() })
	for i, r := range []**replica{&w.a, &w.b} {
		name := string(rune('a' + i))
		one := &replica{name: name, address: addresses[2+2*i], admin: addresses[3+2*i], folder: filepath.Join(folder, name), program: program}
		one.config = fmt.Sprintf(config, one.admin, w.store.address, one.address, one.disk(), w.backend.address, name)
		if err := os.MkdirAll(one.disk(), 0o755); err != nil {
			return nil, stop, err
		}
		if err := one.start(ctx); err != nil {
			return nil, stop, err
		}
		stops = append(stops, func() { one.stop() })
		*r = one
		if w.crowds[i], err = newCrowd(one, fmt.Sprintf("10.%d.0.0", 1+i), uint64(i)); err != nil {
			return nil, stop, err
		}
	}
	return w, stop, nil
}

func (w *world) reload() error { return errors.Join(w.a.reload(), w.b.reload()) }

// A moment is what has been counted until then.
type moment struct {
	at                 time.Time
	received, finished int
	crowds             [2]outcomes
}

func (w *world) look() (m moment) {
	w.backend.count(func() {
		for by := range w.backend.received {
			m.received += w.backend.received[by]
			m.finished += w.backend.finished[by]
		}
	})
	for i, c := range w.crowds {
		m.crowds[i] = c.total()
	}
	m.at = time.Now()
	return m
}

// figures returns those of every fault, from one moment to another.
func (w *world) figures(from, to moment) map[string]float64 {
	seconds := to.at.Sub(from.at).Seconds()
	change := func(what string, crowds ...int) (n float64) {
		for _, i := range crowds {
			n += float64(to.crowds[i][what] - from.crowds[i][what])
		}
		return n
	}
	return map[string]float64{
		servedShare: 100 * float64(to.finished-from.finished) / (rate * seconds),
		admitted:    100 * float64(to.received-from.received) / (rate*seconds + burst),
		prompt:      1000 * max(w.crowds[0].prompt(from.at, to.at), w.crowds[1].prompt(from.at, to.at)).Seconds(),
		noAnswer:    change(lost, 0, 1),
		otherErrors: change(failed, 0, 1),
		cutOff:      change(broken, 0, 1),
		cutOffElse:  change(broken, 0),
	}
}

const mib = 1 << 20

// A state is what a process has in use.
type state struct{ heap, rss, goroutines, files float64 }

func (r *replica) state() (s state, err error) {
	for range 2 { // what has a finalizer is freed the second time
		if _, err := r.ask("GET", "/debug/pprof/heap?gc=1", "", ""); err != nil {
			return s, err
		}
	}
	sum, err := r.metrics()
	return state{sum("go_memstats_heap_alloc_bytes") / mib, sum("process_resident_memory_bytes") / mib, sum("go_goroutines"), r.files()}, err
}

func (r *replica) files() float64 {
	open, _ := os.ReadDir(r.proc("fd"))
	return float64(len(open))
}

// rest returns the figures of the end of a run: replica a's, as the other was killed. idle is its state before the first
// client came, and early after the first of all that was played.
func (w *world) rest(idle, early state) (map[string]float64, error) {
	name, f := `shield="soak"`, map[string]float64{}
	var sum func(string, ...string) float64
	for range 60 { // what hung up is waited for up to 10 s
		var err error
		if sum, err = w.a.metrics(); err != nil {
			return nil, err
		}
		f[permits] = sum("caddy_shield_in_flight_requests", name)
		w.backend.count(func() { f[atBackend] = float64(w.backend.inside) })
		// Rejections may be held back, and a permit is given back a moment before the end of its request is counted.
		onTheWay := sum("caddy_shield_requests_total", name) - sum("caddy_shield_request_duration_seconds_count", name) -
			sum("caddy_shield_lost_rejections_total", name)
		if f[permits] == 0 && f[atBackend] == 0 && onTheWay == 0 {
			break
		}
		time.Sleep(200 * time.Millisecond)
	}
	told := w.crowds[0].total()
	f[whole] = float64(w.crowds[0].whole + w.crowds[1].whole)
	f[noAnswer] = float64(told[lost] + w.crowds[1].total()[lost])
	decided := sum("caddy_shield_requests_total", name)
	good := sum("caddy_shield_request_duration_seconds_count", name, `outcome="admitted"`, `code="2xx"`)
	ended := sum("caddy_shield_request_duration_seconds_count", name)
	gone := sum("caddy_shield_lost_rejections_total", name) // while they were held back
	// Clients do not know what was decided on requests that they broke off, nor the backend what became of its answers.
	unseen := float64(told[broken] + told[hungUp])
	answers := float64(told[served] + told[rejected] + told[failed])
	finished, cut := float64(w.backend.finished[w.a.name]), float64(w.backend.cut)
	outside := func(x, from, to float64) float64 { return max(0, from-x, x-to) }
	f[unaccounted] = outside(decided, answers, answers+unseen) + outside(ended, decided-gone, decided-gone) +
		outside(finished, good-cut, good+unseen+cut) + outside(good, float64(told[served]), float64(told[served])+unseen)
	fmt.Fprintf(os.Stderr, "replica a: clients got %v; decided on %.0f, ended %.0f, %.0f well; lost %.0f; finished by the backend %.0f, cut %.0f\n", told, decided, ended, good, gone, finished, cut)
	last, err := w.a.state()
	f[heapGrowth], f[rssGrowth] = last.heap-early.heap, last.rss-early.rss
	f[moreGo], f[moreFiles] = last.goroutines-idle.goroutines, last.files-idle.files
	fmt.Fprintf(os.Stderr, "replica a: before %+v, early %+v, at the end %+v\n", idle, early, last)
	return f, err
}
