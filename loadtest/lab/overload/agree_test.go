package overload

import (
	"testing"
	"time"

	"github.com/herdshield/shield"
	"github.com/herdshield/shield/loadshed"
	"github.com/herdshield/shield/loadtest/clients"
	"github.com/herdshield/shield/loadtest/plant"
	"github.com/herdshield/shield/loadtest/sim"
)

// The two engines agree about the same Guard before the same backend.
func TestAgreesWithSim(t *testing.T) {
	if raceEnabled {
		t.Skip("one goroutine, and ten times slower with the race detector")
	}
	var here, there, free [3]float64
	for i := range here {
		s := flood()
		s.Seed = uint64(1 + i)
		out, err := sim.Run(s, nil)
		if err != nil {
			t.Fatal(err)
		}
		for _, b := range out.Series[120:180] {
			here[i] += float64(b.Served) / 60
		}
		over := Run(Step5(), Shield, Seeds[i]).Between(120, 180)
		there[i] = float64(over.Good) / 60
		s.Config = shield.Config{}
		if out, err = sim.Run(s, nil); err != nil {
			t.Fatal(err)
		}
		for _, b := range out.Series[120:180] {
			free[i] += float64(b.Served) / 60
		}
	}
	t.Logf("per second: %.1f here, %.1f there; %.1f here without a limit", here, there, free)
	mean := func(v [3]float64) float64 { return (v[0] + v[1] + v[2]) / 3 }
	if r := mean(here) / mean(there); r < 0.97 || r > 1.03 {
		t.Errorf("%.1f are served per second here, %.1f there", mean(here), mean(there))
	}
	if mean(free) > 20 {
		t.Errorf("%.1f are served per second without a limit: the backend knows no overload", mean(free))
	}
}

// flood is scenario A for package sim: half of what eight workers do,
// then five times as much for two minutes.
func flood() sim.Scenario {
	return sim.Scenario{
		Clients: 720 * 120, Within: 2 * time.Minute, Background: 80, Warmup: time.Minute, Until: 3 * time.Minute, Bin: time.Second,
		Mix: clients.All(clients.GiveUp{}), Timeout: time.Second, SaysTimeout: true,
		Service: sim.Service{Mean: 50 * time.Millisecond, Exponential: true}, Plant: &plant.Config{Workers: 8},
		Config: shield.Config{Adaptive: &loadshed.AdaptiveConfig{}},
	}
}
