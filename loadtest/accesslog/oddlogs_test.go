package accesslog

import (
	"bytes"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/herdshield/shield/loadtest/clients"
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

// A backend was full only if it rejected a larger share under more load, and has not served
// more at other times.
func TestBrokenPageIsNotFull(t *testing.T) {
	quiet := steadyTraffic(10, 20*time.Minute, 50*time.Millisecond, 200)
	busy := moved(steadyTraffic(60, 20*time.Minute, 50*time.Millisecond, 200), 20*time.Minute)
	for name, events := range map[string][]event{
		"a broken page, and more without it": append(broken(quiet, 0.1, 0, time.Hour), busy...),
		"a broken page all the time":         broken(steadyTraffic(60, 20*time.Minute, 50*time.Millisecond, 200), 0.1, 0, time.Hour),
		"a broken page, by day and by night": broken(append(steadyTraffic(10, 20*time.Minute, 50*time.Millisecond, 200), busy...), 0.1, 0, time.Hour),
		"an outage of ten minutes":           broken(steadyTraffic(60, 20*time.Minute, 50*time.Millisecond, 200), 1, 5*time.Minute, 15*time.Minute),
		"a third for five minutes":           broken(steadyTraffic(30, 20*time.Minute, 50*time.Millisecond, 200), 0.33, 5*time.Minute, 10*time.Minute),
	} {
		e := tallied(events)
		if e.Full != 0 || strings.Contains(table(t, e), "while rejecting") {
			t.Errorf("%s: full at %.1f per second, most served %.1f", name, e.Full, e.Peak)
		}
	}
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

// A backend that was full is found: for a while, all the time, or by a little.
func TestFullIsFound(t *testing.T) {
	base := func() []event { return steadyTraffic(30, 30*time.Minute, 50*time.Millisecond, 500) }
	for name, events := range map[string][]event{
		"a peak of ten minutes": limited(append(base(), moved(steadyTraffic(60, 10*time.Minute, 50*time.Millisecond, 500), 10*time.Minute)...), 60, 20),
		"a peak of two minutes": limited(append(base(), moved(steadyTraffic(60, 2*time.Minute, 50*time.Millisecond, 500), 20*time.Minute)...), 60, 20),
		"all the time":          limited(steadyTraffic(80, 20*time.Minute, 50*time.Millisecond, 500), 60, 20),
		"twice as many":         limited(steadyTraffic(120, 20*time.Minute, 50*time.Millisecond, 500), 60, 5),
		"a little too many":     limited(append(base(), moved(steadyTraffic(40, 10*time.Minute, 50*time.Millisecond, 500), 10*time.Minute)...), 60, 5),
	} {
		e := tallied(events)
		within(t, name+": the capacity", e.Full, 60, 0.05)
		if e.Full < e.Peak {
			t.Errorf("%s: %.1f per second, less than %.1f that were served", name, e.Full, e.Peak)
		}
	}
}

// Lines of a quiet site are far apart, and still in order.
func TestQuietSite(t *testing.T) {
	var events []event
	for i := range 25 {
		events = append(events, event{at: time.Duration(i) * 20 * time.Minute, client: i, path: "/", status: 200})
	}
	for n, want := range map[int]time.Duration{2: 20 * time.Minute, 3: 40 * time.Minute, 25: 8 * time.Hour} {
		e := tallied(events[:n])
		if e.Span != want || e.Pieces != 1 || e.Lines.Unsorted != 0 {
			t.Errorf("%d lines: %v in %d pieces, %d out of order; want %v", n, e.Span, e.Pieces, e.Lines.Unsorted, want)
		}
	}
}

// A client whose waits are all the same is not late, even if they are longer than told.
func TestSteadyIsNotLate(t *testing.T) {
	var events []event
	random := rand.New(rand.NewPCG(6, 1))
	told := []string{"5"}
	for c := range 400 {
		at := time.Duration(c) * 2 * time.Second
		for range 6 {
			events = append(events, event{at: at, client: c, path: "/", status: 503, header: map[string][]string{"Retry-After": told}})
			if c%4 == 0 {
				at += 7*time.Second + time.Duration(random.IntN(50))*time.Millisecond
			} else {
				at += 5*time.Second + time.Duration(random.IntN(50))*time.Millisecond
			}
		}
		events = append(events, event{at: at, client: c, path: "/", status: 200})
	}
	e := tallied(events)
	within(t, "the share that honors", honor(e), 0.75, 0.01)
	if len(e.Returns) != 2 || !alike(e.Returns[1].Policy, clients.Fixed{Gap: 7 * time.Second}) {
		t.Errorf("%+v; want 25%% fixed 7 s", e.Returns)
	}
}
