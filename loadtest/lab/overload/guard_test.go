package overload

import (
	"flag"
	"testing"
	"time"

	"github.com/herdshield/shield"
	"github.com/herdshield/shield/loadshed"
	"github.com/herdshield/shield/loadtest/plant"
	"github.com/herdshield/shield/loadtest/sim"
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
			return 100 * float64(n.Good) / float64(n.Good+n.Rejected) / runs
		}
		critical += served(over, 0)
		normal += served(over, 1)
		sheddable += served(over, 2)
		after += served(r.Between(190, 240), 2)
		good += over.Goodput() / runs
	}
	t.Logf("critical %.2f%%, default %.1f%%, sheddable %.1f%%, afterwards %.1f%%; goodput %.1f%%", critical, normal, sheddable, after, good)
	if critical < 99.8 {
		t.Errorf("%.2f%% of the critical requests were served, want 99.8%%", critical)
	}
	if sheddable > normal/2 {
		t.Errorf("%.1f%% of the sheddable requests and %.1f%% of the others were served", sheddable, normal)
	}
	if after < 99.5 {
		t.Errorf("%.1f%% of the sheddable requests were served 10 s after the overload", after)
	}
	if good < 95 {
		t.Errorf("goodput %.1f%% of capacity", good)
	}
}

// watched makes real Guards, and keeps the latest.
func watched(g **sim.Guarded) sim.Maker {
	return func(c shield.Config) (sim.Server, error) {
		server, err := sim.Guard(c)
		*g, _ = server.(*sim.Guarded)
		return server, err
	}
}
