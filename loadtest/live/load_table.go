package live

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"text/template"
	"time"

	"github.com/herdshield/shield/loadtest/report"
)

// lateness is how late the 99th percentile of requests may leave this machine before the
// report warns. Ours: a tenth of the delay that people notice.
const lateness = 10 * time.Millisecond

// WriteLoad writes a load and its result as tables for people.
func WriteLoad(w io.Writer, c LoadConfig, r LoadResult) error {
	c = c.withDefaults()
	var b strings.Builder
	for _, one := range c.about(r) {
		fmt.Fprintf(&b, "%-10s%s\n", one.Name, one.Text)
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
	tables := []report.Table{c.counts(r), c.times(r)}
	if len(r.All.Latencies) > 0 {
		tables = append(tables, latencies(r.All.Latencies))
	}
	if len(r.Policies) > 1 {
		tables = append(tables, policies(r))
	}
	return tables
}

// aboutText says what the load was, a line each, with a name before the colon.
var aboutText = template.Must(template.New("about").Funcs(template.FuncMap{
	"brief": brief, "decimal": decimal, "people": people, "policies": LoadConfig.policies, "connections": LoadConfig.connections,
}).Parse(`target: {{.Method}} {{.Target.URL}} by {{.Proto}},
{{- if ne .Proto "h1"}} {{connections .LoadConfig}} connections
{{- else if .KeepAlive}} connections kept and shared{{else}} a connection for each attempt{{end}}
load: {{if .Herd}}a herd of {{.Herd}} within {{brief .Within}}{{with .HerdAfter}} after {{brief .}}{{end}}{{if .Rate}}, and {{end}}{{end}}
{{- if .Rate}}{{decimal .Rate}} clients per second for {{brief .Duration}}{{end}}, {{if .Even}}evenly spaced{{else}}at random{{end}}
clients: {{policies .LoadConfig}}; each waits {{brief .Timeout}} for an answer, and
{{- if or (eq .Attempts 1) (not .Patience)}} tries once
{{- else}} tries again for {{brief .Patience}} at most{{with .Attempts}}, {{.}} times in all{{end}}{{end}}
took: {{people .Took}}; seed {{.Seed}}
`))

func (c LoadConfig) about(r LoadResult) (texts []report.Text) {
	for _, line := range lines(aboutText, struct {
		LoadConfig
		Took time.Duration
	}{c, r.Took}) {
		name, text, _ := strings.Cut(line, ": ")
		texts = append(texts, report.Text{Name: name, Text: text})
	}
	return texts
}

func lines(t *template.Template, data any) []string {
	var b strings.Builder
	if err := t.Execute(&b, data); err != nil {
		panic(err) // cannot be: the data have what the template names
	}
	return slices.DeleteFunc(strings.Split(b.String(), "\n"), func(line string) bool { return line == "" })
}

func (c LoadConfig) policies() string {
	total := 0.0
	for _, s := range c.Mix {
		total += s.Weight
	}
	var names []string
	for _, s := range c.Mix {
		name := fmt.Sprint(s.Policy)
		if len(c.Mix) > 1 {
			name = fmt.Sprintf("%.0f %% %s", 100*s.Weight/total, name)
		}
		names = append(names, name)
	}
	return strings.Join(names, ", ")
}

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
	"people": people, "percent": percent, "perSecond": perSecond, "tooMany": func(t *Tally) int { return t.Skipped - t.Overdue },
}).Parse(`{{range .Groups}} │ {{.Name}}{{end}}
clients{{range .Groups}} │ {{.Clients}}{{end}}
  served{{range .Groups}} │ {{.Served}} ({{percent .Served .Clients}}){{end}}
  gave up{{range .Groups}} │ {{.GaveUp}}{{end}}
{{if .All.Trying}}  still trying when stopped{{range .Groups}} │ {{.Trying}}{{end}}{{end}}
{{if tooMany .All}}never came: too many at once{{range .Groups}} │ {{tooMany .Tally}}{{end}}{{end}}
{{if .All.Overdue}}never came: no time for them here{{range .Groups}} │ {{.Overdue}}{{end}}{{end}}
last served after{{range .Groups}} │ {{if .Served}}{{people .LastServed}}{{else}}-{{end}}{{end}}
requests{{range .Groups}} │ {{.Requests}}{{end}}
  per second{{range .Groups}} │ {{perSecond .Requests $.Took}}{{end}}
  goodput per second{{range .Groups}} │ {{perSecond .Served $.Took}}{{end}}
requests per success{{range .Groups}} │ {{if .Served}}{{printf "%.2f" .PerSuccess}}{{else}}none served{{end}}{{end}}
{{range $answer, $_ := .All.Answers}}  answered {{$answer}}{{range $.Groups}} │ {{index .Answers $answer}}{{end}}
{{end}}  timed out{{range .Groups}} │ {{.TimedOut}}{{end}}
  no connection, or broken{{range .Groups}} │ {{.Unreachable}}{{end}}
{{if .All.CutOff}}  under way when stopped{{range .Groups}} │ {{.CutOff}}{{end}}
    the oldest for{{range .Groups}} │ {{if .CutOff}}{{people .OldestCut}}{{else}}-{{end}}{{end}}{{end}}
`))

func (c LoadConfig) counts(r *LoadResult) report.Table {
	t := report.Table{Caption: "Figures", Meaning: []report.Text{
		{Name: "clients", Text: "Each wanted one answer. Served: it got a 2xx, or OK in gRPC. Gave up: its policy, --attempts or --patience ended."},
		{Name: "requests", Text: "All attempts, retries included. Per second: of the whole run, until the last client left; goodput counts clients that were served. Per success: divided by the clients that were served; 1 at least."},
	}}
	for _, line := range lines(countsText, struct {
		Groups []group
		All    *Tally
		Took   time.Duration
	}{c.groups(r), &r.All, r.Took}) {
		t.Rows = append(t.Rows, strings.Split(line, " │ "))
	}
	t.Head, t.Rows = t.Rows[0], t.Rows[1:]
	return t
}

func (c LoadConfig) times(r *LoadResult) report.Table {
	t := report.Table{
		Caption: "Times", Head: []string{"from the instant a request was due", "p50", "p90", "p99", "p99.9", "max"},
		Meaning: []report.Text{{Name: "wait of clients served", Text: "From the instant at which the first request was due to the last byte of the answer, with retries. " +
			"Clients that were not served have none: the first chart includes them."}},
	}
	line := func(label string, q Quantiles) {
		if q.Count > 0 {
			t.Rows = append(t.Rows, []string{label, people(q.P50), people(q.P90), people(q.P99), people(q.P999), people(q.Max)})
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

// barWidth is how many characters the longest bar of a histogram has.
const barWidth = 30

func latencies(bars []Bar) report.Table {
	t := report.Table{
		Caption: "Latencies", Head: []string{"one attempt that was answered, up to", "attempts", "histogram"},
		Meaning: []report.Text{{Name: "attempts", Text: "Each row has those that took longer than the row before says."}},
	}
	most := slices.MaxFunc(bars, func(a, b Bar) int { return cmp.Compare(a.Count, b.Count) }).Count
	for _, bar := range bars {
		length := (bar.Count*barWidth + most - 1) / most
		t.Rows = append(t.Rows, []string{people(bar.UpTo), strconv.FormatInt(bar.Count, 10), strings.Repeat("█", int(length)) + strings.Repeat("░", barWidth-int(length))})
	}
	return t
}

// perSecond writes a rate, "-" for a run of no time.
func perSecond(n int, took time.Duration) string {
	if took <= 0 {
		return "-"
	}
	return decimal(float64(n) / took.Seconds())
}

// hints says which Retry-After refused clients were told, "" if none was refused.
func hints(r LoadResult) string {
	if r.All.Refused == 0 {
		return ""
	}
	text := fmt.Sprintf("Retry-After told to none of %d refused", r.All.Refused)
	if t := r.All.Told; t.Count > 0 {
		text = fmt.Sprintf("Retry-After told to %d of %d refused: %s least, %s median, %s most", t.Count, r.All.Refused, people(t.Min), people(t.P50), people(t.Max))
	}
	if r.All.Never > 0 {
		text += fmt.Sprintf("; not to come back to %d", r.All.Never)
	}
	return text
}

func policies(r *LoadResult) report.Table {
	t := report.Table{Caption: "Policies", Head: []string{"policy", "clients", "served", "gave up", "per success", "wait p50", "p99"}}
	for _, p := range r.Policies {
		p50, p99 := "-", "-"
		if p.Served > 0 {
			p50, p99 = people(p.Wait.P50), people(p.Wait.P99)
		}
		t.Rows = append(t.Rows, []string{
			fmt.Sprint(p.Policy), fmt.Sprint(p.Clients), fmt.Sprint(p.Served), fmt.Sprint(p.GaveUp), fmt.Sprintf("%.2f", p.PerSuccess()), p50, p99,
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
	note(all.Late.P99 > lateness, "1 %% of the requests left %s or more after they were due: this machine was too busy, "+
		"and its latencies are in the figures.", people(all.Late.P99))
	note(all.Unreachable > 0, "%s had no connection, or it broke. The last: %s", report.Plural(all.Unreachable, "request", "requests"), r.Broken)
	note(r.Faults > 0, "%s failed in this machine, not in the target: %s. "+
		"Raise its limits (ulimit -n), or come with fewer clients.",
		report.Plural(int(r.Faults), "connection", "connections"), r.Fault)
	tooMany := all.Skipped - all.Overdue
	note(tooMany > 0, "%s never came, because %d were there already: "+
		"the load was less than was asked for%s.", report.Plural(tooMany, "client", "clients"), MaxClients, c.reached(r))
	note(all.Overdue > 0, "%s never came, because this machine had not started them when their time was over: "+
		"the load was less than was asked for%s.", report.Plural(all.Overdue, "client", "clients"), c.reached(r))
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
	if rate := r.RateReached(); c.Rate > 0 && rate > 0 {
		return fmt.Sprintf(", %s clients per second of %s", decimal(rate), decimal(c.Rate))
	}
	return ""
}

// decimal writes a number with four digits, or with all digits before the point.
func decimal(x float64) string {
	if x >= 1000 {
		return fmt.Sprintf("%.0f", x)
	}
	return fmt.Sprintf("%.4g", x)
}

// people writes a time with three significant digits, in a unit that fits.
func people(d time.Duration) string {
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

// percent writes a share, and 100 % only if it is the whole.
func percent(n, of int) string {
	switch p := 100 * float64(n) / float64(cmp.Or(of, 1)); {
	case n == of && of > 0:
		return "100 %"
	case p > 99.9:
		return "99.9 %"
	default:
		return fmt.Sprintf("%.1f %%", p)
	}
}
