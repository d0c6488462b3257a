// Package edge finds the smallest push after which a service does not come back. A service that
// serves all it is asked for in calm may stay down when a push is over, as the retries of clients
// that have waited in vain keep it full: a metastable failure (Bronson and others, HotOS 2021;
// Huang and others, OSDI 2022).
//
// A [Push] is so many times slower a backend, or so many times more arrivals, for a time. [Find]
// plays pushes in virtual time, by loadtest/sim. For each length of 1 to 64 s it tries 2, 4, 8 and
// 16 times, and then bisects between the smallest of these from which the service does not come
// back, and the one below. That assumes that a larger push is not better. Where chance makes one better,
// the pushes that were tried show it: they are in the JSON.
package edge

import (
	"fmt"
	"math"
	"time"

	"github.com/herdshield/shield/loadtest/plant"
	"github.com/herdshield/shield/loadtest/sim"
)

// Bounds of the search. Ours.
const (
	// Deepest and Longest are the largest push.
	Deepest = 16
	Longest = 64 * time.Second

	// Within is how long after a push a service has to come back.
	Within = time.Minute

	// Enough is the least goodput of a service that is back, of one request per first attempt. Its
	// queue may grow by chance while it is looked at, so it is less than 1.
	Enough = 0.9

	// seeds is how many runs have to come back, as chance decides near the edge.
	seeds = 3

	// steps halve what is between two powers of 2: to 9%.
	steps = 3
)

// Watch is how long the goodput of a service is looked at that is asked for so many requests a second:
// half a minute, or 1,000 requests, of which chance takes about 3%.
func Watch(asked float64) time.Duration {
	return max(30*time.Second, time.Duration(math.Ceil(1000/asked))*time.Second)
}

// A Kind is what a push does.
type Kind string

const (
	Slower Kind = "slower backend"
	More   Kind = "more arrivals"
)

// A Push makes a backend Depth times as slow for Length, or Depth times as many new clients come.
type Push struct {
	Depth  float64       `json:"depth"`
	Length time.Duration `json:"length_ns"`
}

func (p Push) String() string { return times(p.Depth) + " for " + seconds(p.Length) }

// A Trial is a push, and what came of it.
type Trial struct {
	Push
	Goodput float64 `json:"goodput"` // from a minute after it on; of several runs the least
	Back    bool    `json:"back"`
}

// An Edge is what was tried with one Kind of push, the shortest first.
type Edge struct {
	Kind     Kind    `json:"push"`
	Smallest []Push  `json:"smallest_lost"` // of each length for which there is one
	Tried    []Trial `json:"tried"`
}

// A Service is what was found out about one server. Without Edges it is lost in calm.
type Service struct {
	Name  string   `json:"name"`
	Notes []string `json:"notes"`
	Calm  float64  `json:"calm_goodput"` // without a push; of several runs the least
	Edges []Edge   `json:"edges"`
}

// Find plays pushes against the Server that maker makes, and calls tried after each. The Scenario has a
// Plant and new clients at a constant rate, and no herd.
func Find(s sim.Scenario, maker sim.Maker, tried func()) (Service, error) {
	calm, err := goodput(s, maker, Slower, Push{1, Longest})
	found := Service{Name: s.Name, Calm: calm, Edges: []Edge{}}
	if err != nil || calm < Enough {
		return found, err
	}
	for _, kind := range []Kind{Slower, More} {
		e, err := search(kind, func(p Push) (float64, error) {
			defer tried()
			return goodput(s, maker, kind, p)
		})
		if err != nil {
			return found, err
		}
		found.Edges = append(found.Edges, e)
	}
	return found, nil
}

// search tries pushes, by the goodput after them.
func search(kind Kind, after func(Push) (float64, error)) (Edge, error) {
	e := Edge{Kind: kind, Smallest: []Push{}}
	try := func(p Push) (back bool, err error) {
		g, err := after(p)
		e.Tried = append(e.Tried, Trial{p, g, g >= Enough})
		return g >= Enough, err
	}
	for _, length := range lengths() {
		lost := math.Inf(1)
		for depth := 2.; depth <= Deepest; depth *= 2 {
			back, err := try(Push{depth, length})
			if err != nil {
				return e, err
			}
			if !back {
				lost = min(lost, depth)
			}
		}
		if lost > Deepest {
			continue
		}
		for i, good := 0, lost/2; i < steps; i++ {
			depth := math.Round(100*math.Sqrt(good*lost)) / 100
			back, err := try(Push{depth, length})
			if err != nil {
				return e, err
			}
			if back {
				good = depth
			} else {
				lost = depth
			}
		}
		e.Smallest = append(e.Smallest, Push{lost, length})
	}
	return e, nil
}

// goodput is the least of several runs, or of those up to the first that is not back.
func goodput(s sim.Scenario, maker sim.Maker, kind Kind, p Push) (float64, error) {
	least := math.Inf(1)
	for range seeds {
		g, err := Play(s, maker, kind, p, Within, Watch(s.Background))
		if err != nil {
			return 0, err
		}
		if least = min(least, g); least < Enough {
			break
		}
		s.Seed++
	}
	return least, nil
}

// Play plays a push once, with the Scenario's Seed, and returns the Goodput from within after it on. It looks
// at that for as long as watch.
func Play(s sim.Scenario, maker sim.Maker, kind Kind, p Push, within, watch time.Duration) (float64, error) {
	s.Bin, s.Until = time.Second, p.Length+within+watch
	backend := *s.Plant
	s.Plant = &backend
	switch kind {
	case Slower:
		backend.Slow = plant.Steps{{From: 0, Value: p.Depth}, {From: p.Length, Value: 1}}
	case More:
		s.Rates = plant.Steps{{From: 0, Value: p.Depth * s.Background}, {From: p.Length, Value: s.Background}}
	}
	r, err := sim.Run(s, maker)
	switch {
	case err != nil:
		return 0, err
	case s.MaxRequests > 0 && r.Decided >= s.MaxRequests:
		return 0, fmt.Errorf("a run with %s, %v, ends after %d requests; raise --requests", kind, p, s.MaxRequests)
	}
	return Goodput(r.Series, s.Warmup+s.Until, watch), nil
}

// Goodput returns how many requests are answered in time for each first attempt, in the last so many of a run's
// seconds until its end.
func Goodput(seconds []sim.Bin, end, watch time.Duration) float64 {
	asked, answered := 0, 0
	last := min(int(end/time.Second), len(seconds))
	for _, b := range seconds[max(0, last-int(watch/time.Second)):last] {
		asked += int(b.NewClients.Came - b.Retries)
		answered += int(b.Served)
	}
	return float64(answered) / float64(max(1, asked))
}
