package main

import (
	"cmp"
	"fmt"
	"runtime"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/herdshield/shield/loadtest/clients"
	"github.com/herdshield/shield/loadtest/lab/page"
	"github.com/herdshield/shield/loadtest/sim"
)

// seeds are those of the runs of which each cell shows the worst.
var seeds = []uint64{1, 2, 3}

// A row is a scenario, played with each of the seeds against the server; nil
// means shield.
type row struct {
	sim.Scenario
	server sim.Maker
	runs   []sim.Result
}

// A column is what a table shows of the runs of a row.
type column struct {
	head string
	cell func([]sim.Result) string
}

// Of crowds, under shield and others.
var columns = []column{
	{"× least time", func(runs []sim.Result) string {
		for _, r := range runs {
			if r.Waiting > 0 {
				return fmt.Sprintf("%s served in %s s", page.Thousands(r.Served), page.Thousands(int(r.Drained.Seconds())))
			}
		}
		return fmt.Sprintf("%.2f", worst(runs, func(r *sim.Result) float64 { return float64(r.Drained) / float64(max(1, r.Optimum)) }))
	}},
	{"× all cleared", func(runs []sim.Result) string {
		if slices.ContainsFunc(runs, func(r sim.Result) bool { return r.Waiting > 0 }) {
			return "never"
		}
		return fmt.Sprintf("%.2f", worst(runs, func(r *sim.Result) float64 { return float64(r.Cleared) / float64(max(1, r.Optimum)) }))
	}},
	{"requests per client", func(runs []sim.Result) string { return fmt.Sprintf("%.2f", worst(runs, (*sim.Result).PerSuccess)) }},
	{"most returns per 100 ms", func(runs []sim.Result) string {
		return page.Thousands(worst(runs, func(r *sim.Result) int { return r.PeakReturns }))
	}},
	{"new clients admitted immediately", func(runs []sim.Result) string {
		return fmt.Sprintf("%.0f%%", -100*worst(runs, func(r *sim.Result) float64 { return -r.NewClients.AtOnceShare() }))
	}},
}

// Of those who do as they are told, and of those who hammer.
var hammerColumns = slices.Concat(policyColumns("honest", 0), policyColumns("hammering", 1))

func policyColumns(who string, policy int) []column {
	show := func(what string, cell func([]sim.Result) string) column {
		return column{who + ": " + what, func(runs []sim.Result) string {
			if policy >= len(runs[0].Policies) {
				return ""
			}
			return cell(runs)
		}}
	}
	wait := func(of func(*sim.PolicyResult) time.Duration) func([]sim.Result) string {
		return func(runs []sim.Result) string {
			return fmt.Sprintf("%.0f s", worst(runs, func(r *sim.Result) time.Duration { return of(&r.Policies[policy]) }).Seconds())
		}
	}
	return []column{
		show("half served in", wait(func(p *sim.PolicyResult) time.Duration { return p.P50 })),
		show("99% in", wait(func(p *sim.PolicyResult) time.Duration { return p.P99 })),
		show("requests each", func(runs []sim.Result) string {
			return fmt.Sprintf("%.1f", worst(runs, func(r *sim.Result) float64 { return r.Policies[policy].PerSuccess() }))
		}),
	}
}

// worst returns the largest of what the runs have.
func worst[T cmp.Ordered](runs []sim.Result, of func(*sim.Result) T) T {
	w := of(&runs[0])
	for i := range runs {
		w = max(w, of(&runs[i]))
	}
	return w
}

// competitors are what others tell the herd of 5,000, and how it takes that.
var competitors = []struct {
	name   string
	server sim.Maker
	policy clients.Policy
}{
	{"no hint, client full jitter", sim.NoHint, clients.Ignore{}},
	{"Retry-After: 1", sim.FixedHint(1), clients.Exact{}},
	{"GCRA exact", sim.NextToken, clients.Exact{}},
	{"Kubernetes' rule", kubernetes, clients.Exact{}},
	{"±50% jitter (Mimir)", mimir, clients.Exact{}},
}

// tables are the three of the laboratory's README.md about herds.
func tables() (all []page.Table, err error) {
	crowds := []row{}
	for _, s := range herds() {
		crowds = append(crowds, row{Scenario: s})
	}
	hammered := []row{{Scenario: herd("none", 5000, 0)}}
	for _, s := range cheats() {
		hammered = append(hammered, row{Scenario: s})
	}
	others := []row{{Scenario: herd("shield", 5000, 0)}}
	for _, c := range competitors {
		s := herd(c.name, 5000, 0)
		s.Mix, s.Until = clients.All(c.policy), 1000*time.Second
		others = append(others, row{Scenario: s, server: c.server})
	}
	for _, t := range []struct {
		name, head string
		columns    []column
		rows       []row
	}{
		{"crowds", "herd", columns, crowds},
		{"hammered", "who hammers", hammerColumns, hammered},
		{"others", "what rejected clients are told", columns, others},
	} {
		if err := play(t.rows); err != nil {
			return nil, err
		}
		all = append(all, page.Table{Name: t.name, Text: table(t.head, t.columns, t.rows)})
	}
	return all, nil
}

// play runs the rows, as many at a time as there are processors.
func play(rows []row) error {
	var group errgroup.Group
	group.SetLimit(runtime.GOMAXPROCS(0))
	for i := range rows {
		r := &rows[i]
		group.Go(func() error {
			for _, seed := range seeds {
				s := r.Scenario
				s.Seed = seed
				run, err := sim.Run(s, r.server)
				if err != nil {
					return err
				}
				r.runs = append(r.runs, run)
			}
			return nil
		})
	}
	return group.Wait()
}

// table returns the rows in Markdown, numbers to the right.
func table(head string, columns []column, rows []row) string {
	lines := [][]string{{head}}
	for _, c := range columns {
		lines[0] = append(lines[0], c.head)
	}
	for _, r := range rows {
		line := []string{r.Name}
		for _, c := range columns {
			line = append(line, c.cell(r.runs))
		}
		lines = append(lines, line)
	}
	return page.Markdown(lines, 1)
}
