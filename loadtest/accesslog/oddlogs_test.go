package accesslog

import (
	"bytes"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"
)

// broken answers 502 to a part of the events from begin to end, at any load.
func broken(events []event, part float64, begin, end time.Duration) []event {
	random := rand.New(rand.NewPCG(2, 7))
	for i := range events {
		if at := events[i].at; at >= begin && at < end && random.Float64() < part {
			events[i].status = 502
		}
	}
	return events
}

// moved is events, later by a time.
func moved(events []event, by time.Duration) []event {
	later := slices.Clone(events)
	for i := range later {
		later[i].at += by
	}
	return later
}

func table(t testing.TB, e *Estimate) string {
	t.Helper()
	var b bytes.Buffer
	if err := e.WriteTable(&b); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

// limited answers 503 to events above a token bucket's rate.
func limited(events []event, rate, burst float64) []event {
	slices.SortFunc(events, func(a, b event) int { return int(a.at - b.at) })
	tokens, last := burst, time.Duration(0)
	for i := range events {
		tokens = min(burst, tokens+rate*(events[i].at-last).Seconds())
		last = events[i].at
		if tokens >= 1 {
			tokens--
		} else {
			events[i].status, events[i].took = 503, time.Millisecond
		}
	}
	return events
}

// A backend was full only if it rejected a larger share under more load, for a while, all the time, or by a little, and has not served
// more at other times. A broken page, or an outage, is something else.
func TestFull(t *testing.T) {
	steady := func(rate float64, minutes int) []event {
		return steadyTraffic(rate, time.Duration(minutes)*time.Minute, 50*time.Millisecond, 500)
	}
	peak := func(rate float64, minutes int) []event {
		return append(steady(30, 30), moved(steady(rate, minutes), 10*time.Minute)...)
	}
	night := func() []event { return steady(10, 20) }
	day := moved(steady(60, 20), 20*time.Minute)
	for name, c := range map[string]struct {
		events []event
		full   float64
	}{
		"a peak of ten minutes":              {limited(peak(60, 10), 60, 20), 60},
		"a peak of two minutes":              {limited(peak(60, 2), 60, 20), 60},
		"all the time":                       {limited(steady(80, 20), 60, 20), 60},
		"twice as many":                      {limited(steady(120, 20), 60, 5), 60},
		"a little too many":                  {limited(peak(40, 10), 60, 5), 60},
		"a broken page, and more without it": {append(broken(night(), 0.1, 0, time.Hour), day...), 0},
		"a broken page all the time":         {broken(steady(60, 20), 0.1, 0, time.Hour), 0},
		"a broken page, by day and by night": {broken(append(night(), day...), 0.1, 0, time.Hour), 0},
		"an outage of ten minutes":           {broken(steady(60, 20), 1, 5*time.Minute, 15*time.Minute), 0},
		"a third for five minutes":           {broken(steady(30, 20), 0.33, 5*time.Minute, 10*time.Minute), 0},
	} {
		e := tallied(c.events)
		within(t, name+": the capacity", e.Full, c.full, 0.05)
		if c.full > 0 && e.Full < e.Peak {
			t.Errorf("%s: %.1f per second, less than %.1f that were served", name, e.Full, e.Peak)
		}
		if shown := strings.Contains(table(t, e), "while rejecting"); shown != (c.full > 0) {
			t.Errorf("%s: the table shows a capacity: %v", name, shown)
		}
	}
}
