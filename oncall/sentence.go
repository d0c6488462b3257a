package oncall

import (
	"cmp"
	"fmt"
	"math"
	"strings"
	"time"

	"github.com/herdshield/shield/chart"
	"github.com/herdshield/shield/loadshed"
)

// causes says why requests are rejected, by reason.
var causes = map[string]func(*Situation) string{
	"quota": func(*Situation) string { return "some clients are over their quota" },
	"capacity": func(s *Situation) string {
		if s.Capacity == nil {
			return "the backend's capacity is used up"
		}
		return fmt.Sprintf("the backend's capacity of %s is used up", s.Capacity)
	},
	"concurrency": func(s *Situation) string {
		said := fmt.Sprintf("the backend is at its in-flight limit of %s", chart.Number(float64(s.Concurrency)))
		if c := s.cut(); c != nil && c.BaselineSeconds > 0 && c.LatencySeconds > c.BaselineSeconds {
			said += fmt.Sprintf(", lowered when latency rose from %s to %s", short(seconds(c.BaselineSeconds)), short(seconds(c.LatencySeconds)))
		}
		return said
	},
	"early":        func(*Situation) string { return "clients are retrying before their appointment" },
	"per_client":   func(*Situation) string { return "some clients have too many requests in flight" },
	"blocked":      func(*Situation) string { return "their clients are blocked" },
	"retry_budget": func(*Situation) string { return "the retry budget is used up" },
	"pause":        func(*Situation) string { return "the backend asked for a pause" },
}

// rejected returns all rejections, and the reason of most. Clients that come early are the cause
// only if there is no other: they were rejected for another reason before.
func (s *Situation) rejected() (all float64, reason string) {
	most := -1.0
	for r, rate := range s.Rejecting() {
		all += rate
		counts := rate > 0
		if r == "early" {
			rate = 0
		}
		if counts && (rate > most || rate == most && r < reason) {
			most, reason = rate, r
		}
	}
	return all, reason
}

// cut returns the last change of an adaptive limit if it was a cut as latency rose, and not long ago. A probe
// lowers the limit, too, but is not why requests are rejected.
func (s *Situation) cut() *Change {
	if s.Search == nil || s.Search.Last == nil || s.Search.Last.Reason != loadshed.Congested.String() || s.Search.Last.SecondsAgo >= 60 {
		return nil
	}
	return s.Search.Last
}

// Say sets what the Facts come to: how many clients wait and, in one sentence, what a person on call
// needs to know: what the shield does, why, and until when.
func (s *Situation) Say() {
	s.Waiting = s.wait()
	s.Level, s.Says = s.sentence()
}

func (s *Situation) sentence() (Level, string) {
	rejected, reason := s.rejected()
	does := "is rejecting"
	if s.Observes() {
		does = "would reject"
	}
	end, arrivals := s.end(), s.Lately.Arrivals
	switch share := rejected / math.Max(rejected, arrivals); {
	case s.PausedSeconds > 0:
		return Bad, fmt.Sprintf("%s %s nearly all requests for another %s because the backend asked for a pause%s.", s.Name, does, long(seconds(s.PausedSeconds)), end)
	case rejected > 0:
		level, cause := Warn, "of "+reason
		if share > 0.5 {
			level = Bad
		}
		if say := causes[reason]; say != nil {
			cause = say(s)
		}
		return level, fmt.Sprintf("%s %s %s%s because %s%s.", s.Name, does, perSecond(rejected), percent(share), cause, end)
	case end != "" && arrivals == 0:
		return Warn, fmt.Sprintf("%s is receiving no requests%s.", s.Name, end)
	case end != "":
		return Warn, fmt.Sprintf("%s is admitting all requests (%s)%s.", s.Name, perSecond(arrivals), end)
	case arrivals > 0:
		return Good, fmt.Sprintf("%s is admitting all requests (%s).", s.Name, perSecond(arrivals))
	}
	return Good, fmt.Sprintf("%s is receiving no requests.", s.Name)
}

// end says when the backlog will clear, after what was said before.
func (s *Situation) end() string {
	w := s.Waiting
	if w == nil {
		return ""
	}
	many := chart.Number(math.Round(w.Clients))
	switch few := s.Line.FewClients; {
	case w.Over < 0:
		return fmt.Sprintf("; the backlog of about %s clients has no end in sight", many)
	case w.Clients == 1:
		return fmt.Sprintf("; the last rejected client is due back in %s", long(seconds(w.Over)))
	case few > 0 && few < s.Line.Promised: // each hammers, or is many behind one address
		by := "a single client"
		if few > 1 {
			by = fmt.Sprintf("%d clients", few)
		}
		return fmt.Sprintf("; the backlog of about %s appointments held by %s will clear in %s", many, by, long(seconds(w.Over)))
	}
	return fmt.Sprintf("; the backlog of about %s clients will clear in %s", many, long(seconds(w.Over)))
}

func seconds(v float64) time.Duration { return time.Duration(v * float64(time.Second)) }

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
		return " (less than 1%)"
	}
	return fmt.Sprintf(" (%.0f%%)", 100*share)
}

// String writes a rate as configs do, without its burst.
func (r *RateLimit) String() string {
	per := map[string]string{"1s": "s", "1m0s": "min", "1h0m0s": "h", "24h0m0s": "day", "720h0m0s": "month"}[r.Per]
	return strings.TrimSpace(chart.Number(r.Rate)+" "+r.Unit) + "/" + cmp.Or(per, r.Per)
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
