package live

import (
	"encoding/csv"
	"encoding/json"
	"fmt"
	"io"
	"strconv"
	"time"
)

// WriteJSON writes what a load was and what came of it. Times are in
// milliseconds where their names end in _ms, and in seconds where they end in _s.
func WriteJSON(w io.Writer, c LoadConfig, r LoadResult) error {
	c = c.withDefaults()
	type policy struct {
		Name   string  `json:"policy"`
		Weight float64 `json:"weight"`
		Tally
		PerSuccess float64 `json:"requests_per_success"`
	}
	type tally struct {
		Tally
		PerSuccess float64 `json:"requests_per_success"`
		LastServed float64 `json:"last_served_s"`
	}
	of := func(t Tally) *tally {
		return &tally{t, t.PerSuccess(), t.LastServed.Seconds()}
	}
	type load struct {
		Target    string  `json:"target"`
		Protocol  Proto   `json:"protocol"`
		Method    string  `json:"method"`
		Rate      float64 `json:"rate"`
		Duration  float64 `json:"duration_s"`
		Herd      int     `json:"herd"`
		Within    float64 `json:"within_s"`
		HerdAfter float64 `json:"herd_after_s"`
		Even      bool    `json:"even"`
		Timeout   float64 `json:"timeout_s"`
		Patience  float64 `json:"patience_s"`
		Attempts  int     `json:"attempts"`
		Seed      uint64  `json:"seed"`
	}
	out := struct {
		Load     load     `json:"load"`
		Took     float64  `json:"took_s"`
		Stopped  string   `json:"stopped,omitempty"` // why it ended early
		Faults   int64    `json:"faults_here"`
		Fault    string   `json:"fault_here,omitempty"`
		Broken   string   `json:"last_broken,omitempty"`
		All      *tally   `json:"all"`
		Herd     *tally   `json:"herd,omitempty"`
		Others   *tally   `json:"others,omitempty"`
		Policies []policy `json:"policies"`
		Seconds  []Second `json:"seconds"`
	}{
		Load: load{
			c.Target.URL.String(), c.Proto, c.Method, c.Rate, c.Duration.Seconds(), c.Herd, c.Within.Seconds(), c.HerdAfter.Seconds(),
			c.Even, c.Timeout.Seconds(), c.Patience.Seconds(), c.Attempts, c.Seed,
		},
		Took: r.Took.Round(time.Microsecond).Seconds(), Faults: r.Faults, Fault: r.Fault, Broken: r.Broken, All: of(r.All), Seconds: r.Seconds,
	}
	if r.Stopped != nil {
		out.Stopped = r.Stopped.Error()
	}
	if c.Herd > 0 && c.Rate > 0 {
		out.Herd, out.Others = of(r.Herd), of(r.Others)
	}
	for i, p := range r.Policies {
		out.Policies = append(out.Policies, policy{fmt.Sprint(p.Policy), c.Mix[i].Weight, p.Tally, p.PerSuccess()})
	}
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	return e.Encode(out)
}

// WriteCSV writes the run second by second.
func WriteCSV(w io.Writer, r LoadResult) error {
	cw := csv.NewWriter(w)
	err := cw.Write([]string{"second", "came", "herd_came", "admitted", "herd_admitted", "refused", "timed_out", "unreachable", "retries", "served", "gave_up", "in_flight"})
	for i, s := range r.Seconds {
		all := s.All()
		var row []string
		for _, n := range []int{i, all.Came, s.Herd.Came, all.Admitted, s.Herd.Admitted, s.Refused, s.TimedOut, s.Unreachable, s.Retries, s.Served, s.GaveUp, s.InFlight} {
			row = append(row, strconv.Itoa(n))
		}
		if err == nil {
			err = cw.Write(row)
		}
	}
	cw.Flush()
	if err == nil {
		err = cw.Error()
	}
	return err
}
