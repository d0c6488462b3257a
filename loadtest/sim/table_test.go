package sim

import (
	"fmt"
	"strings"
	"text/tabwriter"
	"time"
)

// columns are what a table shows of an outcome.
var columns = []struct {
	head string
	cell func(*outcome) string
}{
	{"scenario", func(r *outcome) string { return r.Name }},
	{"seed", func(r *outcome) string { return fmt.Sprint(r.Seed) }},
	{"served", func(r *outcome) string { return fmt.Sprintf("%d of %d", r.Served, r.Clients) }},
	{"drained s", func(r *outcome) string {
		if r.Waiting > 0 {
			return fmt.Sprintf("> %.0f", r.Drained.Seconds())
		}
		return fmt.Sprintf("%.1f", r.Drained.Seconds())
	}},
	{"× optimum", func(r *outcome) string { return fmt.Sprintf("%.3f", r.Ratio()) }},
	{"cleared ×", func(r *outcome) string { return fmt.Sprintf("%.3f", r.ClearedRatio()) }},
	{"req/succ", func(r *outcome) string { return fmt.Sprintf("%.2f", r.PerSuccess()) }},
	{"most", func(r *outcome) string { return fmt.Sprint(r.MostAttempts) }},
	{"peak returns", func(r *outcome) string { return fmt.Sprint(r.PeakReturns) }},
	{"broken", func(r *outcome) string { return fmt.Sprint(r.Broken) }},
	{"gave up", func(r *outcome) string { return fmt.Sprint(r.GaveUp) }},
	{"held", func(r *outcome) string { return fmt.Sprint(r.MostHeld) }},
	{"overflow", func(r *outcome) string { return fmt.Sprintf("%.0f", r.Overflow) }},
	{"idle", func(r *outcome) string { return fmt.Sprint(r.Idle) }},
	{"strangers at once", func(r *outcome) string { return fmt.Sprintf("%.1f %%", 100*r.Strangers.AtOnceShare()) }},
	{"p95 s", func(r *outcome) string { return seconds(r.Strangers.P95) }},
	{"unserved", func(r *outcome) string { return fmt.Sprint(r.Strangers.Unserved) }},
}

// policyColumns are what a table shows of each policy, if there are several.
var policyColumns = []struct {
	head string
	cell func(*PolicyResult) string
}{
	{"policy", func(p *PolicyResult) string { return fmt.Sprint(p.Policy) }},
	{"served", func(p *PolicyResult) string { return fmt.Sprintf("%d of %d", p.Served, p.Clients) }},
	{"p50 s", func(p *PolicyResult) string { return seconds(p.P50) }},
	{"p99 s", func(p *PolicyResult) string { return seconds(p.P99) }},
	{"req/succ", func(p *PolicyResult) string { return fmt.Sprintf("%.2f", p.PerSuccess()) }},
}

// Ratio is Drained in terms of the least possible.
func (r *Result) Ratio() float64 { return float64(r.Drained) / float64(max(1, r.Optimum)) }

// ClearedRatio is Cleared in terms of the least possible.
func (r *Result) ClearedRatio() float64 { return float64(r.Cleared) / float64(max(1, r.Optimum)) }

func seconds(d time.Duration) string { return fmt.Sprintf("%.1f", d.Seconds()) }

// rows returns the head of the table of results, and its cells.
func rows(results []outcome) [][]string {
	out := [][]string{nil}
	for _, c := range columns {
		out[0] = append(out[0], c.head)
	}
	for i := range results {
		var row []string
		for _, c := range columns {
			row = append(row, c.cell(&results[i]))
		}
		out = append(out, row)
	}
	return out
}

// policyRows is rows for the policies of all results that have several.
func policyRows(results []outcome) [][]string {
	out := [][]string{{"scenario", "seed"}}
	for _, c := range policyColumns {
		out[0] = append(out[0], c.head)
	}
	for i := range results {
		r := &results[i]
		if len(r.Policies) < 2 {
			continue
		}
		for j := range r.Policies {
			row := []string{r.Name, fmt.Sprint(r.Seed)}
			for _, c := range policyColumns {
				row = append(row, c.cell(&r.Policies[j]))
			}
			out = append(out, row)
		}
	}
	return out
}

// text returns results in aligned columns, one line each, and then one line for each
// policy of those that have several.
func text(results []outcome) string {
	var b strings.Builder
	for _, rows := range [][][]string{rows(results), policyRows(results)} {
		w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
		for _, row := range rows {
			fmt.Fprintln(w, strings.Join(row, "\t"))
		}
		w.Flush()
	}
	return b.String()
}
