package main

import (
	"bytes"
	_ "embed"
	"errors"
	"fmt"
	"image/color"
	"math"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
	vgdraw "gonum.org/v1/plot/vg/draw"

	"github.com/herdshield/shield"
	"github.com/herdshield/shield/loadshed"
	"github.com/herdshield/shield/loadtest/overload"
)

// What docs/loadshedding.md shows: how shield, as it is with "concurrency adaptive"
// and nothing else, finds the limit of a backend, and how that compares.

var adaptive = overload.Row{Name: "shield", Build: overload.Guard(shield.Config{Adaptive: &loadshed.Config{}})}

// The picture is of overload.Step5: eight workers that do 160 requests per second,
// and get 800 from second 60 to second 180.
const (
	limitFile = "loadshedding-limit.svg"

	floodBegins, floodEnds = 60 * time.Second, 180 * time.Second
	floodBefore, floodTail = 20 * time.Second, 20 * time.Second // of what is drawn

	mostLimit  = 30  // in flight, at the upper edge
	mostServed = 250 // per second: what comes is cut off there

	panelHeight = 240 * pixel
)

// A step is what the limit is from an instant on.
type step struct {
	at    time.Duration
	limit int
}

// watched notes each change of a limit.
type watched struct {
	overload.Limiter
	now   func() time.Duration
	steps *[]step
}

func (l watched) Admit(r *overload.Request) {
	l.Limiter.Admit(r)
	l.note()
}

func (l watched) Done(r *overload.Request, took time.Duration, o loadshed.Outcome, retryAfter time.Duration) {
	l.Limiter.Done(r, took, o, retryAfter)
	l.note()
}

func (l watched) note() {
	limit := l.Limit()
	if n := len(*l.steps); n == 0 || (*l.steps)[n-1].limit != limit {
		*l.steps = append(*l.steps, step{l.now(), limit})
	}
}

// playFlood plays what the picture shows, with the first of the seeds that the
// table's figures are from.
func playFlood() (*overload.Result, []step) {
	var steps []step
	r := overload.Run(overload.Step5(), func(w *overload.World) overload.Limiter {
		return watched{adaptive.Build(w), w.Now, &steps}
	}, overload.Seeds[0])
	return r, steps
}

// drawFlood draws the limit over time, and below what came and what was served.
func drawFlood(s overload.Scenario, r *overload.Result, steps []step) []drawing {
	since := func(at time.Duration) float64 { return (at - floodBegins).Seconds() }
	from, to := floodBegins-floodBefore, floodEnds+floodTail

	var limit, came, served plotter.XYs
	for _, st := range steps {
		if st.at <= from {
			limit = limit[:0]
		}
		if st.at < to {
			limit = append(limit, plotter.XY{X: since(max(st.at, from)), Y: min(mostLimit, float64(st.limit))})
		}
	}
	limit = append(limit, plotter.XY{X: since(to), Y: limit[len(limit)-1].Y})
	for i := int(from / time.Second); i < int(to/time.Second); i++ {
		x := since(time.Duration(i) * time.Second)
		came = append(came, plotter.XY{X: x, Y: min(mostServed, float64(r.Seconds[i].Attempts))})
		served = append(served, plotter.XY{X: x, Y: min(mostServed, float64(r.Seconds[i].Good))})
	}
	level := func(y float64) *plotter.Line {
		return &plotter.Line{
			XYs:       plotter.XYs{{X: since(from), Y: y}, {X: since(to), Y: y}},
			LineStyle: vgdraw.LineStyle{Color: color.Black, Width: 1.5, Dashes: []vg.Length{5, 3}},
		}
	}
	panel := func(label string, most float64, marks plot.TickerFunc) *plot.Plot {
		p := plot.New()
		p.Y.Label.Text = label
		p.X.Min, p.X.Max, p.Y.Min, p.Y.Max = since(from), since(to), 0, most
		p.X.Tick.Marker, p.Y.Tick.Marker = every(20), marks
		p.X.Padding, p.Y.Padding = 0, 0
		return p
	}

	plot.DefaultFont.Variant = "Sans"
	over := r.Between(int(floodBegins/time.Second), int(floodEnds/time.Second))
	top := panel("requests in flight", mostLimit, every(10))
	top.Title.Text = fmt.Sprintf("Five times as much as the backend can do, for two minutes: %.0f %% of what it can do is served", over.Goodput())
	found := &plotter.Line{XYs: limit, StepStyle: plotter.PostStep, LineStyle: vgdraw.LineStyle{Color: blue, Width: 1.5}}
	workers := level(float64(s.Plant.Workers))
	top.Add(found, workers)

	bottom := panel("requests per second", mostServed, every(50))
	bottom.X.Label.Text = "seconds since the overload began"
	offered, good, capacity := band(came, since(to), orange), band(served, since(to), blue), level(s.Capacity)
	bottom.Add(offered, good, capacity)
	return []drawing{
		{top, []entry{
			{"the limit that shield finds", found},
			{fmt.Sprintf("the backend's workers: %d", s.Plant.Workers), workers},
		}, panelHeight},
		{bottom, []entry{
			{fmt.Sprintf("came: %.0f in the overload", mostRate(s)), offered},
			{"served in time", good},
			{fmt.Sprintf("the backend's capacity: %.0f", s.Capacity), capacity},
		}, panelHeight},
	}
}

func mostRate(s overload.Scenario) (most float64) {
	for _, r := range s.Rate {
		most = max(most, r.Value)
	}
	return most
}

// band draws a bar from each point to the next, and from the last to the end.
func band(points plotter.XYs, end float64, fill color.Color) *plotter.Line {
	points = append(points, plotter.XY{X: end})
	return &plotter.Line{XYs: points, StepStyle: plotter.PostStep, FillColor: fill}
}

// every marks the multiples of n.
func every(n float64) plot.TickerFunc {
	return func(least, most float64) (ticks []plot.Tick) {
		for v := math.Ceil(least/n) * n; v <= most; v += n {
			ticks = append(ticks, plot.Tick{Value: v, Label: fmt.Sprint(v)})
		}
		return ticks
	}
}

// othersText is what other limiters do in the scenarios of loadtest/overload. It
// does not depend on shield, so it is kept, and a test says when the scenarios have
// changed:
//
//	bash loadtest/competitors/run > loadtest/pictures/limiters.txt
//
//go:embed limiters.txt
var othersText string

// shown are the limiters of the table: a row of the tables that package overload
// writes, and what the page calls it.
var shown = []struct{ row, name string }{
	{"none", "no limit"},
	{"fixed 12", "a fixed 12"},
	{"failsafe-go v0.9.8", "failsafe-go 0.9.8"},
	{"Gradient2", "Gradient2"},
	{adaptive.Name, "shield"},
}

// A fact is a line of the table: a figure that package overload writes, by the
// head of its table's first column and its own column's, and the how many'th of
// that name it is.
type fact struct {
	text, table, column string
	nth                 int
	unit                string
	better              func(a, b float64) bool
}

// Heads of the first columns.
var named, heldOut, unseen = "limiter", drawnHead(overload.HeldOut), drawnHead(overload.Unseen)

func drawnHead(seed uint64) string {
	return fmt.Sprintf("%d backends of seed %d", overload.Drawn, seed)
}

var facts = []fact{
	{"5 times the capacity: served", named, "A good %", 0, " %"},
	{"in its first 10 s", named, "10 s", 0, " %"},
	{"99 % answered within", named, "p99 ms", 0, " ms"},
	{"1.2 times the capacity: limit after 2 minutes", named, "B limit 2 min", 0, ""},
	{"after 30 minutes", named, "30 min", 0, ""},
	{"half answered within", named, "p50 ms", 0, " ms"},
	{"150 ms more of latency that is no overload: refused in the first minute", named, "1st min", 0, " %"},
	{"in the third", named, "3rd min", 0, " %"},
	{"10 s outage, 93 % load, five tries at once: well again after", named, "G s", 0, " s"},
	{"clients that do as they are told: after", named, "G honouring s", 0, " s"},
	{"20 s of a tenth of the speed, four tries: well again after", named, "G slow s", 0, " s"},
	{"half of the speed from now on: served in the first 15 s", named, "K 15 s good %", 0, " %"},
	{"64 workers, 3 times the capacity: served", named, "H good %", 0, " %"},
	{"slower by 2 % per request that waits in it, 2 times the capacity: served", named, "U good %", 0, " %"},
	{"0.93 times the capacity: refused", named, "0.93× refused %", 0, " %"},
	{"routes of 5 ms and 500 ms, 0.6 times the capacity: refused", named, "mixed refused %", 0, " %"},
}
