package main

import (
	"fmt"
	"time"

	"github.com/herdshield/shield/loadtest/clients"
	"github.com/herdshield/shield/loadtest/lab/overload"
	textbook "github.com/herdshield/shield/loadtest/lab/seeds"
	"github.com/herdshield/shield/loadtest/plant"
	"github.com/herdshield/shield/loadtest/sim"
)

// Brooker: "Exponential Backoff And Jitter", AWS Architecture Blog, 2015.
//
// N clients begin at once and want to write one row, and one of them succeeds at a time; the network takes 10 ms each
// way. Package seeds plays this simulation, and loadtest/lab/seeds/README.md has its figures.
//
// Here the hundred come to a shield: cold, as it was started, and warm, after a minute of half the load. Modelled: one
// worker with times of service of 10 or 100 ms, so that the hundred take 1 or 10 s at best. Not modelled: writes that
// fail because another was faster; they cost calls, but the row no time.
const herd = 100

// playHerd returns when the last of the herd was served.
func playHerd(row overload.Row, p clients.Policy, write time.Duration, warm bool, seed uint64) float64 {
	s := sim.Scenario{
		Seed: seed, Clients: herd, Mix: clients.All(p), Delay: 10 * ms, Warmup: time.Nanosecond, Config: row.Config,
		Service: sim.Service{Mean: write}, Plant: &plant.Config{Workers: 1}, NewClientsMix: clients.All(clients.GiveUp{}),
	}
	if warm {
		s.Warmup, s.Background, s.Rates = time.Minute, .5/write.Seconds(), steps(0, 0)
	}
	r, err := sim.Run(s, row.Maker)
	if err != nil {
		panic(err)
	}
	if r.Served < herd {
		return never
	}
	return r.Drained.Seconds()
}

func contention(seeds []uint64) table {
	t := table{title: "seconds until a herd of 100 is served that comes at once, median and worst, and the mean cold over warm", left: 2}
	t.rows = [][]string{{"clients", "a write takes", "plain queue", "adaptive, cold", "warm", "cold / warm"}}
	for _, c := range []caller{
		{"obey, in seconds", clients.Exact{}}, {"obey, in milliseconds", textbook.ServerTiming{}},
		{"full jitter, 5 ms to 2 s", clients.FullJitter(10*ms, at(2))},
	} {
		for _, write := range []time.Duration{10 * ms, 100 * ms} {
			var bare, cold, warm []float64
			for _, seed := range seeds {
				bare = append(bare, playHerd(plain, c.policy, write, false, seed))
				cold = append(cold, playHerd(adaptive, c.policy, write, false, seed))
				warm = append(warm, playHerd(adaptive, c.policy, write, true, seed))
			}
			ratio := mean(cold) / mean(warm)
			t.rows = append(t.rows, []string{
				c.name, write.String(), times(bare, never), times(cold, never), times(warm, never),
				bound(fmt.Sprintf("%.2f", ratio), ratio <= 1.3),
			})
		}
	}
	t.rows = append(t.rows, []string{"wanted", "", "", "", "", "1.3"})
	return t
}
