package page

import (
	"bytes"
	"encoding/xml"
	"errors"
	"fmt"
	"image/color"
	"math"
	"os"
	"path/filepath"
	"slices"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
	vgdraw "gonum.org/v1/plot/vg/draw"
	"gonum.org/v1/plot/vg/vgsvg"
)

// A Picture is 800 pixels wide, of which there are 96 in an inch.
const (
	Pixel = vg.Inch / 96
	width = 800 * Pixel
)

// Colours that the colour-blind can tell apart: Okabe and Ito 2008.
var (
	Orange     = color.RGBA{0xe6, 0x9f, 0x00, 0xff}
	Blue       = color.RGBA{0x00, 0x72, 0xb2, 0xff}
	Green      = color.RGBA{0x00, 0x9e, 0x73, 0xff}
	Vermillion = color.RGBA{0xd5, 0x5e, 0x00, 0xff}
	Purple     = color.RGBA{0xcc, 0x79, 0xa7, 0xff}
)

// A Picture is some panels, one below the other.
type Picture struct {
	File   string
	Title  string // for screen readers, as is Desc; "" for neither
	Desc   string
	Height vg.Length
	Panels []Panel
}

// A Panel is a plot with a legend in one line above it, where gonum leaves room at the
// end of a logarithmic axis that has a label.
type Panel struct {
	*plot.Plot
	Legend []Entry
	Apart  vg.Length // entries of the legend
}

// An Entry explains a line.
type Entry struct {
	Text string
	Line *plotter.Line
}

// Frame is an empty plot.
func Frame(title, x, y string) *plot.Plot {
	plot.DefaultFont.Variant = "Sans"
	p := plot.New()
	p.Title.Text, p.X.Label.Text, p.Y.Label.Text = title, x, y
	p.X.Padding, p.Y.Padding = 0, 0
	return p
}

// Bars draws a bar from each point to the next, and from the last to the end, which
// stands on the least.
func Bars(points plotter.XYs, end, least float64, fill color.Color) *plotter.Line {
	points = append(points, plotter.XY{X: end, Y: least})
	return &plotter.Line{XYs: points, StepStyle: plotter.PostStep, FillColor: fill}
}

// Dashed draws a dashed black line through the points.
func Dashed(width vg.Length, points ...plotter.XY) *plotter.Line {
	style := vgdraw.LineStyle{Color: color.Black, Width: width, Dashes: []vg.Length{4, 3}}
	return &plotter.Line{XYs: points, LineStyle: style}
}

// Labels writes texts at their points.
func Labels(at plotter.XYLabels) *plotter.Labels {
	l, err := plotter.NewLabels(at)
	if err != nil {
		panic(err) // a point that is not a number
	}
	for i := range l.TextStyle {
		l.TextStyle[i].Font.Size, l.TextStyle[i].Font.Variant = 10, "Sans"
	}
	return l
}

// Every marks the multiples of n.
func Every(n float64) plot.TickerFunc {
	return func(least, most float64) (ticks []plot.Tick) {
		for v := math.Ceil(least/n)*n + 0; v <= most; v += n { // not -0
			ticks = append(ticks, Tick(v, v))
		}
		return ticks
	}
}

// Tick marks a value, which is written, at a place of its axis.
func Tick(at, value float64) plot.Tick {
	label := fmt.Sprint(value)
	if value >= 1000 {
		label = Thousands(int(math.Round(value)))
	}
	return plot.Tick{Value: at, Label: label}
}

// Write writes the picture into the folder, as SVG.
func (p Picture) Write(folder string) error {
	svg, err := p.svg()
	if err != nil {
		return fmt.Errorf("%s: %w", p.File, err)
	}
	return os.WriteFile(filepath.Join(folder, p.File), svg, 0o644)
}

// svg returns the picture. Fonts are the reader's.
func (p Picture) svg() ([]byte, error) {
	c := vgsvg.New(width, p.Height)
	p.drawOn(vgdraw.New(c))
	var b bytes.Buffer
	if _, err := c.WriteTo(&b); err != nil {
		return nil, err
	}
	fonts := []byte("font-family:Liberation Sans,Arial,sans-serif;")
	svg := bytes.ReplaceAll(b.Bytes(), []byte("font-family:Liberation Sans;"), fonts)
	if p.Title == "" {
		return svg, nil
	}
	inside := bytes.Index(svg, []byte("<g ")) // all that is drawn
	if inside < 0 {
		return nil, errors.New("nothing is drawn")
	}
	var words bytes.Buffer
	for _, e := range [][2]string{{"title", p.Title}, {"desc", p.Desc}} {
		words.WriteString("<" + e[0] + ">")
		if err := xml.EscapeText(&words, []byte(e[1])); err != nil {
			return nil, err
		}
		words.WriteString("</" + e[0] + ">\n")
	}
	return slices.Insert(svg, inside, words.Bytes()...), nil
}

// drawOn draws on all of c, with axes of one length.
func (p Picture) drawOn(c vgdraw.Canvas) {
	c.SetColor(color.White)
	c.Fill(c.Rectangle.Path())
	c = vgdraw.Crop(c, 6, -14, 4, -6)
	plots := make([][]*plot.Plot, len(p.Panels))
	for i, d := range p.Panels {
		plots[i] = []*plot.Plot{d.Plot}
	}
	tiles := vgdraw.Tiles{Rows: len(plots), Cols: 1, PadY: 12}
	for i, row := range plot.Align(plots, tiles, c) {
		p.Panels[i].drawOn(row[0])
	}
}

func (d Panel) drawOn(c vgdraw.Canvas) {
	d.Draw(c)
	for i, e := range d.Legend {
		l := plot.NewLegend()
		l.Top, l.Left = true, true
		l.ThumbnailWidth, l.TextStyle.Font.Size = 18, 11
		l.XOffs, l.YOffs = 60+d.Apart*vg.Length(i), -20
		l.Add(e.Text, e.Line)
		l.Draw(c)
	}
}
