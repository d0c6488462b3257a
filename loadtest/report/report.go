// Package report shows the results of runs of loadtest/sim, side by side: as a table for a
// terminal, and JSON.
//
// A [Report] is data; its Write methods are pure, and write the same bytes for the
// same Report.
package report

import (
	"encoding/json"
	"fmt"
	"io"
	"time"

	"github.com/herdshield/shield/loadtest/sim"
)

// A Run is the result of one of the servers that are compared.
type Run struct {
	sim.Result

	// Notes say what the run is, or what it leaves out, a line each. Tables have none.
	Notes []string `json:"notes"`
}

// A Report has runs of one scenario. JSON needs its Bin and its Warmup.
type Report struct {
	sim.Scenario
	Policies string // of all clients
	Runs     []Run

	// Capacity is how many requests the backend can serve per second when it is healthy.
	// 0: it has no limit.
	Capacity float64

	// Marks are events during the runs.
	Marks []Mark
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

// EndedEarly says which runs ended before their time, and when, a line each.
func (r *Report) EndedEarly() (lines []string) {
	for i := range r.Runs {
		if run := &r.Runs[i]; r.MaxRequests > 0 && run.Decided >= r.MaxRequests {
			lines = append(lines, fmt.Sprintf("%s ended after %s (--requests), at %v, before its time.", run.Name,
				Plural(r.MaxRequests, "request", "requests"), r.Ended(run))) // negative before the herd came
		}
	}
	return lines
}

// WriteJSON writes the runs with all that happened in each bin. Names that end in _ns are times in
// nanoseconds: of bins since the herd's first moment, the first of which is negative.
func (r *Report) WriteJSON(w io.Writer) error {
	return json.NewEncoder(w).Encode(map[string]any{
		"backend_capacity_per_second": r.Capacity, "policies": r.Policies, "first_bin_ns": -r.Warmup, "bin_ns": r.Bin, "runs": r.Runs,
	})
}
