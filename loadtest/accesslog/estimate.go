package accesslog

import (
	"io"
	"strings"
	"text/tabwriter"
	"text/template"
	"time"

	"github.com/herdshield/shield/chart"
	"github.com/herdshield/shield/loadtest/clients"
	"github.com/herdshield/shield/loadtest/report"
)

// An Estimate describes a site by its log.
type Estimate struct {
	Lines Lines

	From   time.Time     // the first end of a request
	Span   time.Duration // covered by the log, without the time between its pieces; at least 1 s
	Pieces int           // see the package comment

	Requests int     // all that were read
	PerSec   float64 // requests per second
	Rate     float64 // first attempts per second: requests less those that are retries
	Calm     float64 // Rate without the first attempts that Bursts added to the rate before them
	Retries  int     // requests that are retries: exact up to 32,768 rejected clients, else from a sample
	Clients  int     // different clients: exact up to 65,536, else from a sample: ± 0.6%

	// Service is the mean time of the Timed requests: those answered 2xx, without upgrades and
	// streams of events.
	Service time.Duration
	Timed   int

	// InWork is the mean number of requests in flight, and PeakInWork that of the worst 60 s. By
	// Little's law it is the sum of the times of the requests that came and were not rejected, per
	// second.
	InWork, PeakInWork float64

	Quota    int     // requests answered 429
	Overload int     // 502, 503, 504
	Failed   int     // other 5xx
	Peak     float64 // served per second, in the best 60 s: neither rejected nor 5xx nor 499

	// Full is the rate served in full seconds, those with more than 5% of 502, 503 and
	// 504, of the best 60 s with at least 30 of them; at least Peak. It is 0 if there were
	// none, if Peak is more than a twentieth higher, or if the share that was rejected did
	// not rise with the load.
	Full float64

	Bursts Bursts

	Returns []Behaviour // how rejected clients retry, the most frequent first
	Judged  int         // clients that Returns rests on
}

// Lines counts the lines of the log by their use.
type Lines struct {
	Read     int
	Other    int // of other loggers
	Broken   int // that could not be read, or were longer than 1 MiB
	Untimed  int // requests without a duration, or with one of unknown unit: a whole number
	Unsorted int // requests more than ten minutes older than one before them: they count, but in no second and in no client's waits
}

// Bursts are herds: consecutive seconds in which at least 15 clients came, three times as
// many as in the seconds of the minute before, and more than chance explains.
type Bursts struct {
	N       int
	Largest int // clients, beyond the usual number
	At      time.Time
}

// Population is how rejected clients retry. If none was rejected, one half obeys
// Retry-After and the other ignores it, as client libraries that retry do.
func (e *Estimate) Population() (p clients.Population) {
	if len(e.Returns) == 0 {
		return clients.Population{{Weight: 1, Policy: clients.Exact{}}, {Weight: 1, Policy: clients.Ignore{}}}
	}
	for _, b := range e.Returns {
		p = append(p, clients.Share{Weight: float64(b.Clients), Policy: b.Policy})
	}
	return p
}

// tableText shows an Estimate: bars separate a figure's name, the figure, and what it rests on.
var tableText = template.Must(template.New("table").Funcs(template.FuncMap{
	"plural": report.Plural, "rate": chart.Number, "percent": report.Percent, "time": report.Time,
	"add":  func(a, b int) int { return a + b },
	"at":   func(t time.Time) string { return t.UTC().Format(time.RFC3339) },
	"less": func(a, b float64) float64 { return a - b },
}).Parse(`log │ {{.Span.Round 1000000000}}, from {{at .From}} │
{{- with .Lines}} {{plural .Read "line" "lines"}}: {{.Other}} of other loggers, {{.Broken}} broken{{end}}
{{if gt .Pieces 1}} │ in {{.Pieces}} pieces │ an hour passed without a line
{{end}}{{with .Lines.Unsorted}} │ {{plural . "line" "lines"}} out of order │ and in no rate: sort the lines by time
{{end}}{{with .Lines.Untimed}} │ {{.}} without a duration │ they count as if they had taken no time
{{end}}requests per second │ {{rate .PerSec}} │ {{plural .Requests "request" "requests"}} of {{plural .Clients "client" "clients"}}
  first attempts │ {{rate .Rate}} │ {{plural .Retries "retry" "retries"}} left out
{{if .Bursts.N}}  without bursts │ {{rate .Calm}} │ {{less .Rate .Calm | rate}} came in bursts
{{end}}time of 2xx │ {{if .Timed}}mean {{time .Service}} │ {{plural .Timed "request" "requests"}}{{else}}not known │ no request{{end}}
in flight │ {{printf "mean %.1f, in the worst minute %.1f" .InWork .PeakInWork}} │ by Little's law
rejected │ {{percent (add .Quota .Overload) .Requests}} │ {{.Quota}} of 429, {{.Overload}} of 502, 503, 504
5xx │ {{percent (add .Overload .Failed) .Requests}} │
most served │ {{rate .Peak}} per second │ the best minute
{{with .Full}}  while rejecting │ {{rate .}} per second │ in seconds with more than 5% of 502, 503, 504
{{end}}bursts │ {{with .Bursts}}{{if .N}}{{.N}}, the largest of {{plural .Largest "client" "clients"}} │ the largest at {{at .At}}{{else}}none │{{end}}{{end}}
{{if .Returns}}rejected clients │ {{plural (len .Returns) "kind" "kinds"}} │ {{plural .Judged "client" "clients"}}
{{range .Returns}}  {{.Policy}} │ {{percent .Clients $.Judged}} │ {{plural .Clients "client" "clients"}}
{{end}}{{else}}rejected clients │ not known │ none was rejected, or the log ends too soon to say
{{range .Population}}  {{.Policy}} │ 50% │ assumed
{{end}}{{end}}`))

// WriteTable writes the Estimate, and how many observations each figure rests on.
func (e *Estimate) WriteTable(w io.Writer) error {
	var b strings.Builder
	if err := tableText.Execute(&b, e); err != nil {
		return err
	}
	tw := tabwriter.NewWriter(w, 0, 0, 3, ' ', 0)
	if _, err := strings.NewReplacer(" │ ", "\t", " │", "\t").WriteString(tw, b.String()); err != nil {
		return err
	}
	return tw.Flush()
}
