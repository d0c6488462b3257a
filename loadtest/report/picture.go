package report

import (
	"bytes"
	"cmp"
	"fmt"
	"image/color"
	"io"
	"math"
	"slices"
	"strconv"
	"time"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/font"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/text"
	"gonum.org/v1/plot/vg"
	vgdraw "gonum.org/v1/plot/vg/draw"
	"gonum.org/v1/plot/vg/vgimg"
	"gonum.org/v1/plot/vg/vgsvg"

	"github.com/herdshield/shield/loadtest/sim"
)

// Sizes of a picture, in pixels of which there are 96 in an inch.
const (
	pixel = vg.Inch / 96

	leftSide  = 70 * pixel // of the axes of the first column
	oneColumn = 660 * pixel
	column    = 400 * pixel // of several
	gap       = 26 * pixel  // between columns
	head      = 50 * pixel  // names of the runs
	strip     = 26 * pixel  // a panel's legend
	between   = 14 * pixel  // below a panel
	foot      = 34 * pixel  // an axis with its label
	panelHigh = 130 * pixel
	barHigh   = 20 * pixel

	dpi = 144 // of a PNG

	// mostBins is about how many steps a panel has across.
	mostBins = 250

	// maxPictures is how many runs stand side by side, and mostPolicies how many
	// policies have a bar. Ours: what can be read.
	maxPictures  = 8
	mostPolicies = 8

	labelHigh = 12 * pixel // of a lane of labels
	maxLanes  = 5          // further labels are left out
)

// Colours that the colour-blind can tell apart: Okabe and Ito 2008.
var (
	orange     = color.RGBA{0xe6, 0x9f, 0x00, 0xff}
	blue       = color.RGBA{0x00, 0x72, 0xb2, 0xff}
	skyBlue    = color.RGBA{0x56, 0xb4, 0xe9, 0xff}
	paleBlue   = color.RGBA{0xc3, 0xe1, 0xf5, 0xff}
	vermillion = color.RGBA{0xd5, 0x5e, 0x00, 0xff}
	grey       = color.RGBA{0x66, 0x66, 0x66, 0xff}
	paleGrey   = color.RGBA{0xea, 0xea, 0xea, 0xff}
)

// sizes of text.
const (
	small  = 10
	normal = 11
	large  = 14
)

// WriteSVG writes a picture as an SVG document. Fonts are the reader's. See
// WritePNG.
func (r *Report) WriteSVG(w io.Writer) error {
	s, err := r.sheet()
	if err != nil {
		return err
	}
	c := vgsvg.New(s.width, s.height)
	s.draw(vgdraw.New(c))
	var b bytes.Buffer
	if _, err := c.WriteTo(&b); err != nil {
		return err
	}
	fonts := []byte("font-family:Liberation Sans,Arial,sans-serif;")
	_, err = w.Write(bytes.ReplaceAll(b.Bytes(), []byte("font-family:Liberation Sans;"), fonts))
	return err
}

// WritePNG writes a picture: a column for each run, at most 8, and in each, over
// time, the requests that came and were admitted, those at the backend, those that were
// served or not, the limit in flight if a run has one, and then the waits by policy.
// Axes are the same for all runs. It is an error if there are more, or if a run has no
// series.
func (r *Report) WritePNG(w io.Writer) error {
	s, err := r.sheet()
	if err != nil {
		return err
	}
	c := vgimg.NewWith(vgimg.UseWH(s.width, s.height), vgimg.UseDPI(dpi))
	s.draw(vgdraw.New(c))
	_, err = vgimg.PngCanvas{Canvas: c}.WriteTo(w)
	return err
}

// A sheet is a picture that is ready to be drawn.
type sheet struct {
	*Report
	width, height vg.Length
	from, to      time.Duration
	bin           time.Duration // of the picture: a multiple of the Report's
	points        [][]point     // by run and bin
	panels        []panel
	policies      int
	longest       float64 // wait, in seconds
	names         []string
	labels        []label
	lanes         int // of labels
}

// A label is the name of a Mark above the first panel, in a lane of its own where it
// would be over another.
type label struct {
	text string
	at   vg.Length // from the left end of the axis
	lane int
}

// A point is what a run did in a bin of the picture.
type point struct {
	came, admitted, served, lost, gaveUp float64 // per second
	inFlight, queued, limit              float64 // the most; the limit: the last
}

// A panel is a row of the picture over time.
type panel struct {
	label   string
	least   float64 // of a logarithmic scale; 0: the scale is linear
	most    float64
	legend  []entry
	drawing func(p *plot.Plot, of []point)
}

// An entry is a line of a legend: a filled square, or a line.
type entry struct {
	text   string
	fill   color.Color
	dashes []vg.Length
	line   color.Color
}

func (r *Report) sheet() (*sheet, error) {
	if err := r.check(); err != nil {
		return nil, err
	}
	if n := len(r.Runs); n > maxPictures {
		return nil, fmt.Errorf("there are %d runs; want at most %d in a picture", n, maxPictures)
	}
	s := &sheet{Report: r}
	s.span()
	s.names = r.names(int(float64(s.room()) / 7.2))
	for i := range r.Runs {
		s.points = append(s.points, s.gather(r.Runs[i].Series))
		s.policies = max(s.policies, min(mostPolicies, len(r.Runs[i].Policies)))
		for _, p := range r.Runs[i].Policies[:min(mostPolicies, len(r.Runs[i].Policies))] {
			s.longest = max(s.longest, p.P99.Seconds())
		}
	}
	if s.longest == 0 {
		s.longest = 1
	}
	s.panels = s.overTime()
	s.width = leftSide + oneColumn
	if n := vg.Length(len(r.Runs)); n > 1 {
		s.width = leftSide + n*column
	}
	s.label()
	s.height = head + vg.Length(s.lanes)*labelHigh + vg.Length(len(s.panels))*(strip+panelHigh+between) + foot
	if s.herd() {
		s.height += strip + vg.Length(max(1, s.policies))*barHigh + between + foot
	}
	return s, nil
}

// room is about how wide the axes of one run are.
func (s *sheet) room() vg.Length {
	if len(s.Runs) > 1 {
		return column - gap
	}
	return oneColumn - gap
}

// label finds a place for the names of the marks.
func (s *sheet) label() {
	sty, room := style(small-1, grey), s.room()
	var ends [maxLanes]vg.Length
	for _, m := range slices.SortedStableFunc(slices.Values(s.Marks), func(a, b Mark) int { return cmp.Compare(a.From, b.From) }) {
		if m.Name == "" || m.From > s.to || m.To < s.from {
			continue
		}
		wide := 1.2 * sty.Width(m.Name) // a reader's font may be wider
		at := room * vg.Length(max(0, m.From-s.from)) / vg.Length(max(1, s.to-s.from))
		at = max(0, min(at, room-wide))
		for lane := range ends {
			if ends[lane] == 0 || ends[lane] <= at {
				ends[lane] = at + wide + 6*pixel
				s.labels = append(s.labels, label{m.Name, at, lane})
				s.lanes = max(s.lanes, lane+1)
				break
			}
		}
	}
}

// span chooses what time the picture shows: from a moment before the herd comes to
// when the last of the runs has served it, and what happens is over.
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

// overTime returns the panels of what is over time.
func (s *sheet) overTime() []panel {
	dashes := []vg.Length{5, 3}
	workers := func(p *plot.Plot) { s.level(p, float64(s.Workers), dashes) }
	capacity := func(p *plot.Plot) { s.level(p, s.Capacity, dashes) }
	var able, room []entry
	if s.Capacity > 0 {
		able = []entry{{text: "the backend's capacity: " + number(s.Capacity), line: color.Black, dashes: dashes}}
	}
	if s.Workers > 0 {
		room = []entry{{text: "its workers: " + thousands(s.Workers), line: color.Black, dashes: dashes}}
	}

	came := panel{
		label: "requests / s",
		legend: append([]entry{
			{text: "came", fill: orange}, {text: "of these, admitted", fill: blue},
		}, able...),
		drawing: func(p *plot.Plot, of []point) {
			s.area(p, of, orange, func(p point) float64 { return p.came })
			s.area(p, of, blue, func(p point) float64 { return p.admitted })
			capacity(p)
		},
	}
	came.scale(s.most(s.Capacity, func(p point) float64 { return p.came }), s.Capacity, s.Inputs.Background)

	load := panel{
		label:  "at the backend",
		legend: append([]entry{{text: "requests in work and in its queue", fill: blue}}, room...),
		drawing: func(p *plot.Plot, of []point) {
			s.area(p, of, blue, func(p point) float64 { return p.inFlight })
			workers(p)
		},
	}
	load.scale(s.most(float64(s.Workers), func(p point) float64 { return p.inFlight }), float64(s.Workers), 0)

	served := panel{
		label:  "requests / s",
		most:   1.15 * s.most(s.Capacity, func(p point) float64 { return p.served }),
		legend: []entry{{text: "served", fill: blue}},
	}
	for _, e := range able {
		e.text = "capacity"
		served.legend = append(served.legend, e)
	}
	// What comes at once may be a hundred times of what can be served.
	timedOut, gaveUp := func(p point) float64 { return p.lost }, func(p point) float64 { return p.gaveUp }
	if lost := max(s.most(0, timedOut), s.most(0, gaveUp)); lost > served.most {
		served.most = min(1.15*lost, 2*served.most)
	}
	for _, l := range []struct {
		text string
		line color.Color
		f    func(point) float64
	}{{"timed out", orange, timedOut}, {"gave up", vermillion, gaveUp}} {
		most := s.most(0, l.f)
		if most == 0 {
			continue
		}
		if most > served.most {
			l.text += fmt.Sprintf(" (cut off: up to %s)", number(most))
		}
		served.legend = append(served.legend, entry{text: l.text, line: l.line})
	}
	top := served.most
	served.drawing = func(p *plot.Plot, of []point) {
		s.area(p, of, blue, func(p point) float64 { return p.served })
		s.line(p, of, orange, func(p point) float64 { return min(top, p.lost) })
		s.line(p, of, vermillion, func(p point) float64 { return min(top, p.gaveUp) })
		capacity(p)
	}
	panels := []panel{came, load, served}

	if most := s.most(0, func(p point) float64 { return p.limit }); most > 0 {
		queued := s.most(0, func(p point) float64 { return p.queued })
		limit := panel{
			label:  "limit in flight",
			most:   1.2 * max(most, queued, float64(s.Workers)),
			legend: append([]entry{{text: "the limit", line: blue}}, room...),
		}
		if queued > 0 {
			limit.legend = append(limit.legend, entry{text: "waiting before the backend", fill: orange})
		}
		limit.drawing = func(p *plot.Plot, of []point) {
			if queued > 0 {
				s.area(p, of, orange, func(p point) float64 { return p.queued })
			}
			workers(p)
			s.line(p, of, blue, func(p point) float64 { return p.limit })
		}
		panels = append(panels, limit)
	}
	return panels
}

// scale chooses a scale up to most: logarithmic if that is far above what is usual,
// and then from a power of ten on that is below what is usual, and below least if
// that is more than 0.
func (p *panel) scale(most, usual, least float64) {
	p.most = 1.15 * max(1, most)
	if most > 8*max(1, usual) {
		p.least = math.Pow(10, math.Floor(math.Log10(max(10, usual)))-1)
		if least > 0 {
			p.least = min(p.least, math.Pow(10, math.Floor(math.Log10(max(0.01, least)))-1))
		}
		p.most = 1.5 * most
	}
}

// area draws a bar for each bin.
func (s *sheet) area(p *plot.Plot, of []point, fill color.Color, f func(point) float64) {
	l := s.steps(p, of, f)
	l.XYs = append(l.XYs, plotter.XY{X: l.XYs[len(l.XYs)-1].X, Y: p.Y.Min})
	l.FillColor = fill
	p.Add(l)
}

// line draws a line of steps, unless there is nothing but 0.
func (s *sheet) line(p *plot.Plot, of []point, c color.Color, f func(point) float64) {
	if !slices.ContainsFunc(of, func(p point) bool { return f(p) > 0 }) {
		return
	}
	l := s.steps(p, of, f)
	l.LineStyle = vgdraw.LineStyle{Color: c, Width: 1.3}
	p.Add(l)
}

func (s *sheet) steps(p *plot.Plot, of []point, f func(point) float64) *plotter.Line {
	l := &plotter.Line{StepStyle: plotter.PostStep}
	x, y := s.from.Seconds(), p.Y.Min
	for _, of := range of {
		if next := max(p.Y.Min, f(of)); len(l.XYs) == 0 || next != y { // a document is smaller without the others
			y = next
			l.XYs = append(l.XYs, plotter.XY{X: x, Y: y})
		}
		x += s.bin.Seconds()
	}
	l.XYs = append(l.XYs, plotter.XY{X: min(x, s.to.Seconds()), Y: y})
	return l
}

// level draws a horizontal line, if there is something to show.
func (s *sheet) level(p *plot.Plot, y float64, dashes []vg.Length) {
	if y > 0 {
		p.Add(&plotter.Line{
			XYs:       plotter.XYs{{X: s.from.Seconds(), Y: y}, {X: s.to.Seconds(), Y: y}},
			LineStyle: vgdraw.LineStyle{Color: color.Black, Width: 1.2, Dashes: dashes},
		})
	}
}

// style is text of a size.
func style(size font.Length, c color.Color) text.Style {
	return text.Style{
		Color: c, Font: font.From(font.Font{Typeface: "Liberation", Variant: "Sans"}, size),
		XAlign: text.XLeft, YAlign: text.YBottom, Handler: plot.DefaultTextHandler,
	}
}

// newPlot returns a plot in the style of the house, without padding. Its texts are
// normal for time, and its scale is to be set.
func newPlot() *plot.Plot {
	p := plot.New()
	p.BackgroundColor = nil // which would cover its neighbours
	p.X.Padding, p.Y.Padding = 0, 0
	for _, a := range []*plot.Axis{&p.X, &p.Y} {
		a.Tick.Label.Font, a.Label.TextStyle.Font = style(small, color.Black).Font, style(normal, color.Black).Font
		a.Tick.LineStyle.Width, a.LineStyle.Width = 0.6, 0.6
	}
	return p
}

// overTimePlot draws a panel of a run. first: it is in the first column. last: it
// is in the last row.
func (s *sheet) overTimePlot(panel panel, of []point, first, last bool) *plot.Plot {
	p := newPlot()
	p.X.Min, p.X.Max = s.from.Seconds(), s.to.Seconds()
	p.Y.Min, p.Y.Max = 0, panel.most
	p.X.Tick.Marker, p.Y.Tick.Marker = marks(p.X.Max-p.X.Min, 6, true), marks(panel.most, 4, first)
	if panel.least > 0 {
		p.Y.Min, p.Y.Scale, p.Y.Tick.Marker = panel.least, plot.LogScale{}, powers(first)
	}
	if first {
		p.Y.Label.Text = panel.label
	}
	if last {
		p.X.Label.Text = "seconds since the herd came"
		if !s.herd() {
			p.X.Label.Text = "seconds"
		}
	} else {
		p.X.Tick.Marker = marks(p.X.Max-p.X.Min, 6, false)
	}
	for _, m := range s.Marks {
		p.Add(mark{m, p.Y.Min, panel.most})
	}
	if len(of) > 0 {
		panel.drawing(p, of)
	}
	// Adding widens scales.
	p.X.Min, p.X.Max, p.Y.Max = s.from.Seconds(), s.to.Seconds(), panel.most
	return p
}

// mark draws a Mark: a band of grey, or a line.
type mark struct {
	Mark
	least, most float64
}

func (m mark) Plot(c vgdraw.Canvas, p *plot.Plot) {
	x, y := p.Transforms(&c)
	from, to := x(max(p.X.Min, m.From.Seconds())), x(min(p.X.Max, m.To.Seconds()))
	to = max(to, from+1)
	c.FillPolygon(paleGrey, []vg.Point{{X: from, Y: y(m.least)}, {X: to, Y: y(m.least)}, {X: to, Y: y(m.most)}, {X: from, Y: y(m.most)}})
}

// bars draws the waits of policies.
type bars struct{ policies []sim.PolicyResult }

func (b bars) Plot(c vgdraw.Canvas, p *plot.Plot) {
	x, y := p.Transforms(&c)
	for i, of := range b.policies {
		middle := y(-float64(i))
		if of.Served == 0 {
			c.FillText(style(small, grey), vg.Point{X: x(0) + 4, Y: middle - 5}, "none served")
			continue
		}
		for _, part := range []struct {
			to    time.Duration
			shade color.Color
		}{{of.P99, paleBlue}, {of.P90, skyBlue}, {of.P50, blue}} {
			to := max(x(part.to.Seconds()), x(0)+1)
			c.FillPolygon(part.shade, []vg.Point{{X: x(0), Y: middle - 5}, {X: to, Y: middle - 5}, {X: to, Y: middle + 5}, {X: x(0), Y: middle + 5}})
		}
		end := x(of.P99.Seconds())
		c.FillText(style(small-1, grey), vg.Point{X: end + 4, Y: middle - 5}, duration(of.P99))
	}
}

// waitsPlot draws the waits of a run by policy.
func (s *sheet) waitsPlot(run *Run, first bool) *plot.Plot {
	p := newPlot()
	n := max(1, s.policies)
	p.X.Min, p.X.Max = 0, 1.2*s.longest // room for the figure
	p.Y.Min, p.Y.Max = -float64(n)+0.5, 0.5
	p.X.Tick.Marker = marks(p.X.Max, 5, true)
	p.X.Label.Text = "seconds of waiting"
	p.Y.Tick.Marker = plot.TickerFunc(func(float64, float64) (ticks []plot.Tick) {
		if first {
			for i, of := range run.Policies[:min(n, len(run.Policies))] {
				ticks = append(ticks, plot.Tick{Value: -float64(i), Label: short(fmt.Sprint(of.Policy), 22)})
			}
		}
		return ticks
	})
	p.Y.Tick.Length = 0
	p.Add(bars{run.Policies[:min(n, len(run.Policies))]})
	p.X.Min, p.X.Max, p.Y.Min, p.Y.Max = 0, 1.2*s.longest, -float64(n)+0.5, 0.5
	return p
}

// draw draws the sheet on all of c.
func (s *sheet) draw(c vgdraw.Canvas) {
	c.SetColor(color.White)
	c.Fill(c.Rectangle.Path())

	rows := make([][]*plot.Plot, len(s.panels), len(s.panels)+1)
	if s.herd() {
		rows = rows[:len(s.panels)+1]
	}
	left := vg.Length(0)
	for j := range s.Runs {
		for i, panel := range s.panels {
			rows[i] = append(rows[i], s.overTimePlot(panel, s.points[j], j == 0, i == len(s.panels)-1))
		}
		if s.herd() {
			rows[len(s.panels)] = append(rows[len(s.panels)], s.waitsPlot(&s.Runs[j], j == 0))
		}
	}
	for _, row := range rows {
		left = max(left, around(row[0], c).left)
	}
	left += 8 * pixel
	wide := (c.Max.X - c.Min.X - left - gap) / vg.Length(len(s.Runs))
	y := c.Max.Y - head
	for i, row := range rows {
		high, entries := panelHigh, waitsLegend
		if i < len(s.panels) {
			entries = s.panels[i].legend
			if i == 0 { // below the legend are the labels
				legend(c, c.Min.X+left, y-strip+7*pixel, entries)
				y -= vg.Length(s.lanes) * labelHigh
				entries = nil
			}
		} else {
			high = vg.Length(max(1, s.policies)) * barHigh
			if n := s.mostPolicies() - s.policies; n == 1 {
				entries = append(slices.Clone(entries), entry{text: "(1 policy more is not shown)"})
			} else if n > 1 {
				entries = append(slices.Clone(entries), entry{text: fmt.Sprintf("(%d policies more are not shown)", n)})
			}
		}
		y -= strip
		legend(c, c.Min.X+left, y+7*pixel, entries)
		for j, p := range row {
			data := vg.Rectangle{Min: vg.Point{X: c.Min.X + left + vg.Length(j)*wide, Y: y - high}}
			data.Max = vg.Point{X: data.Min.X + wide - gap, Y: y}
			if i == 0 {
				s.title(c, j, data)
				for _, l := range s.labels {
					c.FillText(style(small-1, grey), vg.Point{X: data.Min.X + l.at*(data.Max.X-data.Min.X)/s.room(), Y: y + 4*pixel + vg.Length(s.lanes-1-l.lane)*labelHigh}, l.text)
				}
			}
			place(p, c, data)
		}
		y -= high + between
		if i == len(s.panels)-1 {
			y -= foot
		}
	}
}

var waitsLegend = []entry{
	{text: "waits of half of those served", fill: blue}, {text: "of 90 %", fill: skyBlue}, {text: "of 99 %", fill: paleBlue},
}

// A margin is what a plot needs around its data.
type margin struct{ left, right, top, bottom vg.Length }

func around(p *plot.Plot, c vgdraw.Canvas) margin {
	data := p.DataCanvas(c)
	return margin{data.Min.X - c.Min.X, c.Max.X - data.Max.X, c.Max.Y - data.Max.Y, data.Min.Y - c.Min.Y}
}

// place draws a plot so that its data are where they are to be. Margins depend on
// the size, as labels at the ends of an axis hang over: so it is looked for in steps.
func place(p *plot.Plot, c vgdraw.Canvas, data vg.Rectangle) {
	c.Rectangle = data
	for range 3 {
		m := around(p, c)
		c.Min = vg.Point{X: data.Min.X - m.left, Y: data.Min.Y - m.bottom}
		c.Max = vg.Point{X: data.Max.X + m.right, Y: data.Max.Y + m.top}
	}
	p.Draw(c)
}

// mostPolicies is how many policies a run has at most.
func (s *sheet) mostPolicies() (n int) {
	for i := range s.Runs {
		n = max(n, len(s.Runs[i].Policies))
	}
	return n
}

// title writes what a run is, and how it ended, above its column.
func (s *sheet) title(c vgdraw.Canvas, of int, data vg.Rectangle) {
	run := &s.Runs[of]
	c.FillText(style(large, color.Black), vg.Point{X: data.Min.X, Y: c.Max.Y - 18}, s.names[of])
	outcome := fmt.Sprintf("%s of %s served", thousands(run.Served), thousands(run.Clients))
	switch {
	case run.Clients == 0:
		outcome = fmt.Sprintf("%.0f %% served at once, %.0f %% not by the end", 100*run.Strangers.AtOnceShare(),
			100*float64(run.Strangers.Unserved)/float64(max(1, run.Strangers.Came)))
	case run.Interrupted:
		outcome += ", interrupted"
	case waiting(run) > 0:
		outcome += fmt.Sprintf(", %s still wait", thousands(waiting(run)))
	case gaveUp(run) > 0:
		outcome += ", all over after " + duration(run.Drained)
	case run.Served > 0:
		outcome += ", the last after " + duration(run.Drained)
	}
	c.FillText(style(normal, grey), vg.Point{X: data.Min.X, Y: c.Max.Y - 33}, outcome)
}

// legend writes entries in a line, from x on, with its letters on y.
func legend(c vgdraw.Canvas, x, y vg.Length, entries []entry) {
	sty := style(normal-1, color.Black)
	wide, gaps := vg.Length(0), 30*vg.Length(len(entries))
	for _, e := range entries {
		wide += sty.Width(e.text)
	}
	slack := vg.Length(1.2) // a reader's font may be wider
	if room := c.Max.X - x - gaps; slack*wide > room {
		slack = max(1, room/wide)
	}
	for _, e := range entries {
		middle := y + 4
		switch {
		case e.fill != nil:
			c.FillPolygon(e.fill, []vg.Point{{X: x, Y: middle - 4}, {X: x + 14, Y: middle - 4}, {X: x + 14, Y: middle + 4}, {X: x, Y: middle + 4}})
		case e.line == nil:
			c.FillText(sty, vg.Point{X: x, Y: y}, e.text)
			continue
		default:
			c.StrokeLine2(vgdraw.LineStyle{Color: e.line, Width: 1.5, Dashes: e.dashes}, x, middle, x+16, middle)
		}
		c.FillText(sty, vg.Point{X: x + 20, Y: y}, e.text)
		x += 20 + slack*sty.Width(e.text) + 10
	}
}

// marks marks round numbers, about n of them in a span, with or without labels.
func marks(span float64, n int, labels bool) plot.TickerFunc {
	step := math.Pow(10, math.Floor(math.Log10(span/float64(n))))
	for _, times := range []float64{1, 2, 5, 10} {
		if span/(times*step) <= float64(n) {
			step *= times
			break
		}
	}
	return func(least, most float64) (ticks []plot.Tick) {
		for i := math.Ceil(least/step - 1e-9); i*step <= most*(1+1e-9); i++ {
			t := plot.Tick{Value: i * step}
			if labels {
				t.Label = number(i * step)
			}
			ticks = append(ticks, t)
		}
		return blank(ticks, labels)
	}
}

// powers marks the powers of 10.
func powers(labels bool) plot.TickerFunc {
	return func(least, most float64) (ticks []plot.Tick) {
		for v := least; v <= most*1.0001; v *= 10 {
			t := plot.Tick{Value: v}
			if labels {
				t.Label = number(v)
			}
			ticks = append(ticks, t)
		}
		return blank(ticks, labels)
	}
}

// blank keeps marks without labels large: gonum takes those for minor ones.
func blank(ticks []plot.Tick, labels bool) []plot.Tick {
	if !labels {
		for i := range ticks {
			ticks[i].Label = " "
		}
	}
	return ticks
}

// number writes v with as many digits as it needs, up to four.
func number(v float64) string {
	if v == 0 {
		return "0" // not -0
	}
	if math.Abs(v) >= 1000 {
		if v < 0 {
			return "-" + number(-v)
		}
		return thousands(int(math.Round(v)))
	}
	return strconv.FormatFloat(math.Round(v*1000)/1000, 'g', 4, 64)
}
