package report

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"reflect"
	"strings"
	"time"
)

// An Object is a JSON object: names and values, in the order in which they are written. A
// name that ends in ",omitempty" leaves out a zero value, as in a struct. The nil Object is
// null.
type Object [][2]any

// MarshalJSON implements json.Marshaler.
func (o Object) MarshalJSON() ([]byte, error) {
	if o == nil {
		return []byte("null"), nil
	}
	b := bytes.NewBufferString("{")
	for _, field := range o {
		name, omit := strings.CutSuffix(field[0].(string), ",omitempty")
		if omit && reflect.ValueOf(field[1]).IsZero() {
			continue
		}
		value, err := json.Marshal(field[1])
		if err != nil {
			return nil, err
		}
		if b.Len() > 1 {
			b.WriteByte(',')
		}
		fmt.Fprintf(b, "%q:%s", name, value)
	}
	b.WriteByte('}')
	return b.Bytes(), nil
}

// WriteJSON writes the results of the runs, without their series. Times are in seconds. A
// "-" of the table is null here. Waits are those of clients that were served.
func (r *Report) WriteJSON(w io.Writer) error {
	runs := []Object{}
	for i := range r.Runs {
		runs = append(runs, r.jsonRun(&r.Runs[i]))
	}
	e := json.NewEncoder(w)
	e.SetIndent("", "\t")
	return e.Encode(Object{
		{"backend_workers,omitempty", r.workers()},
		{"backend_capacity_per_second,omitempty", r.Capacity},
		{"inputs", r.jsonInputs()},
		{"runs", runs},
	})
}

// jsonInputs are what the scenario is about. A timeout or patience of null is endless.
func (r *Report) jsonInputs() Object {
	marks := []Object{}
	for _, m := range r.Marks {
		marks = append(marks, Object{{"name", m.Name}, {"from_seconds", m.From.Seconds()}, {"to_seconds", m.To.Seconds()}})
	}
	within := r.Within
	if r.Clients == 0 {
		within = 0
	}
	return Object{
		{"seed", r.Seed},
		{"clients", r.Clients},
		{"within_seconds", within.Seconds()},
		{"addresses", r.Addresses},
		{"background_per_second", r.Background},
		{"background_addresses", r.StrangersAddresses},
		{"policies", r.Policies},
		{"timeout_seconds", seconds(r.Timeout, r.Timeout > 0)},
		{"patience_seconds", seconds(r.Patience, r.Patience > 0)},
		{"warmup_seconds", r.Warmup.Seconds()},
		{"duration_seconds", r.Until.Seconds()},
		{"marks", marks},
	}
}

func (r *Report) jsonRun(run *Run) Object {
	var perServed *float64
	if run.Served > 0 {
		perServed = new(run.PerSuccess())
	}
	var all Object // the herd and background clients, warm-up included
	if n := allClients(run); len(run.Series) > 0 {
		all = Object{{"came", n.came}, {"served", n.served}, {"gave_up", n.gaveUp}, {"waiting", n.waiting()}}
	}
	var policies []Object
	for _, p := range run.Policies {
		policies = append(policies, Object{
			{"policy", fmt.Sprint(p.Policy)},
			{"clients", p.Clients}, {"served", p.Served}, {"gave_up", p.GaveUp}, {"waiting", p.Clients - p.Served - p.GaveUp},
			{"requests_by_served", p.Requests},
			{"wait_p50_seconds", seconds(p.P50, p.Served > 0)},
			{"wait_p90_seconds", seconds(p.P90, p.Served > 0)},
			{"wait_p99_seconds", seconds(p.P99, p.Served > 0)},
		})
	}
	others := &run.Strangers
	return Object{
		{"name", run.Name}, {"notes,omitempty", run.Notes}, {"seed", run.Seed},
		{"interrupted", run.Interrupted}, {"ended_by", r.endedBy(run)}, {"ended_seconds", seconds(r.Ended(run), len(run.Series) > 0)},

		{"clients", run.Clients}, {"reachable", run.Reachable}, {"served", run.Served}, {"gave_up", gaveUp(run)}, {"waiting", stillWaiting(run)},
		{"drained_seconds", seconds(run.Drained, isDrained(run))},
		{"optimum_seconds", seconds(run.Optimum, hasOptimum(run))},
		{"cleared_seconds", seconds(run.Cleared, r.hasCleared(run))},

		{"requests_decided", run.Decided}, {"requests_answered", run.Answered}, {"requests_refused", run.Refused},
		{"requests_timed_out", run.TimedOut}, {"requests_failed", run.Failed}, {"requests_open", run.Open}, {"requests_wasted", run.Wasted},

		{"herd_requests", run.Requests}, {"herd_requests_per_served", perServed}, {"most_requests_by_one", run.MostAttempts},
		{"peak_returns_per_100ms", run.PeakReturns}, {"most_refusals_held", run.MostHeld}, {"most_in_flight", mostInFlight(run)},

		{"policies", policies},
		{"strangers", Object{
			{"came", others.Came}, {"served_at_once", others.AtOnce}, {"unserved", others.Unserved},
			{"wait_p95_seconds", seconds(others.P95, most95(run))},
		}},
		{"all_clients", all},
	}
}

// seconds is a time in JSON: null if it is not known.
func seconds(d time.Duration, known bool) *float64 {
	if !known {
		return nil
	}
	return new(d.Seconds())
}
