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

// WriteTable writes runs side by side, one column each, in words for readers
// who have never heard of this package. Lines begin with indent.
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
		{"requests sent per client served", func(r Run) string { return r.Herd.perSuccess() }},
		{"most requests inside the backend", func(r Run) string { return fmt.Sprint(r.Backend.Peak) }},
		{"most requests reaching it in a second", func(r Run) string { return fmt.Sprint(r.Backend.Busiest()) }},
		{"work wasted on clients that had gone", func(r Run) string { return r.Backend.waste() }},
	}
	if slices.ContainsFunc(runs, func(r Run) bool { return r.Herd.Trying() > 0 }) {
		rows = slices.Insert(rows, 3, row{"clients still trying when stopped", func(r Run) string { return fmt.Sprint(r.Herd.Trying()) }})
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

// drained returns the time until the last client was served, or "never" if one
// was not: the time of the last success would flatter a backend that died early.
func (r Result) drained() string {
	if r.Served < r.Clients {
		return "never"
	}
	return fmt.Sprintf("%.1f s", r.LastServed.Seconds())
}

// perSuccess returns the requests sent for each client served.
func (r Result) perSuccess() string {
	if r.Served == 0 {
		return "none served"
	}
	return fmt.Sprintf("%.1f", float64(r.Attempts)/float64(r.Served))
}

// waste returns the wasted work and its share of all work done.
func (s Stats) waste() string {
	done := s.Served + s.Wasted
	if done == 0 {
		return "0"
	}
	return fmt.Sprintf("%d of %d (%d %%)", s.Wasted, done, 100*s.Wasted/done)
}
