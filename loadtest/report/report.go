// Package report shows the results of runs of loadtest/sim, side by side: as a table for a
// terminal, JSON, CSV of their series, and an SVG picture.
//
// A [Report] is data; its Write methods are pure, and write the same bytes for the
// same Report.
package report

import (
	"encoding/csv"
	"fmt"
	"io"
	"strconv"
	"time"

	"github.com/herdshield/shield/loadtest/sim"
)

// A Run is the result of one of the servers that are compared.
type Run struct {
	sim.Result

	// Notes say what the run is, or what it leaves out, a line each. Tables have none.
	Notes []string
}

// A Report has runs of one scenario. CSV and figures need its Bin and its Warmup.
type Report struct {
	sim.Scenario
	Policies string // of all clients
	Runs     []Run

	// Capacity is how many requests the backend can serve per second when it is healthy.
	// 0: it has no limit.
	Capacity float64

	// Marks are events during the runs, for figures.
	Marks []Mark
}

// workers is how many requests the backend works on at once. 0: it has no limit.
func (r *Report) workers() int {
	if r.Plant == nil {
		return 0
	}
	return r.Plant.Workers
}

// A Mark is an event between two times since the herd's first moment. They may be the same.
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

// endedBy returns what ended a run: the duration of the scenario, the most requests that it
// may have, or an interrupt of the user.
func (r *Report) endedBy(run *Run) string {
	switch {
	case run.Interrupted:
		return "interrupt"
	case r.MaxRequests > 0 && run.Decided >= r.MaxRequests:
		return "requests"
	}
	return "duration"
}

// EndedEarly says which runs ended before their time, when and why, a line each.
func (r *Report) EndedEarly() (lines []string) {
	for i := range r.Runs {
		run := &r.Runs[i]
		at := r.Ended(run)
		when := fmt.Sprintf("at %v", at)
		if at < 0 {
			when = fmt.Sprintf("%v before its warm-up was over", -at)
		}
		switch r.endedBy(run) {
		case "interrupt":
			lines = append(lines, fmt.Sprintf("%s was interrupted %s.", run.Name, when))
		case "requests":
			lines = append(lines, fmt.Sprintf("%s ended after %s (--requests), %s, before its time.", run.Name, Plural(r.MaxRequests, "request", "requests"), when))
		}
	}
	return lines
}

// WriteCSV writes a line for each bin of each run. Counts are of the bin, the last three at
// its end. second is when the bin begins, since the herd's first moment.
func (r *Report) WriteCSV(w io.Writer) error {
	rows := [][]string{{
		"run", "second", "herd_came", "herd_admitted", "new_clients_came", "new_clients_admitted", "retries",
		"served", "gave_up", "timed_out", "wasted", "in_flight", "queued", "limit",
	}}
	for i := range r.Runs {
		run := &r.Runs[i]
		for j := range run.Series {
			b := &run.Series[j]
			at := time.Duration(j)*r.Bin - r.Warmup
			row := []string{run.Name, strconv.FormatFloat(at.Seconds(), 'f', -1, 64)}
			for _, n := range []int32{
				b.Herd.Came, b.Herd.Admitted, b.NewClients.Came, b.NewClients.Admitted, b.Retries,
				b.Served, b.GaveUp, b.TimedOut, b.Wasted, b.InFlight, b.Queued, b.Limit,
			} {
				row = append(row, strconv.Itoa(int(n)))
			}
			rows = append(rows, row)
		}
	}
	return csv.NewWriter(w).WriteAll(rows)
}
