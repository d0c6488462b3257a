package main

import (
	"cmp"
	_ "embed"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	vgdraw "gonum.org/v1/plot/vg/draw"

	"github.com/herdshield/shield"
	"github.com/herdshield/shield/loadtest/lab/overload"
	"github.com/herdshield/shield/loadtest/lab/page"
	"github.com/herdshield/shield/loadtest/plant"
	"github.com/herdshield/shield/loadtest/sim"
)

// docs/explain/adaptive-limits.md shows how shield, as it is with "concurrency adaptive" and
// nothing else, finds the limit of a backend, and how that compares.

// The picture is of overload.Step5: eight workers that do 160 requests per second,
// and get 800 from second 60 to second 180.
const (
	limitFile   = "loadshedding-limit.svg"
	limitTitle  = "Two minutes at five times the backend's capacity: it keeps serving what it can"
	limitHeight = 480 * page.Pixel

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

func limitPicture(panels []page.Panel) page.Picture {
	return page.Picture{
		File: limitFile, Title: limitTitle, Height: limitHeight, Panels: panels,
		Desc: "Above, the in-flight limit: it falls when the overload begins, stays near the number of workers, and halves for a moment at each probe. " +
			"Below, requests per second: far more arrive than are served, and the backend serves about its capacity throughout.",
	}
}

// drawFlood draws the limit over time, and below what came and what was served.
func drawFlood(r *overload.Result, steps []step) []page.Panel {
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
		return dashed(plotter.XY{X: since(from), Y: y}, plotter.XY{X: since(to), Y: y})
	}
	panel := func(title, x, y string, most, marks float64) *plot.Plot {
		p := page.Frame(title, x, y)
		p.X.Min, p.X.Max, p.Y.Min, p.Y.Max = since(from), since(to), 0, most
		p.X.Tick.Marker, p.Y.Tick.Marker = page.Every(20), page.Every(marks)
		return p
	}

	top := panel(limitTitle, "", "requests in flight", mostLimit, 10)
	found := &plotter.Line{XYs: limit, StepStyle: plotter.PostStep, LineStyle: vgdraw.LineStyle{Color: page.Blue, Width: 1.5}}
	workers := level(float64(s.Plant.Workers))
	top.Add(found, workers, dips(limit))

	bottom := panel("", "seconds since the overload began", "requests per second", mostServed, 50)
	offered, good, capacity := page.Bars(came, since(to), 0, page.Orange), page.Bars(served, since(to), 0, page.Blue), level(s.Capacity)
	bottom.Add(offered, good, capacity)
	highest := slices.MaxFunc(s.Rates, func(a, b plant.Step) int { return cmp.Compare(a.Value, b.Value) }).Value
	return []page.Panel{
		{Plot: top, Apart: legendStep, Legend: []page.Entry{
			{Text: "the limit that shield finds", Line: found},
			{Text: fmt.Sprintf("the backend's workers: %d", s.Plant.Workers), Line: workers},
		}},
		{Plot: bottom, Apart: legendStep, Legend: []page.Entry{
			{Text: fmt.Sprintf("arrived (%.0f, cut off)", highest), Line: offered},
			{Text: "served in time", Line: good},
			{Text: fmt.Sprintf("the backend's capacity: %.0f", s.Capacity), Line: capacity},
		}},
	}
}

// dips labels each fall of the limit to half or less as a probe, the first one in more words: nothing else
// does that in one step while the backend responds.
func dips(limit plotter.XYs) *plotter.Labels {
	labels := plotter.XYLabels{}
	for i := 1; i < len(limit); i++ {
		if limit[i].Y <= limit[i-1].Y/2 {
			labels.XYs = append(labels.XYs, plotter.XY{X: limit[i].X + 2, Y: limit[i].Y - 1})
			text := "probe"
			if len(labels.Labels) == 0 {
				text = "probe: would half\nthe limit do?"
			}
			labels.Labels = append(labels.Labels, text)
		}
	}
	return page.Labels(labels)
}

// othersText is what other limiters do in the scenarios of loadtest/lab/overload. That
// does not depend on shield, and takes minutes, so it is kept, and loadtest/lab/run
// makes it anew. Rows of shield's do not belong there:
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
	{"**5 times the capacity**: served", named, "A good %", "%"},
	{"in the first 10 s", named, "10 s", "%"},
	{"p99 response time", named, "p99 ms", " ms"},
	{"**1.2 times the capacity**: limit after 2 minutes", named, "B limit 2 min", ""},
	{"after 30 minutes", named, "30 min", ""},
	{"median response time after 30 minutes", named, "p50 ms", " ms"},
	{"**150 ms more of latency**: rejected in the first minute", named, "1st min", "%"},
	{"in the third minute", named, "3rd min", "%"},
	{"**outage of 10 s**, five tries: well after", named, "G s", " s"},
	{"the same, clients obeying `Retry-After`: well after", named, "G honoring s", " s"},
	{"**a tenth of the speed for 20 s**, four tries: well after", named, "G slow s", " s"},
	{"**64 workers, 3 times the capacity**: served", named, "H good %", "%"},
	{"**half of the speed**: served in the first 15 s", named, "K 15 s good %", "%"},
	{"**slower by 2% for each that waits**: served", named, "U good %", "%"},
	{"**0.93 times the capacity**: rejected", named, "0.93× rejected %", "%"},
	{"**5 ms and 500 ms, 0.6 times the capacity**: rejected", named, "mixed rejected %", "%"},
}, drawn("24 backends", overload.HeldOut), drawn("24 others", overload.Unseen))

const named = "limiter" // the head of the table of the named scenarios

func drawn(text string, seed uint64) []fact {
	head := drawnHead(seed)
	return []fact{
		{"**" + text + ", drawn at random**: served, mean", head, "good % mean", "%"},
		{"the worst", head, "worst", "%"},
		{"0.6 times the capacity before: rejected, the worst", head, "rejected % at 0.6×, worst", "%"},
		{"0.6 times the capacity afterwards: served, the worst", head, "after % worst", "%"},
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
			f.add(heads, cells)
		}
	}
}

func (f figures) add(heads, cells []string) {
	for i := len(cells) - 1; i > 0; i-- { // of two of one name the first counts
		f[[3]string{heads[0], cells[0], heads[i]}] = cells[i]
	}
}

// play adds what a limiter does, by playing every scenario.
func (f figures) play(row overload.Row) {
	tables := make([][][]string, len(overload.Tables))
	var wait sync.WaitGroup
	for i, play := range overload.Tables {
		wait.Go(func() { tables[i] = play([]overload.Row{row}) })
	}
	wait.Wait()
	for _, t := range tables {
		f.add(t[0], t[1])
	}
}

// table returns what f says of the limiters in Markdown.
func (f figures) table() (string, error) {
	rows := [][]string{{""}}
	for _, l := range limiters {
		rows[0] = append(rows[0], l.name)
	}
	for _, fact := range facts {
		row := []string{fact.text}
		for _, l := range limiters {
			v, ok := f[[3]string{fact.table, l.row, fact.column}]
			if !ok {
				return "", fmt.Errorf("table %q has no %q of %q; it must have all that are drawn", fact.table, fact.column, l.row)
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
			row = append(row, v)
		}
		rows = append(rows, row)
	}
	return page.Markdown(rows, 1), nil
}

// compare returns the table of what all limiters do: of others what is kept, of
// shield what it does now.
func compare() (string, error) {
	f := figures{}
	f.read(othersText)
	f.play(overload.Shield)
	return f.table()
}
