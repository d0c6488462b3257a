package overload

import (
	"fmt"
	"io"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/herdshield/shield"
	"github.com/herdshield/shield/loadshed"
	"github.com/herdshield/shield/loadtest/lab/page"
	"github.com/herdshield/shield/loadtest/sim"
	"github.com/herdshield/shield/pushback"
)

// Seeds are those of the published figures.
var Seeds = []uint64{11, 12, 13}

// A Row is a limiter to compare.
type Row struct {
	Name   string
	Config shield.Config
	Maker  sim.Maker // of the server that limits; nil: a shield.Guard

	// In, if set, plays a run somewhere else, as in a synctest bubble.
	In func(play func())
}

// The rows that need no other project: no limit at all; a limit that fits eight
// workers of 50 ms; shield's adaptive limit without its queue; and what "concurrency
// adaptive" gives.
var (
	None  = Row{Name: "none"}
	Alone = Row{Name: "limit alone", Config: shield.Config{
		Adaptive: &loadshed.AdaptiveConfig{}, Queue: loadshed.QueueConfig{Size: loadshed.NoQueue}, Pushback: pushback.ResponseConfig{NoDither: true},
	}}
	Shield = Row{Name: "shield", Config: shield.Config{Adaptive: &loadshed.AdaptiveConfig{}}}
)

// Fixed lets n in at a time.
func Fixed(n int) Row {
	return Row{Name: fmt.Sprint("fixed ", n), Maker: Limited(func() Limiter { return fixed(n) })}
}

// fixed is a Limiter whose limit is always the same.
type fixed int

func (f fixed) Limit() int                                           { return int(f) }
func (fixed) Done(time.Duration, time.Duration, int, shield.Outcome) {}

// columns are the figures of a table, each a figure of a run.
var columns = []struct {
	scenario func() Scenario
	figures  []figure
}{
	{Step5, []figure{
		{"A good %", func(r *Result) float64 { return r.Between(120, 180).Goodput() }},
		{"10 s", func(r *Result) float64 { return r.Between(60, 70).Goodput() }},
		{"p99 ms", func(r *Result) float64 { return millis(r.Between(120, 180).P99) }},
	}},
	{Sustained, []figure{
		{"B limit 2 min", func(r *Result) float64 { return r.Between(120, 240).Limit }},
		{"30 min", func(r *Result) float64 { return r.Between(1740, 1860).Limit }},
		{"p50 ms", func(r *Result) float64 { return millis(r.Between(1740, 1860).P50) }},
		{"good %", func(r *Result) float64 { return r.Between(1740, 1860).Goodput() }},
	}},
	{Drift, []figure{
		{"C rejected % before", func(r *Result) float64 { return r.Between(60, 120).RejectedShare() }},
		{"1st min", func(r *Result) float64 { return r.Between(120, 180).RejectedShare() }},
		{"3rd min", func(r *Result) float64 { return r.Between(240, 300).RejectedShare() }},
	}},
	{Slowdown, []figure{{"G slow s", func(r *Result) float64 { return float64(r.Recovered(80)) }}}},
	{func() Scenario { return Metastable(false) }, []figure{{"G s", func(r *Result) float64 { return float64(r.Recovered(70)) }}}},
	{func() Scenario { return Metastable(true) }, []figure{{"G honoring s", func(r *Result) float64 { return float64(r.Recovered(70)) }}}},
	{Large, []figure{{"H good %", func(r *Result) float64 { return r.Between(120, 180).Goodput() }}}},
	{Half, []figure{
		{"K 15 s good %", func(r *Result) float64 { return r.Between(120, 135).Goodput() }},
		{"p99 ms", func(r *Result) float64 { return millis(r.Between(180, 240).P99) }},
	}},
	{Coherent, []figure{{"U good %", func(r *Result) float64 { return r.Between(120, 360).Goodput() }}}},
	{Busy, []figure{{"0.93× rejected %", func(r *Result) float64 { return r.Between(60, 300).RejectedShare() }}}},
	{func() Scenario { return Mixed(.6) }, []figure{{"mixed rejected %", func(r *Result) float64 { return r.Between(60, 180).RejectedShare() }}}},
}

type figure struct {
	name string
	of   func(*Result) float64
}

func millis(d time.Duration) float64 { return 1e3 * d.Seconds() }

// Tables play rows: in every named scenario with every seed of Seeds, of which they have the
// least and the greatest of each figure, and on the drawn backends of two seeds. Of each
// table the first line is the head.
var Tables = []func([]Row) [][]string{
	named,
	func(rows []Row) [][]string { return drawn(rows, HeldOut) },
	func(rows []Row) [][]string { return drawn(rows, Unseen) },
}

// Print writes the Tables of some rows.
func Print(out io.Writer, rows []Row) error {
	for _, play := range Tables {
		if err := page.Text(out, play(rows)); err != nil {
			return err
		}
	}
	return nil
}

func named(rows []Row) [][]string {
	table := [][]string{{"limiter"}}
	for _, c := range columns {
		for _, f := range c.figures {
			table[0] = append(table[0], f.name)
		}
	}
	for _, row := range rows {
		line := []string{row.Name}
		for _, c := range columns {
			values := make([][]float64, len(c.figures))
			for _, seed := range Seeds {
				r := row.Run(c.scenario(), seed)
				for i, f := range c.figures {
					values[i] = append(values[i], f.of(r))
				}
			}
			for _, v := range values {
				line = append(line, between(v))
			}
		}
		table = append(table, line)
	}
	return table
}

func between(values []float64) string {
	show := func(v float64) string {
		switch {
		case v < 0:
			return "never"
		case v < 10 && v != math.Trunc(v):
			return strings.TrimSuffix(fmt.Sprintf("%.2f", v), ".00")
		}
		return fmt.Sprintf("%.0f", v)
	}
	low, high := show(slices.Min(values)), show(slices.Max(values))
	if low != high {
		return low + "–" + high
	}
	return low
}

// A Set sums up a limiter's runs of the drawn backends.
type Set struct {
	Goodput       []float64 // % of capacity under overload, by backend
	RejectedFirst []float64 // % of first attempts at 0.6 times the capacity, before
	After         []float64 // goodput % of what was offered, after the overload
	P99           []float64 // over the time of service
}

// Play draws the backends of a seed and plays them.
func (row Row) Play(seed uint64) Set {
	var set Set
	for i := range uint64(Drawn) {
		s := Draw(seed, i)
		r := row.Run(s, seed+i)
		over, before, after := r.Between(100, 180), r.Between(20, 60), r.Between(190, 240)
		set.Goodput = append(set.Goodput, over.Goodput())
		set.RejectedFirst = append(set.RejectedFirst, 100*float64(before.RejectedFirst)/float64(max(1, before.Offered)))
		set.After = append(set.After, 100*float64(after.Good)/float64(max(1, after.Offered)))
		set.P99 = append(set.P99, over.P99.Seconds()*s.Capacity/float64(s.Plant.Workers))
	}
	return set
}

func drawn(rows []Row, seed uint64) [][]string {
	table := [][]string{{
		fmt.Sprintf("%d backends of seed %d", Drawn, seed), "good % mean", "worst", "rejected % at 0.6×, worst", "after % worst", "p99 / service, worst",
	}}
	for _, row := range rows {
		s := row.Play(seed)
		table = append(table, []string{
			row.Name, fmt.Sprintf("%.1f", mean(s.Goodput)), fmt.Sprintf("%.1f", slices.Min(s.Goodput)), fmt.Sprintf("%.2f", slices.Max(s.RejectedFirst)),
			fmt.Sprintf("%.1f", slices.Min(s.After)), fmt.Sprintf("%.1f", slices.Max(s.P99)),
		})
	}
	return table
}

func mean(v []float64) (m float64) {
	for _, x := range v {
		m += x / float64(len(v))
	}
	return m
}
