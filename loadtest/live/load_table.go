package live

import (
	"errors"
	"fmt"
	"io"
	"strings"
	"syscall"
	"text/template"
	"time"

	"github.com/herdshield/shield/chart"
	"github.com/herdshield/shield/loadtest/report"
)

// lateness is how late the 99th percentile of requests may leave this machine before the
// report warns. Ours: a tenth of the delay that people notice.
const lateness = 10 * time.Millisecond

// WriteLoad writes a load and its result as tables for people.
func WriteLoad(w io.Writer, c LoadConfig, r LoadResult) error {
	c = c.withDefaults()
	var b strings.Builder
	if err := aboutText.Execute(&b, struct {
		LoadConfig
		Took time.Duration
	}{c, r.Took}); err != nil {
		return err
	}
	b.WriteByte('\n')
	if err := report.WriteTables(&b, c.tables(&r)...); err != nil {
		return err
	}
	if text := hints(r); text != "" {
		fmt.Fprintf(&b, "\n%s\n", text)
	}
	for _, note := range c.notes(r) {
		fmt.Fprintf(&b, "\nNote: %s\n", note)
	}
	_, err := io.WriteString(w, b.String())
	return err
}

func (c LoadConfig) tables(r *LoadResult) []report.Table {
	counts := report.Fill(countsText, struct {
		Groups []group
		All    *Tally
		Took   time.Duration
	}{c.groups(r), &r.All, r.Took})
	tables := []report.Table{counts, c.times(r)}
	if len(r.Policies) > 1 {
		tables = append(tables, policies(r))
	}
	return tables
}

// aboutText says what the load was.
var aboutText = template.Must(template.New("about").Funcs(template.FuncMap{
	"decimal": chart.Number, "time": report.Time,
}).Parse(`target    {{.Method}} {{.Target.URL}},
{{- if .KeepAlive}} connections kept and shared{{else}} a connection for each attempt{{end}}
load      {{if .Herd}}a herd of {{.Herd}} within {{.Within}}{{with .HerdAfter}} after {{.}}{{end}}{{if .Rate}}, and {{end}}{{end}}
{{- if .Rate}}{{decimal .Rate}} clients per second for {{.Duration}}{{end}}, {{if .Even}}evenly spaced{{else}}at random{{end}}
clients   {{.Mix}}; each waits {{.Timeout}} for a response, and
{{- if or (eq .Attempts 1) (not .Patience)}} tries once
{{- else}} tries again for {{.Patience}} at most{{with .Attempts}}, {{.}} times in all{{end}}{{end}}
took      {{time .Took}}; seed {{.Seed}}
`))

// A group is a column of the table.
type group struct {
	Name string
	*Tally
}

// groups returns the columns: one, or with a herd and others both and their sum.
func (c LoadConfig) groups(r *LoadResult) []group {
	switch {
	case c.Rate == 0:
		return []group{{"herd", &r.All}}
	case c.Herd == 0:
		return []group{{"all", &r.All}}
	}
	return []group{{"herd", &r.Herd}, {"others", &r.Others}, {"all", &r.All}}
}

// countsText is the table of clients and requests. Bars separate cells.
var countsText = template.Must(template.New("counts").Funcs(template.FuncMap{
	"time": report.Time, "percent": report.Percent, "perSecond": perSecond,
}).Parse(`{{range .Groups}} │ {{.Name}}{{end}}
clients{{range .Groups}} │ {{.Clients}}{{end}}
  served{{range .Groups}} │ {{.Served}} ({{percent .Served .Clients}}){{end}}
  gave up{{range .Groups}} │ {{.GaveUp}}{{end}}
{{if .All.Trying}}  still trying when stopped{{range .Groups}} │ {{.Trying}}{{end}}{{end}}
{{if .All.Skipped}}never came{{range .Groups}} │ {{.Skipped}}{{end}}{{end}}
last served after{{range .Groups}} │ {{if .Served}}{{time .LastServed}}{{else}}-{{end}}{{end}}
requests{{range .Groups}} │ {{.Requests}}{{end}}
  per second{{range .Groups}} │ {{perSecond .Requests $.Took}}{{end}}
  goodput per second{{range .Groups}} │ {{perSecond .Served $.Took}}{{end}}
requests per success{{range .Groups}} │ {{if .Served}}{{printf "%.2f" .PerSuccess}}{{else}}none served{{end}}{{end}}
{{range $answer, $_ := .All.Responses}}  answered {{$answer}}{{range $.Groups}} │ {{index .Responses $answer}}{{end}}
{{end}}  timed out{{range .Groups}} │ {{.TimedOut}}{{end}}
  no connection, or broken{{range .Groups}} │ {{.Unreachable}}{{end}}
{{if .All.CutOff}}  under way when stopped{{range .Groups}} │ {{.CutOff}}{{end}}
    the oldest for{{range .Groups}} │ {{if .CutOff}}{{time .OldestCut}}{{else}}-{{end}}{{end}}{{end}}
`))

func (c LoadConfig) times(r *LoadResult) report.Table {
	t := report.Table{{"from the instant a request was due", "p50", "p90", "p99", "p99.9", "max"}}
	line := func(label string, q Quantiles) {
		if q.Count > 0 {
			t = append(t, []string{label, report.Time(q.P50), report.Time(q.P90), report.Time(q.P99), report.Time(q.P999), report.Time(q.Max)})
		}
	}
	groups := c.groups(r)
	for _, g := range groups {
		name := g.Name + ": "
		if len(groups) == 1 {
			name = ""
		}
		line(name+"wait of clients served, with retries", g.Wait)
		line(name+"one attempt that was answered", g.Attempt)
	}
	line("of that, late in leaving this machine", r.All.Late)
	return t
}

// perSecond writes a rate, "-" for a run of no time.
func perSecond(n int, took time.Duration) string {
	if took <= 0 {
		return "-"
	}
	return chart.Number(float64(n) / took.Seconds())
}

// hints says which Retry-After rejected clients were told, "" if none was rejected.
func hints(r LoadResult) string {
	if r.All.Rejected == 0 {
		return ""
	}
	text := fmt.Sprintf("Retry-After told to none of %d rejected", r.All.Rejected)
	if t := r.All.Told; t.Count > 0 {
		text = fmt.Sprintf("Retry-After told to %d of %d rejected: %s least, %s median, %s most", t.Count, r.All.Rejected, report.Time(t.Min), report.Time(t.P50), report.Time(t.Max))
	}
	if r.All.Never > 0 {
		text += fmt.Sprintf("; not to come back to %d", r.All.Never)
	}
	return text
}

func policies(r *LoadResult) report.Table {
	t := report.Table{{"policy", "clients", "served", "gave up", "per success", "wait p50", "p99"}}
	for _, p := range r.Policies {
		p50, p99 := "-", "-"
		if p.Served > 0 {
			p50, p99 = report.Time(p.Wait.P50), report.Time(p.Wait.P99)
		}
		t = append(t, []string{
			p.Policy, fmt.Sprint(p.Clients), fmt.Sprint(p.Served), fmt.Sprint(p.GaveUp), fmt.Sprintf("%.2f", p.PerSuccess()), p50, p99,
		})
	}
	return t
}

// notes returns the reservations that a reader must know.
func (c LoadConfig) notes(r LoadResult) (notes []string) {
	note := func(is bool, format string, args ...any) {
		if is {
			notes = append(notes, fmt.Sprintf(format, args...))
		}
	}
	all := &r.All
	note(all.Late.P99 > lateness, "1%% of the requests left %s or more after they were due: this machine was too busy, "+
		"and its latencies are in the figures.", report.Time(all.Late.P99))
	note(all.Unreachable > 0, "%s had no connection, or it broke. The last: %s", report.Plural(all.Unreachable, "request", "requests"), r.Broken)
	note(strings.Contains(r.Broken, syscall.EMFILE.Error()), "that is a limit of this machine, not of the target. "+
		"Raise it (ulimit -n), or come with fewer clients.")
	note(all.Skipped > 0, "%s never came, because %d were there already, or this machine had not started them when their time was over: "+
		"the load was less than was asked for%s.", report.Plural(all.Skipped, "client", "clients"), MaxClients, c.reached(r))
	note(all.Served > 0 && all.Served < all.Clients, "the waits are those of the clients that were served. "+
		"The other %s not included.",
		map[bool]string{true: "one waited in vain, and is", false: fmt.Sprint(all.Clients-all.Served, " waited in vain, and are")}[all.Clients-all.Served == 1])
	if r.Stopped != nil {
		why, cut := r.Stopped.Error(), ""
		if errors.Is(r.Stopped, ErrRequests) {
			why += fmt.Sprintf(" (--requests %d)", c.Requests)
		}
		if all.CutOff > 0 {
			cut = fmt.Sprintf(", and %s under way", report.Plural(all.CutOff, "request", "requests"))
		}
		note(true, "the run ended early: %s. %s still trying%s.", why, report.Plural(all.Trying, "client was", "clients were"), cut)
	}
	return notes
}

func (c LoadConfig) reached(r LoadResult) string {
	if c.Rate > 0 && r.Coming > 0 {
		return fmt.Sprintf(", %s clients per second of %s", chart.Number(float64(r.Others.Clients)/r.Coming.Seconds()), chart.Number(c.Rate))
	}
	return ""
}

// Watch redraws a line on a terminal, which shows the progress of a run, until stop is called. stop
// writes the last state, and returns when nothing more will be written.
func Watch(w io.Writer, line func() string) (stop func()) {
	write := func(end string) { fmt.Fprintf(w, "\r\x1b[K   %s%s", line(), end) } // to the left margin, and clear the line
	quit, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		ticker := time.NewTicker(100 * time.Millisecond)
		defer ticker.Stop()
		for {
			select {
			case <-ticker.C:
				write("")
			case <-quit:
				write("\n")
				return
			}
		}
	}()
	return func() { close(quit); <-ended }
}
