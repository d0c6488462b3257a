package sim

import (
	"testing"
	"time"

	"github.com/herdshield/shield"
	"github.com/herdshield/shield/limiter"
	"github.com/herdshield/shield/loadshed"
	"github.com/herdshield/shield/loadtest/clients"
	"github.com/herdshield/shield/loadtest/plant"
)

// Ordinary load, of a part of what few workers can do, is served by the shortest config: clients that give up when they
// are rejected, and those that obey. No appointments, or doubts, stand in their way. With -v it prints a table.
func TestCalm(t *testing.T) {
	const service, n = 50 * time.Millisecond, 20_000
	for _, c := range []struct {
		workers       int
		load          float64
		fixed         float64 // the least that is served of those who give up, under concurrency
		capacity      float64 // under capacity
		fixedRequests float64 // the most that each of those who obey sends, under concurrency
	}{
		{2, .7, .83, .95, 1.4}, {2, .9, .75, .89, 1.9}, {4, .7, .92, .99, 1.2}, {4, .9, .85, .96, 1.5}, {8, .8, .95, .99, 1.1}, {8, .9, .92, .99, 1.2}, {32, .9, .99, .99, 1.05},
	} {
		play := func(p clients.Policy, config shield.Config) (served, requests float64) {
			within := time.Duration(n / c.load * float64(service) / float64(c.workers))
			out, err := Run(Scenario{
				Seed: 1, Clients: n, Within: within, Mix: clients.All(p), Warmup: time.Second, Until: within + time.Minute,
				Service: Service{Mean: service, Exponential: true}, Config: config,
			}, nil)
			if err != nil {
				t.Fatal(err)
			}
			return float64(out.Served) / n, out.PerSuccess()
		}
		concurrency := shield.Config{Concurrency: c.workers}
		capacity := shield.Config{Capacity: limiter.Config{Rate: float64(c.workers) / service.Seconds()}}
		fixed, _ := play(clients.GiveUp{}, concurrency)
		rate, _ := play(clients.GiveUp{}, capacity)
		all, requests := play(clients.Exact{}, concurrency)
		t.Logf("%d workers, %.1f: served %.3f under concurrency, %.3f under capacity; of those who obey %.3f, with %.2f requests each", c.workers, c.load, fixed, rate, all, requests)
		if fixed < c.fixed || rate < c.capacity || all < 1 || requests > c.fixedRequests {
			t.Errorf("want %v, %v, all and %v", c.fixed, c.capacity, c.fixedRequests)
		}
	}
}

// Tasks of several calls, at twice what the backend can do: who has begun one gets through it, so that half of the tasks succeed (Zhou
// and others, "Overload Control for Scaling WeChat Microservices", SoCC 2018). Shed at random, a sixteenth of those of four calls would.
func TestTasks(t *testing.T) {
	const service = 10 * ms
	for _, c := range []struct {
		policy clients.Policy
		calls  int
		least  float64
	}{{clients.GiveUp{}, 1, .45}, {clients.GiveUp{}, 4, .45}, {clients.MaxAttempts{N: 4, Policy: clients.Fixed{}}, 4, .45}, {clients.Exact{}, 2, .45}, {clients.Exact{}, 4, .42}} {
		came, served := 0., 0.
		_, err := Run(Scenario{
			Seed: 1, Warmup: time.Nanosecond, Bin: time.Second, Rates: plant.Steps{{Value: 2 * 800 / float64(c.calls)}}, Until: 90 * time.Second, Mix: clients.All(c.policy), Calls: c.calls,
			Timeout: 500 * ms, Patience: 30 * time.Second, Delay: ms,
			Plant: &plant.Config{Workers: 8}, Service: Service{Mean: service, Exponential: true}, Config: shield.Config{Adaptive: &loadshed.AdaptiveConfig{}},
			Ended: func(e Ended) {
				if e.Born < 20*time.Second || e.Born > 50*time.Second {
					return
				}
				if e.Call == 1 && e.Attempt == 1 {
					came++
				}
				if e.Call == c.calls && e.How == Answered {
					served++
				}
			},
		}, nil)
		if err != nil {
			t.Fatal(err)
		}
		t.Logf("%v, %d calls: %.3f of the tasks", c.policy, c.calls, served/came)
		if served < c.least*came || came == 0 {
			t.Errorf("%v, %d calls: %.3f of the tasks, want %v", c.policy, c.calls, served/came, c.least)
		}
	}
}

// A herd before a limit in flight that has served nothing yet: the first requests that end are its shortest, and do not make the
// backend seem fast. Each client tries four times.
func TestColdHerd(t *testing.T) {
	served, broken := 0, 0
	const n, seeds = 1000, 4
	for seed := range uint64(seeds) {
		out, err := Run(Scenario{
			Seed: seed, Clients: n, Within: 100 * time.Millisecond, Warmup: time.Second, Mix: clients.All(clients.MaxAttempts{N: 4, Policy: clients.Exact{}}),
			Service: Service{Mean: 100 * time.Millisecond, Exponential: true}, Plant: &plant.Config{Workers: 12}, Config: shield.Config{Concurrency: 12},
		}, nil)
		if err != nil {
			t.Fatal(err)
		}
		served, broken = served+out.Served, broken+out.Broken
	}
	t.Logf("%d of %d are served, %d appointments are broken", served, seeds*n, broken)
	if served < seeds*n*995/1000 || broken > seeds*n/2 {
		t.Error("want 995 of 1,000, and less than half as many broken appointments")
	}
}
