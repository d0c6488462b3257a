// Package report shows the results of runs of loadtest/sim: as a table for a terminal,
// as JSON, as CSV of their series, as an HTML page and as an SVG picture, side by side
// with the same axes.
//
// A [Report] is data; its Write methods are pure, and write the same bytes for the
// same Report. A [Page] can be that of another kind of report, too.
package report

import (
	"encoding/csv"
	"encoding/json"
	"fmt"
	"io"
	"strconv"
	"time"

	"github.com/herdshield/shield/loadtest/sim"
)

// A Run is the result of one of the servers that are compared.
type Run struct {
	Name string
	sim.Result

	// Notes say what the run is, or what it leaves out, a line each. Tables do not
	// have them.
	Notes []string

	// EndedBy is what ended it: Duration, Requests or Interrupt.
	EndedBy string
}

// The ends of a run.
const (
	Duration  = "duration"  // of the scenario: it came to its end
	Requests  = "requests"  // the most that are made
	Interrupt = "interrupt" // of the user
)

// A Report has runs of one scenario, and their common inputs.
type Report struct {
	Runs []Run

	// Bin is that of the scenario, Warmup how long it ran before the herd came. CSV and
	// figures need both.
	Bin, Warmup time.Duration

	// Live says that the runs were load tests: times are since their start, and requests
	// in flight are as clients see them.
	Live bool

	// The backend: how many requests it works on at once, and how many it can serve per
	// second when it is healthy. 0: it has no limit.
	Workers  int
	Capacity float64

	// Marks are events during the runs, for figures.
	Marks []Mark

	// About describes the simulation, a paragraph each, and Version is that of the
	// program. The page has both.
	About   []string
	Version string

	Inputs Inputs
}

// Inputs are what a scenario is about. JSON has them, and figures make room for
// background clients.
type Inputs struct {
	Seed              uint64
	Clients           int           // of the herd
	Within            time.Duration // in which it comes
	Background        float64       // clients per second
	Policies          string        // of all clients
	Timeout, Patience time.Duration // 0: for ever
	Duration          time.Duration // of a run, since the herd's first moment
}

// A Mark is an event between two times since the herd's first moment, or at an instant
// if they are the same.
type Mark struct {
	Name     string
	From, To time.Duration
}

// Ended returns when the last bin of a run ends, since the herd's first moment:
// negative if it ended before. It is 0 without a Series.
func (r *Report) Ended(run *Run) time.Duration {
	if len(run.Series) == 0 {
		return 0
	}
	return time.Duration(len(run.Series))*r.Bin - r.Warmup
}

// WriteCSV writes a line for each bin of each run. Counts are of the bin, the last
// three columns at its end. second is when the bin begins, since the herd's first
// moment.
func (r *Report) WriteCSV(w io.Writer) error {
	out := csv.NewWriter(w)
	_ = out.Write([]string{ // errors stay until Flush
		"run", "second", "herd_came", "herd_admitted", "strangers_came", "strangers_admitted", "retries",
		"served", "gave_up", "timed_out", "wasted", "in_flight", "queued", "limit",
	})
	for i := range r.Runs {
		run := &r.Runs[i]
		for j := range run.Series {
			b := &run.Series[j]
			at := time.Duration(j)*r.Bin - r.Warmup
			row := []string{run.Name, strconv.FormatFloat(at.Seconds(), 'f', -1, 64)}
			for _, n := range []int32{
				b.Herd.Came, b.Herd.Admitted, b.Strangers.Came, b.Strangers.Admitted, b.Retries,
				b.Served, b.GaveUp, b.TimedOut, b.Wasted, b.InFlight, b.Queued, b.Limit,
			} {
				row = append(row, strconv.Itoa(int(n)))
			}
			_ = out.Write(row)
		}
	}
	out.Flush()
	return out.Error()
}

// jsonRun is a Run as WriteJSON writes it. Times are in seconds.
type jsonRun struct {
	Name        string   `json:"name"`
	Notes       []string `json:"notes,omitempty"`
	Seed        uint64   `json:"seed"`
	Interrupted bool     `json:"interrupted"`
	EndedBy     string   `json:"ended_by,omitempty"`
	Ended       *float64 `json:"ended_seconds"`

	Clients   int      `json:"clients"`
	Reachable int      `json:"reachable"`
	Served    int      `json:"served"`
	GaveUp    int      `json:"gave_up"`
	Waiting   int      `json:"waiting"`
	Drained   *float64 `json:"drained_seconds"`
	Optimum   *float64 `json:"optimum_seconds"`
	Cleared   *float64 `json:"cleared_seconds"`

	Decided  int `json:"requests_decided"`
	Answered int `json:"requests_answered"`
	Refused  int `json:"requests_refused"`
	TimedOut int `json:"requests_timed_out"`
	Failed   int `json:"requests_failed"`
	Open     int `json:"requests_open"`
	Wasted   int `json:"requests_wasted"`

	HerdRequests int      `json:"herd_requests"`
	PerServed    *float64 `json:"herd_requests_per_served"`
	MostAttempts int      `json:"most_requests_by_one"`
	PeakReturns  int      `json:"peak_returns_per_100ms"`
	MostHeld     int      `json:"most_refusals_held"`
	MostInFlight int      `json:"most_in_flight"`

	Policies  []jsonPolicy  `json:"policies"`
	Strangers jsonStrangers `json:"strangers"`
	All       *jsonAll      `json:"all_clients"`
}

type jsonPolicy struct {
	Policy   string   `json:"policy"`
	Clients  int      `json:"clients"`
	Served   int      `json:"served"`
	GaveUp   int      `json:"gave_up"`
	Waiting  int      `json:"waiting"`
	Requests int      `json:"requests_by_served"`
	P50      *float64 `json:"wait_p50_seconds"`
	P90      *float64 `json:"wait_p90_seconds"`
	P99      *float64 `json:"wait_p99_seconds"`
}

type jsonStrangers struct {
	Came     int      `json:"came"`
	AtOnce   int      `json:"served_at_once"`
	Unserved int      `json:"unserved"`
	P95      *float64 `json:"wait_p95_seconds"`
}

// jsonAll counts the herd and background clients, warm-up included.
type jsonAll struct {
	Came    int `json:"came"`
	Served  int `json:"served"`
	GaveUp  int `json:"gave_up"`
	Waiting int `json:"waiting"`
}

// jsonInputs are the Inputs and the Marks. Times are in seconds; a timeout or patience
// of null is endless.
type jsonInputs struct {
	Seed       uint64     `json:"seed"`
	Clients    int        `json:"clients"`
	Within     float64    `json:"within_seconds"`
	Background float64    `json:"background_per_second"`
	Policies   string     `json:"policies"`
	Timeout    *float64   `json:"timeout_seconds"`
	Patience   *float64   `json:"patience_seconds"`
	Warmup     float64    `json:"warmup_seconds"`
	Duration   float64    `json:"duration_seconds"`
	Marks      []jsonMark `json:"marks"`
}

type jsonMark struct {
	Name string  `json:"name"`
	From float64 `json:"from_seconds"`
	To   float64 `json:"to_seconds"`
}

func (r *Report) inputs() jsonInputs {
	in := &r.Inputs
	j := jsonInputs{
		Seed: in.Seed, Clients: in.Clients, Within: in.Within.Seconds(), Background: in.Background, Policies: in.Policies,
		Timeout: seconds(in.Timeout, in.Timeout > 0), Patience: seconds(in.Patience, in.Patience > 0),
		Warmup: r.Warmup.Seconds(), Duration: in.Duration.Seconds(), Marks: []jsonMark{},
	}
	for _, m := range r.Marks {
		j.Marks = append(j.Marks, jsonMark{m.Name, m.From.Seconds(), m.To.Seconds()})
	}
	return j
}

// seconds is a time in JSON: null if it is not known.
func seconds(d time.Duration, known bool) *float64 {
	if !known {
		return nil
	}
	return new(d.Seconds())
}

// WriteJSON writes the results of the runs, without their series. A "-" of the table is null
// here. Waits are those of clients that were served.
func (r *Report) WriteJSON(w io.Writer) error {
	all := struct {
		Workers  int        `json:"backend_workers,omitempty"`
		Capacity float64    `json:"backend_capacity_per_second,omitempty"`
		Inputs   jsonInputs `json:"inputs"`
		Runs     []jsonRun  `json:"runs"`
	}{r.Workers, r.Capacity, r.inputs(), []jsonRun{}}
	for i := range r.Runs {
		run := &r.Runs[i]
		j := jsonRun{
			Name: run.Name, Notes: run.Notes, Seed: run.Seed, Interrupted: run.Interrupted,
			EndedBy: run.EndedBy, Ended: seconds(r.Ended(run), len(run.Series) > 0),
			Clients: run.Clients, Reachable: run.Reachable, Served: run.Served, GaveUp: gaveUp(run), Waiting: stillWaiting(run),
			Drained: seconds(run.Drained, isDrained(run)), Optimum: seconds(run.Optimum, hasOptimum(run)), Cleared: seconds(run.Cleared, r.hasCleared(run)),
			Decided: run.Decided, Answered: run.Answered, Refused: run.Refused, TimedOut: run.TimedOut,
			Failed: run.Failed, Open: run.Open, Wasted: run.Wasted,
			HerdRequests: run.Requests, MostAttempts: run.MostAttempts,
			PeakReturns: run.PeakReturns, MostHeld: run.MostHeld, MostInFlight: mostInFlight(run),
			Strangers: jsonStrangers{run.Strangers.Came, run.Strangers.AtOnce, run.Strangers.Unserved, seconds(run.Strangers.P95, most95(run))},
		}
		if run.Served > 0 {
			j.PerServed = new(run.PerSuccess())
		}
		if len(run.Series) > 0 {
			n := allClients(run)
			j.All = &jsonAll{n.came, n.served, n.gaveUp, n.waiting()}
		}
		for _, p := range run.Policies {
			j.Policies = append(j.Policies, jsonPolicy{
				fmt.Sprint(p.Policy), p.Clients, p.Served, p.GaveUp, p.Clients - p.Served - p.GaveUp, p.Requests,
				seconds(p.P50, p.Served > 0), seconds(p.P90, p.Served > 0), seconds(p.P99, p.Served > 0),
			})
		}
		all.Runs = append(all.Runs, j)
	}
	e := json.NewEncoder(w)
	e.SetIndent("", "\t")
	return e.Encode(all)
}

// mostInFlight is the most requests at the backend at the end of any bin.
func mostInFlight(run *Run) (most int) {
	for i := range run.Series {
		most = max(most, int(run.Series[i].InFlight))
	}
	return most
}
