package sim

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/herdshield/shield/loadtest/clients"
)

var full = flag.Bool("full", false, "play all seeds and cells of the tables, and the long runs: minutes")

// seedsOf returns so many seeds with -full, and otherwise a few of them.
func seedsOf(all, few int) []uint64 {
	n := few
	if *full {
		n = all
	}
	seeds := make([]uint64, n)
	for i := range seeds {
		seeds[i] = uint64(i + 1)
	}
	return seeds
}

// needsSpeed skips a test in builds with the race detector, which make it ten times slower:
// a run is one goroutine.
func needsSpeed(t *testing.T) {
	if raceEnabled {
		t.Skip("needs a build without the race detector")
	}
}

// Ratio is Drained in terms of the least possible.
func (r *Result) Ratio() float64 { return float64(r.Drained) / float64(max(1, r.Optimum)) }

// ClearedRatio is Cleared in terms of the least possible.
func (r *Result) ClearedRatio() float64 { return float64(r.Cleared) / float64(max(1, r.Optimum)) }

// playSeeds plays a scenario with each of the seeds, as many at a time as there are processors.
func playSeeds(t *testing.T, s Scenario, seeds []uint64) []Result {
	t.Helper()
	results, errs := make([]Result, len(seeds)), make([]error, len(seeds))
	var wait sync.WaitGroup
	processors := make(chan struct{}, runtime.GOMAXPROCS(0))
	for i, seed := range seeds {
		s := s
		s.Seed = seed
		wait.Go(func() {
			processors <- struct{}{}
			results[i], errs[i] = Run(s, nil)
			<-processors
		})
	}
	wait.Wait()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
	return results
}

// A figures is what a row of the table shows: means of the seeds.
type figures struct {
	cleared  float64 // of the least time, until no client waits any more
	requests float64 // of the herd, for each client served
	obedient float64 // the same of those who obey
	drained  float64 // of the least time, until all of the herd that return are served

	atOnce float64 // share of new clients who are served by their first request; not stored
	cheats float64 // how long half of the cheats wait, of the time of those who obey; not stored
}

// rowsFile has the figures that the rows are compared with: means of ten seeds of the code
// that appointments had before they became a line.
const rowsFile = "testdata/rows.txt"

const (
	mostOfMean    = 1.03 // of the stored figures, for the mean of all rows
	mostOfRow     = 1.10 // the same, for each row
	mostOfNoShows = 1.12 // of the least time, where 30% never return

	byChance = 0.12 // by how much a row of few seeds may be beyond that
)

// TestRows plays all herds and cheats, and holds them to the figures of testdata/rows.txt:
// neither may all of them, on average, take more than 1.03 times as long or as many requests,
// nor any more than 1.10 times. With -v it prints the figures and their ratios to those
// stored; with -full it plays ten seeds. The whole table of what the core must do is printed by
//
//	go test . ./loadtest/sim -v -full -run 'TestRows|TestPolling|TestFloods|TestHerdBehindOneAddress|TestOverloadFromFewAddresses'
//
// With -full and -update it writes the file anew, which moves the bar.
func TestRows(t *testing.T) {
	needsSpeed(t)
	t.Parallel()
	stored := storedRows(t)
	var out, table strings.Builder
	fmt.Fprintf(&out, "%-42s %8s %9s %9s %8s\n", "row", "cleared", "requests", "obedient", "drained")
	fmt.Fprintf(&table, "%-42s %8s %7s %9s %9s %7s %8s %8s %7s\n", "row", "cleared", "ratio", "requests", "obedient", "ratio", "drained", "at once", "cheats")
	var cleared, requests, n float64
	most := mostOfRow
	if !*full {
		most += byChance
	}
	for _, s := range slices.Concat(Herds(), Cheats()) {
		few := 1
		if len(s.Mix) == 2 { // of a few cheats a median depends on chance
			few = 2
		}
		is := playRow(t, s, seedsOf(10, few))
		fmt.Fprintf(&out, "%-42s %8.3f %9.3f %9.3f %8.3f\n", s.Name, is.cleared, is.requests, is.obedient, is.drained)
		was, ok := stored[s.Name]
		if *update && *full {
			was, ok = is, true
		}
		if !ok {
			t.Fatalf("%s has no row %q", rowsFile, s.Name)
		}
		// The later cheats are served, the more they ask, and the fewer do those who obey.
		c, r := is.cleared/was.cleared, min(is.requests/was.requests, is.obedient/was.obedient)
		cleared, requests, n = cleared+c, requests+r, n+1
		fmt.Fprintf(&table, "%-42s %8.2f %7.2f %9.2f %9.2f %7.2f %8.2f %6.0f%%", s.Name, is.cleared, c, is.requests, is.obedient, r, is.drained, 100*is.atOnce)
		if is.cheats > 0 {
			fmt.Fprintf(&table, " %7.2f", is.cheats)
			if is.cheats < leastOfObedient {
				t.Errorf("%s: half of the cheats wait %.2f of the others' time; want at least %v", s.Name, is.cheats, leastOfObedient)
			}
		}
		fmt.Fprintln(&table)
		if c > most || r > most {
			t.Errorf("%s: %.2f times as long as stored, %.2f times as many requests; want at most %.2f", s.Name, c, r, most)
		}
		if s.Name == noShows && is.cleared > mostOfNoShows {
			t.Errorf("%s: cleared in %.2f of the least time; want at most %v", s.Name, is.cleared, mostOfNoShows)
		}
	}
	t.Logf("\n%s%-42s %8s %7.2f %9s %9s %7.2f", table.String(), "mean", "", cleared/n, "", "", requests/n)
	if cleared/n > mostOfMean || requests/n > mostOfMean {
		t.Errorf("on average %.3f times as long as stored, %.3f times as many requests; want at most %v", cleared/n, requests/n, mostOfMean)
	}
	if *update && *full {
		if err := os.WriteFile(rowsFile, []byte(out.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

// playRow plays one row, and holds it to what is promised without a number: all of the herd
// that return are served, those who try four times, too, and a herd that fits into the
// longest Retry-After has its appointments kept, at an even rate.
func playRow(t *testing.T, s Scenario, seeds []uint64) (is figures) {
	s.Until = 3 * s.optimum(s.Clients)
	for _, r := range playSeeds(t, s, seeds) {
		n := float64(len(seeds))
		is.cleared += r.ClearedRatio() / n
		is.drained += r.Ratio() / n
		is.atOnce += r.NewClients.AtOnceShare() / n
		is.requests += r.PerSuccess() / n
		if len(r.Policies) == 2 {
			is.obedient += r.Policies[0].PerSuccess() / n
			is.cheats += r.Policies[1].P50.Seconds() / r.Policies[0].P50.Seconds() / n
		} else {
			is.obedient += r.PerSuccess() / n
		}
		if r.Waiting > 0 || r.GaveUp > 0 {
			t.Errorf("%s, seed %d: %d still wait and %d gave up of %d", s.Name, r.Seed, r.Waiting, r.GaveUp, r.Reachable)
		}
		if s.Name == fits && (r.Broken > 0 || r.PeakReturns > 20) {
			t.Errorf("%s, seed %d: %d broken appointments, up to %d returns in 100 ms; want none, and at most 20", s.Name, r.Seed, r.Broken, r.PeakReturns)
		}
	}
	return is
}

func storedRows(t *testing.T) map[string]figures {
	file, err := os.ReadFile(rowsFile)
	if err != nil {
		t.Fatal(err)
	}
	rows := map[string]figures{}
	for _, line := range strings.Split(string(file), "\n") {
		var f figures
		if len(line) < 43 {
			continue
		}
		if n, _ := fmt.Sscan(line[42:], &f.cleared, &f.requests, &f.obedient, &f.drained); n == 4 {
			rows[strings.TrimSpace(line[:42])] = f
		}
	}
	return rows
}

// leastOfObedient is the least that clients who poll or hammer must wait, as a share of the
// time of those who obey.
const leastOfObedient = 0.97

// A polling is a herd of 800 of which a share comes back at intervals of its own, beside an
// ordinary load that does so, too. The others obey.
type polling struct {
	load  float64 // new clients per second; the capacity is 100/s
	share float64
	gap   time.Duration
	exact bool // the others read milliseconds, so that no rejection is held back for them
}

// medians returns how long half of those who obey wait, and half of those who do not; or,
// if obey is set, half of the same clients when they obey, too.
func (p polling) medians(t *testing.T, obey bool, seeds []uint64) (honest, polls float64) {
	s := Herd("polling", 800, 0)
	s.Background, s.Until = p.load, 3*time.Minute
	obedient := clients.Share{Weight: 1 - p.share, Policy: clients.Exact{}}
	if p.exact {
		obedient.Policy, obedient.Precise = clients.Client{On: clients.Failures, Obeys: clients.Failures, Reads: clients.Milliseconds, Own: clients.Ignore{}}, true
	}
	cheats := clients.Share{Weight: p.share, Policy: clients.Hammer{Gap: p.gap}}
	if obey {
		cheats.Policy, cheats.Precise = obedient.Policy, obedient.Precise
	}
	s.Mix = clients.Population{obedient, cheats}
	for _, r := range playSeeds(t, s, seeds) {
		if r.Served < r.Clients {
			t.Errorf("%+v, seed %d: %d of %d served", p, r.Seed, r.Served, r.Clients)
		}
		honest += r.Policies[0].P50.Seconds() / float64(len(seeds))
		polls += r.Policies[1].P50.Seconds() / float64(len(seeds))
	}
	return honest, polls
}

// Clients that poll or hammer, whatever they are told, are served no sooner than those who
// obey: half of them wait at least 0.97 times as long as half of the others. Of a few clients
// a median depends on which came first by chance, so the ratio is divided by that of the same
// clients in the same herds when all obey. With -v the table has that, and the plain ratio in
// brackets. With -full it has all cells, of ten seeds.
func TestPolling(t *testing.T) {
	needsSpeed(t)
	t.Parallel()
	seeds, slack := seedsOf(10, 2), byChance
	columns := []polling{{}, {exact: true}}
	if *full {
		slack = 0
	} else {
		columns = columns[:1]
	}
	var table strings.Builder
	fmt.Fprintf(&table, "%-22s  %-14s %-14s\n", "load, share, each", "whole seconds", "milliseconds")
	for _, load := range []float64{0, 30, 50, 60, 70} {
		for _, share := range []float64{.02, .1, .5} {
			chance := map[bool]float64{} // the ratio when all obey, by whether they read milliseconds
			for _, gap := range []time.Duration{time.Second, fifth} {
				fmt.Fprintf(&table, "%3.0f/s %4.0f%% %9v  ", load, 100*share, gap)
				for _, p := range columns {
					p.load, p.share, p.gap = load, share, gap
					if chance[p.exact] == 0 {
						honest, same := p.medians(t, true, seeds)
						chance[p.exact] = same / honest
					}
					honest, polls := p.medians(t, false, seeds)
					ratio := polls / honest
					fmt.Fprintf(&table, " %.2f (%.2f)   ", ratio/chance[p.exact], ratio)
					if ratio/chance[p.exact] < leastOfObedient-slack {
						t.Errorf("%+v: half of those who poll wait %.2f of the others' time; want at least %v", p, ratio/chance[p.exact], leastOfObedient)
					}
				}
				fmt.Fprintln(&table)
			}
		}
	}
	t.Logf("how long those who poll wait, of those who obey:\n%s", table.String())
}

// Without holding rejections back for the fraction of a second a herd takes twice as long, and
// more requests: whole seconds alone make it come back in herds.
func TestWholeSecondsAlone(t *testing.T) {
	var ratio, requests [2]float64
	for i, off := range []bool{false, true} {
		s := Herd("", 2500, longest)
		s.Config.Pushback.NoDither = off
		out, err := Run(s, nil)
		if err != nil {
			t.Fatal(err)
		}
		ratio[i], requests[i] = out.Ratio(), out.PerSuccess()
	}
	t.Logf("%.2f of the least time, %.2f requests for each client", ratio, requests)
	if ratio[0] > 1.1 || ratio[1] < 1.5*ratio[0] || requests[1] < 1.2*requests[0] {
		t.Errorf("%.2f of the least time with %.2f requests for each client; want twice as long without, and more", ratio, requests)
	}
}
