// Package agreement has nothing but tests: they set what package sim says will
// happen beside what does when package live plays it, over real sockets and
// through Caddy. On both sides are the same text of a config, the same policies of
// clients, and a backend of the same kind:
//
//	go -C loadtest/lab test ./agreement                       # some 25 s
//	go -C loadtest/lab test ./agreement -run Table -v -table  # some 5 min; the docs' table
//
// # What differs
//
// Live, the arrivals are other ones of the same kind: the two sides agree as two
// seeds of one side do, and no better. So the table has the scatter of one
// simulated run: its standard deviation, as a share of the mean. Most figures are
// held to 15 %. Four scatter by 5 to 9 % in a short run, and are held to a third:
// when the last of a mix is done, and how the few of it wait who come when they like.
//
// Live, a request takes time besides that of the backend: a connection to Caddy,
// Caddy, a connection from there, timers that are late, and 2 processors for
// all of it. The table's first line measures that on an idle machine, and is
// why the simulated network takes no time. Clients, Caddy and backend are one
// process.
//
// The live backend is a pool of workers of its own, which shares no code with
// plant.Plant. A handler in front of it plays the outage. Requests that reach the backend
// are counted there, but by the simulator when it leaves shield.
//
// The simulated Guard's clock begins with the warm-up, the real one's with the
// process. Therefore the simulated one learns of the background a second later:
// with a warm-up of 2 s that made waits up to 9 % shorter, and nothing with 3 s.
//
// Live, the limit in flight is read ten times per second from the admin endpoint, and
// a herd that is connected has made its connections before it comes.
package agreement

import (
	"flag"
	"fmt"
	"io"
	"math"
	"os"
	"slices"
	"strings"
	"testing"
	"time"
)

var table = flag.Bool("table", false, "write the docs' table to standard output, as Markdown: 5 minutes of live runs; wants -v and -run Table")

// How many runs a mean is of: of the table's live runs, as a test plays one.
const (
	simulations = 25
	liveRuns    = 3
)

// tries is how often a live run is played that says nothing, or does not agree: it
// is one of many that could have been, and a machine may be busy.
const tries = 3

// tooLate is by how much a busy machine may delay the hundredth part of what clients
// send, for a run of it to say anything. Ours: half of what a request takes.
const tooLate = 25 * time.Millisecond

// A comparison is a figure on both sides.
type comparison struct {
	figure
	simulated, live []float64
}

// difference is that of the means, as a share of the simulated one.
func (c *comparison) difference() float64 {
	s, l := mean(c.simulated), mean(c.live)
	if math.Abs(l-s) < 0.0005*math.Abs(s) || s == l { // not to be written as -0.0 %
		return 0
	}
	return (l - s) / math.Abs(s)
}

// agrees reports whether what is asserted holds.
func (c *comparison) agrees() bool { return math.Abs(c.difference()) <= c.most() } // NaN does not

func (c *comparison) String() string {
	return fmt.Sprintf("%s: simulated %s, live %s, %+.1f %%", c.name, c.spread(c.simulated), c.spread(c.live), 100*c.difference())
}

// spread is a mean, and from least to most.
func (f *figure) spread(v []float64) string {
	s := fmt.Sprintf(f.format, mean(v))
	least, most := fmt.Sprintf(f.format, slices.Min(v)), fmt.Sprintf(f.format, slices.Max(v))
	if least != most {
		s += fmt.Sprintf(" (%s to %s)", least, most)
	}
	return s
}

func mean(v []float64) float64 {
	sum := 0.0
	for _, x := range v {
		sum += x
	}
	return sum / float64(len(v))
}

// scatter is the standard deviation, as a share of the mean.
func scatter(v []float64) float64 {
	m, sum := mean(v), 0.0
	for _, x := range v {
		sum += (x - m) * (x - m)
	}
	return math.Sqrt(sum/float64(len(v)-1)) / m
}

// simulations plays s n times, with the seeds from 1 on.
func (s scenario) simulations(t *testing.T, n int) (out []measured) {
	for seed := range n {
		out = append(out, s.simulate(t, uint64(seed+1)))
	}
	return out
}

// compare sets runs of both sides beside each other.
func (s scenario) compare(simulated, live []measured) (out []comparison) {
	for _, f := range s.figures {
		out = append(out, comparison{f, f.all(simulated), f.all(live)})
	}
	return out
}

// all returns the figure of each run.
func (f *figure) all(runs []measured) (out []float64) {
	for _, m := range runs {
		out = append(out, f.of(m))
	}
	return out
}

// Simulated and live figures agree to within 15 %, as far as a live run of some
// seconds can show that.
func TestSimulatorAgreesWithLive(t *testing.T) {
	if testing.Short() || raceEnabled || *table {
		t.Skip("needs 25 s, the whole machine, and no -short, race detector or -table")
	}
	for _, s := range short() {
		t.Run(s.name, func(t *testing.T) {
			simulated := s.simulations(t, simulations)
			var wrong []string
			for try := 1; try <= tries; try++ {
				live := s.live(t, uint64(try))
				if live.late > tooLate {
					t.Logf("try %d says nothing: clients were late", try)
					continue
				}
				wrong = nil
				for _, c := range s.compare(simulated, []measured{live}) {
					t.Log(&c)
					if !c.agrees() {
						wrong = append(wrong, fmt.Sprintf("%v; want at most %.0f %%", &c, 100*c.most()))
					}
				}
				if wrong == nil {
					return
				}
			}
			if wrong == nil {
				t.Skip("needs a machine that is idle enough to send requests in time")
			}
			t.Errorf("too far apart, %d times:\n%s", tries, strings.Join(wrong, "\n"))
		})
	}
}

// If the simulator were wrong about something that matters, it would not agree.
func TestDisagreementShows(t *testing.T) {
	if raceEnabled {
		t.Skip("needs a build without the race detector: it plays in virtual time, in one goroutine")
	}
	herd, overload, mix := 0, 1, 2
	config := func(old, new string) func(*scenario) {
		return func(s *scenario) {
			if !strings.Contains(s.config, old) {
				t.Fatalf("there is no %q in the config", old)
			}
			s.config = strings.Replace(s.config, old, new, 1)
		}
	}
	for _, c := range []struct {
		what   string
		of     int // short
		change func(*scenario)
		shows  string // a figure
	}{
		{"a fifth less capacity", herd, config("100/s", "80/s"), "drained, s"},
		{"no background", herd, func(s *scenario) { s.background = 0 }, "drained, s"},
		{"clients come back when they like", herd, func(s *scenario) { s.mix = "aws-full-jitter" }, "requests per success"},
		{"six workers of eight", overload, func(s *scenario) { s.workers = 6 }, "goodput per second"},
		{"a limit of half", overload, config("adaptive", "7"), "limit, mean of the second half"},
		{"no limit", overload, config("concurrency adaptive", "capacity 10000/s"), "latency p50, ms"},
		{"no outage", mix, func(s *scenario) { s.outage[1] = s.outage[0] }, "wait p50 of exact, s"},
		{"who comes early is served", mix, config("concurrency 16", "concurrency 16\n\t\tretries {\n\t\t\tenforce off\n\t\t}"), "wait p50 of aws-full-jitter, s"},
	} {
		t.Run(c.what, func(t *testing.T) {
			s, other := short()[c.of], short()[c.of]
			c.change(&other)
			shows := false
			for _, d := range s.compare(s.simulations(t, simulations), other.simulations(t, simulations)) {
				t.Logf("%s: %s; otherwise %s, %+.1f %%", d.name, d.spread(d.simulated), d.spread(d.live), 100*d.difference())
				shows = shows || d.name == c.shows && !d.agrees()
			}
			if !shows {
				t.Errorf("it does not show in %q", c.shows)
			}
		})
	}
}

// The docs' table, with -table.
func TestTable(t *testing.T) {
	if !*table {
		t.Skip("needs -table: it only prints")
	}
	var b strings.Builder
	fmt.Fprintf(&b, "| scenario | figure | simulated, mean of %d | live, mean of %d | difference | at most | scatter of one simulated run |\n", simulations, liveRuns)
	b.WriteString("|---|---|---:|---:|---:|---:|---:|\n")
	for _, s := range long() {
		simulated := s.simulations(t, simulations)
		var live []measured
		for seed := range liveRuns {
			m := s.live(t, uint64(seed+1))
			for try := 1; m.late > tooLate && try < tries; try++ {
				t.Log("once more: clients were late")
				m = s.live(t, uint64(seed+1))
			}
			if m.late > tooLate {
				t.Errorf("%s: clients were late by %v at p99; want at most %v: a machine that is less busy", s.name, m.late, tooLate)
			}
			live = append(live, m)
		}
		for _, c := range s.compare(simulated, live) {
			t.Log(&c)
			if !c.agrees() {
				t.Errorf("%s: %v; want at most %.0f %%", s.name, &c, 100*c.most())
			}
			fmt.Fprintf(&b, "| %s | %s | %s | %s | %+.1f %% | %.0f %% | %.1f %% |\n", s.name, c.name,
				c.spread(c.simulated), c.spread(c.live), 100*c.difference(), 100*c.most(), 100*scatter(c.simulated))
		}
	}
	io.WriteString(os.Stdout, b.String())
}
