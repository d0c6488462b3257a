package accesslog

import (
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"text/template"
	"time"

	"github.com/herdshield/shield/loadtest/clients"
	"github.com/herdshield/shield/loadtest/report"
)

// An Estimate describes a site by its log.
type Estimate struct {
	Lines Lines

	From   time.Time     // the first end of a request
	Span   time.Duration // covered by the log, without the time between its pieces; at least 1 s
	Pieces int           // see the package comment

	Requests int           // all that were read
	Rate     float64       // first attempts per second: requests less those that are retries
	Calm     float64       // Rate without the first attempts that Bursts added to the rate before them
	Retries  int           // requests that are retries. If Sampled is above 1, from a sample of clients
	Clients  int           // different clients: exact up to 65,536, else from a sample: ± 0.6 %
	Service  time.Duration // mean time of the requests answered 2xx; 0: there was none

	Arrivals    Arrivals
	PerClient   PerClient
	Times       Times
	Concurrency Concurrency
	Responses   Responses
	Bursts      Bursts

	Returns   []Behaviour // how rejected clients retry, the most frequent first
	Judged    int         // clients that Returns rests on
	Sampled   int         // one of so many rejected clients was judged: 1, 2, 4, ...
	Undecided int         // rejections too near the end of the log
	Lost      int         // rejections that were not followed, because the client had more than four at once
}

// Lines counts the lines of the log by their use.
type Lines struct {
	Read     int
	Other    int // of other loggers
	Broken   int // that could not be read, or were longer than 1 MiB
	Untimed  int // requests without a duration, or with one of unknown unit: a whole number
	Unsorted int // requests more than ten minutes older than one before them: they count, but in no second and in no client's waits
}

// Arrivals are requests per second, of all kinds.
type Arrivals struct {
	Mean, P50, P95, P99 float64 // of whole seconds, but for the Mean
	BusiestSecond       int     // requests
	BusiestSecondAt     time.Time
	BusiestMinute       float64 // per second, over 60 s that begin at any second; over all of a shorter log
	BusiestMinuteAt     time.Time
}

// PerClient is the distribution of requests over clients.
type PerClient struct {
	Mean          float64
	P50, P99, Max int
	Of            int // clients that were counted
}

// Times are those of requests answered 2xx, without upgrades and streams of events.
type Times struct {
	P50, P95, P99, Max time.Duration
	Of                 int // requests
}

// Concurrency is the mean number of requests in flight. By Little's law it is the sum of the
// times of the requests that came and were not rejected, per second.
type Concurrency struct {
	Mean float64
	Peak float64 // over the worst 60 s
}

// Responses counts requests by their status.
type Responses struct {
	Served   int     // anything but the following
	Quota    int     // 429
	Overload int     // 502, 503, 504
	Failed   int     // other 5xx
	Gone     int     // 499: the client left
	Streams  int     // upgrades and streams of events among Served
	Peak     float64 // served per second, in the best 60 s

	// Full is the rate served in full seconds, those with more than 5 % of 502, 503 and
	// 504, of the best 60 s with at least 30 of them; at least Peak. It is 0 if there were
	// none, if Peak is more than a twentieth higher, or if the share that was rejected did
	// not rise with the load.
	Full float64
}

// Rejected is the share of 429, 502, 503 and 504.
func (a Responses) Rejected() float64 { return part(a.Quota+a.Overload, a.all()) }

// Errors is the share of 5xx.
func (a Responses) Errors() float64 { return part(a.Overload+a.Failed, a.all()) }

func (a Responses) all() int { return a.Served + a.Quota + a.Overload + a.Failed + a.Gone }

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

// Honour is the share of the clients in Returns that obey Retry-After.
func (e *Estimate) Honour() (share float64) {
	for _, b := range e.Returns {
		if obeys(b.Policy) {
			share += b.Share
		}
	}
	return share
}

// obeys reports whether clients of a policy come when Retry-After says.
func obeys(p clients.Policy) bool {
	switch p := p.(type) {
	case clients.MaxAttempts:
		return obeys(p.Policy)
	case clients.Exact, clients.ExactMs, clients.Late:
		return true
	}
	return false
}

// tableText shows an Estimate: bars separate a figure's name, the figure, and what it rests on.
var tableText = template.Must(template.New("table").Funcs(template.FuncMap{
	"plural": report.Plural, "rate": rate, "percent": percent, "short": short, "long": long,
	"at":   func(t time.Time) string { return t.UTC().Format(time.RFC3339) },
	"less": func(a, b float64) float64 { return a - b },
}).Parse(`log │ {{long .Span}}, from {{at .From}} │
{{- with .Lines}} {{plural .Read "line" "lines"}}: {{.Other}} of other loggers, {{.Broken}} broken{{end}}
{{if gt .Pieces 1}} │ in {{.Pieces}} pieces │ an hour passed without a line
{{end}}{{with .Lines.Unsorted}} │ {{plural . "line" "lines"}} out of order │ and in no rate: sort the lines by time
{{end}}{{with .Lines.Untimed}} │ {{.}} without a duration │ they count as if they had taken no time
{{end}}requests per second │ {{rate .Arrivals.Mean}} │ {{plural .Requests "request" "requests"}}
  first attempts │ {{rate .Rate}} │ {{plural .Retries "retry" "retries"}} left out
{{if .Bursts.N}}  without bursts │ {{rate .Calm}} │ {{less .Rate .Calm | rate}} came in bursts
{{end}}  half of the seconds │ up to {{printf "%.0f" .Arrivals.P50}} │
  95 %, 99 % of them │ up to {{printf "%.0f, %.0f" .Arrivals.P95 .Arrivals.P99}} │
  busiest second │ {{.Arrivals.BusiestSecond}} │ {{at .Arrivals.BusiestSecondAt}}
  busiest minute │ {{rate .Arrivals.BusiestMinute}} │ {{at .Arrivals.BusiestMinuteAt}}
clients │ {{.Clients}} │
  requests per client │
{{- with .PerClient}} mean {{printf "%.1f" .Mean}}, half up to {{.P50}}, 99 % up to {{.P99}}, most {{.Max}} │ {{plural .Of "client" "clients"}}{{end}}
time of 2xx │
{{- with .Times}}{{if .Of}} mean {{short $.Service}}, half {{short .P50}}, 95 % {{short .P95}}, 99 % {{short .P99}} │ {{plural .Of "request" "requests"}}
{{- else}} not known │ no request{{end}}{{end}}
in work at once │ {{printf "mean %.1f, in the worst minute %.1f" .Concurrency.Mean .Concurrency.Peak}} │ by Little's law
rejected │ {{percent .Responses.Rejected}} │ {{.Responses.Quota}} of 429, {{.Responses.Overload}} of 502, 503, 504
5xx │ {{percent .Responses.Errors}} │
most served │ {{rate .Responses.Peak}} per second │ the best minute
{{with .Responses.Full}}  while rejecting │ {{rate .}} per second │ in seconds with more than 5 % of 502, 503, 504
{{end}}bursts │ {{with .Bursts}}{{if .N}}{{.N}}, the largest of {{plural .Largest "client" "clients"}} │ the largest at {{at .At}}{{else}}none │{{end}}{{end}}
{{if .Returns}}rejected clients │ {{plural (len .Returns) "kind" "kinds"}} │ {{plural .Judged "client" "clients"}}{{if gt .Sampled 1}}, one of {{.Sampled}}{{end}}
{{- with .Undecided}}; {{plural . "rejection" "rejections"}} too near the end to say{{end}}{{with .Lost}}; {{plural . "rejection" "rejections"}} not watched{{end}}
{{range .Returns}}  {{.Policy}} │ {{percent .Share}} ± {{percent .Error}} │ {{plural .Clients "client" "clients"}}, {{plural .Waits "wait" "waits"}}
{{end}}{{else}}rejected clients │ not known │
{{- with .Undecided}} {{plural . "rejection" "rejections"}}, and the log ends too soon to say{{else}} no client was rejected{{end}}
{{range .Population}}  {{.Policy}} │ 50 % │ assumed
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

func part(n, of int) float64 { return float64(n) / float64(max(1, of)) }

func percent(x float64) string { return fmt.Sprintf("%.1f %%", 100*x) }

// rate is x to three digits.
func rate(x float64) string {
	switch {
	case x >= 100:
		return fmt.Sprintf("%.0f", x)
	case x >= 10:
		return fmt.Sprintf("%.1f", x)
	}
	return fmt.Sprintf("%.2f", x)
}

// short is d to three digits, long to a second.
func short(d time.Duration) time.Duration { return seconds(d.Seconds()) }
func long(d time.Duration) time.Duration  { return d.Round(time.Second) }
