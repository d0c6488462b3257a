package main

import (
	"fmt"

	"github.com/herdshield/shield/loadtest/clients"
	"github.com/herdshield/shield/loadtest/lab/overload"
)

// Zhou and others: "Overload Control for Scaling WeChat Microservices", SoCC 2018 (arXiv 1806.04075), DAGOR.
//
// A task calls the service M once to four times, one call after the other (M¹ to M⁴), and succeeds if all are
// answered. M saturates at about 750 calls per second. At twice that, who sheds each call at random completes
// p^k of the tasks, p = 0.5; the optimum is 0.5 for all k. DAGOR sheds by the user, who is the same in all calls,
// and stays near the optimum. We could read abstract and summaries only: 750/s, the 500 ms below, three resends
// and the optimum as the quotient of the rates are from memory, and DAGOR's own figures are a plot.
//
// Modelled: eight workers with exponential times of service, 750/s in all; so many tasks that their calls, if
// all are made, are twice that; each task has a caller of its own, by whom it is known. A caller waits for 500 ms
// for each call, and is gone 30 s after its first. The network takes 1 ms each way; without it a task would take
// the place that its last call has just left. In this model random shedding does better than p^k, as the calls
// that lost tasks do not make leave room: a fixed limit alone shows how much. Not modelled: other services,
// priorities of business, and users who come back.
const (
	dagorRate  = 750.
	tasksFrom  = 30 // seconds: tasks count that begin from then on,
	tasksTo    = 90 // and until then
	tasksUntil = 125
)

// dagorCallers give their task up when it is first rejected or late, or resend each call three times at most.
func dagorCallers() []caller {
	kinds := callers(3)
	kinds[0].policy = clients.GiveUp{}
	return kinds
}

func playDagor(row overload.Row, c caller, calls int, seed uint64) float64 {
	s := open(8, at(8/dagorRate), steps(0, 2*dagorRate/float64(calls)), 500*ms, c, at(tasksUntil))
	s.Calls, s.Patience, s.Delay = calls, at(30), ms
	tasks := cohort{from: at(tasksFrom), to: at(tasksTo)}
	follow(&s, calls, &tasks)
	row.Run(s, seed)
	return tasks.share()
}

func dagor(seeds []uint64) table {
	alone := overload.Fixed(12)
	alone.Name = "a limit of 12 alone"
	all := lines(dagorCallers(), plain, alone, adaptive)
	t := table{title: "share of the tasks of k calls that succeed, at twice the saturation", left: 2, rows: [][]string{
		{"rejected clients", "in front", "k = 1", "k = 2", "k = 3", "k = 4"},
		{"by arithmetic", "random shedding", "0.500", "0.250", "0.125", "0.063"},
	}}
	for i, cells := range play(len(all), 4, seeds, func(i, k int, seed uint64) float64 {
		return playDagor(all[i].row, all[i].caller, 1+k, seed)
	}) {
		row := []string{all[i].name, all[i].row.Name}
		for _, shares := range cells {
			m := mean(shares)
			row = append(row, bound(fmt.Sprintf("%.3f", m), m >= .45))
		}
		t.rows = append(t.rows, row)
	}
	t.rows = append(t.rows, []string{"wanted", "", "0.45", "0.45", "0.45", "0.45"})
	return t
}
