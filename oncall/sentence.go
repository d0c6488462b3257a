package oncall

import (
	"fmt"
	"math"
	"strings"
	"time"

	"github.com/herdshield/shield/chart"
)

// A Situation is what a shield does now: rates per second, means of the last few seconds, and
// the present state.
type Situation struct {
	Shield   string
	Observe  bool // requests are admitted that would be refused
	Arrivals float64
	Refused  map[string]float64 // by reason, or those that would be

	Paused   time.Duration // how long the backend is still left alone
	Backlog  time.Duration // until the last appointment
	Promised int           // appointments whose clients may still come
	Deferred int           // clients that come back for an appointment
	Few      int           // different clients refused in the last minute, if they are too few for a herd; 0: not known
	Spare    float64       // refused clients that the backend can serve per second

	Capacity float64 // requests per Per; 0: no limit
	Per      time.Duration
	InFlight int
	Limit    int       // in flight; 0: none
	Cut      *LimitCut // of an adaptive limit as latency rose, in the last minute; nil: none
}

// A LimitCut is a cut of the limit in flight.
type LimitCut struct {
	From, To          int
	Latency, Baseline time.Duration // 0: not known
}

// causes says why requests are refused, by reason.
var causes = map[string]func(*Situation) string{
	"quota": func(*Situation) string { return "single clients are over their own quota" },
	"capacity": func(s *Situation) string {
		return fmt.Sprintf("the backend's capacity of %s is used up", rateOf(s.Capacity, s.Per))
	},
	"concurrency": func(s *Situation) string {
		said := fmt.Sprintf("the backend is full, with a limit of %s in flight", chart.Number(float64(s.Limit)))
		if c := s.Cut; c != nil && c.Baseline > 0 && c.Latency > c.Baseline {
			said += fmt.Sprintf(" since its latency rose from %s to %s", short(c.Baseline), short(c.Latency))
		}
		return said
	},
	"early":        func(*Situation) string { return "their clients come before the time that they were told" },
	"per_client":   func(*Situation) string { return "single clients have too much in flight" },
	"blocked":      func(*Situation) string { return "an operator has blocked their clients" },
	"retry_budget": func(*Situation) string { return "they are more retries than the backend can serve" },
	"pause":        func(*Situation) string { return "the backend has asked to be left alone" },
}

// refused returns all refusals, and the reason of most. Clients that come early are the cause
// only if there is no other: they were refused for another reason before.
func (s *Situation) refused() (all float64, reason string) {
	most := -1.0
	for r, rate := range s.Refused {
		all += rate
		if r == "early" {
			rate = 0
		}
		if s.Refused[r] > 0 && (rate > most || rate == most && r < reason) {
			most, reason = rate, r
		}
	}
	return all, reason
}

// Waiting returns how many refused clients are still to come back, and how long that will take. One
// with several appointments counts for each. 0: no client waits, though all may have come before the
// time of the last appointment. Without an end that can be told, over is negative.
func (s *Situation) Waiting() (clients float64, over time.Duration) {
	clients = float64(s.Deferred + s.Promised)
	switch {
	case s.Backlog <= 0 && s.Deferred == 0, clients <= 0:
		return 0, 0
	case s.Deferred == 0:
		return clients, s.Backlog
	case s.Spare <= 0:
		return clients, -1
	}
	return clients, s.Backlog + time.Duration(float64(s.Deferred)/s.Spare*float64(time.Second))
}

// Sentence says in one sentence what a person on call needs to know: what the shield does, why,
// and until when.
func (s *Situation) Sentence() (Level, string) {
	refused, reason := s.refused()
	does := "refuses"
	if s.Observe {
		does = "would refuse"
	}
	end := s.end()
	switch share := refused / math.Max(refused, s.Arrivals); {
	case s.Paused > 0:
		return Bad, fmt.Sprintf("%s %s nearly all requests for another %s, because the backend has asked to be left alone%s.", s.Shield, does, long(s.Paused), end)
	case refused > 0:
		level, cause := Warn, "of "+reason
		if share > 0.5 {
			level = Bad
		}
		if say := causes[reason]; say != nil {
			cause = say(s)
		}
		return level, fmt.Sprintf("%s %s %s%s, because %s%s.", s.Shield, does, perSecond(refused), percent(share), cause, end)
	case end != "" && s.Arrivals == 0:
		return Warn, fmt.Sprintf("%s gets no requests%s.", s.Shield, end)
	case end != "":
		return Warn, fmt.Sprintf("%s admits all requests, %s%s.", s.Shield, perSecond(s.Arrivals), end)
	case s.Arrivals > 0:
		return Good, fmt.Sprintf("%s admits all requests, %s.", s.Shield, perSecond(s.Arrivals))
	}
	return Good, fmt.Sprintf("%s gets no requests.", s.Shield)
}

// end says when the backlog will be over, after what was said before.
func (s *Situation) end() string {
	clients, over := s.Waiting()
	many := chart.Number(math.Round(clients))
	switch {
	case clients == 0:
		return ""
	case over < 0:
		return fmt.Sprintf("; the backlog of about %s clients has no end in sight", many)
	case clients == 1:
		return fmt.Sprintf("; the last refused client comes back in %s", long(over))
	case s.Few > 0 && s.Few < s.Promised: // each hammers, or is many behind one address
		of := "a single client"
		if s.Few > 1 {
			of = fmt.Sprintf("%d clients", s.Few)
		}
		return fmt.Sprintf("; the backlog of about %s appointments of %s will be over in %s", many, of, long(over))
	}
	return fmt.Sprintf("; the backlog of about %s clients will be over in %s", many, long(over))
}

// amount writes a number with as many digits as are read at a glance.
func amount(v float64) string {
	if v < 10 {
		return chart.Number(math.Round(v*10) / 10)
	}
	return chart.Number(math.Round(v))
}

func perSecond(rate float64) string {
	if amount(rate) == "1" {
		return "1 request/s"
	}
	if rate < 0.05 {
		return fmt.Sprintf("%s requests/min", amount(math.Max(0.1, rate*60)))
	}
	return amount(rate) + " requests/s"
}

// percent says which part of all requests that is.
func percent(share float64) string {
	switch {
	case share > 0.995:
		return " (all)"
	case share < 0.01:
		return " (less than 1 %)"
	}
	return fmt.Sprintf(" (%.0f %%)", 100*share)
}

// rateOf writes a rate as configs do.
func rateOf(rate float64, per time.Duration) string {
	unit := map[time.Duration]string{0: "s", time.Second: "s", time.Minute: "min", time.Hour: "h"}[per]
	if unit == "" {
		unit = per.String()
	}
	return chart.Number(rate) + "/" + unit
}

// short writes a latency.
func short(d time.Duration) string {
	if d < time.Second {
		return chart.Number(math.Round(float64(d)/float64(time.Millisecond))) + " ms"
	}
	return chart.Number(math.Round(d.Seconds()*10)/10) + " s"
}

// long writes a time that a person waits for.
func long(d time.Duration) string {
	seconds := int(math.Ceil(d.Seconds()))
	if seconds < 120 {
		return fmt.Sprintf("%d s", seconds)
	}
	return strings.TrimSuffix(fmt.Sprintf("%d min %d s", seconds/60, seconds%60), " 0 s")
}

// Time writes a duration as a person reads it: "655 ms", "1.8 s" or "3 min 20 s".
func Time(d time.Duration) string {
	if d < 10*time.Second {
		return short(d)
	}
	return long(d)
}

// Bars returns a column of text for each value, as high as its share of the tallest, rounded up.
func Bars(values []int, tallest int) string {
	levels, tallest := []rune(" ▁▂▃▄▅▆▇█"), max(1, tallest)
	var b strings.Builder
	for _, n := range values {
		b.WriteRune(levels[(n*(len(levels)-1)+tallest-1)/tallest])
	}
	return b.String()
}
