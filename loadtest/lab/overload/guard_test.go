package overload

import (
	"flag"
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/herdshield/shield"
	"github.com/herdshield/shield/loadshed"
)

var table = flag.Bool("table", false, "print the tables")

// threeClasses is what comes in TestClasses: a tenth is critical, six tenths can be
// shed.
func threeClasses(rate Steps, lasts float64) Scenario {
	s := eight(rate, lasts, time.Second)
	s.Routes = []Route{
		{Share: .1, Service: Exponential(50 * ms), Class: loadshed.Critical},
		{Share: .3, Service: Exponential(50 * ms), Class: loadshed.Default},
		{Share: .6, Service: Exponential(50 * ms), Class: loadshed.Sheddable},
	}
	return s
}

// At four times the capacity critical requests are served as if there were none,
// the sheddable ones go first, and they are back as soon as there is room.
func TestClasses(t *testing.T) {
	if raceEnabled {
		t.Skip("needs a build without the race detector: a run is one goroutine, and ten times slower with it")
	}
	build := Guard(shield.Config{
		Adaptive: &loadshed.AdaptiveConfig{},
		Classes:  []loadshed.Class{{Name: loadshed.Critical}, {Name: loadshed.Default}, {Name: loadshed.Sheddable}},
	})
	for _, seed := range Seeds {
		r := Run(threeClasses(steps(0, 80, 60, 640, 180, 80), 240), build, seed)
		over := r.Between(60, 180)
		served := func(s Stats, class string) float64 {
			n := s.ByClass[class]
			return 100 * float64(n.Good) / float64(n.Good+n.Refused)
		}
		critical, normal, sheddable := served(over, loadshed.Critical), served(over, loadshed.Default), served(over, loadshed.Sheddable)
		after := served(r.Between(190, 240), loadshed.Sheddable)
		t.Logf("seed %d: critical %.2f %%, default %.1f %%, sheddable %.1f %%, afterwards %.1f %%; goodput %.1f %%", seed, critical, normal, sheddable, after, over.Goodput())
		if critical < 99.9 {
			t.Errorf("seed %d: %.2f %% of the critical requests were served, want 99.9 %%", seed, critical)
		}
		if sheddable > normal/2 {
			t.Errorf("seed %d: %.1f %% of the sheddable requests and %.1f %% of the others were served", seed, sheddable, normal)
		}
		if after < 99.5 {
			t.Errorf("seed %d: %.1f %% of the sheddable requests were served 10 s after the overload", seed, after)
		}
		if over.Goodput() < 93 {
			t.Errorf("seed %d: goodput %.1f %% of capacity", seed, over.Goodput())
		}
	}
}

// A backend that answers 503 with Retry-After: 5 gets nothing but probes for 5 s,
// and then never more than it can do.
func TestBackendAsksToBeLeftAlone(t *testing.T) {
	for _, seed := range Seeds {
		s := eight(steps(0, 128), 150, 2*time.Second)
		s.Plant.Outage, s.Plant.Refuses, s.Plant.RetryAfter = [2]time.Duration{at(60), at(65)}, true, 5*time.Second
		s.Attempts, s.Honours = 20, true
		s.Backoff = func(int, *rand.Rand) time.Duration { return time.Second }
		r := ours.Run(s, seed)
		probes := r.Between(61, 65).Admitted
		most := 0
		for i := 65; i < 150; i++ {
			most = max(most, r.Seconds[i].Admitted)
		}
		back := r.Between(75, 150)
		t.Logf("seed %d: %d probes in 4 s, at most %d admitted in a second of %g; goodput %.1f %% of what came; recovered after %d s", seed, probes, most, s.Capacity, 100*float64(back.Good)/float64(back.Offered), r.Recovered(65))
		if probes > 5 {
			t.Errorf("seed %d: %d requests in 4 s of the pause", seed, probes)
		}
		// Random times of service: three standard deviations of a Poisson process.
		if float64(most) > s.Capacity+3*math.Sqrt(s.Capacity) {
			t.Errorf("seed %d: %d requests admitted in one second, of %g that the backend can do", seed, most, s.Capacity)
		}
		if n := r.Recovered(65); n < 0 || n > 30 {
			t.Errorf("seed %d: recovered after %d s", seed, n)
		}
	}
}
