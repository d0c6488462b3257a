package report

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// Page returns the report as a Page.
func (r *Report) Page() *Page {
	page := &Page{
		Title: "shield simulate: " + strings.Join(r.names(40), ", "), Lead: r.Lead(), About: r.About, Tables: r.tables(),
		Notes: r.EndedEarly(), Report: r,
		Footer: fmt.Sprintf("Made by %s, seed %d. The same version, flags and files give the same figures.", r.Version, r.Seed),
	}
	for _, run := range r.Runs {
		page.Parts = append(page.Parts, Text{run.Name, strings.Join(run.Notes, "; ")})
	}
	return page
}

// Lead is the result in a sentence: of the runs that served most clients, and fewest.
func (r *Report) Lead() string {
	order := make([]*Run, len(r.Runs))
	for i := range r.Runs {
		order[i] = &r.Runs[i]
	}
	slices.SortStableFunc(order, func(a, b *Run) int {
		if !r.herd() {
			return cmp.Or(cmp.Compare(a.Strangers.Unserved, b.Strangers.Unserved), cmp.Compare(b.Strangers.AtOnce, a.Strangers.AtOnce))
		}
		return cmp.Or(cmp.Compare(b.Served, a.Served), cmp.Compare(a.Drained, b.Drained))
	})
	if len(order) == 0 {
		return ""
	}
	best, worst := order[0], order[len(order)-1]
	switch len(order) {
	case 1:
		return best.Name + " " + outcome(best) + "."
	case 2:
		return fmt.Sprintf("%s %s; %s %s.", best.Name, outcome(best), worst.Name, outcome(worst))
	}
	return fmt.Sprintf("Best of %d: %s %s. Worst: %s %s.", len(order), best.Name, outcome(best), worst.Name, outcome(worst))
}

// outcome says how many clients a run served.
func outcome(r *Run) string {
	switch {
	case r.Clients == 0 && r.Strangers.Came == 0:
		return "has no clients yet"
	case r.Clients == 0:
		return fmt.Sprintf("served %.0f %% of the clients at their first request, and left %.0f %% unserved",
			100*r.Strangers.AtOnceShare(), 100*float64(r.Strangers.Unserved)/float64(r.Strangers.Came))
	case r.Served == 1 && r.Clients == 1:
		return "served the client after " + duration(r.Drained)
	case r.Served == r.Clients:
		return fmt.Sprintf("served all %s clients, the last after %s", thousands(r.Clients), duration(r.Drained))
	}
	return fmt.Sprintf("served %s of %s, and %s not by the end", thousands(r.Served), thousands(r.Clients)+map[bool]string{true: " client", false: " clients"}[r.Clients == 1], thousands(r.Clients-r.Served))
}
