package report

import (
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"
	"unicode/utf8"
)

// A fact is a line of a table.
type fact struct {
	text string
	cell func(*Report, *Run) string
}

// herdFacts are the lines about the herd, if there is one.
var herdFacts = []fact{
	{"clients served", func(_ *Report, r *Run) string {
		return thousands(r.Served) + " of " + thousands(r.Clients)
	}},
	{"  gave up", func(_ *Report, r *Run) string { return thousands(gaveUp(r)) }},
	{"  still waiting at the end", func(_ *Report, r *Run) string { return thousands(r.Waiting) }},
	{"the last served or gone after", func(_ *Report, r *Run) string {
		if r.Waiting > 0 || r.Reachable == 0 {
			return "-"
		}
		return duration(r.Drained)
	}},
	{"  nobody waited any more after", func(p *Report, r *Run) string {
		if r.Waiting > 0 || r.Reachable == 0 || r.Interrupted || len(r.Series) > 0 && r.Cleared >= p.end(r) {
			return "-"
		}
		return duration(r.Cleared)
	}},
	{"  at best", func(_ *Report, r *Run) string {
		if r.Waiting > 0 || r.Reachable == 0 {
			return "-"
		}
		return duration(r.Optimum)
	}},
	{"requests per client served", func(_ *Report, r *Run) string {
		if r.Served == 0 {
			return "-"
		}
		return strconv.FormatFloat(r.PerSuccess(), 'f', 1, 64)
	}},
	{"  most by one client", func(_ *Report, r *Run) string { return thousands(r.MostAttempts) }},
	{"  most returns in 0.1 s", func(_ *Report, r *Run) string { return thousands(r.PeakReturns) }},
}

// facts are the lines about all.
var facts = []fact{
	{"requests, of all clients", func(_ *Report, r *Run) string { return thousands(r.Decided) }},
	{"  refused", func(_ *Report, r *Run) string { return thousands(r.Refused) }},
	{"  timed out", func(_ *Report, r *Run) string { return thousands(r.TimedOut) }},
	{"  failed at the backend", func(_ *Report, r *Run) string { return thousands(r.Failed) }},
	{"in the backend, most at once", func(p *Report, r *Run) string {
		if len(r.Series) == 0 {
			return "-"
		}
		return thousands(mostInFlight(r))
	}},
	{"  worked on for nobody", func(_ *Report, r *Run) string { return thousands(r.Wasted) }},
	{"strangers served at once", func(_ *Report, r *Run) string {
		if r.Strangers.Came == 0 {
			return "-"
		}
		return fmt.Sprintf("%.0f %%", 100*r.Strangers.AtOnceShare())
	}},
	{"  unserved when it was over", func(_ *Report, r *Run) string {
		if r.Strangers.Came == 0 {
			return "-"
		}
		return fmt.Sprintf("%.0f %%", 100*float64(r.Strangers.Unserved)/float64(r.Strangers.Came))
	}},
	{"  95 % served within", func(_ *Report, r *Run) string {
		if r.Strangers.P95 == 0 { // none was
			return "-"
		}
		return duration(r.Strangers.P95)
	}},
}

// herd reports whether any run has a herd.
func (r *Report) herd() bool {
	return slices.ContainsFunc(r.Runs, func(run Run) bool { return run.Clients > 0 })
}

// gaveUp is how many of the herd went away without, those too who never return.
func gaveUp(r *Run) (n int) {
	for _, p := range r.Policies {
		n += p.GaveUp
	}
	return n
}

// WriteTable writes the runs side by side, a figure in each line; and then a line for
// each policy of each run.
//
// Figures are of the herd, but for the requests, which are those of all clients.
// "at best" is what it takes to serve the herd
// if it comes just as there is room. The most in the backend is that of moments
// one Bin apart. Strangers are who comes besides the herd, until it is served, or the run ends. Waits
// are those of clients who were served, from the beginning of their first request.
func (r *Report) WriteTable(w io.Writer) error {
	facts := facts
	if r.herd() {
		facts = slices.Concat(herdFacts, facts)
	}
	columns := [][]string{{""}}
	for _, f := range facts {
		columns[0] = append(columns[0], f.text)
	}
	for i := range r.Runs {
		cells := []string{short(r.Runs[i].Name, 30)}
		for _, f := range facts {
			cells = append(cells, f.cell(r, &r.Runs[i]))
		}
		columns = append(columns, cells)
	}
	var b strings.Builder
	for line := range columns[0] {
		for i, cells := range columns {
			wide := 0
			for _, cell := range cells {
				wide = max(wide, utf8.RuneCountInString(cell))
			}
			pad := strings.Repeat(" ", wide-utf8.RuneCountInString(cells[line]))
			if i == 0 {
				b.WriteString(cells[line] + pad)
			} else {
				b.WriteString("   " + pad + cells[line])
			}
		}
		b.WriteByte('\n')
	}
	if _, err := io.WriteString(w, b.String()); err != nil {
		return err
	}
	if !r.herd() {
		return nil
	}
	return r.writePolicies(w)
}

func (r *Report) writePolicies(w io.Writer) error {
	tw := tabwriter.NewWriter(w, 0, 0, 3, ' ', 0)
	fmt.Fprintln(tw, "\nwaits by policy\trun\tserved\tgave up\t50 %\t90 %\t99 %\trequests per served")
	n := 0
	for i := range r.Runs {
		n = max(n, len(r.Runs[i].Policies))
	}
	for j := range n {
		for i := range r.Runs {
			run := &r.Runs[i]
			if j >= len(run.Policies) {
				continue
			}
			p := &run.Policies[j]
			waits, per := [3]string{"-", "-", "-"}, "-"
			if p.Served > 0 {
				waits = [3]string{duration(p.P50), duration(p.P90), duration(p.P99)}
				per = strconv.FormatFloat(p.PerSuccess(), 'f', 1, 64)
			}
			fmt.Fprintf(tw, "%s\t%s\t%s of %s\t%s\t%s\t%s\t%s\t%s\n", short(fmt.Sprint(p.Policy), 40), short(run.Name, 30),
				thousands(p.Served), thousands(p.Clients), thousands(p.GaveUp), waits[0], waits[1], waits[2], per)
		}
	}
	return tw.Flush()
}

// duration writes d to a tenth of a second, and below 10 s to a hundredth.
func duration(d time.Duration) string {
	if d >= 9995*time.Millisecond {
		return strconv.FormatFloat(d.Seconds(), 'f', 1, 64) + " s"
	}
	return strconv.FormatFloat(d.Seconds(), 'f', 2, 64) + " s"
}

// thousands writes 12345 as 12,345.
func thousands(n int) string {
	if n < 1000 {
		return strconv.Itoa(n)
	}
	return fmt.Sprintf("%s,%03d", thousands(n/1000), n%1000)
}

// short cuts a text off that has more than n letters.
func short(s string, n int) string {
	letters := []rune(s)
	if len(letters) <= n {
		return s
	}
	return string(letters[:n-1]) + "…"
}
