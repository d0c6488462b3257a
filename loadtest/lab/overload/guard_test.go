package overload

import (
	"flag"
	"math"
	"testing"
	"time"

	"github.com/herdshield/shield"
	"github.com/herdshield/shield/loadshed"
	"github.com/herdshield/shield/loadtest/plant"
)

var table = flag.Bool("table", false, "print the tables")

// threeClasses is what comes in TestClasses: a tenth is critical, six tenths can be
// shed.
func threeClasses(rate plant.Steps, lasts float64) Scenario {
	s := eight(rate, lasts, time.Second)
	s.routes(
		route{.1, s.Service, loadshed.Critical},
		route{.3, s.Service, loadshed.Default},
		route{.6, s.Service, loadshed.Sheddable},
	)
	return s
}

// At four times the capacity critical requests are served as if there were none,
// the sheddable ones go first, and they are back as soon as there is room.
func TestClasses(t *testing.T) {
	if raceEnabled {
		t.Skip("needs a build without the race detector: a run is one goroutine, and ten times slower with it")
	}
	row := Row{Config: shield.Config{
		Adaptive: &loadshed.AdaptiveConfig{},
		Classes:  []loadshed.Class{{Name: loadshed.Critical}, {Name: loadshed.Default}, {Name: loadshed.Sheddable}},
	}}
	const runs = 10
	var critical, normal, sheddable, after, good float64
	for seed := range uint64(runs) {
		r := row.Run(threeClasses(steps(0, 80, 60, 640, 180, 80), 240), Seeds[0]+seed)
		over := r.Between(60, 180)
		served := func(s Stats, share int) float64 {
			n := s.Shares[share]
			return 100 * float64(n.Good) / float64(n.Good+n.Refused) / runs
		}
		critical += served(over, 0)
		normal += served(over, 1)
		sheddable += served(over, 2)
		after += served(r.Between(190, 240), 2)
		good += over.Goodput() / runs
	}
	t.Logf("critical %.2f %%, default %.1f %%, sheddable %.1f %%, afterwards %.1f %%; goodput %.1f %%", critical, normal, sheddable, after, good)
	if critical < 99.8 {
		t.Errorf("%.2f %% of the critical requests were served, want 99.8 %%", critical)
	}
	if sheddable > normal/2 {
		t.Errorf("%.1f %% of the sheddable requests and %.1f %% of the others were served", sheddable, normal)
	}
	if after < 99.5 {
		t.Errorf("%.1f %% of the sheddable requests were served 10 s after the overload", after)
	}
	if good < 95 {
		t.Errorf("goodput %.1f %% of capacity", good)
	}
}

// A backend that answers 503 with Retry-After: 5 for 14 s gets nothing but probes after 7 s, one
// per second. Then it never gets more than it can do.
func TestBackendAsksToBeLeftAlone(t *testing.T) {
	for _, seed := range Seeds {
		s := eight(steps(0, 128), 150, 2*time.Second)
		s.Plant.Outage, s.Plant.Refuses, s.Plant.RetryAfter = [2]time.Duration{at(60), at(74)}, true, 5*time.Second
		s.again(20, time.Second, true)
		r := Shield.Run(s, seed)
		probes := r.Between(68, 74).Admitted
		most := 0
		for i := 74; i < 150; i++ {
			most = max(most, r.Seconds[i].Admitted)
		}
		back := r.Between(84, 150)
		t.Logf("seed %d: %d probes in 6 s, at most %d admitted in a second of %g; goodput %.1f %% of what came; recovered after %d s", seed, probes, most, s.Capacity, 100*float64(back.Good)/float64(back.Offered), r.Recovered(74))
		if probes > 7 {
			t.Errorf("seed %d: %d requests in 6 s of the pause", seed, probes)
		}
		// Random times of service: three standard deviations of a Poisson process.
		if float64(most) > s.Capacity+3*math.Sqrt(s.Capacity) {
			t.Errorf("seed %d: %d requests admitted in one second, of %g that the backend can do", seed, most, s.Capacity)
		}
		if n := r.Recovered(74); n < 0 || n > 30 {
			t.Errorf("seed %d: recovered after %d s", seed, n)
		}
	}
}
