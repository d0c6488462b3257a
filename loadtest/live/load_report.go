package live

import (
	"encoding/csv"
	"encoding/json"
	"io"
	"math"
	"runtime/debug"
	"strconv"
	"time"

	"github.com/herdshield/shield/loadtest/report"
)

// WriteJSON writes a load and its result. Times are in milliseconds if their names end in
// _ms, and in seconds if they end in _s.
func WriteJSON(w io.Writer, c LoadConfig, r LoadResult) error {
	c = c.withDefaults()
	type tally struct {
		Tally
		PerSuccess float64 `json:"requests_per_success"`
		Rate       float64 `json:"requests_per_second"`
		Goodput    float64 `json:"served_per_second"`
		LastServed float64 `json:"last_served_s"`
		OldestCut  float64 `json:"oldest_cut_off_s"`
	}
	of := func(t Tally) *tally {
		rate := func(n int) float64 { return math.Round(100*float64(n)/max(r.Took.Seconds(), 1e-6)) / 100 }
		return &tally{t, t.PerSuccess(), rate(t.Requests), rate(t.Served), inSeconds(t.LastServed), inSeconds(t.OldestCut)}
	}
	type policy struct {
		Name   string  `json:"policy"` // as clients.Parse reads it
		Weight float64 `json:"weight"`
		*tally
	}
	var policies []policy
	for i, p := range r.Policies {
		policies = append(policies, policy{c.Mix[i : i+1].Spell(), c.Mix[i].Weight, of(p.Tally)})
	}
	stopped, herd, others := "", (*tally)(nil), (*tally)(nil)
	if r.Stopped != nil {
		stopped = r.Stopped.Error()
	}
	if c.Herd > 0 && c.Rate > 0 {
		herd, others = of(r.Herd), of(r.Others)
	}
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	return e.Encode(report.Object{
		{"load", c.object()},
		{"version", Version()},
		{"started", r.Started.UTC().Format(time.RFC3339Nano)},
		{"took_s", inSeconds(r.Took)},
		{"coming_s", inSeconds(r.Coming)},                       // how long clients came
		{"rate_reached", math.Round(100*r.RateReached()) / 100}, // of others, per second
		{"stopped,omitempty", stopped},                          // why it ended early
		{"faults_here", r.Faults},
		{"fault_here,omitempty", r.Fault},
		{"last_broken,omitempty", r.Broken},
		{"all", of(r.All)},
		{"herd,omitempty", herd},
		{"others,omitempty", others},
		{"policies", policies},
		{"seconds", r.Seconds},
	})
}

func (c LoadConfig) object() report.Object {
	connections, from := 0, ""
	if c.Proto != H1 {
		connections = c.connections()
	}
	if c.FirstAddress.IsValid() {
		from = c.FirstAddress.String()
	}
	return report.Object{
		{"target", c.Target.URL.String()}, {"protocol", c.Proto}, {"method", c.Method},
		{"rate", c.Rate}, {"duration_s", inSeconds(c.Duration)},
		{"herd", c.Herd}, {"within_s", inSeconds(c.Within)}, {"herd_after_s", inSeconds(c.HerdAfter)}, {"even", c.Even},
		{"timeout_s", inSeconds(c.Timeout)}, {"patience_s", inSeconds(c.Patience)}, {"attempts", c.Attempts}, {"policy", c.Mix.Spell()},
		{"requests", c.Requests},     // at most
		{"connections", connections}, // that are shared; 0: as many as are needed
		{"keep_alive", c.KeepAlive}, {"connected", c.Connected},
		{"x_forwarded_for", from}, // the first address; "": none
		{"clients", c.Identities}, // addresses; 0: one for each client
		{"seed", c.Seed},
	}
}

// Version is that of this program, "" if it is unknown.
func Version() string {
	if build, ok := debug.ReadBuildInfo(); ok {
		return build.Main.Version
	}
	return ""
}

// inSeconds returns d in seconds, to the microsecond.
func inSeconds(d time.Duration) float64 { return math.Round(d.Seconds()*1e6) / 1e6 }

// WriteCSV writes the run second by second.
func WriteCSV(w io.Writer, r LoadResult) error {
	rows := [][]string{{
		"second", "came", "herd_came", "admitted", "herd_admitted", "refused", "timed_out",
		"unreachable", "retries", "served", "gave_up", "in_flight", "cut_off",
	}}
	for i, s := range r.Seconds {
		row := []string{strconv.Itoa(i)}
		for _, n := range []int32{
			s.Herd.Came + s.Strangers.Came, s.Herd.Came, s.Herd.Admitted + s.Strangers.Admitted, s.Herd.Admitted,
			s.Refused, s.TimedOut, s.Unreachable, s.Retries, s.Served, s.GaveUp, s.InFlight, s.CutOff,
		} {
			row = append(row, strconv.Itoa(int(n)))
		}
		rows = append(rows, row)
	}
	return csv.NewWriter(w).WriteAll(rows)
}
