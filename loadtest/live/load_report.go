package live

import (
	"encoding/json"
	"fmt"
	"io"
	"math"
	"runtime/debug"
	"time"
)

type object = map[string]any

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
		Name   string  `json:"policy"`
		Weight float64 `json:"weight"`
		*tally
	}
	var policies []policy
	for i, p := range r.Policies {
		policies = append(policies, policy{fmt.Sprint(p.Policy), c.Mix[i].Weight, of(p.Tally)})
	}
	all := object{
		"load":         c.object(),
		"version":      Version(),
		"started":      r.Started.UTC().Format(time.RFC3339Nano),
		"took_s":       inSeconds(r.Took),
		"coming_s":     inSeconds(r.Coming),                   // how long clients came
		"rate_reached": math.Round(100*r.RateReached()) / 100, // of others, per second
		"all":          of(r.All),
		"policies":     policies,
		"seconds":      r.Seconds,
	}
	if r.Stopped != nil {
		all["stopped"] = r.Stopped.Error() // why it ended early
	}
	if r.Broken != "" {
		all["last_broken"] = r.Broken
	}
	if c.Herd > 0 && c.Rate > 0 {
		all["herd"], all["others"] = of(r.Herd), of(r.Others)
	}
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	return e.Encode(all)
}

func (c LoadConfig) object() object {
	from := ""
	if c.FirstAddress.IsValid() {
		from = c.FirstAddress.String()
	}
	return object{
		"target": c.Target.URL.String(), "method": c.Method,
		"rate": c.Rate, "duration_s": inSeconds(c.Duration),
		"herd": c.Herd, "within_s": inSeconds(c.Within), "herd_after_s": inSeconds(c.HerdAfter), "even": c.Even,
		"timeout_s": inSeconds(c.Timeout), "patience_s": inSeconds(c.Patience), "attempts": c.Attempts, "policy": c.Mix.String(),
		"requests":   c.Requests, // at most
		"keep_alive": c.KeepAlive, "connected": c.Connected,
		"x_forwarded_for": from,         // the first address; "": none
		"clients":         c.Identities, // addresses; 0: one for each client
		"seed":            c.Seed,
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
