package edge

import (
	"bytes"
	"encoding/json"
	"errors"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/herdshield/shield"
	"github.com/herdshield/shield/loadshed"
	"github.com/herdshield/shield/loadtest/clients"
	"github.com/herdshield/shield/loadtest/plant"
	"github.com/herdshield/shield/loadtest/sim"
)

// A service of 5 requests per second, whose clients wait for 15 s and try four times at once.
func service(t *testing.T, load float64, c shield.Config) sim.Scenario {
	t.Helper()
	mix, err := clients.Parse("fixed@0s*4")
	if err != nil {
		t.Fatal(err)
	}
	return sim.Scenario{
		Seed: 1, Mix: mix, Background: load * 5, Warmup: time.Minute, Delay: 10 * time.Millisecond, Timeout: 15 * time.Second,
		Service: sim.Service{Mean: 400 * time.Millisecond, Exponential: true}, Plant: &plant.Config{Workers: 2}, Config: c,
	}
}

// What is overloaded without a push has no edge: it is lost in calm.
func TestLostInCalm(t *testing.T) {
	t.Parallel()
	found, err := Find(service(t, 1.3, shield.Config{}), nil, func() {})
	if err != nil || found.Calm > 0.2 || len(found.Edges) > 0 || !strings.Contains(found.summary(Slower), "lost in calm: without a push, 0.0% of what is asked") {
		t.Errorf("found %+v (%v); want nothing but a low goodput in calm", found, err)
	}
}

func TestRunsMayBeTooShort(t *testing.T) {
	s := service(t, 0.5, shield.Config{})
	s.MaxRequests = 100
	if _, err := Find(s, nil, func() {}); err == nil || !strings.Contains(err.Error(), "ends after 100 requests; raise --requests") {
		t.Errorf("error is %v; want that the runs are too short", err)
	}
}

// searched is the search of a service that is back from a push if back says so.
func searched(t *testing.T, kind Kind, back func(Push) bool) Edge {
	t.Helper()
	e, err := search(kind, func(p Push) (float64, error) {
		if back(p) {
			return 1, nil
		}
		return 0.5, nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return e
}

// work is back from what would have taken less than 20 s more than it had.
func work(p Push) bool { return (p.Depth-1)*p.Length.Seconds() < 20 }

// odd is lost after pushes of 2 to 3 times for 8 s or more, and back from all others.
func odd(p Push) bool { return p.Depth < 2 || p.Depth > 3 || p.Length < 8*time.Second }

func TestSearch(t *testing.T) {
	t.Parallel()
	e := searched(t, Slower, work)
	for _, p := range e.Smallest {
		if want := 1 + 20/p.Length.Seconds(); p.Depth < want || p.Depth > 1.1*want {
			t.Errorf("the edge for %v is at %v; want it within 10%% above %v", p.Length, p.Depth, want)
		}
	}
	if n := len(e.Smallest); n != 6 { // for 1 s, 21 times is beyond the range
		t.Errorf("there are edges for %d lengths; want 6", n)
	}
	if all := searched(t, More, func(Push) bool { return true }); len(all.Smallest) > 0 || len(all.Tried) != 28 {
		t.Errorf("edges are %v after %d pushes; want none after 28", all.Smallest, len(all.Tried))
	}
}

func TestReport(t *testing.T) {
	t.Parallel()
	r := &Report{Capacity: 100, Asked: 90, Policies: "exact", Services: []Service{
		{Name: "none", Calm: 1, Notes: []string{"no limit"}, Edges: []Edge{searched(t, Slower, work), searched(t, More, odd)}},
		{Name: "shop", Calm: 0.99, Edges: []Edge{searched(t, Slower, func(Push) bool { return true }), searched(t, More, func(p Push) bool { return p.Depth < 16 || p.Length < Longest })}},
		{Name: "small", Calm: 0.4567, Edges: []Edge{}},
	}}
	var text, js bytes.Buffer
	if err := errors.Join(r.WriteTable(&text), r.WriteJSON(&js)); err != nil {
		t.Fatal(err)
	}
	const want = `slower backend for             none       shop          small
1 s                        ········   ········   lost in calm
2 s                  11.3x ·······█   ········   lost in calm
4 s                  6.17x ·····███   ········   lost in calm
8 s                  3.67x ····████   ········   lost in calm
16 s                 2.38x ···█████   ········   lost in calm
32 s                 1.68x ·███████   ········   lost in calm
64 s                 1.41x ·███████   ········   lost in calm

more arrivals for          none           shop          small
1 s                    ········       ········   lost in calm
2 s                    ········       ········   lost in calm
4 s                    ········       ········   lost in calm
8 s                 2x ··██████       ········   lost in calm
16 s                2x ··██████       ········   lost in calm
32 s                2x ··██████       ········   lost in calm
64 s                2x ··██████   16x ·······█   lost in calm

none: no limit
none, slower backend: does not come back from 11.3x for 2 s, nor from 1.41x for 64 s
none, more arrivals: does not come back from 2x for 8 s
shop, slower backend: comes back from everything up to 16x for 64 s
shop, more arrivals: does not come back from 16x for 64 s
small: lost in calm: without a push, 45.7% of what is asked is answered in time; 90% is enough
`
	if text.String() != want {
		t.Errorf("text is\n%s\nwant\n%s", &text, want)
	}
	var back Report
	if err := json.Unmarshal(js.Bytes(), &back); err != nil || !reflect.DeepEqual(&back, r) {
		t.Errorf("read again (%v), the JSON is\n%+v\nwant\n%+v", err, back, r)
	}
	for _, part := range []string{`"asked_per_second":90`, `"push":"more arrivals"`, `"smallest_lost":[{"depth":16,"length_ns":64000000000}]`, `"goodput":0.5,"back":false`} {
		if !strings.Contains(js.String(), part) {
			t.Errorf("the JSON has no %s", part)
		}
	}
}

// With an adaptive limit a service comes back from the largest push, however short its clients' patience is. With these seeds the
// limit once followed the slow backend to 700, so that all clients had gone before they were served, for ever.
func TestAnAdaptiveLimitComesBack(t *testing.T) {
	for _, b := range []struct {
		policy   string
		patience time.Duration
		seed     uint64
		workers  int
		mean     time.Duration
		asked    float64
	}{
		{"fixed@0s*4", time.Second, 0, 2, 20 * time.Millisecond, 80}, {"fixed@0s*4", time.Second, 3, 10, 100 * time.Millisecond, 80},
		{"fixed@0s*4", time.Second, 5, 4, 50 * time.Millisecond, 60}, {"exact", 2 * time.Second, 11, 2, 20 * time.Millisecond, 80},
	} {
		mix, err := clients.Parse(b.policy)
		if err != nil {
			t.Fatal(err)
		}
		s := sim.Scenario{
			Seed: b.seed, Mix: mix, Background: b.asked, Warmup: 30 * time.Second, Timeout: b.patience,
			Config:  shield.Config{Adaptive: &loadshed.AdaptiveConfig{}},
			Service: sim.Service{Mean: b.mean, Exponential: true}, Plant: &plant.Config{Workers: b.workers},
		}
		g, err := Play(s, sim.Guard, Slower, Push{Deepest, Longest}, Within, Watch(b.asked))
		if err != nil || g < Enough {
			t.Errorf("%d workers, %v: goodput %.3f, %v; want %v", b.workers, b.mean, g, err, Enough)
		}
	}
}
