package oncall

import (
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/herdshield/shield"
	"github.com/herdshield/shield/loadshed"
)

// cut is a limit that was cut for latency, or for another reason, some seconds ago.
func cut(reason loadshed.Reason, ago, latency, baseline float64) *Search {
	return &Search{By: "adaptive", Last: &Change{SecondsAgo: ago, Reason: reason.String(), From: 31, To: 18, LatencySeconds: latency, BaselineSeconds: baseline}}
}

func TestSentence(t *testing.T) {
	full := func(rejects float64, search *Search) Situation {
		return Situation{Facts: &Facts{Lately: &Lately{Arrivals: 100, Rejected: map[string]float64{"concurrency": rejects}}, Concurrency: 18, Search: search}}
	}
	for _, c := range []struct {
		is    Situation
		level Level
		want  string
	}{
		{Situation{Facts: &Facts{Lately: &Lately{}}}, Good, "api is receiving no requests."},
		{Situation{Facts: &Facts{Lately: &Lately{Arrivals: 89.4}}}, Good, "api is admitting all requests (89 requests/s)."},
		{Situation{Facts: &Facts{Lately: &Lately{Arrivals: 0.01}}}, Good, "api is admitting all requests (0.6 requests/min)."},
		{
			Situation{Facts: &Facts{Lately: &Lately{Arrivals: 184, Rejected: map[string]float64{"capacity": 80, "early": 4}}, Capacity: &RateLimit{Rate: 100, Per: "1s"}, Line: &Line{BacklogSeconds: 12.3, Promised: 1193, Spare: 97}}},
			Warn, "api is rejecting 84 requests/s (46%) because the backend's capacity of 100/s is used up; the backlog of about 1,193 clients will clear in 13 s.",
		},
		{
			Situation{Facts: &Facts{Lately: &Lately{Arrivals: 184, Rejected: map[string]float64{"capacity": 1, "early": 150}}, Capacity: &RateLimit{Rate: 6000, Per: "1m0s"}, Line: &Line{BacklogSeconds: 30, Promised: 300, Deferred: 1000, Spare: 10}}},
			Bad, "api is rejecting 151 requests/s (82%) because the backend's capacity of 6,000/min is used up; the backlog of about 1,300 clients will clear in 2 min 10 s.",
		},
		{
			Situation{Facts: &Facts{Lately: &Lately{Arrivals: 2, Rejected: map[string]float64{"capacity": 2}}, Capacity: &RateLimit{Rate: 5, Per: "2s"}, Line: &Line{Deferred: 3}}},
			Bad, "api is rejecting 2 requests/s (all) because the backend's capacity of 5/2s is used up; the backlog of about 3 clients has no end in sight.",
		},
		{full(30, cut(loadshed.Congested, 3, 0.655, 0.096)), Warn, "api is rejecting 30 requests/s (30%) because the backend is at its in-flight limit of 18, lowered when latency rose from 96 ms to 655 ms."},
		{full(0.5, cut(loadshed.Congested, 3, 0, 0)), Warn, "api is rejecting 0.5 requests/s (less than 1%) because the backend is at its in-flight limit of 18."},
		// Its latency has not risen, or that was long ago, or a probe has lowered the limit: nothing is said of it.
		{full(30, cut(loadshed.Congested, 3, 0.09, 0.096)), Warn, "api is rejecting 30 requests/s (30%) because the backend is at its in-flight limit of 18."},
		{full(30, cut(loadshed.Congested, 60, 0.655, 0.096)), Warn, "api is rejecting 30 requests/s (30%) because the backend is at its in-flight limit of 18."},
		{full(30, cut(loadshed.Probed, 1, 0.655, 0.096)), Warn, "api is rejecting 30 requests/s (30%) because the backend is at its in-flight limit of 18."},
		{Situation{Facts: &Facts{Lately: &Lately{Arrivals: 10, Rejected: map[string]float64{"early": 3}}}}, Warn, "api is rejecting 3 requests/s (30%) because clients are retrying before their appointment."},
		{Situation{Facts: &Facts{Lately: &Lately{Arrivals: 10, Rejected: map[string]float64{"quota": 3, "per_client": 1}}}}, Warn, "api is rejecting 4 requests/s (40%) because some clients are over their quota."},
		{Situation{Facts: &Facts{Lately: &Lately{Arrivals: 10, Rejected: map[string]float64{"per_client": 1}}}}, Warn, "api is rejecting 1 request/s (10%) because some clients have too many requests in flight."},
		{Situation{Facts: &Facts{Lately: &Lately{Arrivals: 10, Rejected: map[string]float64{"blocked": 2}}}}, Warn, "api is rejecting 2 requests/s (20%) because their clients are blocked."},
		{Situation{Facts: &Facts{Lately: &Lately{Arrivals: 10, Rejected: map[string]float64{"retry_budget": 2}}}}, Warn, "api is rejecting 2 requests/s (20%) because the retry budget is used up."},
		{Situation{Facts: &Facts{Lately: &Lately{Arrivals: 10, Rejected: map[string]float64{"new": 2}}}}, Warn, "api is rejecting 2 requests/s (20%) because of new."},
		{
			Situation{Mode: "observe", Facts: &Facts{Lately: &Lately{Arrivals: 10, Observed: map[string]float64{"quota": 3}}}},
			Warn, "api would reject 3 requests/s (30%) because some clients are over their quota.",
		},
		{
			Situation{Facts: &Facts{Lately: &Lately{Arrivals: 10, Rejected: map[string]float64{"pause": 9}}, PausedSeconds: 4.21}},
			Bad, "api is rejecting nearly all requests for another 5 s because the backend asked for a pause.",
		},
		{
			Situation{Facts: &Facts{Lately: &Lately{Arrivals: 60}, Line: &Line{BacklogSeconds: 200, Promised: 8000, Spare: 40}}},
			Warn, "api is admitting all requests (60 requests/s); the backlog of about 8,000 clients will clear in 3 min 20 s.",
		},
		{Situation{Facts: &Facts{Lately: &Lately{Arrivals: 60}, Line: &Line{BacklogSeconds: 12.9, Promised: 6, Spare: 500}}}, Warn, "api is admitting all requests (60 requests/s); the backlog of about 6 clients will clear in 13 s."},
		{Situation{Facts: &Facts{Lately: &Lately{Arrivals: 60}, Line: &Line{BacklogSeconds: 12.9, Spare: 500}}}, Good, "api is admitting all requests (60 requests/s)."},
		{
			Situation{Facts: &Facts{Lately: &Lately{Arrivals: 90, Rejected: map[string]float64{"capacity": 80}}, Capacity: &RateLimit{Rate: 10, Per: "1s"}, Line: &Line{BacklogSeconds: 18.3, Promised: 170, FewClients: 1}}},
			Bad, "api is rejecting 80 requests/s (89%) because the backend's capacity of 10/s is used up; the backlog of about 170 appointments held by a single client will clear in 19 s.",
		},
		{Situation{Facts: &Facts{Lately: &Lately{Arrivals: 90}, Line: &Line{BacklogSeconds: 18, Promised: 170, FewClients: 3}}}, Warn, "api is admitting all requests (90 requests/s); the backlog of about 170 appointments held by 3 clients will clear in 18 s."},
		{Situation{Facts: &Facts{Lately: &Lately{Arrivals: 90}, Line: &Line{BacklogSeconds: 18, Promised: 3, FewClients: 3}}}, Warn, "api is admitting all requests (90 requests/s); the backlog of about 3 clients will clear in 18 s."},
		{Situation{Facts: &Facts{Lately: &Lately{}, Line: &Line{BacklogSeconds: 3, Promised: 30, Spare: 10}}}, Warn, "api is receiving no requests; the backlog of about 30 clients will clear in 3 s."},
		{Situation{Facts: &Facts{Lately: &Lately{Arrivals: 60}, Line: &Line{BacklogSeconds: 1, Promised: 1, Spare: 0.1}}}, Warn, "api is admitting all requests (60 requests/s); the last rejected client is due back in 1 s."},
		{Situation{Facts: &Facts{Lately: &Lately{Arrivals: 60}, Line: &Line{BacklogSeconds: 180, Promised: 1800, Spare: 10}}}, Warn, "api is admitting all requests (60 requests/s); the backlog of about 1,800 clients will clear in 3 min."},
	} {
		c.is.Name = "api"
		if c.is.Say(); c.is.Level != c.level || c.is.Says != c.want {
			t.Errorf("%+v:\n%s %s; want\n%s %s", c.is.Facts, c.is.Level, c.is.Says, c.level, c.want)
		}
	}
}

func TestTime(t *testing.T) {
	for d, want := range map[time.Duration]string{time.Millisecond: "1 ms", 1840 * time.Millisecond: "1.8 s", 83 * time.Second: "83 s", time.Hour: "60 min"} {
		if got := Time(d); got != want {
			t.Errorf("%v is %s; want %s", d, got, want)
		}
	}
}

// The sentence has a cause for each Reason, the page a colour, and docs/on-call/incident.md a row, as the sentence says it.
func TestCausesInDocs(t *testing.T) {
	page, err := os.ReadFile("../docs/on-call/incident.md")
	if err != nil {
		t.Fatal(err)
	}
	colors := regexp.MustCompile(`COLORS = \{.*?\}`).FindString(pageJS)
	is := &Situation{Facts: &Facts{Capacity: &RateLimit{Rate: 100, Per: "1s"}, Concurrency: 18}}
	for _, r := range shield.Reasons {
		if causes[r.String()] == nil || !strings.Contains(colors, " "+r.String()+":") {
			t.Errorf("%v has no cause in the sentence, or no colour in %s", r, colors)
			continue
		}
		said := regexp.MustCompile(`\d+(/s)?`).ReplaceAllString(causes[r.String()](is), "…")
		if !strings.Contains(string(page), "\n| "+said+" |") {
			t.Errorf("for %v the sentence says %q; the page has no row of that", r, said)
		}
	}
}
