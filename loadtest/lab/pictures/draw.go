package main

import (
	"bytes"
	"fmt"
	"image/color"
	"io"
	"time"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
	vgdraw "gonum.org/v1/plot/vg/draw"
	"gonum.org/v1/plot/vg/vgsvg"

	"github.com/herdshield/shield/loadtest/sim"
)

// What the pictures show: the same stretch of time, to the same scale.
const (
	bin    = 250 * time.Millisecond
	warmup = 2 * time.Minute
	before = 2 * time.Second // of calm, before the crowd
	after  = 70 * time.Second

	capacity = 100 // of sim.Herd's backend, per second

	// Requests per second are on a logarithmic scale: what comes at once is a
	// hundred times the capacity. One request per bin is 4.
	least, most = 10, 20_000
)

// A picture is 800 × 360 pixels, of which there are 96 in an inch.
const (
	pixel         = vg.Inch / 96
	width, height = 800 * pixel, 360 * pixel
)

// Colours that the colour-blind can tell apart: Okabe and Ito 2008.
var (
	orange = color.RGBA{0xe6, 0x9f, 0x00, 0xff}
	blue   = color.RGBA{0x00, 0x72, 0xb2, 0xff}
)

// A drawing is a plot with a legend in one line above it, where gonum leaves room
// at the end of a logarithmic axis that has a label.
type drawing struct {
	plot   *plot.Plot
	legend []entry
}

type entry struct {
	text string
	line *plotter.Line
}

// draw draws what came to the server and what it admitted, and the capacity. The
// series has bins, and the crowd comes after the warmup.
func draw(title string, series []sim.Bin) drawing {
	var came, admitted plotter.XYs
	for i, b := range series {
		at := time.Duration(i)*bin - warmup
		if at < -before || at >= after {
			continue
		}
		came = append(came, point(at, b.Herd.Came+b.Strangers.Came))
		admitted = append(admitted, point(at, b.Herd.Admitted+b.Strangers.Admitted))
	}
	refused, served := area(came, orange), area(admitted, blue)
	limit := &plotter.Line{
		XYs: plotter.XYs{{X: -before.Seconds(), Y: capacity}, {X: after.Seconds(), Y: capacity}},
		LineStyle: vgdraw.LineStyle{
			Color: color.Black, Width: 1.5, Dashes: []vg.Length{5, 3},
		},
	}

	plot.DefaultFont.Variant = "Sans"
	p := plot.New()
	p.Title.Text = title
	p.X.Label.Text = "seconds since the crowd came"
	p.Y.Label.Text = "requests per second"
	p.X.Min, p.X.Max = -before.Seconds(), after.Seconds()
	p.Y.Min, p.Y.Max = least, most
	p.Y.Scale = plot.LogScale{}
	p.X.Tick.Marker, p.Y.Tick.Marker = plot.TickerFunc(tens), plot.TickerFunc(powers)
	p.X.Padding, p.Y.Padding = 0, 0
	p.Add(refused, served, limit)
	return drawing{p, []entry{
		{fmt.Sprintf("came, in each %g s", bin.Seconds()), refused},
		{"of these, admitted", served},
		{fmt.Sprintf("the backend's capacity: %d", capacity), limit},
	}}
}

// point is n requests in the bin at that time, but not below the scale, which
// as all logarithmic scales has no 0.
func point(at time.Duration, n int32) plotter.XY {
	return plotter.XY{X: at.Seconds(), Y: max(least, float64(n)/bin.Seconds())}
}

// area draws a bar from each point to the next.
func area(points plotter.XYs, fill color.Color) *plotter.Line {
	points = append(points, plotter.XY{X: after.Seconds(), Y: least}) // where the last bar ends
	return &plotter.Line{XYs: points, StepStyle: plotter.PostStep, FillColor: fill}
}

// tens marks every 10.
func tens(_, most float64) (ticks []plot.Tick) {
	for v := 0; float64(v) <= most; v += 10 {
		ticks = append(ticks, plot.Tick{Value: float64(v), Label: fmt.Sprint(v)})
	}
	return ticks
}

// powers marks the powers of 10.
func powers(_, most float64) (ticks []plot.Tick) {
	for v := 10; float64(v) <= most; v *= 10 {
		ticks = append(ticks, plot.Tick{Value: float64(v), Label: thousands(v)})
	}
	return ticks
}

// thousands writes 12345 as 12,345.
func thousands(n int) string {
	if n < 1000 {
		return fmt.Sprint(n)
	}
	return fmt.Sprintf("%s,%03d", thousands(n/1000), n%1000)
}

// drawAll draws one below the other on all of c, with axes of one length.
func drawAll(c vgdraw.Canvas, drawings []drawing) {
	c.SetColor(color.White)
	c.Fill(c.Rectangle.Path())
	c = vgdraw.Crop(c, 6, -14, 4, -6)
	if len(drawings) == 1 {
		drawings[0].drawOn(c)
		return
	}
	plots := make([][]*plot.Plot, len(drawings))
	for i, d := range drawings {
		plots[i] = []*plot.Plot{d.plot}
	}
	tiles := vgdraw.Tiles{Rows: len(drawings), Cols: 1, PadY: 12}
	for i, row := range plot.Align(plots, tiles, c) {
		drawings[i].drawOn(row[0])
	}
}

func (d drawing) drawOn(c vgdraw.Canvas) {
	d.plot.Draw(c)
	for i, e := range d.legend {
		l := plot.NewLegend()
		l.Top, l.Left = true, true
		l.ThumbnailWidth, l.TextStyle.Font.Size = 18, 11
		l.XOffs, l.YOffs = 60+170*vg.Length(i), -20
		l.Add(e.text, e.line)
		l.Draw(c)
	}
}

// writeSVG writes drawings, one below the other, as an SVG document. Fonts are the
// reader's.
func writeSVG(w io.Writer, height vg.Length, drawings ...drawing) error {
	c := vgsvg.New(width, height)
	drawAll(vgdraw.New(c), drawings)
	var b bytes.Buffer
	if _, err := c.WriteTo(&b); err != nil {
		return err
	}
	fonts := []byte("font-family:Liberation Sans,Arial,sans-serif;")
	_, err := w.Write(bytes.ReplaceAll(b.Bytes(), []byte("font-family:Liberation Sans;"), fonts))
	return err
}
