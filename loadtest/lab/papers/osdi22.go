package main

import (
	"github.com/herdshield/shield"
	"github.com/herdshield/shield/loadshed"
	"github.com/herdshield/shield/loadtest/lab/overload"
)

// Huang and others: "Metastable Failures in the Wild", OSDI 2022, the retry storm, from its scripts
// (github.com/lexiangh/Metastability, Retry_Metastability: README.md, client/experiments.sh and mongoC3.go, 681bf3e).
//
// Inserts into MongoDB on two processors, one each 75 µs: 13,333 per second. A client waits for 3 s, and resends
// at once after any error, four times at most. At second 60 the processors are cut to 0.40 for 10 s, and it does
// not come back. Its three neighbours do: cut to 0.45; for 9 s; or one insert each 100 µs.
//
// Modelled: two workers, a twentieth of the rate with times of service twenty times as long, and five times as
// long as that in the trigger (2 / 0.40), or 4.4. How busy the processors are before is not in the scripts, but
// a plain queue has the four outcomes only if it is 37.5 to 38.5%: see utilisation. Not modelled: the driver's
// pool of connections, and the replicas. That a client obeys Retry-After is ours.
const (
	stormRate   = 13_333. / 20
	stormBegins = 60

	// utilisation is how busy the workers are at 13,333/s. With each of five seeds a plain queue did what
	// MongoDB did from 0.375 to 0.385. At 0.355 it comes back from all four, at 0.395 from the last alone.
	utilisation = .38
)

type storm struct {
	name            string
	slower, seconds float64
	rate            float64
	paper           string // what came of it there
}

var storms = []storm{
	{"2 → 0.40, 10 s", 2 / .40, 10, stormRate, "never"},
	{"2 → 0.45, 10 s", 2 / .45, 10, stormRate, "returns"},
	{"2 → 0.40, 9 s", 2 / .40, 9, stormRate, "returns"},
	{"10,000/s", 2 / .40, 10, stormRate * .75, "returns"},
}

// queued is "concurrency adaptive" with a queue for all that comes in the trigger and is not served, (667 - 350) × 10, for as long as
// a client waits.
var queued = overload.Row{Name: "adaptive, queue 4000 timeout 3s", Config: shield.Config{
	Adaptive: &loadshed.AdaptiveConfig{}, Queue: loadshed.QueueConfig{Size: 4000, Timeout: at(3)},
}}

// outlived is what came of a trigger: after how many seconds all was well, and the share of its requests that was answered.
type outlived struct{ seconds, answered float64 }

func (s storm) play(row overload.Row, c caller, seed uint64) outlived {
	ends := stormBegins + int(s.seconds)
	o := open(2, at(2*utilisation/stormRate), steps(0, s.rate), at(3), c, at(float64(ends+120)))
	o.Plant.Slow = steps(0, 1, stormBegins, s.slower, float64(ends), 1)
	trigger := cohort{from: at(stormBegins), to: at(float64(ends))}
	follow(&o, 1, &trigger)
	r := row.Run(o, seed)
	return outlived{back(r, ends, 5), trigger.share()}
}

func retryStorm(seeds []uint64) table {
	kinds := callers(4)
	all := append(lines(kinds[1:2], plain, adaptive, queued), lines(kinds[2:], adaptive, queued)...)
	t := table{title: "seconds from the trigger's end until as much is answered in 5 s as 95% of what comes, median and worst; " +
		"share answered in the end of who came in the trigger", left: 2}
	t.rows = [][]string{{"rejected clients", "in front"}, {"resend", "MongoDB, in the paper"}}
	wanted := []string{"wanted", ""}
	for _, s := range storms {
		t.rows[0] = append(t.rows[0], "s, "+s.name, "answered %")
		t.rows[1] = append(t.rows[1], s.paper, "")
		wanted = append(wanted, "10", "90")
	}
	for i, cells := range play(len(all), len(storms), seeds, func(i, j int, seed uint64) outlived {
		return storms[j].play(all[i].row, all[i].caller, seed)
	}) {
		row := []string{all[i].name, all[i].row.Name}
		for _, runs := range cells {
			row = append(row, times(figures(runs, func(o outlived) float64 { return o.seconds }), 10),
				percent(figures(runs, func(o outlived) float64 { return o.answered }), .9))
		}
		t.rows = append(t.rows, row)
	}
	t.rows = append(t.rows, wanted)
	return t
}
