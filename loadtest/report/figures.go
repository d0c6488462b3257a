package report

import (
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/herdshield/shield/chart"
	"github.com/herdshield/shield/loadtest/sim"
)

// mostBins is about how many steps a chart has across, at most. Ours: what can be read.
const mostBins = 250

// ErrNothing is the error of figures if no run has come as far as the herd.
var ErrNothing = errors.New("no run is long enough to draw")

// Figures returns charts of the runs over time, side by side with the same axes. They show
// the requests, the load of the backend, the outcomes, and any limit in flight. Runs without a Series after the warm-up are left out. If there
// is no other, the error is ErrNothing.
func (r *Report) Figures() ([]chart.Figure, error) {
	drawn := *r
	drawn.Runs = slices.DeleteFunc(slices.Clone(r.Runs), func(run Run) bool { return r.Ended(&run) <= 0 })
	if len(drawn.Runs) == 0 {
		return nil, ErrNothing
	}
	s := sheet{Report: &drawn, names: drawn.labels()}
	s.span()
	return s.overTime(), nil
}

// labels returns what charts call the runs.
func (r *Report) labels() []string {
	labels := r.names()
	for i := range r.Runs {
		if label := r.Runs[i].Label; label != "" {
			labels[i] = label
		}
	}
	return labels
}

// WriteSVG writes the figures as an SVG document.
func (r *Report) WriteSVG(w io.Writer) error {
	figures, err := r.Figures()
	if err != nil {
		return err
	}
	return chart.WriteSVG(w, "shield simulate: "+strings.Join(r.names(), ", "), figures)
}

// A sheet has the data that the figures of a Report share.
type sheet struct {
	*Report
	names    []string
	from, to time.Duration
	bin      time.Duration // of the figures: a multiple of the Report's
}

// A curve is a series of a figure over time.
type curve struct {
	chart.Series
	runs [][]float64 // the values by run and bin; of a level the one value
	most float64     // of all
}

// span chooses what time the figures show. It begins shortly before the herd comes, and ends
// when all runs have served it and all Marks are over.
func (s *sheet) span() {
	last := time.Duration(0)
	for i := range s.Runs {
		run := &s.Runs[i]
		end, over := s.Ended(run), run.Drained
		if run.Waiting > 0 || run.Reachable == 0 {
			over = end
		}
		for _, m := range s.Marks {
			over = max(over, m.To+m.To/5)
		}
		last = max(last, min(end, over+over/20+time.Second))
	}
	s.to = last
	s.from = -min(s.Warmup, max(last/25, 500*time.Millisecond))
	s.bin = s.Bin * (1 + (s.to-s.from)/s.Bin/mostBins)
	s.from -= (s.from%s.bin + s.bin) % s.bin // to a whole bin, downwards
	if s.from < -s.Warmup {
		s.from += s.bin
	}
}

// curve returns the curve of a count. merge adds that of a bin to the figure's bin.
func (s *sheet) curve(name string, kind chart.Kind, color int, merge func(value, next float64) float64, of func(*sim.Bin) int32) curve {
	c := curve{Series: chart.Series{Name: name, Kind: kind, Color: color}}
	for r := range s.Runs {
		var values []float64
		for i := range s.Runs[r].Series {
			at := time.Duration(i)*s.Bin - s.Warmup
			if at < s.from || at >= s.to {
				continue
			}
			n := int((at - s.from) / s.bin)
			for len(values) <= n {
				values = append(values, 0)
			}
			values[n] = merge(values[n], float64(of(&s.Runs[r].Series[i])))
		}
		c.most = max(c.most, slices.Max(values))
		for i, v := range values {
			values[i] = chart.Round(v)
		}
		c.runs = append(c.runs, values)
	}
	return c
}

func (s *sheet) level(name string, value float64) curve {
	return curve{
		Series: chart.Series{Name: name + ": " + chart.Number(value), Kind: chart.Level},
		runs:   slices.Repeat([][]float64{{value}}, len(s.Runs)), most: value,
	}
}

// overTime returns the figures whose x axis is the time of the run.
func (s *sheet) overTime() []chart.Figure {
	rate := func(value, next float64) float64 { return value + next/s.bin.Seconds() }
	last := func(_, next float64) float64 { return next }
	capacity := s.level("backend capacity", s.Capacity)
	workers := s.level("its workers", float64(s.workers()))
	arrived := s.curve("arrived", chart.Area, 1, rate, func(b *sim.Bin) int32 { return b.Herd.Came + b.NewClients.Came })
	admitted := s.curve("admitted", chart.Area, 2, rate, func(b *sim.Bin) int32 { return b.Herd.Admitted + b.NewClients.Admitted })
	inFlight := s.curve("requests in progress or queued", chart.Area, 2, math.Max, func(b *sim.Bin) int32 { return b.InFlight })
	served := s.curve("served", chart.Area, 2, rate, func(b *sim.Bin) int32 { return b.Served })
	timedOut := s.curve("timed out", chart.Line, 1, rate, func(b *sim.Bin) int32 { return b.TimedOut })
	gaveUp := s.curve("gave up", chart.Line, 3, rate, func(b *sim.Bin) int32 { return b.GaveUp })
	limit := s.curve("limit", chart.Line, 2, last, func(b *sim.Bin) int32 { return b.Limit })
	queued := s.curve("queued in front of the backend", chart.Area, 1, math.Max, func(b *sim.Bin) int32 { return b.Queued })

	requests := newAxis(max(s.Capacity, arrived.most), max(s.Capacity, s.Background), s.Background)
	outcomes := newAxis(max(s.Capacity, served.most, timedOut.most, gaveUp.most), s.Capacity, 0)
	figures := []chart.Figure{
		s.figure("Requests per second", requests, arrived, admitted, capacity),
		s.figure("Load of the backend", newAxis(max(workers.most, inFlight.most), float64(s.workers()), 0), inFlight, workers),
		s.figure("Outcomes per second", outcomes, served, timedOut, gaveUp, capacity),
	}
	if limit.most > 0 {
		curves := []curve{limit, workers}
		if queued.most > 0 {
			curves = []curve{queued, limit, workers}
		}
		figures = append(figures, s.figure("In-flight limit", chart.Axis{Max: 1.2 * max(limit.most, workers.most, queued.most)}, curves...))
	}
	return figures
}

// figure makes a figure over time. Lines and levels without a value are left out.
func (s *sheet) figure(title string, y chart.Axis, curves ...curve) chart.Figure {
	if y.Log {
		title += ", logarithmic"
	}
	begin := "the warm-up"
	if s.herd() {
		begin = "the herd arrived"
	}
	f := chart.Figure{
		Title: title, Y: y,
		X: chart.Axis{Label: "time since " + begin, Unit: " s", Min: s.from.Seconds(), Max: s.to.Seconds()},
	}
	for i, m := range s.Marks {
		f.Spans = append(f.Spans, chart.Span{From: m.From.Seconds(), To: m.To.Seconds()})
		f.Note += []string{"Grey: ", ", "}[min(i, 1)] + m.Name
		if m.To > m.From {
			f.Note += fmt.Sprintf(" from %v to %v", m.From, m.To)
		} else {
			f.Note += fmt.Sprintf(" at %v", m.From)
		}
	}
	if f.Note != "" {
		f.Note += "."
	}
	curves = slices.DeleteFunc(curves, func(c curve) bool { return c.Kind != chart.Area && c.most == 0 })
	for _, c := range curves {
		f.Series = append(f.Series, c.Series)
	}
	for run, name := range s.names {
		one := chart.Chart{Name: name, Start: s.from.Seconds(), Step: s.bin.Seconds()}
		var most []string
		some := false
		for _, c := range curves {
			one.Values = append(one.Values, c.runs[run])
			if c.Kind != chart.Level {
				top := slices.Max(c.runs[run])
				most = append(most, c.Name+" "+chart.Number(top))
				some = some || top > 0
			}
		}
		one.Text = "peaks: " + strings.Join(most, ", ")
		if !some {
			one.Text, one.Values = "nothing to show", nil
		}
		f.Charts = append(f.Charts, one)
	}
	return f
}

// newAxis chooses an axis up to most. It is logarithmic if that is far above the usual value.
// It then begins at a power of ten below that value, and below a least that is more than 0.
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
