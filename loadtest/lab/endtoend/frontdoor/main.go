package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Stdout, os.Stderr, os.Args[1:]); err != nil && !errors.Is(err, flag.ErrHelp) {
		fmt.Fprintln(os.Stderr, "Error:", err)
		os.Exit(1)
	}
}

// run is the command. It ends early with ctx, with the tables of what it has.
func run(ctx context.Context, out, progress io.Writer, args []string) error {
	flags := flag.NewFlagSet("frontdoor", flag.ContinueOnError)
	flags.SetOutput(progress)
	p := programs{}.find()
	rounds := flags.Int("rounds", 5, "how often each row is measured")
	perRound := flags.Duration("time", 2*time.Second, "of one measurement; three times that of honest clients' waits")
	warm := flags.Duration("warm", 500*time.Millisecond, "before it, under the same load")
	only := flags.String("only", "", "only rows whose name contains one of these `texts`, with | between")
	fronts := flags.String("fronts", "", "only front ends whose name is one of these `names`, with | between")
	raw := flags.Bool("raw", false, "print each round, too")
	for _, name := range []string{"shield", "baseline"} {
		flags.Func(name, "`path` of the program "+map[string]string{"shield": "that is measured", "baseline": "before the door"}[name],
			func(path string) (err error) { p[name], err = filepath.Abs(path); return err })
	}
	if err := flags.Parse(args); err != nil {
		return err
	}
	if flags.NArg() > 0 || *rounds < 1 || p["shield"] == "" {
		return errors.New("want -shield, at least one round, and no arguments but flags")
	}
	var chosen []row
	for _, r := range rows {
		if r = r.among(*fronts, p); matches(r.name, *only, strings.Contains) && len(r.fronts) > 0 {
			chosen = append(chosen, r)
		}
	}
	if err := pin(clientCore); err != nil {
		return err
	}
	b, stop, err := newBench(p, *warm, *perRound)
	if err != nil {
		return err
	}
	defer stop()

	before := loadAverage()
	var results []result
	for i, r := range chosen {
		start := time.Now()
		of, err := b.row(ctx, r, *rounds)
		if err != nil {
			return errors.Join(err, writeTables(out, results))
		}
		results = append(results, of...)
		fmt.Fprintf(progress, "%2d of %d: %s; took %.0f s\n", i+1, len(chosen), r.name, time.Since(start).Seconds())
	}
	fmt.Fprintf(out, "%s. %d rounds of %v after %v. Load average %s before, %s after.\n\n",
		strings.Join(p.versions(ctx), ", "), *rounds, *perRound, *warm, before, loadAverage())
	if *raw {
		if err := writeRounds(out, results); err != nil {
			return err
		}
	}
	return writeTables(out, results)
}

// row measures the front ends of a row in turn, in each round from the next one on, so that
// a busy moment of the machine hits all of them.
func (b *bench) row(ctx context.Context, r row, rounds int) (results []result, err error) {
	for _, f := range r.fronts {
		results = append(results, result{row: r, front: f})
	}
	for round := range rounds {
		for i := range results {
			of := &results[(round+i)%len(results)]
			f, err := b.measure(ctx, r, of.front)
			if err != nil {
				return nil, err
			}
			of.rounds = append(of.rounds, f)
		}
	}
	return results, nil
}

// among leaves those front ends in a row that are named, and whose program is there.
func (r row) among(names string, p programs) row {
	r.fronts = slices.DeleteFunc(slices.Clone(r.fronts), func(f front) bool {
		return p[f.program] == "" || !matches(f.name, names, func(a, b string) bool { return a == b })
	})
	return r
}

// matches reports whether is finds one of the texts, or there are none.
func matches(name, texts string, is func(name, text string) bool) bool {
	return texts == "" || slices.ContainsFunc(strings.Split(texts, "|"), func(text string) bool { return is(name, text) })
}

// loadAverage returns how many processes wanted a processor in the last minute.
func loadAverage() string {
	content, err := os.ReadFile("/proc/loadavg")
	first, _, _ := strings.Cut(string(content), " ")
	if err != nil {
		return "unknown"
	}
	return first
}
