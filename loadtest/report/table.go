package report

import (
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/herdshield/shield/chart"
	"github.com/herdshield/shield/loadtest/sim"
)

// A fact is a row of the table: a figure of each run. The name of a part of the row
// above begins with two spaces. The meaning is that of the row, with its parts.
type fact struct {
	name, meaning string
	cell          func(*Report, *Run) string
}

// number is the cell of a fact that every run has.
func number(f func(*Run) int) func(*Report, *Run) string {
	return func(_ *Report, r *Run) string { return thousands(f(r)) }
}

// cellIf is the cell of a fact that is "-" in a run for which it has no value.
func cellIf(is func(*Report, *Run) bool, text func(*Run) string) func(*Report, *Run) string {
	return func(p *Report, r *Run) string {
		if !is(p, r) {
			return "-"
		}
		return text(r)
	}
}

// herdFacts are the rows about the herd, if there is one.
var herdFacts = []fact{
	{"clients served", "Of the herd: clients that came together. Gave up: their policy or --patience ended.", func(_ *Report, r *Run) string {
		return thousands(r.Served) + " of " + thousands(r.Clients)
	}},
	{"  gave up", "", number(gaveUp)},
	{"  still waiting at the end", "", number(stillWaiting)},
	{"last served or gone after", "Time since the herd came. Backlog gone: no client waits any more, background clients included. At best: the time that the herd takes " +
		"if it comes at the rate for which there is room, and background clients are served as they come. A server that lets background clients wait for the herd beats that, " +
		"but has them to serve afterwards.", cellIf(func(_ *Report, r *Run) bool { return isDrained(r) }, func(r *Run) string { return duration(r.Drained) })},
	{"  backlog gone after", "", cellIf((*Report).hasCleared, func(r *Run) string { return duration(r.Cleared) })},
	{"  at best", "", cellIf(func(_ *Report, r *Run) bool { return hasOptimum(r) }, func(r *Run) string { return duration(r.Optimum) })},
	{"herd requests per client served", "All requests of the herd, divided by its clients that were served: 1 at least. Most returns: retries within any 0.1 s, " +
		"later than 1 s after the herd. These hit the server at once.",
		cellIf(func(_ *Report, r *Run) bool { return r.Served > 0 }, func(r *Run) string { return strconv.FormatFloat(r.PerSuccess(), 'f', 1, 64) })},
	{"  most by one client", "", number(func(r *Run) int { return r.MostAttempts })},
	{"  most returns in 0.1 s", "", number(func(r *Run) int { return r.PeakReturns })},
}

// clientFacts are the rows about clients if there is no herd.
var clientFacts = []fact{
	{"clients, warm-up included", "All clients, from the first moment of the warm-up.", total(func(n count) int { return n.came })},
	{"  served", "", total(func(n count) int { return n.served })},
	{"  gave up", "", total(func(n count) int { return n.gaveUp })},
	{"  still waiting at the end", "", total(count.waiting)},
}

// total is the cell of a figure of all clients.
func total(f func(count) int) func(*Report, *Run) string {
	return cellIf(func(_ *Report, r *Run) bool { return len(r.Series) > 0 }, func(r *Run) string { return thousands(f(allClients(r))) })
}

// A count is of clients, and of how their requests ended.
type count struct{ came, served, gaveUp int }

func (c count) waiting() int { return c.came - c.served - c.gaveUp }

// allClients counts the clients of a run that has a Series.
func allClients(r *Run) (n count) {
	for i := range r.Series {
		b := &r.Series[i]
		n.came += int(b.Herd.Came) + int(b.Strangers.Came) - int(b.Retries)
		n.served += int(b.Served)
		n.gaveUp += int(b.GaveUp)
	}
	return n
}

func hasBackground(_ *Report, r *Run) bool { return r.Strangers.Came > 0 }

// facts are the rows about all requests, and about background clients.
var facts = []fact{
	{"requests of all clients", "Of the herd and of background clients, warm-up included. Timed out: their clients had gone. " +
		"Failed: the backend refused them, or lost them in a restart.", number(func(r *Run) int { return r.Decided })},
	{"  refused", "", number(func(r *Run) int { return r.Refused })},
	{"  timed out", "", number(func(r *Run) int { return r.TimedOut })},
	{"  failed at the backend", "", number(func(r *Run) int { return r.Failed })},
	{"most in the backend at once", "In work and in its queue. Wasted: requests that the backend worked on though their clients had gone.",
		cellIf(func(_ *Report, r *Run) bool { return len(r.Series) > 0 }, func(r *Run) string { return thousands(mostInFlight(r)) })},
	{"  wasted work", "", number(func(r *Run) int { return r.Wasted })},
	{"background served at once", "Background clients, from the first moment of the herd to shortly before the last of it is served, by their first request. " +
		"Unserved: they still waited then. 95 % served within: the wait of clients that were served; - if more than 5 % were not.",
		cellIf(hasBackground, func(r *Run) string { return fmt.Sprintf("%.0f %%", 100*r.Strangers.AtOnceShare()) })},
	{"  unserved at the end", "", cellIf(hasBackground, func(r *Run) string {
		return fmt.Sprintf("%.0f %%", 100*float64(r.Strangers.Unserved)/float64(r.Strangers.Came))
	})},
	{"  95 % served within", "", cellIf(func(_ *Report, r *Run) bool { return most95(r) }, func(r *Run) string { return duration(r.Strangers.P95) })},
}

// herd reports whether any run has a herd.
func (r *Report) herd() bool {
	return slices.ContainsFunc(r.Runs, func(run Run) bool { return run.Clients > 0 })
}

// gaveUp is how many of the herd went away unserved, clients that never return included.
func gaveUp(r *Run) (n int) {
	for _, p := range r.Policies {
		n += p.GaveUp
	}
	return n
}

// stillWaiting is how many of the herd were neither served nor went away.
func stillWaiting(r *Run) int { return r.Clients - r.Served - gaveUp(r) }

// isDrained reports whether all of the herd that come back were served or went away.
func isDrained(r *Run) bool { return r.Waiting == 0 && r.Reachable > 0 }

// hasOptimum reports whether the Optimum is a time: there is none where background
// clients alone are more than can be served.
func hasOptimum(r *Run) bool { return isDrained(r) && r.Optimum < endless }

// endless is what a Scenario has for a time that does not come: 10^9 s.
const endless = 1e9 * time.Second

// hasCleared reports whether there was a time when no client waited any more.
func (r *Report) hasCleared(run *Run) bool {
	return isDrained(run) && !run.Interrupted && (len(run.Series) == 0 || run.Cleared < r.Ended(run))
}

// most95 reports whether at least 95 % of background clients were served.
func most95(r *Run) bool { return r.Strangers.P95 > 0 && 20*r.Strangers.Unserved <= r.Strangers.Came }

// figures returns the table of the runs: a column for each, a row for each figure.
func (r *Report) figures() Table {
	rows := clientFacts
	if r.herd() {
		rows = herdFacts
	}
	t := Table{Caption: "Figures", Head: append([]string{""}, r.names(30)...)}
	for _, f := range slices.Concat(rows, facts) {
		row := []string{f.name}
		for i := range r.Runs {
			row = append(row, f.cell(r, &r.Runs[i]))
		}
		t.Rows = append(t.Rows, row)
		if f.meaning != "" {
			t.Meaning = append(t.Meaning, Text{f.name, f.meaning})
		}
	}
	return t
}

// byPolicy returns the table of the waits: a row for each policy of each run.
func (r *Report) byPolicy() Table {
	t := Table{
		Caption: "Waits by policy",
		Head:    []string{"waits by policy", "run", "served", "gave up", "50 %", "90 %", "99 %", "requests per client served"},
		Meaning: []Text{
			{"50 %, 90 %, 99 %", "So many of the herd's clients were served within this time from the beginning of their first request. It is never if fewer were served by the end of the run. " +
				"Clients that were not served count."},
			{"requests per client served", "Of the clients that were served, retries included."},
		},
	}
	n, names := 0, r.names(30)
	for i := range r.Runs {
		n = max(n, len(r.Runs[i].Policies))
	}
	for j := range n {
		for i := range r.Runs {
			if run := &r.Runs[i]; j < len(run.Policies) {
				p, per := &run.Policies[j], "-"
				if p.Served > 0 {
					per = strconv.FormatFloat(p.PerSuccess(), 'f', 1, 64)
				}
				t.Rows = append(t.Rows, []string{
					shorten(fmt.Sprint(p.Policy), 40), names[i], thousands(p.Served) + " of " + thousands(p.Clients), thousands(p.GaveUp),
					waitWithin(p.Waits, 50), waitWithin(p.Waits, 90), waitWithin(p.Waits, 99), per,
				})
			}
		}
	}
	return t
}

func (r *Report) tables() []Table {
	if r.herd() {
		return []Table{r.figures(), r.byPolicy()}
	}
	return []Table{r.figures()}
}

// WriteTable writes the tables of the runs. A Page says what the figures mean.
func (r *Report) WriteTable(w io.Writer) error { return WriteTables(w, r.tables()...) }

// WriteTables writes tables for a terminal. Columns after the first are flush right.
func WriteTables(w io.Writer, tables ...Table) error {
	var b strings.Builder
	for i, t := range tables {
		if i > 0 {
			b.WriteByte('\n')
		}
		wide := make([]int, len(t.Head))
		lines := append([][]string{t.Head}, t.Rows...)
		for _, cells := range lines {
			for i, cell := range cells {
				wide[i] = max(wide[i], utf8.RuneCountInString(cell))
			}
		}
		for _, cells := range lines {
			fmt.Fprintf(&b, "%-*s", wide[0], cells[0])
			for i, cell := range cells[1:] {
				fmt.Fprintf(&b, "   %*s", wide[i+1], cell)
			}
			b.WriteByte('\n')
		}
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// waitWithin says within what time so many percent of clients were served.
func waitWithin(w sim.Waits, percent int) string {
	switch {
	case w == nil:
		return "-"
	case w[10*percent] == sim.Never:
		return "never"
	}
	return duration(w[10*percent])
}

// duration writes d to a tenth of a second, and below 10 s to a hundredth.
func duration(d time.Duration) string {
	if d >= 9995*time.Millisecond {
		return strconv.FormatFloat(d.Seconds(), 'f', 1, 64) + " s"
	}
	return strconv.FormatFloat(d.Seconds(), 'f', 2, 64) + " s"
}

// thousands writes 12345 as 12,345.
// Plural returns "1 one", or the number and many.
func Plural(n int, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprint(n, " ", many)
}

func thousands(n int) string { return chart.Number(float64(n)) }

// mostInFlight is the most requests at the backend at the end of any bin.
func mostInFlight(run *Run) (most int) {
	for i := range run.Series {
		most = max(most, int(run.Series[i].InFlight))
	}
	return most
}

// names returns the names of the runs in at most n letters, 8 or more. Equal names get numbers.
func (r *Report) names(n int) (names []string) {
	seen := map[string]bool{}
	for i := range r.Runs {
		name := shorten(r.Runs[i].Name, n)
		for k := 2; seen[name]; k++ {
			number := " " + strconv.Itoa(k)
			name = shorten(r.Runs[i].Name, n-len(number)) + number
		}
		seen[name] = true
		names = append(names, name)
	}
	return names
}

// shorten leaves out the middle of a text that has more than n letters: names of files
// differ at their ends most often.
func shorten(s string, n int) string {
	letters := []rune(s)
	if len(letters) <= n {
		return s
	}
	n--
	end := n / 2
	return string(letters[:n-end]) + "…" + string(letters[len(letters)-end:])
}
