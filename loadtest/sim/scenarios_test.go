package sim

import (
	"flag"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/herdshield/shield/loadtest/clients"
)

var full = flag.Bool("full", false, "play the million clients of TestScenarios to the end, not 2 minutes only")

// bounds are what a scenario must show. 0 means no bound, but for ratio.
type bounds struct {
	ratio      float64 // of the least possible time, to drain the herd
	cleared    float64 // of the same, until no stranger waits any more
	perSuccess float64 // requests of the herd per client served
	returns    int     // peak per 100 ms
	unbroken   bool    // no broken promises
	noneGone   bool    // no client gives up
}

// A scenario of the table, with its bounds.
type row struct {
	Scenario
	bounds
	server Maker // nil: the real Guard
	large  bool  // one seed, and not in short runs
	cheats bool  // it is one of Cheats
}

// herd returns Herd as a row. A run that takes twice as long as it should has
// failed.
func herd(name string, n int, max time.Duration, b bounds) row {
	r := row{bounds: b, Scenario: Herd(name, n, max)}
	r.Until = 2 * time.Duration(b.ratio*float64(r.optimum(n)))
	return r
}

// clearBound bounds what a drained herd may leave behind. Without it a server that
// refuses all strangers would drain best. Ours: what the model in model_test.go
// does, up to 1.18, and room for the last stranger's last appointment.
const clearBound = 1.25

// promised is what the Herds must show. The bounds are those of an operator's
// promise, a little above what the model shows.
var promised = map[string]bounds{
	"2,500, max 59s":                     {ratio: 1.10, cleared: clearBound, perSuccess: 2.02, returns: 20, unbroken: true},
	"5,000, max 59s":                     {ratio: 1.08, cleared: clearBound, perSuccess: 2.3},
	"5,000, max 30s":                     {ratio: 1.08, cleared: clearBound, perSuccess: 2.9},
	"70 % exact, 20 % late, 10 % ignore": {ratio: 1.25},
	"30 % never return":                  {ratio: 1.35, cleared: clearBound},
	"over 5 s":                           {ratio: 1.10, cleared: clearBound},
	"capacity -25 % at 30 s":             {ratio: 1.15, cleared: clearBound},
	"restart at 30 s":                    {ratio: 1.25, cleared: clearBound},
	"reload at 30 s":                     {ratio: 1.08, cleared: clearBound},
	"2,500 who try 4 times, max 59s":     {ratio: 1.10, cleared: clearBound, noneGone: true},
	"20,000, max 59s":                    {ratio: 1.08, cleared: clearBound},
	"20,000, max 30s":                    {ratio: 1.08, cleared: clearBound},
	"1,000,000, max 59s":                 {ratio: 1.08},
}

// table returns the Herds with their bounds.
func table(t *testing.T) []row {
	var rows []row
	for _, s := range Herds() {
		b, ok := promised[s.Name]
		if !ok {
			t.Errorf("nothing is promised about %s", s.Name)
		}
		r := row{Scenario: s, bounds: b, large: s.Clients > 100_000}
		r.Until = 2 * time.Duration(b.ratio*float64(s.optimum(s.Clients)))
		if r.large && !*full {
			// To the end would be 20,000 s and some 200 million requests, 6 minutes of work:
			// who was served so far is held to the same bound.
			r.Until, r.MaxRequests = 2*time.Minute, 30_000_000
		}
		rows = append(rows, r)
	}
	if len(rows) != len(promised) {
		t.Errorf("%d scenarios for %d promises", len(rows), len(promised))
	}
	return rows
}

// TestScenarios plays the table and holds it to its bounds. With -v it prints
// the table.
func TestScenarios(t *testing.T) {
	seeds := []uint64{1, 2, 3}
	if testing.Short() || raceEnabled {
		seeds = seeds[:1]
	}
	var results []outcome
	play := func(r row) []outcome {
		var own []outcome
		t.Run(strings.ReplaceAll(r.Name, " ", "_"), func(t *testing.T) {
			own = r.check(t, seeds)
		})
		results = append(results, own...)
		return own
	}
	for _, r := range table(t) {
		if raceEnabled && r.Clients > 5000 {
			continue
		}
		play(r)
	}

	// Polling must not pay, and must not cost those who keep their promises.
	if raceEnabled {
		return
	}
	calm := play(herd("no hammering", 5000, 0, bounds{ratio: 1.08}))
	for _, s := range Cheats()[:4] {
		hammered := play(row{Scenario: s, bounds: bounds{ratio: 1.25}, cheats: true})
		for i, r := range hammered[:min(len(hammered), len(calm))] { // a run of one row has no other
			honour, hammer := r.Policies[0], r.Policies[1]
			if hammer.P50 < honour.P50 {
				t.Errorf("%s, seed %d: half of those who hammer are served in %v, of those who honour in %v; want not sooner",
					r.Name, r.Seed, hammer.P50, honour.P50)
			}
			if alone := calm[i].Policies[0].P99; float64(honour.P99) > 1.03*float64(alone) {
				t.Errorf("%s, seed %d: 99 %% of those who honour are served in %v, without hammerers in %v; want at most 3 %% more",
					r.Name, r.Seed, honour.P99, alone)
			}
		}
	}
	// A hammering client that asks for something else each time is not recognised, and
	// is served sooner: by how much at the most, and at what cost to the others. The
	// bounds are a little beyond what was measured, 0.63 and 1.08 with 2 %, 0.57
	// and 1.26 with 10 %. They are no promise that it does not pay.
	for _, b := range []struct {
		Scenario
		sooner, later float64
	}{
		{Cheats()[4], 0.60, 1.10},
		{Cheats()[5], 0.55, 1.30},
	} {
		varying := play(row{Scenario: b.Scenario, bounds: bounds{ratio: 1.25}, cheats: true})
		for i, r := range varying[:min(len(varying), len(calm))] {
			honour, vary := r.Policies[0], r.Policies[1]
			if got := float64(vary.P50) / float64(honour.P50); got < b.sooner {
				t.Errorf("%s, seed %d: half of those who do are served in %v, %.2f of the %v of those who honour; want at least %.2f",
					r.Name, r.Seed, vary.P50, got, honour.P50, b.sooner)
			}
			if alone := calm[i].Policies[0].P99; float64(honour.P99) > b.later*float64(alone) {
				t.Errorf("%s, seed %d: 99 %% of those who honour are served in %v, alone in %v; want at most %.2f times as long",
					r.Name, r.Seed, honour.P99, alone, b.later)
			}
		}
	}
	if !testing.Short() {
		seeds = seeds[:1]
		for name, model := range map[string]Maker{
			"NoHint": NoHint, "FixedHint": FixedHint(1), "NextToken": NextToken, "Kubernetes": Kubernetes, "Mimir": Mimir,
		} {
			s := Herd(name, 5000, 0)
			s.Until = 1000 * time.Second
			if name == "NoHint" {
				s.Mix = clients.All(clients.Ignore{})
			}
			play(row{Scenario: s, server: model})
		}
	}

	t.Log("\n" + text(results))
}

// check plays r with each seed and holds the results to the bounds.
func (r row) check(t *testing.T, seeds []uint64) []outcome {
	if r.large {
		if testing.Short() || raceEnabled {
			t.Skip("needs a build without the race detector, and no -short: it plays a million clients")
		}
		seeds = seeds[:1]
	}
	results := make([]outcome, len(seeds))
	errs := make([]error, len(seeds))
	var wait sync.WaitGroup
	slots := make(chan struct{}, runtime.GOMAXPROCS(0))
	for i, seed := range seeds {
		wait.Go(func() {
			slots <- struct{}{}
			s := r.Scenario
			s.Seed = seed
			if r.cheats {
				results[i], errs[i] = playCheat(s)
			} else {
				results[i], errs[i] = runLeveled(s, r.server)
			}
			<-slots
		})
	}
	wait.Wait()
	if r.large { // a million clients and the strangers, with all that the process has
		var m runtime.MemStats
		if runtime.ReadMemStats(&m); m.Sys > 2<<30 {
			t.Errorf("%d MiB from the system, want at most 2048", m.Sys>>20)
		}
	}
	for i, out := range results {
		if errs[i] != nil {
			t.Fatal(errs[i])
		}
		bad := func(format string, args ...any) {
			t.Errorf("seed %d: "+format, append([]any{out.Seed}, args...)...)
		}
		if out.Excess > 0 {
			bad("%.2f tokens too many were taken", out.Excess)
		}
		if r.ratio == 0 {
			continue
		}
		if out.Waiting > 0 && !r.large {
			bad("%d of %d still wait after %v", out.Waiting, out.Reachable, out.Drained)
		}
		if got := out.Ratio(); got > r.ratio {
			bad("took %.3f times the optimum of %v, want at most %.2f", got, out.Optimum, r.ratio)
		}
		if got := out.ClearedRatio(); r.cleared > 0 && got > r.cleared {
			bad("a client waited for %.3f times the optimum of %v, want at most %.2f", got, out.Optimum, r.cleared)
		}
		if got := out.PerSuccess(); r.perSuccess > 0 && got > r.perSuccess {
			bad("%.2f requests per success, want at most %.2f", got, r.perSuccess)
		}
		if r.returns > 0 && out.PeakReturns > r.returns {
			bad("up to %d returns per 100 ms, want at most %d", out.PeakReturns, r.returns)
		}
		if r.unbroken && out.Broken > 0 {
			bad("%d broken promises, want none", out.Broken)
		}
		if r.noneGone && out.GaveUp > 0 {
			bad("%d of %d gave up, want none", out.GaveUp, out.Reachable)
		}
	}
	return results
}
