package accesslog

import (
	"fmt"
	"io"
	"text/tabwriter"
	"time"

	"github.com/herdshield/shield/loadtest/clients"
)

// An Estimate describes a site by its log.
type Estimate struct {
	Lines Lines

	From, To time.Time     // the first and the last end of a request
	Span     time.Duration // covered by the log, without the time between its pieces; at least 1 s
	Pieces   int           // see the package comment
	Overlap  time.Duration // covered by more than one piece: the logs of several servers one after the other, or a clock that was put back

	Requests int           // all that were read
	Rate     float64       // first attempts per second: requests less those that are retries
	Calm     float64       // Rate without the first attempts that Bursts added to the rate before them
	Retries  int           // requests that are retries. If Sampled is above 1, from a sample of clients
	Clients  int           // different clients: exact up to 65,536, else ± 0.8 % (HyperLogLog)
	Service  time.Duration // mean time of the requests answered 2xx; 0: there was none

	Arrivals    Arrivals
	PerClient   PerClient
	Times       Times
	Concurrency Concurrency
	Answers     Answers
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
	Coarse   int // requests whose time is in whole seconds
	Backward int // times that the clock went back by more than ten minutes
	Unsorted int // requests more than a second older than one before them in their piece
	Stray    int // requests more than ten minutes off, fewer than ten in a row: they count, but in no second and in no client's waits
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

// Answers counts requests by their status.
type Answers struct {
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

// Refused is the share of 429, 502, 503 and 504.
func (a Answers) Refused() float64 {
	return part(a.Quota+a.Overload, a.all())
}

// Errors is the share of 5xx.
func (a Answers) Errors() float64 {
	return part(a.Overload+a.Failed, a.all())
}

func (a Answers) all() int { return a.Served + a.Quota + a.Overload + a.Failed + a.Gone }

// Bursts are herds: consecutive seconds in which at least 15 clients came, three times as
// many as in the seconds of the minute before, and more than chance explains.
type Bursts struct {
	N       int
	Largest int // clients, beyond the usual number
	At      time.Time
}

// Population is how rejected clients retry. If none was rejected it is [Assumed].
func (e *Estimate) Population() clients.Population {
	if len(e.Returns) == 0 {
		return Assumed()
	}
	var p clients.Population
	for _, b := range e.Returns {
		p = append(p, clients.Share{Weight: float64(b.Clients), Policy: b.Policy})
	}
	return p
}

// Assumed is the Population of a site whose log has no rejections. One half obeys
// Retry-After and the other ignores it, as client libraries that retry do.
func Assumed() clients.Population {
	return clients.Population{{Weight: 1, Policy: clients.Exact{}}, {Weight: 1, Policy: clients.Ignore{}}}
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

// WriteTable writes the Estimate, and how many observations each figure rests on.
func (e *Estimate) WriteTable(w io.Writer) error {
	tw := tabwriter.NewWriter(w, 0, 0, 3, ' ', 0)
	row := func(what, rests, format string, args ...any) {
		fmt.Fprintf(tw, "%s\t%s\t%s\n", what, fmt.Sprintf(format, args...), rests)
	}
	e.writeLog(row)
	e.writeRequests(row)
	e.writeClients(row)
	return tw.Flush()
}

// A rowWriter writes a figure and the observations that it rests on.
type rowWriter func(what, rests, format string, args ...any)

// writeLog writes the size of the log, and its defects.
func (e *Estimate) writeLog(row rowWriter) {
	row("log", fmt.Sprintf("%d lines: %d of other loggers, %d broken", e.Lines.Read, e.Lines.Other, e.Lines.Broken),
		"%s, from %s", long(e.Span), e.From.UTC().Format(time.RFC3339))
	switch {
	case e.Pieces > manyPieces:
		row("", "too many to be true: sort the lines by time", "in %d pieces", e.Pieces)
	case e.Pieces > 1:
		row("", "the clock went back, or an hour passed without a line", "in %d pieces", e.Pieces)
	}
	if e.Overlap >= time.Second {
		row("", "the rate may be too low: merge logs of several servers by time", "pieces overlap by %s", long(e.Overlap))
	}
	if 100*e.Lines.Unsorted > e.Requests {
		row("", "retries may be missed: sort the lines by time", "%d lines out of order", e.Lines.Unsorted)
	}
	switch n := e.Lines.Stray; {
	case n == 1:
		row("", "and in no second", "1 line is ten minutes off")
	case n > 1:
		row("", "and in no second; if they are many, sort the lines by time", "%d lines are ten minutes off", n)
	}
	if e.Lines.Untimed > 0 {
		row("", "they count as if they had taken no time", "%d without a duration", e.Lines.Untimed)
	}
	if 2*e.Lines.Coarse > e.Requests {
		row("", "waits are known to a second only", "times in whole seconds")
	}
}

// writeRequests writes rates and times of requests.
func (e *Estimate) writeRequests(row rowWriter) {
	row("requests per second", fmt.Sprintf("%d requests", e.Requests), "%s", rate(e.Arrivals.Mean))
	row("  first attempts", fmt.Sprintf("%d retries left out", e.Retries), "%s", rate(e.Rate))
	if e.Bursts.N > 0 {
		row("  without bursts", rate(e.Rate-e.Calm)+" came in bursts", "%s", rate(e.Calm))
	}
	row("  half of the seconds", "", "up to %.0f", e.Arrivals.P50)
	row("  95 %, 99 % of them", "", "up to %.0f, %.0f", e.Arrivals.P95, e.Arrivals.P99)
	row("  busiest second", e.Arrivals.BusiestSecondAt.UTC().Format(time.RFC3339), "%d", e.Arrivals.BusiestSecond)
	row("  busiest minute", e.Arrivals.BusiestMinuteAt.UTC().Format(time.RFC3339), "%s", rate(e.Arrivals.BusiestMinute))
	row("clients", "", "%d", e.Clients)
	row("  requests per client", fmt.Sprintf("%d clients", e.PerClient.Of), "mean %.1f, half up to %d, 99 %% up to %d, most %d",
		e.PerClient.Mean, e.PerClient.P50, e.PerClient.P99, e.PerClient.Max)
	if e.Times.Of > 0 {
		row("time of 2xx", fmt.Sprintf("%d requests", e.Times.Of), "mean %v, half %v, 95 %% %v, 99 %% %v",
			short(e.Service), short(e.Times.P50), short(e.Times.P95), short(e.Times.P99))
	} else {
		row("time of 2xx", "no request", "not known")
	}
	row("in work at once", "by Little's law", "mean %.1f, in the worst minute %.1f", e.Concurrency.Mean, e.Concurrency.Peak)
}

// writeClients writes rejections, bursts, and how clients retry.
func (e *Estimate) writeClients(row rowWriter) {
	row("refused", fmt.Sprintf("%d of 429, %d of 502, 503, 504", e.Answers.Quota, e.Answers.Overload), "%s", percent(e.Answers.Refused()))
	row("5xx", "", "%s", percent(e.Answers.Errors()))
	row("most served", "the best minute", "%s per second", rate(e.Answers.Peak))
	if e.Answers.Full > 0 {
		row("  while refusing", "in seconds with more than 5 % of 502, 503, 504", "%s per second", rate(e.Answers.Full))
	}
	if e.Bursts.N > 0 {
		row("bursts", "the largest at "+e.Bursts.At.UTC().Format(time.RFC3339), "%d, the largest of %d clients", e.Bursts.N, e.Bursts.Largest)
	} else {
		row("bursts", "", "none")
	}
	switch {
	case len(e.Returns) == 0 && e.Undecided > 0:
		row("refused clients", fmt.Sprintf("%d refusals, and the log ends too soon to say", e.Undecided), "not known")
	case len(e.Returns) == 0:
		row("refused clients", "no client was refused", "not known")
	default:
		of := fmt.Sprintf("%d clients", e.Judged)
		if e.Sampled > 1 {
			of += fmt.Sprintf(", one of %d", e.Sampled)
		}
		if e.Undecided > 0 {
			of += fmt.Sprintf("; %d refusals too near the end to say", e.Undecided)
		}
		if e.Lost > 0 {
			of += fmt.Sprintf("; %d refusals not watched", e.Lost)
		}
		row("refused clients", of, "%d kinds", len(e.Returns))
	}
	for _, b := range e.Returns {
		row(fmt.Sprintf("  %v", b.Policy), fmt.Sprintf("%d clients, %d waits", b.Clients, b.Waits), "%s ± %s", percent(b.Share), percent(b.Error))
	}
	if len(e.Returns) == 0 {
		for _, s := range Assumed() {
			row(fmt.Sprintf("  %v", s.Policy), "assumed", "50 %%")
		}
	}
}

// manyPieces is more than an ordered log has: three months of nights without a line.
const manyPieces = 100

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
