package report

import (
	"encoding/json"
	"fmt"
	"io"
	"time"
)

type object = map[string]any

// WriteJSON writes the results of the runs, without their series. Times are in seconds. A
// "-" of the table is null here. Waits are those of clients that were served.
func (r *Report) WriteJSON(w io.Writer) error {
	runs := []object{}
	for i := range r.Runs {
		runs = append(runs, r.jsonRun(&r.Runs[i]))
	}
	e := json.NewEncoder(w)
	e.SetIndent("", "\t")
	return e.Encode(object{
		"backend_workers":             r.workers(),
		"backend_capacity_per_second": r.Capacity,
		"inputs":                      r.jsonInputs(),
		"runs":                        runs,
	})
}

// jsonInputs are what the scenario is about. A timeout or patience of null is endless.
func (r *Report) jsonInputs() object {
	marks := []object{}
	for _, m := range r.Marks {
		marks = append(marks, object{"name": m.Name, "from_seconds": m.From.Seconds(), "to_seconds": m.To.Seconds()})
	}
	within := r.Within
	if r.Clients == 0 {
		within = 0
	}
	return object{
		"seed":                  r.Seed,
		"clients":               r.Clients,
		"within_seconds":        within.Seconds(),
		"addresses":             r.Addresses,
		"background_per_second": r.Background,
		"background_addresses":  r.NewClientsAddresses,
		"policies":              r.Policies,
		"timeout_seconds":       seconds(r.Timeout, r.Timeout > 0),
		"patience_seconds":      seconds(r.Patience, r.Patience > 0),
		"warmup_seconds":        r.Warmup.Seconds(),
		"duration_seconds":      r.Until.Seconds(),
		"marks":                 marks,
	}
}

func (r *Report) jsonRun(run *Run) object {
	var perServed *float64
	if run.Served > 0 {
		perServed = new(run.PerSuccess())
	}
	var all object // the herd and background clients, warm-up included
	if n := allClients(run); len(run.Series) > 0 {
		all = object{"came": n.came, "served": n.served, "gave_up": n.gaveUp, "waiting": n.waiting()}
	}
	var policies []object
	for _, p := range run.Policies {
		policies = append(policies, object{
			"policy":  fmt.Sprint(p.Policy),
			"clients": p.Clients, "served": p.Served, "gave_up": p.GaveUp, "waiting": p.Clients - p.Served - p.GaveUp,
			"requests_by_served": p.Requests,
			"wait_p50_seconds":   seconds(p.P50, p.Served > 0),
			"wait_p90_seconds":   seconds(p.P90, p.Served > 0),
			"wait_p99_seconds":   seconds(p.P99, p.Served > 0),
		})
	}
	others := &run.NewClients
	return object{
		"name": run.Name, "notes": run.Notes, "seed": run.Seed,
		"interrupted": run.Interrupted, "ended_by": r.endedBy(run), "ended_seconds": seconds(r.Ended(run), len(run.Series) > 0),

		"clients": run.Clients, "reachable": run.Reachable, "served": run.Served, "gave_up": gaveUp(run), "waiting": stillWaiting(run),
		"drained_seconds": seconds(run.Drained, isDrained(run)),
		"optimum_seconds": seconds(run.Optimum, hasOptimum(run)),
		"cleared_seconds": seconds(run.Cleared, r.hasCleared(run)),

		"requests_decided": run.Decided, "requests_answered": run.Answered, "requests_rejected": run.Rejected,
		"requests_timed_out": run.TimedOut, "requests_failed": run.Failed, "requests_open": run.Open, "requests_wasted": run.Wasted,

		"herd_requests": run.Requests, "herd_requests_per_served": perServed, "most_requests_by_one": run.MostAttempts,
		"peak_returns_per_100ms": run.PeakReturns, "most_rejections_held": run.MostHeld, "most_in_flight": mostInFlight(run),

		"policies": policies,
		"new_clients": object{
			"came": others.Came, "served_at_once": others.AtOnce, "unserved": others.Unserved,
			"wait_p95_seconds": seconds(others.P95, most95(run)),
		},
		"all_clients": all,
	}
}

// seconds is a time in JSON: null if it is not known.
func seconds(d time.Duration, known bool) *float64 {
	if !known {
		return nil
	}
	return new(d.Seconds())
}
