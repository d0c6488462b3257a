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
	{"  still waiting at the end", func(_ *Report, r *Run) string { return thousands(waiting(r)) }},
	{"the last served or gone after", func(_ *Report, r *Run) string {
		if !drained(r) {
			return "-"
		}
		return duration(r.Drained)
	}},
	{"  nobody waited any more after", func(p *Report, r *Run) string {
		if !p.cleared(r) {
			return "-"
		}
		return duration(r.Cleared)
	}},
	{"  at best", func(_ *Report, r *Run) string {
		if !attainable(r) {
			return "-"
		}
		return duration(r.Optimum)
	}},
	{"the herd's requests, per one served", func(_ *Report, r *Run) string {
		if r.Served == 0 {
			return "-"
		}
		return strconv.FormatFloat(r.PerSuccess(), 'f', 1, 64)
	}},
	{"  most by one client", func(_ *Report, r *Run) string { return thousands(r.MostAttempts) }},
	{"  most returns in 0.1 s", func(_ *Report, r *Run) string { return thousands(r.PeakReturns) }},
}

// strangerFacts are the lines about clients if there is no herd.
var strangerFacts = []fact{
	{"clients, warm-up included", everybodys(func(n count) int { return n.came })},
	{"  served", everybodys(func(n count) int { return n.served })},
	{"  gave up", everybodys(func(n count) int { return n.gaveUp })},
	{"  still waiting at the end", everybodys(count.waiting)},
}

// everybodys is a figure of all clients.
func everybodys(f func(count) int) func(*Report, *Run) string {
	return func(_ *Report, r *Run) string {
		n, ok := everybody(r)
		if !ok {
			return "-"
		}
		return thousands(f(n))
	}
}

// A count is what became of clients.
type count struct{ came, served, gaveUp int }

func (c count) waiting() int { return c.came - c.served - c.gaveUp }

// everybody returns what became of all clients of a run, if it has a Series.
func everybody(r *Run) (n count, ok bool) {
	for i := range r.Series {
		b := &r.Series[i]
		n.came += int(b.Herd.Came) + int(b.Strangers.Came) - int(b.Retries)
		n.served += int(b.Served)
		n.gaveUp += int(b.GaveUp)
	}
	return n, len(r.Series) > 0
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
		if !most95(r) {
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

// waiting is how many of the herd were neither served nor went away.
func waiting(r *Run) int { return r.Clients - r.Served - gaveUp(r) }

// drained reports whether all of the herd who come back were served or went away.
func drained(r *Run) bool { return r.Waiting == 0 && r.Reachable > 0 }

// attainable reports whether the Optimum is a time: there is none where the
// strangers alone are more than can be served.
func attainable(r *Run) bool { return drained(r) && r.Optimum < never }

// never is what a Scenario has for what does not happen: 10^9 s.
const never = 1e9 * time.Second

// cleared reports whether there was a time when nobody waited any more.
func (r *Report) cleared(run *Run) bool {
	return drained(run) && !run.Interrupted && (len(run.Series) == 0 || run.Cleared < r.Ended(run))
}

// most95 reports whether at least 95 % of the strangers were served.
func most95(r *Run) bool {
	return r.Strangers.P95 > 0 && 20*r.Strangers.Unserved <= r.Strangers.Came
}

// WriteTable writes the runs side by side, a figure in each line; and then a line for
// each policy of each run.
//
// Figures are of the herd, but for the requests, which are those of all clients.
// Without a herd those of all clients take its place, warm-up included.
// "at best" is what it takes to serve the herd
// if it comes just as there is room. "the herd's requests, per one served" are those
// too of who was not served; by policy they are not.
// The most in the backend is that of moments
// one Bin apart. Strangers are who comes besides the herd, until it is served, or the run ends.
// "95 % served within" is "-" if more than 5 % were not. Waits
// are those of clients who were served, from the beginning of their first request.
func (r *Report) WriteTable(w io.Writer) error {
	who := strangerFacts
	if r.herd() {
		who = herdFacts
	}
	facts := slices.Concat(who, facts)
	names := r.names(30)
	columns := [][]string{{""}}
	for _, f := range facts {
		columns[0] = append(columns[0], f.text)
	}
	for i := range r.Runs {
		cells := []string{names[i]}
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
	fmt.Fprintln(tw, "\nwaits by policy\trun\tserved\tgave up\t50 %\t90 %\t99 %\trequests by one served")
	n, names := 0, r.names(30)
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
			fmt.Fprintf(tw, "%s\t%s\t%s of %s\t%s\t%s\t%s\t%s\t%s\n", short(fmt.Sprint(p.Policy), 40), names[i],
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

// names returns the names of the runs with at most n letters, 8 or more. Those that
// would be the same have numbers.
func (r *Report) names(n int) (names []string) {
	seen := map[string]bool{}
	for i := range r.Runs {
		name := short(r.Runs[i].Name, n)
		for k := 2; seen[name]; k++ {
			number := " " + strconv.Itoa(k)
			name = short(r.Runs[i].Name, n-len(number)) + number
		}
		seen[name] = true
		names = append(names, name)
	}
	return names
}

// short leaves the middle of a text out that has more than n letters: names of
// files differ at their ends most often.
func short(s string, n int) string {
	letters := []rune(s)
	if len(letters) <= n {
		return s
	}
	n--
	end := n / 2
	return string(letters[:n-end]) + "…" + string(letters[len(letters)-end:])
}
