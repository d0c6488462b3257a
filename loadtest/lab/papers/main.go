package main

import (
	"flag"
	"fmt"
	"io"
	"math"
	"os"
	"runtime"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/herdshield/shield"
	"github.com/herdshield/shield/limiter"
	"github.com/herdshield/shield/loadtest/clients"
	"github.com/herdshield/shield/loadtest/lab/overload"
	"github.com/herdshield/shield/loadtest/lab/page"
	"github.com/herdshield/shield/loadtest/plant"
	"github.com/herdshield/shield/loadtest/sim"
)

const ms = time.Millisecond

// The seeds of all tables. They were written down before anything was run.
var seeds = []uint64{1, 2, 3, 4, 5, 6, 7, 8, 9, 10}

// papers are the tables, by their names. Each is played with the first so many seeds.
var papers = []struct {
	name  string
	seeds int
	play  func(seeds []uint64) table
}{
	{"metafor", 10, metafor},
	{"osdi22", 3, retryStorm},
	{"dagor", 10, dagor},
	{"breakwater", 3, breakwater},
	{"netflix", 10, prefetch},
	{"aws", 10, contention},
}

// A table has its head as its first row.
type table struct {
	title string
	left  int // columns of text
	rows  [][]string
}

func main() {
	only := flag.String("only", "", "the name of the only table to play")
	flag.Usage = func() {
		fmt.Fprintln(os.Stderr, "usage: papers [-only NAME] [FOLDER, whose README.md has the tables]")
		flag.PrintDefaults()
	}
	flag.Parse()
	if err := run(os.Stdout, *only, flag.Arg(0)); err != nil {
		fmt.Fprintln(os.Stderr, "papers:", err)
		os.Exit(1)
	}
}

// run plays the tables, prints them, and fills the page of the folder, if there is one.
func run(out io.Writer, only, folder string) error {
	var filled []page.Table
	for _, p := range papers {
		if only != "" && p.name != only {
			continue
		}
		t := p.play(seeds[:p.seeds])
		fmt.Fprintf(out, "%s: %s\n", p.name, t.title)
		if err := page.Text(out, t.rows); err != nil {
			return err
		}
		fmt.Fprintln(out)
		filled = append(filled, page.Table{Name: p.name, Text: page.Markdown(t.rows, t.left)})
	}
	if len(filled) == 0 {
		return fmt.Errorf("there is no table %q", only)
	}
	if folder == "" {
		return nil
	}
	return page.Fill(folder, "README.md", "go -C loadtest/lab run ./papers papers", filled...)
}

// The rows that several tables have.
var (
	plain    = overload.Row{Name: "plain queue"}
	adaptive = overload.Row{Name: "concurrency adaptive", Config: overload.Shield.Config}
)

// fixed is "concurrency n".
func fixed(n int) overload.Row {
	return overload.Row{Name: fmt.Sprintf("concurrency %d", n), Config: shield.Config{Concurrency: n}}
}

// capacity is "capacity n/s".
func capacity(n float64) overload.Row {
	return overload.Row{Name: fmt.Sprintf("capacity %.0f/s", n), Config: shield.Config{Capacity: limiter.Config{Rate: n}}}
}

// A caller is a kind of clients. None of them marks its retries, nor says how long it waits.
type caller struct {
	name   string
	policy clients.Policy
}

// callers resend so many times, at once, when nothing came in time. They differ in what they do when they
// are rejected.
func callers(resends int) []caller {
	c := clients.Client{On: clients.Unanswered, Attempts: 1 + resends, Own: clients.Fixed{}}
	resend, obey := c, c
	resend.On, obey.On = clients.Failures, clients.Failures
	obey.Obeys, obey.Reads = clients.Failures, clients.Seconds
	return []caller{{"give up", c}, {"resend", resend}, {"obey", obey}}
}

// open is clients of one kind that come as a Poisson process to a backend whose times of service are
// exponential.
func open(workers int, mean time.Duration, rates plant.Steps, timeout time.Duration, c caller, until time.Duration) overload.Scenario {
	return overload.Scenario{Capacity: float64(workers) / mean.Seconds(), Scenario: sim.Scenario{
		Mix: clients.All(c.policy), Rates: rates, Timeout: timeout, Until: until,
		Service: sim.Service{Mean: mean, Exponential: true}, Plant: &plant.Config{Workers: workers},
	}}
}

// steps makes Steps of pairs of seconds and values.
func steps(pairs ...float64) plant.Steps {
	var s plant.Steps
	for i := 0; i < len(pairs); i += 2 {
		s = append(s, plant.Step{From: at(pairs[i]), Value: pairs[i+1]})
	}
	return s
}

func at(seconds float64) time.Duration { return time.Duration(seconds * float64(time.Second)) }

// A cohort is the clients that first came between two instants, and how many of them are served in the end.
type cohort struct {
	from, to     time.Duration
	came, served float64
}

func (c *cohort) share() float64 { return c.served / max(1, c.came) }

// follow counts what becomes of cohorts of s' clients, each of whom makes so many calls.
func follow(s *overload.Scenario, calls int, cohorts ...*cohort) {
	s.Ended = func(e sim.Ended) {
		for _, c := range cohorts {
			if e.Born < c.from || e.Born >= c.to {
				continue
			}
			if e.Call == 1 && e.Attempt == 1 {
				c.came++
			}
			if e.Call == calls && e.How == sim.Answered {
				c.served++
			}
		}
	}
}

// back is after how many seconds, from one on, as much is answered in so many seconds as 95% of the first
// attempts then.
func back(r *overload.Result, from, window int) float64 {
	for i := from; i+window <= len(r.Seconds); i++ {
		if s := r.Between(i, i+window); float64(s.Good) >= .95*float64(s.Offered) {
			return float64(i - from)
		}
	}
	return never
}

var never = math.Inf(1)

// A line of a table is a kind of clients, and what is in front of the backend.
type line struct {
	caller
	row overload.Row
}

// lines are all pairs of the two.
func lines(callers []caller, rows ...overload.Row) (all []line) {
	for _, c := range callers {
		for _, row := range rows {
			all = append(all, line{c, row})
		}
	}
	return all
}

// play plays each cell of a table of lines and columns with each seed, as many runs at a time as there are
// processors.
func play[T any](lines, columns int, seeds []uint64, run func(line, column int, seed uint64) T) [][][]T {
	var group errgroup.Group
	group.SetLimit(runtime.GOMAXPROCS(0))
	all := make([][][]T, lines)
	for i := range all {
		for j := range columns {
			runs := make([]T, len(seeds))
			all[i] = append(all[i], runs)
			for k, seed := range seeds {
				group.Go(func() error { runs[k] = run(i, j, seed); return nil })
			}
		}
	}
	_ = group.Wait() // no run returns an error
	return all
}

// figures are one of each run.
func figures[T any](runs []T, of func(T) float64) (v []float64) {
	for _, r := range runs {
		v = append(v, of(r))
	}
	return v
}

// bound marks a figure that is not as it is wanted.
func bound(text string, ok bool) string {
	if ok {
		return text
	}
	return text + " (miss)"
}

// percent shows the mean of shares, of which so much is wanted.
func percent(shares []float64, want float64) string {
	m := mean(shares)
	return bound(fmt.Sprintf("%.1f", 100*m), m >= want)
}

// times shows the median and the greatest of some figures, of which the greatest is to be at most most.
func times(figures []float64, most float64) string {
	sorted := slices.Sorted(slices.Values(figures))
	show := func(f float64) string {
		if f == never {
			return "never"
		}
		return strings.TrimSuffix(fmt.Sprintf("%.1f", f), ".0")
	}
	text, worst := show(sorted[len(sorted)/2]), sorted[len(sorted)-1]
	if show(worst) != text {
		text += "–" + show(worst)
	}
	return bound(text, worst <= most)
}

func mean(v []float64) (m float64) {
	for _, x := range v {
		m += x / float64(len(v))
	}
	return m
}
