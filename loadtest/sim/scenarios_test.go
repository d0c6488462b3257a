package sim

import (
	"flag"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/herdshield/shield"
	"github.com/herdshield/shield/limiter"
	"github.com/herdshield/shield/loadtest/clients"
	"github.com/herdshield/shield/pushback"
)

var full = flag.Bool("full", false, "play the million clients of TestScenarios to the end, not 10 minutes only")

// bounds are what a scenario must show. 0 means no bound, but for ratio.
type bounds struct {
	ratio      float64 // of the least possible time, to drain the herd
	cleared    float64 // of the same, until no stranger waits any more
	perSuccess float64 // requests of the herd per client served
	returns    int     // peak per 100 ms
	unbroken   bool    // no broken promises
	nobodyGone bool    // nobody gives up
}

// A scenario of the table, with its bounds.
type row struct {
	Scenario
	bounds
	server Maker // nil: the real Guard
	large  bool  // one seed, and not in short runs
}

const (
	rate       = 100 // of the backend, per second
	background = 50  // strangers per second
)

// config is the setting of all rows, with the longest Retry-After; 0 means the
// default of 30 s.
func config(rate float64, max time.Duration) shield.Config {
	return shield.Config{
		Capacity: limiter.Config{Rate: rate, Burst: 10},
		Pushback: pushback.Config{Max: max},
	}
}

// herd returns the row that all others are variations of: n clients within 0.1 s.
func herd(name string, n int, max time.Duration, b bounds) row {
	return row{bounds: b, Scenario: Scenario{
		Name: name, Clients: n, Within: 100 * time.Millisecond, Mix: clients.All(clients.Exact{}),
		Background: background, Config: config(rate, max),
		// Whoever takes twice as long as they should have failed.
		Until: 2 * time.Duration(b.ratio*float64(n)/(rate-background)*float64(time.Second)),
	}}
}

func (r row) with(change func(*row)) row {
	change(&r)
	return r
}

func mix(p clients.Population) func(*row) { return func(r *row) { r.Mix = p } }

func hammering(share float64, gap time.Duration) clients.Population {
	return clients.Population{
		{Weight: 1 - share, Policy: clients.Exact{}},
		{Weight: share, Policy: clients.Hammer{Gap: gap}},
	}
}

const (
	halfMinute = 30 * time.Second
	longest    = 59 * time.Second
)

// clearBound bounds what a drained herd may leave behind. Without it a server that
// refuses all strangers would drain best. Ours: what the model in model_test.go
// does, up to 1.18, and room for the last stranger's last appointment.
const clearBound = 1.25

// table is what appointments must show. Its bounds on the herd are those of an
// operator's promise, a little above what the model shows.
func table() []row {
	return []row{
		herd("2,500 fit", 2500, longest, bounds{ratio: 1.10, cleared: clearBound, perSuccess: 2.02, returns: 20, unbroken: true}),
		herd("5,000, max 59s", 5000, longest, bounds{ratio: 1.08, cleared: clearBound, perSuccess: 2.3}),
		herd("5,000, max 30s", 5000, halfMinute, bounds{ratio: 1.08, cleared: clearBound, perSuccess: 2.9}),
		herd("70 % exact, 20 % late, 10 % ignore", 5000, 0, bounds{ratio: 1.25}).with(mix(clients.Population{
			{Weight: 0.7, Policy: clients.Exact{}},
			{Weight: 0.2, Policy: clients.Late{By: 0.2}},
			{Weight: 0.1, Policy: clients.Ignore{}},
		})),
		herd("30 % never return", 5000, 0, bounds{ratio: 1.35, cleared: clearBound}).with(mix(clients.Population{
			{Weight: 0.6, Policy: clients.Exact{}},
			{Weight: 0.1, Policy: clients.Late{By: 0.2}},
			{Weight: 0.3, Policy: clients.GiveUp{}},
		})),
		herd("over 5 s", 5000, 0, bounds{ratio: 1.10, cleared: clearBound}).with(func(r *row) { r.Within = 5 * time.Second }),
		herd("capacity -25 % at 30 s", 5000, 0, bounds{ratio: 1.15, cleared: clearBound}).with(func(r *row) {
			r.Changes = []Change{{At: 30 * time.Second, Config: config(0.75*rate, 0)}}
			r.Until *= 2
		}),
		herd("restart at 30 s", 5000, 0, bounds{ratio: 1.25, cleared: clearBound}).with(func(r *row) {
			r.Changes = []Change{{At: 30 * time.Second, Config: r.Config, Restart: true}}
		}),
		herd("reload at 30 s", 5000, 0, bounds{ratio: 1.08, cleared: clearBound}).with(func(r *row) {
			r.Changes = []Change{{At: 30 * time.Second, Config: r.Config}}
		}),
		herd("4 attempts, 2,500 fit", 2500, longest, bounds{ratio: 1.10, cleared: clearBound, nobodyGone: true}).
			with(mix(clients.All(clients.MaxAttempts{N: 4, Policy: clients.Exact{}}))),
		herd("20,000, max 59s", 20_000, longest, bounds{ratio: 1.08, cleared: clearBound}),
		herd("20,000, max 30s", 20_000, halfMinute, bounds{ratio: 1.08, cleared: clearBound}),
		herd("1,000,000, max 59s", 1_000_000, longest, bounds{ratio: 1.08}).with(func(r *row) {
			r.large = true
			r.MaxRequests = 30_000_000
			if !*full {
				// To the end would be 20,000 s and some 200 million requests, 6 minutes:
				// who was served so far is held to the same bound.
				r.Until = 10 * time.Minute
			} else {
				r.MaxRequests = 0
			}
		}),
	}
}

// competitors is the same herd under what others do.
func competitors() []row {
	honours, ignores := clients.All(clients.Exact{}), clients.All(clients.Ignore{})
	var rows []row
	for _, c := range []struct {
		name   string
		server Maker
		mix    clients.Population
	}{
		{"no hint, client full jitter", NoHint, ignores},
		{"Retry-After: 1", FixedHint(1), honours},
		{"GCRA exact", NextToken, honours},
		{"Kubernetes' rule", Kubernetes, honours},
		{"±50 % jitter (Mimir)", Mimir, honours},
	} {
		r := herd(c.name, 5000, 0, bounds{}).with(mix(c.mix))
		r.server, r.Until = c.server, 1000*time.Second
		rows = append(rows, r)
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
	var results []Result
	play := func(r row) []Result {
		var own []Result
		t.Run(strings.ReplaceAll(r.Name, " ", "_"), func(t *testing.T) {
			own = r.check(t, seeds)
		})
		results = append(results, own...)
		return own
	}
	for _, r := range table() {
		if raceEnabled && r.Clients > 5000 {
			continue
		}
		play(r)
	}

	// Polling must not pay, and must not cost those who keep their promises.
	if raceEnabled {
		return
	}
	calm := play(herd("nobody hammers", 5000, 0, bounds{ratio: 1.08}))
	for _, share := range []float64{0.1, 0.5} {
		for _, gap := range []time.Duration{time.Second, 200 * time.Millisecond} {
			name := fmt.Sprintf("%.0f %% hammer every %v", 100*share, gap)
			hammered := play(herd(name, 5000, 0, bounds{ratio: 1.25}).with(mix(hammering(share, gap))))
			for i, r := range hammered[:min(len(hammered), len(calm))] { // a run of one row has no other
				honour, hammer := r.Policies[0], r.Policies[1]
				if hammer.P50 < honour.P50 {
					t.Errorf("%s, seed %d: half of those who hammer are served in %v, of those who honour in %v; want not sooner",
						name, r.Seed, hammer.P50, honour.P50)
				}
				if alone := calm[i].Policies[0].P99; float64(honour.P99) > 1.03*float64(alone) {
					t.Errorf("%s, seed %d: 99 %% of those who honour are served in %v, without hammerers in %v; want at most 3 %% more",
						name, r.Seed, honour.P99, alone)
				}
			}
		}
	}
	if !testing.Short() {
		seeds = seeds[:1]
		for _, r := range competitors() {
			play(r)
		}
	}

	var out strings.Builder
	if err := WriteTable(&out, results...); err != nil {
		t.Fatal(err)
	}
	t.Logf("\n%s", out.String())
}

// check plays r with each seed and holds the results to the bounds.
func (r row) check(t *testing.T, seeds []uint64) []Result {
	if r.large {
		if testing.Short() || raceEnabled {
			t.Skip("too large")
		}
		seeds = seeds[:1]
	}
	results := make([]Result, len(seeds))
	errs := make([]error, len(seeds))
	var wait sync.WaitGroup
	slots := make(chan struct{}, runtime.GOMAXPROCS(0))
	for i, seed := range seeds {
		wait.Go(func() {
			slots <- struct{}{}
			s := r.Scenario
			s.Seed = seed
			results[i], errs[i] = Run(s, r.server)
			<-slots
		})
	}
	wait.Wait()
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
			bad("somebody waited for %.3f times the optimum of %v, want at most %.2f", got, out.Optimum, r.cleared)
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
		if r.nobodyGone && out.GaveUp > 0 {
			bad("%d of %d gave up, want none", out.GaveUp, out.Reachable)
		}
	}
	return results
}
