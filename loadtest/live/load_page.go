package live

import (
	"fmt"
	"time"

	"github.com/herdshield/shield/loadtest/report"
	"github.com/herdshield/shield/loadtest/sim"
)

// Page returns a load and its result as one page.
func (c LoadConfig) Page(r LoadResult) *report.Page {
	c = c.withDefaults()
	page := &report.Page{
		Title: "shield loadtest: " + c.Target.URL.String(), Lead: lead(r), Parts: c.about(r), Report: c.report(r),
		Tables: c.tables(&r), Notes: c.notes(r),
		Footer: fmt.Sprintf("Made by shield %s, seed %d, on %s.", Version(), c.Seed, r.Started.UTC().Format(time.RFC1123)),
	}
	if text := hints(r); text != "" {
		page.Notes = append(page.Notes, text+".")
	}
	return page
}

func lead(r LoadResult) string {
	switch all := &r.All; {
	case all.Clients == 0:
		return "No client came."
	case all.Clients == 1 && all.Served == 1:
		return fmt.Sprintf("The only client was served, after %s.", people(all.LastServed))
	case all.Served == all.Clients:
		return fmt.Sprintf("All %d clients were served, with %.2f requests each; the last after %s.", all.Served, all.PerSuccess(), people(all.LastServed))
	default:
		return fmt.Sprintf("%d of %s served (%s); %s not.", all.Served, report.Plural(all.Clients, "client was", "clients were"),
			percent(all.Served, all.Clients), report.Plural(all.Clients-all.Served, "was", "were"))
	}
}

// report returns a load as a simulation: others are its background clients.
func (c LoadConfig) report(r LoadResult) *report.Report {
	herd, others := &r.Herd, &r.Others
	run := report.Run{Result: sim.Result{
		Name: c.Target.URL.Host, Clients: herd.Clients, Served: herd.Served, Waits: herd.Waits,
		Strangers: sim.StrangersResult{Came: others.Clients, Waits: others.Waits},
	}}
	for _, p := range r.Policies {
		run.Policies = append(run.Policies, sim.PolicyResult{Policy: p.Policy, Clients: p.Clients, Waits: p.Waits})
	}
	for _, s := range r.Seconds {
		run.Series = append(run.Series, s.Bin)
	}
	out := &report.Report{Runs: []report.Run{run}, Scenario: sim.Scenario{Bin: time.Second, Background: c.Rate}, Live: true}
	if c.Herd > 0 && c.Rate > 0 {
		out.Marks = []report.Mark{{Name: "the herd comes", From: c.HerdAfter, To: c.HerdAfter + c.Within}}
	}
	return out
}
