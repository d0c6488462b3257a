package main

import (
	"fmt"
	"strings"
	"time"

	"github.com/herdshield/shield"
	"github.com/herdshield/shield/loadshed"
	"github.com/herdshield/shield/loadtest/clients"
	"github.com/herdshield/shield/loadtest/lab/overload"
	"github.com/herdshield/shield/loadtest/plant"
	"github.com/herdshield/shield/loadtest/sim"
)

// Mendiratta and others: "Enhancing Netflix Reliability with Service-Level Prioritized Load Shedding", Netflix
// TechBlog, 25 June 2024.
//
// After an outage twelve times as many prefetch requests came as before. More than 99.4% of the requests of users
// were served, and of the others about 20%. In front were two partitions of a concurrency limit
// (Netflix/concurrency-limits). How busy the backend was is not published.
//
// Modelled: 8 and 64 workers with exponential times of service of 50 ms; users are 40 and 70% of the capacity;
// prefetch is 20% of it before, and 240% for half a minute. Clients wait for 1 s. Users who are rejected give up;
// prefetch gives up, or resends at once, three times at most. Users are critical and prefetch is sheddable, and
// nothing else is set.
var twoClasses = overload.Row{Name: "adaptive, two classes", Config: shield.Config{
	Adaptive: &loadshed.AdaptiveConfig{}, Classes: []loadshed.Class{{Name: loadshed.Critical}, {Name: loadshed.Sheddable}},
}}

// surged are the shares that are served in the surge.
type surged struct{ users, prefetch float64 }

func playSurge(row overload.Row, workers int, load float64, prefetch caller, seed uint64) surged {
	const base, times, lasts = .2, 12, 30
	capacity := float64(workers) / .05
	var came, served [3]float64 // of the surge, users, and what is prefetched at all times
	s := sim.Scenario{
		Seed: seed, Config: row.Config, Warmup: at(lasts), Until: at(lasts + 5), Bin: time.Second, Timeout: at(1),
		Clients: int((times - 1) * base * capacity * lasts), Within: at(lasts), Mix: clients.All(prefetch.policy),
		Background:    (load + base) * capacity,
		NewClientsMix: clients.Population{{Weight: load, Policy: clients.GiveUp{}}, {Weight: base, Policy: prefetch.policy}},
		Classes:       []string{loadshed.Sheddable, loadshed.Critical, loadshed.Sheddable},
		Service:       sim.Service{Mean: 50 * ms, Exponential: true}, Plant: &plant.Config{Workers: workers},
		Ended: func(e sim.Ended) {
			if e.Born < at(lasts) || e.Born >= at(2*lasts) {
				return
			}
			if e.Attempt == 1 {
				came[e.Share]++
			}
			if e.How == sim.Answered {
				served[e.Share]++
			}
		},
	}
	if _, err := sim.Run(s, row.Maker); err != nil {
		panic(err)
	}
	return surged{served[1] / came[1], (served[0] + served[2]) / (came[0] + came[2])}
}

func prefetch(seeds []uint64) table {
	kinds := callers(3)[:2]
	kinds[0].policy = clients.GiveUp{}
	all := lines(kinds, plain, adaptive, twoClasses)
	columns := []struct {
		workers int
		load    float64
	}{{8, .4}, {8, .7}, {64, .4}, {64, .7}}
	t := table{title: "share served of users and of prefetch in the surge", left: 2}
	t.rows = [][]string{{"rejected prefetch", "in front"}, {"", "partitions, in the article"}}
	wanted := []string{"wanted", ""}
	for _, c := range columns {
		t.rows[0] = append(t.rows[0], fmt.Sprintf("users %%, %d workers, load %s", c.workers, strings.TrimPrefix(fmt.Sprint(c.load), "0")), "prefetch %")
		t.rows[1] = append(t.rows[1], "99.4", "20")
		wanted = append(wanted, "99.4", "")
	}
	for i, cells := range play(len(all), len(columns), seeds, func(i, j int, seed uint64) surged {
		return playSurge(all[i].row, columns[j].workers, columns[j].load, all[i].caller, seed)
	}) {
		row := []string{all[i].name, all[i].row.Name}
		for _, runs := range cells {
			row = append(row, percent(figures(runs, func(s surged) float64 { return s.users }), .994),
				percent(figures(runs, func(s surged) float64 { return s.prefetch }), 0))
		}
		t.rows = append(t.rows, row)
	}
	t.rows = append(t.rows, wanted)
	return t
}
