package sim

import (
	"testing"
	"time"

	"github.com/herdshield/shield"
	"github.com/herdshield/shield/loadshed"
	"github.com/herdshield/shield/loadtest/clients"
	"github.com/herdshield/shield/loadtest/plant"
)

// With an adaptive limit a service comes back from a backend that was 16 times as slow for 64 s, however short its clients'
// patience is: from a minute after that on, 90% of first requests are answered in time. With these seeds the limit once
// followed the slow backend to 700, so that all clients had gone before they were served, for ever.
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
		const push, watched = 64 * time.Second, 30
		out, err := Run(Scenario{
			Seed: b.seed, Mix: mix, Background: b.asked, Warmup: 30 * time.Second, Timeout: b.patience,
			Bin: time.Second, Until: push + time.Minute + watched*time.Second, Config: shield.Config{Adaptive: &loadshed.AdaptiveConfig{}},
			Service: Service{Mean: b.mean, Exponential: true},
			Plant:   &plant.Config{Workers: b.workers, Slow: plant.Steps{{From: 0, Value: 16}, {From: push, Value: 1}}},
		}, nil)
		if err != nil {
			t.Fatal(err)
		}
		asked, answered := 0, 0
		for _, s := range out.Series[30+64+60:][:watched] {
			asked += int(s.NewClients.Came - s.Retries)
			answered += int(s.Served)
		}
		if g := float64(answered) / float64(asked); g < 0.9 {
			t.Errorf("%d workers, %v: goodput %.3f; want 0.9", b.workers, b.mean, g)
		}
	}
}
