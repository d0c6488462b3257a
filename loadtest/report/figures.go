package report

import (
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/herdshield/shield/chart"
	"github.com/herdshield/shield/loadtest/sim"
)

// Bounds of figures. Ours: what can be read.
const (
	mostBins     = 250 // about how many steps a chart has across
	mostRuns     = 8   // side by side
	mostPolicies = 5   // that have a line
)

// WriteSVG writes the Figures as an SVG document.
func (r *Report) WriteSVG(w io.Writer) error {
	figures, err := r.Figures()
	if err != nil {
		return err
	}
	return chart.WriteSVG(w, r.title(), figures)
}

// Figures returns charts of the runs, at most 8, side by side with the same axes: how
// long clients waited; and over time the requests, the load of the backend, the outcomes,
// and the limit in flight if a run has one. Runs without a Series after the
// warm-up are left out; if there is no other, the error is ErrNothing.
func (r *Report) Figures() ([]chart.Figure, error) {
	r, err := r.drawable()
	if err != nil {
		return nil, err
	}
	if n := len(r.Runs); n > mostRuns {
		return nil, fmt.Errorf("there are %d runs; want at most %d in a picture", n, mostRuns)
	}
	s := sheet{Report: r, names: r.names(40)}
	s.span()
	for i := range r.Runs {
		s.points = append(s.points, s.gather(r.Runs[i].Series))
	}
	var figures []chart.Figure
	if f, ok := s.waits(); ok {
		figures = append(figures, f)
	}
	return append(figures, s.overTime()...), nil
}

// A sheet has the data that the figures of a Report share.
type sheet struct {
	*Report
	names    []string
	from, to time.Duration
	bin      time.Duration // of the figures: a multiple of the Report's
	points   [][]point     // by run and bin
}

// A point has the counts of a run in a bin of a figure.
type point struct {
	came, admitted, served, lost, gaveUp float64 // per second
	inFlight, queued, limit              float64 // the most; the limit: the last
}

// A curve is a series of a figure over time. A level has a value instead of a function.
type curve struct {
	chart.Series
	of    func(point) float64
	value float64
}

// span chooses what time the figures show: from a moment before the herd comes to when
// the last of the runs has served it, and all Marks are over.
func (s *sheet) span() {
	last := time.Duration(0)
	for i := range s.Runs {
		run := &s.Runs[i]
		end, over := s.Ended(run), run.Drained
		if run.Waiting > 0 || run.Reachable == 0 || run.Interrupted {
			over = end
		}
		for _, m := range s.Marks {
			over = max(over, m.To+m.To/5)
		}
		last = max(last, min(end, over+over/20+time.Second))
	}
	s.to = last
	s.from = -min(s.Warmup, max(last/25, 500*time.Millisecond))
	s.bin = s.Bin
	for _, step := range []time.Duration{1, 2, 5, 10, 20, 25, 50, 100, 200, 250, 500, 1000, 2000, 5000, 10_000, 30_000, 60_000, 300_000, 600_000, 3_600_000} {
		if step *= time.Millisecond; step%s.Bin == 0 {
			if s.bin = step; (s.to-s.from)/s.bin <= mostBins {
				break
			}
		}
	}
	s.from -= (s.from%s.bin + s.bin) % s.bin // to a whole bin, downwards
	if s.from < -s.Warmup {
		s.from += s.bin
	}
}

// gather sums bins up.
func (s *sheet) gather(series []sim.Bin) (points []point) {
	per := s.bin.Seconds()
	for i := range series {
		at := time.Duration(i)*s.Bin - s.Warmup
		if at < s.from || at >= s.to {
			continue
		}
		n := int((at - s.from) / s.bin)
		for len(points) <= n {
			points = append(points, point{})
		}
		p, b := &points[n], &series[i]
		p.came += float64(b.Herd.Came+b.Strangers.Came) / per
		p.admitted += float64(b.Herd.Admitted+b.Strangers.Admitted) / per
		p.served += float64(b.Served) / per
		p.lost += float64(b.TimedOut) / per
		p.gaveUp += float64(b.GaveUp) / per
		p.inFlight, p.queued = max(p.inFlight, float64(b.InFlight)), max(p.queued, float64(b.Queued))
		p.limit = float64(b.Limit)
	}
	return points
}

// most returns the most that f is of any point of any run, but at least least.
func (s *sheet) most(least float64, f func(point) float64) float64 {
	for _, points := range s.points {
		for _, p := range points {
			least = max(least, f(p))
		}
	}
	return least
}

// overTime returns the figures whose x axis is the time of the run.
func (s *sheet) overTime() []chart.Figure {
	capacity := curve{chart.Series{Name: "capacity of the backend: " + chart.Number(s.Capacity), Kind: chart.Level}, nil, s.Capacity}
	workers := curve{chart.Series{Name: "its workers: " + thousands(s.Workers), Kind: chart.Level}, nil, float64(s.Workers)}
	came := curve{chart.Series{Name: "came", Kind: chart.Area, Color: 1}, func(p point) float64 { return p.came }, 0}
	admitted := curve{chart.Series{Name: "admitted", Kind: chart.Area, Color: 2}, func(p point) float64 { return p.admitted }, 0}
	inside := curve{chart.Series{Name: s.inside(), Kind: chart.Area, Color: 2}, func(p point) float64 { return p.inFlight }, 0}
	served := curve{chart.Series{Name: "served", Kind: chart.Area, Color: 2}, func(p point) float64 { return p.served }, 0}
	timedOut := curve{chart.Series{Name: "timed out", Kind: chart.Line, Color: 1}, func(p point) float64 { return p.lost }, 0}
	gaveUp := curve{chart.Series{Name: "gave up", Kind: chart.Line, Color: 3}, func(p point) float64 { return p.gaveUp }, 0}
	limit := curve{chart.Series{Name: "limit", Kind: chart.Line, Color: 2}, func(p point) float64 { return p.limit }, 0}
	queued := curve{chart.Series{Name: "queued before the backend", Kind: chart.Area, Color: 1}, func(p point) float64 { return p.queued }, 0}

	load, usual := "Load of the backend", s.Workers
	if s.Live {
		load, usual = "Load", math.MaxInt32 // not known
	}
	figures := []chart.Figure{
		s.figure("Requests per second", newAxis(s.most(s.Capacity, came.of), max(s.Capacity, s.Inputs.Background), s.Inputs.Background), came, admitted, capacity),
		s.figure(load, newAxis(s.most(float64(s.Workers), inside.of), float64(usual), 0), inside, workers),
	}
	// A burst may be a hundred times of what can be served.
	top := 1.15 * s.most(max(1, s.Capacity), served.of)
	if lost := 1.15 * max(s.most(0, timedOut.of), s.most(0, gaveUp.of)); lost > top {
		top = min(lost, 2*top)
	}
	outcome := s.figure("Outcomes per second", chart.Axis{Max: top}, served, timedOut, gaveUp, capacity)
	if max(s.most(0, timedOut.of), s.most(0, gaveUp.of)) > top {
		outcome.Note = strings.TrimSpace(outcome.Note + " Lines are cut off at the top of the axis; the most is above each chart.")
	}
	figures = append(figures, outcome)
	if most := s.most(0, limit.of); most > 0 {
		curves := []curve{limit, workers}
		if s.most(0, queued.of) > 0 {
			curves = []curve{queued, limit, workers}
		}
		figures = append(figures, s.figure("Limit in flight", chart.Axis{Max: 1.2 * max(most, s.most(float64(s.Workers), queued.of))}, curves...))
	}
	return figures
}

// inside names the requests that are counted as in flight.
func (s *sheet) inside() string {
	if s.Live {
		return "requests under way"
	}
	return "requests in work and in its queue"
}

// figure makes a figure over time. Lines and levels without a value are left out.
func (s *sheet) figure(title string, y chart.Axis, curves ...curve) chart.Figure {
	if y.Log {
		title += ", logarithmic"
	}
	f := chart.Figure{
		Title: title, Y: y, Note: s.spans(),
		X: chart.Axis{Label: "time since " + s.begin(), Unit: " s", Min: s.from.Seconds(), Max: s.to.Seconds()},
	}
	curves = slices.DeleteFunc(curves, func(c curve) bool {
		return c.Kind == chart.Level && c.value == 0 || c.Kind == chart.Line && s.most(0, c.of) == 0
	})
	for _, m := range s.Marks {
		f.Spans = append(f.Spans, chart.Span{From: m.From.Seconds(), To: m.To.Seconds()})
	}
	for _, c := range curves {
		f.Series = append(f.Series, c.Series)
	}
	for i, points := range s.points {
		one := chart.Chart{Name: s.names[i], Start: s.from.Seconds(), Step: s.bin.Seconds()}
		var most []string
		for _, c := range curves {
			values := []float64{c.value}
			if c.of != nil {
				values = values[:0]
				for _, p := range points {
					values = append(values, round4(c.of(p)))
				}
				most = append(most, c.Name+" "+chart.Number(slices.Max(values)))
			}
			one.Values = append(one.Values, values)
		}
		one.Text = "at most: " + strings.Join(most, ", ")
		if s.none(i, curves) {
			one.Text, one.Values = "nothing to show", nil
		}
		f.Charts = append(f.Charts, one)
	}
	return f
}

// none reports whether a run has no value of any curve.
func (s *sheet) none(run int, curves []curve) bool {
	return !slices.ContainsFunc(s.points[run], func(p point) bool {
		return slices.ContainsFunc(curves, func(c curve) bool { return c.of != nil && c.of(p) > 0 })
	})
}

// begin is when time is 0.
func (s *sheet) begin() string {
	switch {
	case s.Live:
		return "the start"
	case s.herd():
		return "the herd came"
	}
	return "the warm-up"
}

// spans says what the grey grounds are.
func (s *sheet) spans() string {
	var parts []string
	for _, m := range s.Marks {
		text := fmt.Sprintf("%s at %v", m.Name, m.From)
		if m.To > m.From {
			text = fmt.Sprintf("%s from %v to %v", m.Name, m.From, m.To)
		}
		parts = append(parts, text)
	}
	if parts == nil {
		return ""
	}
	return "Grey: " + strings.Join(parts, ", ") + "."
}

// newAxis chooses an axis up to most. It is logarithmic if that is far above the usual
// value, and then begins at a power of ten below that value, and below least if that is
// more than 0.
func newAxis(most, usual, least float64) chart.Axis {
	if most <= 8*max(1, usual) {
		return chart.Axis{Max: 1.15 * max(1, most)}
	}
	a := chart.Axis{Log: true, Max: 1.5 * most, Min: math.Pow(10, math.Floor(math.Log10(max(10, usual)))-1)}
	if least > 0 {
		a.Min = min(a.Min, math.Pow(10, math.Floor(math.Log10(max(0.01, least)))-1))
	}
	return a
}

// waits returns the figure of how long clients waited, unserved clients included: the
// share that was served within a time. It needs the runs' Waits.
func (s *sheet) waits() (chart.Figure, bool) {
	longest := time.Second
	var runs [][]waits
	var names []string // of all runs' curves
	for i := range s.Runs {
		runs = append(runs, s.curves(&s.Runs[i]))
		for _, w := range runs[i] {
			longest = max(longest, w.longest())
			if !slices.Contains(names, w.name) {
				names = append(names, w.name)
			}
		}
	}
	if names == nil {
		return chart.Figure{}, false
	}
	const steps = 300
	f := chart.Figure{
		Title: "Waits: the share of clients served within a time",
		X:     chart.Axis{Label: "time since a client's first request", Unit: " s", Max: 1.04 * longest.Seconds()},
		Y:     chart.Axis{Unit: " %", Max: 100},
		Note:  "Hatched: clients that were not served by the end of the run. They gave up, or still waited.",
	}
	step := f.X.Max / steps
	for i, name := range names {
		series := chart.Series{Name: name, Kind: chart.Line, Color: []int{6, 3, 1, 4, 5, 7, 8}[min(i, 6)]}
		if i == 0 {
			series.Kind = chart.Area
		}
		f.Series = append(f.Series, series)
	}
	f.Series = append(f.Series, chart.Series{Name: "not served", Kind: chart.Above, Color: 8})
	for i, curves := range runs {
		one := chart.Chart{Name: s.names[i], Step: step, Values: make([][]float64, len(f.Series))}
		for _, w := range curves {
			one.Values[slices.Index(names, w.name)] = w.shares(step, steps)
		}
		if len(curves) > 0 {
			one.Text = curves[0].text()
			one.Values[len(names)] = one.Values[0][steps-1:]
		}
		f.Charts = append(f.Charts, one)
	}
	return f, true
}

// waits are how long some clients waited.
type waits struct {
	name string
	n    int // clients
	sim.Waits
}

// curves returns how long the herd waited, or all clients if there is none; each of the
// first policies, if there are several; and background clients, if there is a herd.
func (s *sheet) curves(r *Run) (all []waits) {
	background := waits{"background clients", r.Strangers.Came, r.Strangers.Waits}
	switch {
	case !s.herd():
		background.name = "clients"
		all = append(all, background)
	case s.Live:
		background.name = "others"
		fallthrough
	default:
		all = append(all, waits{"the herd", r.Clients, r.Waits})
	}
	if all[0].Waits == nil {
		return nil
	}
	if len(r.Policies) > 1 {
		for _, p := range r.Policies[:min(mostPolicies, len(r.Policies))] {
			if p.Waits != nil {
				all = append(all, waits{shorten(fmt.Sprint(p.Policy), 22), p.Clients, p.Waits})
			}
		}
	}
	if s.herd() && background.Waits != nil {
		all = append(all, background)
	}
	return all
}

// longest returns the longest wait of a client that was served.
func (w *waits) longest() (d time.Duration) {
	for _, one := range w.Waits {
		if one != sim.Never {
			d = one
		}
	}
	return d
}

// text says how many were served, and within what time.
func (w *waits) text() string {
	served := 0
	for i, one := range w.Waits {
		if one != sim.Never {
			served = i
		}
	}
	var parts []string
	for _, percent := range []int{50, 90, 99} {
		if 10*percent <= served {
			parts = append(parts, fmt.Sprintf("%d %% within %s", percent, waitWithin(w.Waits, percent)))
		}
	}
	if served < 1000 {
		parts = append(parts, chart.Number(float64(1000-served)/10)+" % not")
	}
	return fmt.Sprintf("%s %% of %s served: %s", chart.Number(float64(served)/10), thousands(w.n), strings.Join(parts, ", "))
}

// shares returns which share of the clients, in percent, was served at the end of each
// of n steps.
func (w *waits) shares(step float64, n int) (shares []float64) {
	i := 0
	for k := range n {
		for i < len(w.Waits) && w.Waits[i].Seconds() <= step*float64(k+1) {
			i++
		}
		shares = append(shares, float64(max(0, i-1))/10)
	}
	return shares
}

// round4 rounds v to four digits, as a figure needs no more.
func round4(v float64) float64 {
	r, _ := strconv.ParseFloat(strconv.FormatFloat(v, 'g', 4, 64), 64) // without an error: it is a number
	return r
}
