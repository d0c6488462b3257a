package sim

import (
	"runtime"
	"testing"
	"time"

	"github.com/herdshield/shield"
	"github.com/herdshield/shield/loadshed"
	"github.com/herdshield/shield/loadtest/clients"
	"github.com/herdshield/shield/loadtest/plant"
)

// millions are 10 minutes of a million clients, once with a capacity, and once with
// a backend of eight workers of 80 ms, which do 100 per second too, and a limit that
// adapts. The last is the herd until the last of it is served, 5 h later.
func millions() []Scenario {
	capacity := Herd("capacity 100", 1_000_000, 0)
	adaptive := Herd("8 workers of 80 ms, adaptive", 1_000_000, 0)
	adaptive.Config = shield.Config{Adaptive: &loadshed.AdaptiveConfig{}}
	adaptive.Plant, adaptive.Service, adaptive.Timeout = &plant.Config{Workers: 8}, Service{Mean: 80 * ms, Exponential: true}, 5*time.Second
	none := adaptive
	none.Name, none.Config, none.Mix = "8 workers of 80 ms, nothing before them", shield.Config{}, clients.All(clients.Ignore{})
	all := []Scenario{capacity, adaptive, none}
	for i := range all {
		all[i].Until, all[i].Bin = 10*time.Minute, time.Second
	}
	return append(all, Herd("to the end, max 59s", 1_000_000, longest))
}

// The engine plays 10 minutes of a million clients within 3 minutes and 2 GiB.
//
//	go test ./loadtest/sim -run TestMillions -v -full
func TestMillions(t *testing.T) {
	if !*full || raceEnabled {
		t.Skip("needs -full, minutes, and a build without the race detector")
	}
	for _, s := range millions() {
		t.Run(s.Name, func(t *testing.T) {
			var before, m runtime.MemStats
			runtime.ReadMemStats(&before)
			began := time.Now()
			out, err := Run(s, nil)
			took := time.Since(began)
			if err != nil {
				t.Fatal(err)
			}
			runtime.ReadMemStats(&m)
			conserved(t, s.Name, out)
			t.Logf("%d requests of %d clients, %d served, in %.2f of the least time: %.1f s, %.0f ns per request; %d MiB from the system, %d allocations",
				out.Decided, s.Clients, out.Answered, out.Ratio(), took.Seconds(), float64(took.Nanoseconds())/float64(out.Decided), m.Sys>>20, m.Mallocs-before.Mallocs)
			if s.Bin > 0 && took > 3*time.Minute || m.Sys > 2<<30 {
				t.Errorf("%v and %d MiB; want at most 3 minutes and 2048 MiB", took, m.Sys>>20)
			}
			if s.Bin == 0 && (out.Waiting > 0 || out.Ratio() > 1.08) {
				t.Errorf("%d still wait, after %.2f of the least time", out.Waiting, out.Ratio())
			}
		})
	}
}
