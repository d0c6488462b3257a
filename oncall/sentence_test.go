package oncall

import (
	"testing"
	"time"
)

func TestSentence(t *testing.T) {
	for _, c := range []struct {
		is    Situation
		level Level
		want  string
	}{
		{Situation{}, Good, "api gets no requests."},
		{Situation{Arrivals: 89.4}, Good, "api admits all requests, 89 requests/s."},
		{Situation{Arrivals: 0.01}, Good, "api admits all requests, 0.6 requests/min."},
		{
			Situation{Arrivals: 184, Refused: map[string]float64{"capacity": 80, "early": 4}, Capacity: 100, Spare: 97, Backlog: 12_300 * time.Millisecond, Promised: 1193},
			Warn, "api refuses 84 requests/s (46 %), because the backend's capacity of 100/s is used up; the backlog of about 1,193 clients will be over in 13 s.",
		},
		{
			Situation{Arrivals: 184, Refused: map[string]float64{"capacity": 1, "early": 150}, Capacity: 6000, Per: time.Minute, Spare: 10, Backlog: 30 * time.Second, Promised: 300, Deferred: 1000},
			Bad, "api refuses 151 requests/s (82 %), because the backend's capacity of 6,000/min is used up; the backlog of about 1,300 clients will be over in 2 min 10 s.",
		},
		{
			Situation{Arrivals: 2, Refused: map[string]float64{"capacity": 2}, Capacity: 5, Per: 2 * time.Second, Deferred: 3},
			Bad, "api refuses 2 requests/s (all), because the backend's capacity of 5/2s is used up; the backlog of about 3 clients has no end in sight.",
		},
		{
			Situation{Arrivals: 100, Refused: map[string]float64{"concurrency": 30}, Limit: 18, Cut: &LimitCut{31, 18, 655 * time.Millisecond, 96 * time.Millisecond}},
			Warn, "api refuses 30 requests/s (30 %), because the backend is full, with a limit of 18 in flight since its latency rose from 96 ms to 655 ms.",
		},
		{
			Situation{Arrivals: 100, Refused: map[string]float64{"concurrency": 0.5}, Limit: 18, Cut: &LimitCut{20, 18, 0, 0}},
			Warn, "api refuses 0.5 requests/s (less than 1 %), because the backend is full, with a limit of 18 in flight.",
		},
		{Situation{Arrivals: 10, Refused: map[string]float64{"early": 3}}, Warn, "api refuses 3 requests/s (30 %), because their clients come before the time that they were told."},
		{Situation{Arrivals: 10, Refused: map[string]float64{"quota": 3, "per_client": 1}}, Warn, "api refuses 4 requests/s (40 %), because single clients are over their own quota."},
		{Situation{Arrivals: 10, Refused: map[string]float64{"per_client": 1}}, Warn, "api refuses 1 request/s (10 %), because single clients have too much in flight."},
		{Situation{Arrivals: 10, Refused: map[string]float64{"blocked": 2}}, Warn, "api refuses 2 requests/s (20 %), because an operator has blocked their clients."},
		{Situation{Arrivals: 10, Refused: map[string]float64{"retry_budget": 2}}, Warn, "api refuses 2 requests/s (20 %), because they are more retries than the backend can serve."},
		{Situation{Arrivals: 10, Refused: map[string]float64{"new": 2}}, Warn, "api refuses 2 requests/s (20 %), because of new."},
		{
			Situation{Arrivals: 10, Observe: true, Refused: map[string]float64{"quota": 3}},
			Warn, "api would refuse 3 requests/s (30 %), because single clients are over their own quota.",
		},
		{
			Situation{Arrivals: 10, Refused: map[string]float64{"pause": 9}, Paused: 4210 * time.Millisecond},
			Bad, "api refuses nearly all requests for another 5 s, because the backend has asked to be left alone.",
		},
		{
			Situation{Arrivals: 60, Spare: 40, Backlog: 200 * time.Second, Promised: 8000},
			Warn, "api admits all requests, 60 requests/s; the backlog of about 8,000 clients will be over in 3 min 20 s.",
		},
		{Situation{Arrivals: 60, Spare: 500, Backlog: 12_900 * time.Millisecond, Promised: 6}, Warn, "api admits all requests, 60 requests/s; the backlog of about 6 clients will be over in 13 s."},
		{Situation{Arrivals: 60, Spare: 500, Backlog: 12_900 * time.Millisecond}, Good, "api admits all requests, 60 requests/s."},
		{
			Situation{Arrivals: 90, Refused: map[string]float64{"capacity": 80}, Capacity: 10, Backlog: 18_300 * time.Millisecond, Promised: 170, Few: 1},
			Bad, "api refuses 80 requests/s (89 %), because the backend's capacity of 10/s is used up; the backlog of about 170 appointments of a single client will be over in 19 s.",
		},
		{Situation{Arrivals: 90, Backlog: 18 * time.Second, Promised: 170, Few: 3}, Warn, "api admits all requests, 90 requests/s; the backlog of about 170 appointments of 3 clients will be over in 18 s."},
		{Situation{Arrivals: 90, Backlog: 18 * time.Second, Promised: 3, Few: 3}, Warn, "api admits all requests, 90 requests/s; the backlog of about 3 clients will be over in 18 s."},
		{Situation{Spare: 10, Backlog: 3 * time.Second, Promised: 30}, Warn, "api gets no requests; the backlog of about 30 clients will be over in 3 s."},
		{Situation{Arrivals: 60, Spare: 0.1, Backlog: time.Second, Promised: 1}, Warn, "api admits all requests, 60 requests/s; the last refused client comes back in 1 s."},
		{Situation{Arrivals: 60, Spare: 10, Backlog: 180 * time.Second, Promised: 1800}, Warn, "api admits all requests, 60 requests/s; the backlog of about 1,800 clients will be over in 3 min."},
	} {
		c.is.Shield = "api"
		if level, got := c.is.Sentence(); level != c.level || got != c.want {
			t.Errorf("%+v:\n%s %s; want\n%s %s", c.is, level, got, c.level, c.want)
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
