package accesslog

import (
	"fmt"
	"io"
	"text/tabwriter"
	"time"

	"github.com/herdshield/shield/loadtest/clients"
)

// An Estimate is what a log says about a site.
type Estimate struct {
	Lines Lines

	From, To time.Time     // the first and the last end of a request
	Span     time.Duration // that the log covers, without the time between its pieces; at least 1 s
	Pieces   int           // see the package comment
	Overlap  time.Duration // that pieces cover which others before them had covered: the logs of several servers, one after the other, or a clock that was put back

	Requests int           // all that were read
	Rate     float64       // first attempts per second: requests less those that are retries
	Calm     float64       // Rate without the first attempts that came in Bursts, beyond what came before them
	Retries  int           // requests that are retries. If Sampled is above 1, from a sample of clients
	Clients  int           // different clients: exact up to 65,536, else ± 0.8 % (HyperLogLog)
	Service  time.Duration // mean time that a request took that was answered 2xx; 0: there was none

	Arrivals    Arrivals
	PerClient   PerClient
	Times       Times
	Concurrency Concurrency
	Answers     Answers
	Bursts      Bursts

	Returns   []Behaviour // what refused clients do, the most frequent first
	Judged    int         // clients that Returns rests on
	Sampled   int         // Judged is one of so many of the refused: 1, 2, 4, ...
	Undecided int         // refusals after which the log ended too soon to say
	Lost      int         // refusals that were not watched: their client waited for more than four at once
}

// Lines says what became of the lines of the log.
type Lines struct {
	Read     int
	Other    int // of other loggers
	Broken   int // that could not be read, or were longer than 1 MiB
	Untimed  int // requests without a duration, or with one whose unit nobody can tell: whole numbers, if most are
	Coarse   int // requests whose time is in whole seconds
	Backward int // times that the clock went back by more than ten minutes
	Unsorted int // requests more than a second older than one before them in their piece
	Stray    int // requests more than ten minutes off, and fewer than ten in a row: they count, but in no second and for no client's waits
}

// Arrivals are requests per second, of all kinds.
type Arrivals struct {
	Mean, P50, P95, P99 float64 // of whole seconds, but for the Mean
	BusiestSecond       int     // requests
	BusiestSecondAt     time.Time
	BusiestMinute       float64 // per second, over 60 s that begin at any second; over all of a shorter log
	BusiestMinuteAt     time.Time
}

// PerClient is how many requests one client has sent.
type PerClient struct {
	Mean          float64
	P50, P99, Max int
	Of            int // clients that were counted
}

// Times are those of requests that were answered 2xx, without upgrades and streams of events.
type Times struct {
	P50, P95, P99, Max time.Duration
	Of                 int // requests
}

// Concurrency is how many requests were in work at once, on the average: by
// Little's law, the sum of the times of what came and was not refused, per second.
type Concurrency struct {
	Mean float64
	Peak float64 // over the worst 60 s
}

// Answers counts requests by what was answered.
type Answers struct {
	Served   int     // anything but the following
	Quota    int     // 429
	Overload int     // 502, 503, 504
	Failed   int     // other 5xx
	Gone     int     // 499: the client did not wait
	Streams  int     // of those served, upgrades and streams of events
	Peak     float64 // served per second, in the best 60 s
	Full     float64 // served per second in full seconds, those with more than 5 % of 502, 503, 504, of the best 60 s with at least 30 of them, and at least Peak; 0: there were none, or Peak is more than a twentieth above it, or the share that was refused did not rise with the load
}

// Refused is the share of requests that were told to come later.
func (a Answers) Refused() float64 {
	return part(a.Quota+a.Overload, a.all())
}

// Errors is the share of 5xx.
func (a Answers) Errors() float64 {
	return part(a.Overload+a.Failed, a.all())
}

func (a Answers) all() int { return a.Served + a.Quota + a.Overload + a.Failed + a.Gone }

// Bursts are herds: seconds in a row in which at least 15 clients came, three times as many as in the seconds of the
// minute before, and more than chance explains.
type Bursts struct {
	N       int
	Largest int // clients, those who would have come anyhow not counted
	At      time.Time
}

// Population is what refused clients do. If none was seen being refused it is
// [Assumed].
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

// Assumed is the Population of a site whose log does not tell: one half does as it
// is told and the other does not read it, as of the clients that retry by themselves.
func Assumed() clients.Population {
	return clients.Population{{Weight: 1, Policy: clients.Exact{}}, {Weight: 1, Policy: clients.Ignore{}}}
}

// Honour is the share of the clients in Returns that come when they are told.
func (e *Estimate) Honour() (share float64) {
	for _, b := range e.Returns {
		switch unbound(b.Policy).(type) {
		case clients.Exact, clients.ExactMs, clients.Late:
			share += b.Share
		}
	}
	return share
}

// unbound is p without a bound of its attempts.
func unbound(p clients.Policy) clients.Policy {
	if m, ok := p.(clients.MaxAttempts); ok {
		return m.Policy
	}
	return p
}

// WriteTable writes what is known, and of how many observations.
func (e *Estimate) WriteTable(w io.Writer) error {
	tw := tabwriter.NewWriter(w, 0, 0, 3, ' ', 0)
	row := func(what, rests, format string, args ...any) {
		fmt.Fprintf(tw, "%s\t%s\t%s\n", what, fmt.Sprintf(format, args...), rests)
	}
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
	return tw.Flush()
}

// manyPieces is more than a log has that is in order: three months of nights
// without a line.
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
