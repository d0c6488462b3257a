package live

import (
	"encoding/csv"
	"encoding/json"
	"io"
	"math"
	"runtime/debug"
	"strconv"
	"time"

	"github.com/herdshield/shield/loadtest/clients"
)

// loadJSON is what WriteJSON writes of a LoadConfig.
type loadJSON struct {
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
	Policy    string  `json:"policy"`

	Requests    int    `json:"requests"`    // at most
	Connections int    `json:"connections"` // that are shared; 0: as many as are needed
	KeepAlive   bool   `json:"keep_alive"`
	Connected   bool   `json:"connected"`
	From        string `json:"x_forwarded_for"` // the first address; "": none
	Clients     int    `json:"clients"`         // addresses; 0: one for each client

	Seed uint64 `json:"seed"`
}

func describe(c LoadConfig) loadJSON {
	out := loadJSON{
		Target: c.Target.URL.String(), Protocol: c.Proto, Method: c.Method, Rate: c.Rate, Duration: inSeconds(c.Duration),
		Herd: c.Herd, Within: inSeconds(c.Within), HerdAfter: inSeconds(c.HerdAfter), Even: c.Even,
		Timeout: inSeconds(c.Timeout), Patience: inSeconds(c.Patience), Attempts: c.Attempts, Policy: c.Mix.Spell(),
		Requests: c.Requests, KeepAlive: c.KeepAlive, Connected: c.Connected, Clients: c.Identities, Seed: c.Seed,
	}
	if c.Proto != H1 {
		out.Connections = c.connections()
	}
	if c.FirstAddress.IsValid() {
		out.From = c.FirstAddress.String()
	}
	return out
}

// WriteJSON writes a load and its result. Times are in milliseconds if their names end in
// _ms, and in seconds if they end in _s.
func WriteJSON(w io.Writer, c LoadConfig, r LoadResult) error {
	c = c.withDefaults()
	type tally struct {
		Tally
		PerSuccess float64 `json:"requests_per_success"`
		LastServed float64 `json:"last_served_s"`
		OldestCut  float64 `json:"oldest_cut_off_s"`
	}
	of := func(t Tally) *tally {
		return &tally{t, t.PerSuccess(), inSeconds(t.LastServed), inSeconds(t.OldestCut)}
	}
	type policy struct {
		Name   string  `json:"policy"` // as clients.Parse reads it
		Weight float64 `json:"weight"`
		*tally
	}
	out := struct {
		Load     loadJSON `json:"load"`
		Version  string   `json:"version"`
		Started  string   `json:"started"` // RFC 3339
		Took     float64  `json:"took_s"`
		Coming   float64  `json:"coming_s"`          // how long clients came
		Reached  float64  `json:"rate_reached"`      // of others, per second
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
		Load:    describe(c),
		Version: version(), Started: r.Started.UTC().Format(time.RFC3339Nano),
		Coming: inSeconds(r.Coming), Reached: math.Round(100*r.RateReached()) / 100,
		Took: inSeconds(r.Took), Faults: r.Faults, Fault: r.Fault, Broken: r.Broken, All: of(r.All), Seconds: r.Seconds,
	}
	if r.Stopped != nil {
		out.Stopped = r.Stopped.Error()
	}
	if c.Herd > 0 && c.Rate > 0 {
		out.Herd, out.Others = of(r.Herd), of(r.Others)
	}
	for i, p := range r.Policies {
		out.Policies = append(out.Policies, policy{clients.Population{{Policy: p.Policy}}.Spell(), c.Mix[i].Weight, of(p.Tally)})
	}
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	return e.Encode(out)
}

// version is that of this program, "" if it is unknown.
func version() string {
	build, ok := debug.ReadBuildInfo()
	if !ok {
		return ""
	}
	return build.Main.Version
}

// inSeconds returns d in seconds, to the microsecond.
func inSeconds(d time.Duration) float64 { return math.Round(d.Seconds()*1e6) / 1e6 }

// WriteCSV writes the run second by second.
func WriteCSV(w io.Writer, r LoadResult) error {
	cw := csv.NewWriter(w)
	err := cw.Write([]string{"second", "came", "herd_came", "admitted", "herd_admitted", "refused", "timed_out", "unreachable", "retries", "served", "gave_up", "in_flight", "cut_off"})
	for i, s := range r.Seconds {
		all := s.All()
		var row []string
		for _, n := range []int{i, all.Came, s.Herd.Came, all.Admitted, s.Herd.Admitted, s.Refused, s.TimedOut, s.Unreachable, s.Retries, s.Served, s.GaveUp, s.InFlight, s.CutOff} {
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
