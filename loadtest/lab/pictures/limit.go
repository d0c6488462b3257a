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
	"github.com/herdshield/shield/loadtest/lab/overload"
	"github.com/herdshield/shield/loadtest/sim"
)

// What docs/loadshedding.md shows: how shield, as it is with "concurrency adaptive"
// and nothing else, finds the limit of a backend, and how that compares.

// The picture is of overload.Step5: eight workers that do 160 requests per second,
// and get 800 from second 60 to second 180.
const (
	limitFile   = "loadshedding-limit.svg"
	limitHeight = 480 * pixel

	floodBegins, floodEnds = 60 * time.Second, 180 * time.Second
	floodBefore, floodTail = 20 * time.Second, 20 * time.Second // of what is drawn

	mostLimit  = 30  // in flight, at the upper edge
	mostServed = 300 // per second
	cutOff     = 210 // what comes is cut off there
)

// A step is what the limit is from an instant on.
type step struct {
	at    time.Duration
	limit int
}

// watched notes each change of a Guard's limit.
type watched struct {
	*sim.Guarded
	steps *[]step
}

func (w watched) Arrive(now time.Duration, r sim.Request) sim.Answer {
	defer w.note(now)
	return w.Guarded.Arrive(now, r)
}

func (w watched) Finish(now time.Duration, ticket int32, e sim.End) {
	w.Guarded.Finish(now, ticket, e)
	w.note(now)
}

func (w watched) note(now time.Duration) {
	limit := w.Limit()
	if n := len(*w.steps); n == 0 || (*w.steps)[n-1].limit != limit {
		*w.steps = append(*w.steps, step{now, limit})
	}
}

// playFlood plays what the picture shows, with the first of the seeds that the
// table's figures are from.
func playFlood() (*overload.Result, []step) {
	var steps []step
	row := overload.Shield
	row.Maker = func(c shield.Config) (sim.Server, error) {
		server, err := sim.Guard(c)
		if err != nil {
			return nil, err
		}
		return watched{server.(*sim.Guarded), &steps}, nil
	}
	return row.Run(overload.Step5(), overload.Seeds[0]), steps
}

// drawFlood draws the limit over time, and below what came and what was served.
func drawFlood(r *overload.Result, steps []step) []drawing {
	s := overload.Step5()
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
		came = append(came, plotter.XY{X: x, Y: min(cutOff, float64(r.Seconds[i].Attempts))})
		served = append(served, plotter.XY{X: x, Y: min(cutOff, float64(r.Seconds[i].Good))})
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
	top := panel("requests in flight", mostLimit, every(10))
	top.Title.Text = "Five times as much as the backend can do, for two minutes: it goes on doing what it can"
	found := &plotter.Line{XYs: limit, StepStyle: plotter.PostStep, LineStyle: vgdraw.LineStyle{Color: blue, Width: 1.5}}
	workers := level(float64(s.Plant.Workers))
	top.Add(found, workers, dips(limit))

	bottom := panel("requests per second", mostServed, every(50))
	bottom.X.Label.Text = "seconds since the overload began"
	offered, good, capacity := band(came, since(to), orange), band(served, since(to), blue), level(s.Capacity)
	bottom.Add(offered, good, capacity)
	return []drawing{
		{top, []entry{
			{"the limit that shield finds", found},
			{fmt.Sprintf("the backend's workers: %d", s.Plant.Workers), workers},
		}},
		{bottom, []entry{
			{fmt.Sprintf("came (%.0f, cut off)", mostRate(s)), offered},
			{"served in time", good},
			{fmt.Sprintf("the backend's capacity: %.0f", s.Capacity), capacity},
		}},
	}
}

// dips writes "probe" beside each fall of the limit to half or less: nothing else
// does that in one step while the backend answers.
func dips(limit plotter.XYs) *plotter.Labels {
	labels := plotter.XYLabels{}
	for i := 1; i < len(limit); i++ {
		if limit[i].Y <= limit[i-1].Y/2 {
			labels.XYs = append(labels.XYs, plotter.XY{X: limit[i].X + 2, Y: limit[i].Y - 1})
			labels.Labels = append(labels.Labels, "probe")
		}
	}
	l, err := plotter.NewLabels(labels)
	if err != nil {
		panic(err) // a point that is not a number
	}
	for i := range l.TextStyle {
		l.TextStyle[i].Font.Size, l.TextStyle[i].Font.Variant = 10, "Sans"
	}
	return l
}

func mostRate(s overload.Scenario) float64 {
	return s.Rates.Max(0)
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

// othersText is what other limiters do in the scenarios of loadtest/lab/overload. That
// does not depend on shield, and takes minutes, so it is kept; a test says when the
// scenarios have changed since. Rows of shield's do not belong there:
//
//	bash loadtest/lab/competitors/run | grep -v -e ^shield -e ^limit.alone > loadtest/lab/pictures/limiters.txt
//
//go:embed limiters.txt
var othersText string

// limiters are the columns of the table: names in package overload's tables, and on
// the page.
var limiters = []struct{ row, name string }{
	{"none", "no limit"},
	{"fixed 12", "fixed: 12"},
	{"failsafe-go v0.9.8", "failsafe-go 0.9.8"},
	{"Gradient2", "Gradient2"},
	{overload.Shield.Name, "shield"},
}

// A fact is a line of the table: a figure that package overload writes, in the
// table with that head and the first column of that name.
type fact struct{ text, table, column, unit string }

var facts = slices.Concat([]fact{
	{"**5 times the capacity**: served", named, "A good %", " %"},
	{"in the first 10 s", named, "10 s", " %"},
	{"99 % answered within", named, "p99 ms", " ms"},
	{"**1.2 times the capacity**: limit after 2 minutes", named, "B limit 2 min", ""},
	{"after 30 minutes", named, "30 min", ""},
	{"half answered within, after 30 minutes", named, "p50 ms", " ms"},
	{"**150 ms more of latency**: refused in the first minute", named, "1st min", " %"},
	{"in the third minute", named, "3rd min", " %"},
	{"**outage of 10 s**, five tries: well after", named, "G s", " s"},
	{"clients who do as they are told: well after", named, "G honouring s", " s"},
	{"**a tenth of the speed for 20 s**, four tries: well after", named, "G slow s", " s"},
	{"**64 workers, 3 times the capacity**: served", named, "H good %", " %"},
	{"**half of the speed**: served in the first 15 s", named, "K 15 s good %", " %"},
	{"**slower by 2 % for each that waits**: served", named, "U good %", " %"},
	{"**0.93 times the capacity**: refused", named, "0.93× refused %", " %"},
	{"**5 ms and 500 ms, 0.6 times the capacity**: refused", named, "mixed refused %", " %"},
}, drawn("24 backends", overload.HeldOut), drawn("24 others", overload.Unseen))

const named = "limiter" // the head of the table of the named scenarios

func drawn(text string, seed uint64) []fact {
	head := drawnHead(seed)
	return []fact{
		{"**" + text + ", drawn at random**: served, mean", head, "good % mean", " %"},
		{"the worst", head, "worst", " %"},
		{"0.6 times the capacity before: refused, the worst", head, "refused % at 0.6×, worst", " %"},
		{"0.6 times the capacity afterwards: served, the worst", head, "after % worst", " %"},
	}
}

func drawnHead(seed uint64) string {
	return fmt.Sprintf("%d backends of seed %d", overload.Drawn, seed)
}

// figures are what tables say, by head, row and column.
type figures map[[3]string]string

// apart is what stands between the cells of a line.
var apart = regexp.MustCompile(` {2,}`)

// read adds what the tables in a text say. Lines before the first table are skipped.
func (f figures) read(text string) {
	var heads []string
	for line := range strings.Lines(text) {
		cells := apart.Split(strings.TrimSpace(line), -1)
		switch first := cells[0]; {
		case len(cells) == 1:
			heads = nil
		case first == named, first == drawnHead(overload.HeldOut), first == drawnHead(overload.Unseen):
			heads = cells
		case len(cells) == len(heads):
			for i := len(cells) - 1; i > 0; i-- { // of two of one name the first counts
				f[[3]string{heads[0], first, heads[i]}] = cells[i]
			}
		}
	}
}

// play adds what a limiter does, by playing every scenario.
func (f figures) play(row overload.Row) error {
	rows := []overload.Row{row}
	var texts [3]bytes.Buffer
	var errs [3]error
	var wait sync.WaitGroup
	wait.Go(func() { errs[0] = overload.WriteTable(&texts[0], rows) })
	wait.Go(func() { errs[1] = overload.WriteSets(&texts[1], rows, overload.HeldOut) })
	wait.Go(func() { errs[2] = overload.WriteSets(&texts[2], rows, overload.Unseen) })
	wait.Wait()
	for i := range texts {
		f.read(texts[i].String())
	}
	return errors.Join(errs[:]...)
}

// table returns what f says of the limiters in Markdown.
func (f figures) table() (string, error) {
	var b strings.Builder
	b.WriteString("| |")
	for _, l := range limiters {
		b.WriteString(" " + l.name + " |")
	}
	b.WriteString("\n|---|" + strings.Repeat("---:|", len(limiters)) + "\n")
	for _, fact := range facts {
		b.WriteString("| " + fact.text + " |")
		for _, l := range limiters {
			v, ok := f[[3]string{fact.table, l.row, fact.column}]
			if !ok {
				return "", fmt.Errorf("the table %q says no %q of %q", fact.table, fact.column, l.row)
			}
			often, sometimes := strings.CutPrefix(v, "never–")
			switch {
			case sometimes:
				v = often + fact.unit + " or never"
			case v == "0" && (fact.unit == "" || fact.unit == " ms"): // no limit; no request was answered
				v = "–"
			case v != "never":
				v += fact.unit
			}
			b.WriteString(" " + v + " |")
		}
		b.WriteByte('\n')
	}
	return b.String(), nil
}

// compare returns the table of what all limiters do: of others what is kept, of
// shield what it does now.
func compare() (string, error) {
	f := figures{}
	f.read(othersText)
	if err := f.play(overload.Shield); err != nil {
		return "", err
	}
	return f.table()
}
