package caddymodule

import (
	"fmt"
	"time"

	"go.uber.org/zap/zapcore"

	"github.com/herdshield/shield"
	"github.com/herdshield/shield/chart"
	"github.com/herdshield/shield/loadshed"
	"github.com/herdshield/shield/oncall"
	"github.com/herdshield/shield/pushback"
)

// clock numbers the seconds of the process for all histories.
var clock oncall.Clock

// These fail to compile if a History has too little room.
var (
	_ [oncall.MaxReasons - len(reasonCounts{})]struct{}
	_ [oncall.MaxClasses - loadshed.MaxClasses]struct{}
)

// remember adds the second that ends now to the history of the shield. A Live shield has none:
// there may be a thousand, in programs without an admin endpoint.
func (s *shieldEntry) remember(now time.Duration, seq uint64, what []news) {
	if s.live {
		return
	}
	s.record.history.Observe(seq, s.reading(now).sample())
	for _, n := range what {
		if note, level := n.note(); note != "" {
			s.record.history.Note(seq, level, note)
		} else if change, level := n.change(); change != "" {
			s.record.history.NoteLimit(seq, level, change)
		}
	}
}

// remember notes that the config is in force.
func (a *App) remember(now time.Duration) {
	seq := clock.Tick(now)
	for _, s := range a.roster().shields {
		s.remember(now, seq, nil)
		if !s.live {
			s.record.history.Note(seq, oncall.Plain, "a config is loaded")
		}
	}
}

// sample returns what a History keeps.
func (s *shieldReading) sample() oncall.Reading {
	p := s.stats.Promises
	r := oncall.Reading{
		Admitted: s.stats.Admitted, Kept: p.Kept, NoShow: p.NoShow, Late: p.Late, Broken: s.stats.Broken, Failed: s.stats.Failed,
		InFlight: s.stats.InFlight, Queue: s.stats.Queue.Length, Held: s.stats.Held,
		KeptShare: s.stats.KeptShare, Paused: s.stats.Paused > 0, Overloaded: s.record.overloaded(),
	}
	copy(r.Refused[:], s.stats.Refused[:])
	copy(r.Observed[:], s.stats.Observed[:])
	if s.limited() {
		r.Backlog, r.Deferred = s.stats.Backlog, s.stats.Deferred
	}
	if s.concurrent() {
		r.Limit = s.guard().Limit()
	}
	if s.guard().DetectsHerds() {
		r.Herd = s.stats.Herd.Size
	}
	if s.config().Shared {
		if link := s.guard().Link(s.now); link != nil {
			_, r.Replicas = link.Alone(s.now)
		}
	}
	if s.config().Classes != nil {
		for _, c := range s.guard().ClassStats() {
			r.Classes = append(r.Classes, oncall.ClassReading{Name: c.Name, Admitted: c.Admitted, Refused: c.Refused + c.Observed})
		}
	}
	return r
}

// values returns what the news says, by name.
func (n *news) values() map[string]any {
	said := zapcore.NewMapObjectEncoder()
	for _, f := range n.fields {
		f.AddTo(said)
	}
	return said.Fields
}

// note returns the news as a note for a person on call; "" if it is none.
func (n *news) note() (text string, level oncall.Level) {
	v := n.values()
	does, refusing := "refused", "refusing began"
	if v["observed"] == true {
		does, refusing = "would have been refused", "requests would be refused from now on"
	}
	switch n.event {
	case "shield_overload_started":
		return refusing, oncall.Warn
	case "shield_overload_ended":
		lasted, _ := v["lasted"].(time.Duration)
		return fmt.Sprintf("refusing ended after %s: %s requests %s", inWords(max(lasted, time.Second)), number(v["refused"]), does), oncall.Good
	case "shield_backend_paused":
		return "the backend asks to be left alone for " + inWords(v["for"]), oncall.Bad
	case "shield_backend_resumed":
		return "the backend is asked again, after " + inWords(v["after"]), oncall.Good
	case "shield_herd_detected":
		return herdInWords(v), oncall.Warn
	case "shield_herd_ended":
		return fmt.Sprintf("the %s herd is over, after %s", v["kind"], inWords(v["lasted"])), oncall.Good
	}
	return "", oncall.Plain
}

func herdInWords(v map[string]any) string {
	switch size := number(v["size"]); v["kind"] {
	case "backlog":
		return fmt.Sprintf("a herd: %s clients came at once", size)
	default:
		return fmt.Sprintf("a herd: %s requests come together every %s", size, inWords(v["period"]))
	}
}

// changesOfLimits says why an adaptive limit has changed, by its reason.
var changesOfLimits = map[string]string{
	"grown": "it was used up, and latency is good", "congested": "latency rose", "failed": "requests failed", "refusing": "the backend refuses",
	"probed": "a probe begins", "proven": "the probe: a lower one serves as much", "restored": "a lower one serves less",
	"rebased": "the backend is slower, without a queue", "unused": "it was not used",
	"restarted": "nothing is known yet", "late": "too many are late", "in_time": "nearly all are in time",
}

// change returns the news as a note if it is that of a limit in flight.
func (n *news) change() (text string, level oncall.Level) {
	if n.message != limitChanged {
		return "", oncall.Plain
	}
	v := n.values()
	reason, _ := v["reason"].(string)
	text = fmt.Sprintf("%v → %v: %s", v["from"], v["to"], changesOfLimits[reason])
	if latency, _ := v["latency"].(time.Duration); latency > 0 {
		text += ", " + inWords(latency)
		if baseline, _ := v["baseline"].(time.Duration); baseline > 0 {
			text += ", without a queue " + inWords(baseline)
		}
	}
	switch reason {
	case "congested", "failed", "refusing", "late":
		return text, oncall.Warn
	}
	return text, oncall.Plain
}

// number writes a count or a size.
func number(v any) string {
	switch n := v.(type) {
	case uint64:
		return chart.Number(float64(n))
	case float64:
		return chart.Number(float64(int(n + 0.5)))
	}
	return "?"
}

// inWords writes a duration: "655 ms" or "1.8 s" or "3 min 20 s".
func inWords(v any) string {
	d, _ := v.(time.Duration)
	return oncall.Time(d)
}

// situation returns what the shield does now.
func (s *shieldReading) situation(lately oncall.Means) oncall.Situation {
	sit := oncall.Situation{
		Shield: s.name, Observe: s.config().Observe, Arrivals: lately.Admitted, Refused: map[string]float64{},
		Paused: s.stats.Paused, Capacity: s.config().Capacity.Rate, Per: s.config().Capacity.Per,
		InFlight: s.stats.InFlight,
	}
	for _, reason := range shield.Reasons {
		refused, observed := lately.Refused[reason], lately.Observed[reason]
		sit.Arrivals += refused + observed
		if s.config().Observe {
			refused = observed
		}
		if refused > 0 {
			sit.Refused[reason.String()] = refused
		}
	}
	if s.limited() {
		sit.Backlog, sit.Promised, sit.Deferred, sit.Spare = s.stats.Backlog, s.stats.Waiting, s.stats.Deferred, s.guard().Spare()
	}
	if s.stats.Herd.Clients < pushback.HerdClients && s.guard().DetectsHerds() {
		sit.Few = s.stats.Herd.Clients
	}
	if s.concurrent() {
		sit.Limit = s.guard().Limit()
	}
	if s.adaptive() {
		sit.Cut = cutByLatency(s.now, s.stats.Last)
	}
	return sit
}

// cutByLatency returns the last change of a limit if it was a cut as latency rose, and not long ago. A probe
// lowers the limit, too, but is not why requests are refused.
func cutByLatency(now time.Duration, last loadshed.Change) *oncall.LimitCut {
	if last.Reason != loadshed.Congested || now-last.At >= time.Minute {
		return nil
	}
	return &oncall.LimitCut{From: last.From, To: last.To, Latency: last.Latency, Baseline: last.Baseline}
}
