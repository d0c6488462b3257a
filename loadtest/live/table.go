package live

import (
	"fmt"
	"io"
	"slices"
	"text/tabwriter"
)

// A Run is one herd against one backend, under a name for the table's head.
type Run struct {
	Name    string
	Herd    Result
	Backend Stats
}

// WriteTable writes runs side by side, one column each, in words for readers that do not
// know this package. Lines begin with indent.
func WriteTable(w io.Writer, indent string, runs ...Run) error {
	type row struct {
		label string
		cell  func(Run) string
	}
	rows := []row{
		{"", func(r Run) string { return r.Name }},
		{"clients served", func(r Run) string { return fmt.Sprintf("%d of %d", r.Herd.Served, r.Herd.Clients) }},
		{"clients that gave up", func(r Run) string { return fmt.Sprint(r.Herd.GaveUp) }},
		{"time until all were served", func(r Run) string { return r.Herd.drained() }},
		{"requests per client served", func(r Run) string { return r.Herd.perSuccess() }},
		{"most inside the backend at once", func(r Run) string { return fmt.Sprint(r.Backend.Peak) }},
		{"most reaching it in one second", func(r Run) string { return fmt.Sprint(r.Backend.Busiest) }},
		{"work for clients that had gone", func(r Run) string { return r.Backend.waste() }},
	}
	if slices.ContainsFunc(runs, func(r Run) bool { return r.Herd.Trying() > 0 }) {
		rows = slices.Insert(rows, 3, row{"still trying when stopped", func(r Run) string { return fmt.Sprint(r.Herd.Trying()) }})
	}
	tw := tabwriter.NewWriter(w, 0, 0, 3, ' ', 0)
	for _, row := range rows {
		fmt.Fprintf(tw, "%s%s", indent, row.label)
		for _, run := range runs {
			fmt.Fprintf(tw, "\t%s", row.cell(run))
		}
		fmt.Fprintln(tw)
	}
	return tw.Flush()
}

// drained returns the time until all were served, or "never".
func (r Result) drained() string {
	if d, all := r.Drained(); all {
		return fmt.Sprintf("%.1f s", d.Seconds())
	}
	return "never"
}

// perSuccess returns the requests sent for each client served.
func (r Result) perSuccess() string {
	if r.Served == 0 {
		return "none served"
	}
	return fmt.Sprintf("%.1f", r.PerSuccess())
}

// waste returns the wasted work and its share of all work done.
func (s Stats) waste() string {
	if s.Wasted == 0 {
		return "0"
	}
	return fmt.Sprintf("%d (%d %%)", s.Wasted, 100*s.Wasted/(s.Served+s.Wasted))
}
