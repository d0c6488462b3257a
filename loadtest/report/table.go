package report

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"text/template"
	"time"
	"unicode/utf8"

	"github.com/herdshield/shield/chart"
	"github.com/herdshield/shield/loadtest/sim"
)

// A Table has the heads of its columns in the first row, and those of its rows in their first cells.
type Table [][]string

// Fill returns the table that a template writes: a line for each row, with bars between its cells. Empty
// lines are left out.
func Fill(t *template.Template, data any) (table Table) {
	var b strings.Builder
	if err := t.Execute(&b, data); err != nil {
		panic(err) // cannot be: the data have what the template names
	}
	for line := range strings.Lines(b.String()) {
		if line = strings.TrimSuffix(line, "\n"); line != "" {
			table = append(table, strings.Split(line, " │ "))
		}
	}
	return table
}

// A column is a run in the table. Times are "-" if they are not known.
type column struct {
	*Run
	Head                                string
	Gone, Left                          int // of the herd
	Came, Served, GaveUp, Waiting, Most int // of all clients, and the most in the backend
	Drained, Cleared, Optimum, P95      string
}

// figuresText is the table of the runs: a column for each, a row for each figure. The name of a part of
// the row above begins with two spaces.
var figuresText = template.Must(template.New("figures").Funcs(template.FuncMap{
	"n": thousands, "percent": func(n, of int) string { return fmt.Sprintf("%.0f%%", 100*float64(n)/float64(of)) },
}).Parse(`{{range .Columns}} │ {{.Head}}{{end}}
{{if .Herd -}}
clients served{{range .Columns}} │ {{n .Run.Served}} of {{n .Clients}}{{end}}
  gave up{{range .Columns}} │ {{n .Gone}}{{end}}
  still waiting at the end{{range .Columns}} │ {{n .Left}}{{end}}
last served or gone after{{range .Columns}} │ {{.Drained}}{{end}}
  backlog gone after{{range .Columns}} │ {{.Cleared}}{{end}}
  at best{{range .Columns}} │ {{.Optimum}}{{end}}
herd requests per client served{{range .Columns}} │ {{if .Run.Served}}{{printf "%.1f" .PerSuccess}}{{else}}-{{end}}{{end}}
  most by one client{{range .Columns}} │ {{n .MostAttempts}}{{end}}
  most returns in 0.1 s{{range .Columns}} │ {{n .PeakReturns}}{{end}}
{{else -}}
clients, warm-up included{{range .Columns}} │ {{if .Series}}{{n .Came}}{{else}}-{{end}}{{end}}
  served{{range .Columns}} │ {{if .Series}}{{n .Served}}{{else}}-{{end}}{{end}}
  gave up{{range .Columns}} │ {{if .Series}}{{n .GaveUp}}{{else}}-{{end}}{{end}}
  still waiting at the end{{range .Columns}} │ {{if .Series}}{{n .Waiting}}{{else}}-{{end}}{{end}}
{{end -}}
requests of all clients{{range .Columns}} │ {{n .Decided}}{{end}}
  rejected{{range .Columns}} │ {{n .Rejected}}{{end}}
  timed out{{range .Columns}} │ {{n .TimedOut}}{{end}}
  failed at the backend{{range .Columns}} │ {{n .Failed}}{{end}}
most in the backend at once{{range .Columns}} │ {{if .Series}}{{n .Most}}{{else}}-{{end}}{{end}}
  wasted work{{range .Columns}} │ {{n .Wasted}}{{end}}
background served on first try{{range .Columns}} │ {{with .NewClients}}{{if .Came}}{{percent .AtOnce .Came}}{{else}}-{{end}}{{end}}{{end}}
  unserved at the end{{range .Columns}} │ {{with .NewClients}}{{if .Came}}{{percent .Unserved .Came}}{{else}}-{{end}}{{end}}{{end}}
  95% served within{{range .Columns}} │ {{.P95}}{{end}}
`))

// figures returns the table of the runs.
func (r *Report) figures() Table {
	data := struct {
		Herd    bool
		Columns []column
	}{Herd: r.herd()}
	for i, head := range r.names() {
		data.Columns = append(data.Columns, r.column(&r.Runs[i], head))
	}
	return Fill(figuresText, data)
}

func (r *Report) column(run *Run, head string) column {
	c := column{Run: run, Head: head, Left: run.Clients - run.Served}
	for _, p := range run.Policies { // clients that never return included
		c.Gone += p.GaveUp
		c.Left -= p.GaveUp
	}
	for i := range run.Series {
		b := &run.Series[i]
		c.Came += int(b.Herd.Came) + int(b.NewClients.Came) - int(b.Retries)
		c.Served += int(b.Served)
		c.GaveUp += int(b.GaveUp)
		c.Most = max(c.Most, int(b.InFlight))
	}
	c.Waiting = c.Came - c.Served - c.GaveUp
	when := func(known bool, d time.Duration) string {
		if !known {
			return "-"
		}
		return Time(d)
	}
	drained := run.Waiting == 0 && run.Reachable > 0 // all of the herd that come back were served or went away
	c.Drained = when(drained, run.Drained)
	c.Cleared = when(drained && (len(run.Series) == 0 || run.Cleared < r.Ended(run)), run.Cleared) // or clients waited to the end
	c.Optimum = when(drained && run.Optimum < endless, run.Optimum)                                // or background clients alone are too many
	c.P95 = when(run.NewClients.P95 > 0 && 20*run.NewClients.Unserved <= run.NewClients.Came, run.NewClients.P95)
	return c
}

// endless is what a Scenario has for a time that does not come: 10^9 s.
const endless = 1e9 * time.Second

func (r *Report) herd() bool {
	return slices.ContainsFunc(r.Runs, func(run Run) bool { return run.Clients > 0 })
}

// byPolicy returns the table of the waits: a row for each policy of each run.
func (r *Report) byPolicy() Table {
	t := Table{{"waits by policy", "run", "served", "gave up", "50%", "90%", "99%", "requests of those served"}}
	n, names := 0, r.names()
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
				t = append(t, []string{
					shorten(p.Policy, 40), names[i], thousands(p.Served) + " of " + thousands(p.Clients), thousands(p.GaveUp),
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

func (r *Report) WriteTable(w io.Writer) error { return WriteTables(w, r.tables()...) }

// WriteTables writes tables for a terminal. Columns after the first are flush right.
func WriteTables(w io.Writer, tables ...Table) error {
	var b strings.Builder
	for i, t := range tables {
		if i > 0 {
			b.WriteByte('\n')
		}
		wide := make([]int, len(t[0]))
		for _, cells := range t {
			for i, cell := range cells {
				wide[i] = max(wide[i], utf8.RuneCountInString(cell))
			}
		}
		for _, cells := range t {
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
	return Time(w[10*percent])
}

// Time writes a time with three significant digits, in a unit that fits.
func Time(d time.Duration) string {
	if d == 0 {
		return "0 s"
	}
	x, unit, places := d.Seconds(), " s", 2
	switch {
	case d < 999500*time.Nanosecond:
		x, unit = x*1e6, " µs"
	case d < 999500*time.Microsecond:
		x, unit = x*1e3, " ms"
	}
	switch {
	case x >= 99.95:
		places = 0
	case x >= 9.995:
		places = 1
	}
	return strconv.FormatFloat(x, 'f', places, 64) + unit
}

// Plural returns "1 one", or the number and many.
func Plural(n int, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprint(n, " ", many)
}

// Percent writes a share, and 100% only if it is the whole.
func Percent(n, of int) string {
	switch p := 100 * float64(n) / float64(cmp.Or(of, 1)); {
	case n == of && of > 0:
		return "100%"
	case p > 99.9:
		return "99.9%"
	default:
		return fmt.Sprintf("%.1f%%", p)
	}
}

func thousands(n int) string { return chart.Number(float64(n)) }

// names returns the names of the runs in at most 30 letters.
func (r *Report) names() (names []string) {
	for i := range r.Runs {
		names = append(names, shorten(r.Runs[i].Name, 30))
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
