package main

import (
	"bytes"
	"encoding/xml"
	"fmt"
	"hash/crc32"
	"io"
	"math"
	"strings"
	"unicode/utf8"

	"github.com/herdshield/shield/chart"
)

// A figure is a row of charts with the same axes and series.
type figure struct {
	title, note string
	x, y        axis
	series      []series
	charts      []plotted
}

// An axis goes from least to most. The unit follows each number, with the space that belongs before it.
type axis struct {
	label, unit string
	least, most float64
}

// A series is what a colour means, from 1 to 8, and 0 for that of text. It is filled steps, of which a later series covers
// an earlier one; a level is a dashed line at the one value that there is.
type series struct {
	name  string
	color int
	level bool
}

// A plotted chart has values for each series of its figure: if that is no level, one for each step, from start on.
type plotted struct {
	name, text  string // the text is a description in a line
	start, step float64
	values      [][]float64
}

// at returns where v is on an axis, 0 to 1. A value beyond the axis is at its end.
func (a axis) at(v float64) float64 { return min(1, max(0, (v-a.least)/(a.most-a.least))) }

// ticks returns about n round values on an axis.
func (a axis) ticks(n float64) (at []float64) {
	span := a.most - a.least
	step := math.Pow(10, math.Floor(math.Log10(span/n)))
	for _, times := range []float64{1, 2, 5, 10} {
		if span/(times*step) <= n+1e-9 {
			step *= times
			break
		}
	}
	for i := math.Ceil(a.least/step - 1e-9); i*step <= a.most+step*1e-9; i++ {
		at = append(at, i*step)
	}
	return at
}

// Measures of an SVG document, in pixels.
const (
	leftMargin, rightMargin = 64, 20 // of a row of charts
	oneWidth                = 660    // with one chart
	columnWidth             = 400    // with several
	columnGap               = 26     // between charts
	titleHeight             = 34
	plotHeight              = 130 // of a chart
	tallHeight              = 220 // of a chart whose figure is alone
	headHeight              = 72  // above a chart: the title and the legend of its figure, its name and its text
	axisHeight              = 48  // below a chart
	lineHeight              = 14  // of the text of a chart, if it needs more than one
	letter                  = 6.0 // how wide a letter of it is, on average, in the widest of the usual fonts
)

// writeSVG writes figures as one SVG document, below each other, under a title. It is
// dark where its reader prefers that. Fonts are the reader's.
func writeSVG(w io.Writer, title string, figures ...figure) error {
	most := 1
	for _, f := range figures {
		most = max(most, len(f.charts))
	}
	column := float64(oneWidth)
	if most > 1 {
		column = columnWidth
	}
	width, height := leftMargin+float64(most)*column-columnGap+rightMargin, float64(titleHeight)
	d := document{column: column - columnGap, plotHeight: plotHeight}
	if len(figures) == 1 {
		d.plotHeight = tallHeight
	}
	description := ""
	for i := range figures {
		f := &figures[i]
		height += d.head(f) + d.plotHeight + axisHeight
		description += " " + f.title + "."
		for _, c := range f.charts {
			description += " " + c.name + "; " + strings.TrimSuffix(c.text, ".") + "."
		}
	}
	d.id = fmt.Sprintf("chart-%08x-", crc32.ChecksumIEEE([]byte(title+description)))
	fmt.Fprintf(&d.Buffer, `<svg xmlns="http://www.w3.org/2000/svg" class="chart" width="%g" height="%g" viewBox="0 0 %[1]g %[2]g" role="img" aria-labelledby="%[3]stitle %[3]sdesc">`+"\n", width, height, d.id)
	fmt.Fprintf(&d.Buffer, "<title id=\"%stitle\">%s</title>\n<desc id=\"%[1]sdesc\">%[3]s</desc>\n", d.id, escape(title), escape(strings.TrimSpace(description)))
	fmt.Fprintf(&d.Buffer, "<style>%s</style>\n", escape(chart.Style))
	fmt.Fprintf(&d.Buffer, `<rect class="paper" width="%g" height="%g"/>`+"\n", width, height)
	d.text(leftMargin, 22, "title", "start", title)
	y := float64(titleHeight)
	for i := range figures {
		y = d.draw(&figures[i], y)
	}
	d.WriteString("</svg>\n")
	_, err := w.Write(d.Bytes())
	return err
}

// A document is SVG in the making.
type document struct {
	bytes.Buffer
	column, plotHeight float64 // how wide and high a chart is
	id                 string  // what its IDs begin with, so that a page can hold several documents
}

// wrap breaks a text into lines that fit a chart.
func (d *document) wrap(text string) (lines []string) {
	for word := range strings.FieldsSeq(text) {
		last := len(lines) - 1
		if last >= 0 && letter*float64(utf8.RuneCountInString(lines[last])+1+utf8.RuneCountInString(word)) <= d.column {
			lines[last] += " " + word
		} else {
			lines = append(lines, word)
		}
	}
	return lines
}

// lines returns how many lines the longest text of f's charts has.
func (d *document) lines(f *figure) int {
	most := 1
	for _, c := range f.charts {
		most = max(most, len(d.wrap(c.text)))
	}
	return most
}

// head returns how much room f needs above its charts.
func (d *document) head(f *figure) float64 {
	height := float64(headHeight + (d.lines(f)-1)*lineHeight)
	if f.note != "" {
		height += 16
	}
	return height
}

// escape makes text one that XML can hold.
func escape(text string) string {
	var b strings.Builder
	_ = xml.EscapeText(&b, []byte(text)) // a Builder takes all
	return b.String()
}

func (d *document) text(x, y float64, class, anchor, text string) {
	fmt.Fprintf(d, `<text x="%.1f" y="%.1f" class="%s" text-anchor="%s">%s</text>`+"\n", x, y, class, anchor, escape(text))
}

// draw draws f from y on, and returns where it ends.
func (d *document) draw(f *figure, y float64) float64 {
	below := y + d.head(f)
	d.text(leftMargin, y+12, "name", "start", f.title)
	fmt.Fprintf(d, `<text x="%d" y="%.1f">`, leftMargin, y+28)
	for _, s := range f.series {
		sign := map[bool]string{false: "■", true: "╌╌"}[s.level]
		fmt.Fprintf(d, `<tspan class="swatch c%d">%s</tspan> %s`+"\u2003", s.color, sign, escape(s.name))
	}
	d.WriteString("</text>\n")
	if f.note != "" {
		d.text(leftMargin, y+44, "note", "start", f.note)
	}
	y = below
	for i := range f.charts {
		x := leftMargin + float64(i)*(d.column+columnGap)
		c := &f.charts[i]
		top := y - 8 - lineHeight*float64(d.lines(f)-1)
		d.text(x, top-14, "name", "start", c.name)
		for i, line := range d.wrap(c.text) {
			d.text(x, top+lineHeight*float64(i), "text", "start", line)
		}
		p := place{document: d, f: f, x: x, y: y}
		p.draw(c, i == 0)
	}
	return y + d.plotHeight + axisHeight
}

// A place is where a chart is: x and y are its upper left corner.
type place struct {
	*document
	f    *figure
	x, y float64
}

// at returns where a value of an axis is, in pixels.
func (p *place) across(v float64) float64 { return p.x + p.column*p.f.x.at(v) }
func (p *place) up(v float64) float64     { return p.y + p.plotHeight*(1-p.f.y.at(v)) }

// draw draws c. Only the first chart of a row has numbers beside it.
func (p *place) draw(c *plotted, first bool) {
	for _, v := range p.f.y.ticks(4) {
		fmt.Fprintf(p, `<path class="grid" d="M%.1f %.1fh%.1f"/>`+"\n", p.x, p.up(v), p.column)
		if first {
			p.text(p.x-6, p.up(v)+4, "y", "end", chart.Number(v)+p.f.y.unit)
		}
	}
	for _, v := range p.f.x.ticks(6) {
		fmt.Fprintf(p, `<path class="axis" d="M%.1f %.1fv4"/>`+"\n", p.across(v), p.y+p.plotHeight)
		p.text(p.across(v), p.y+p.plotHeight+16, "x", "middle", chart.Number(v)+p.f.x.unit)
	}
	if first {
		p.text(p.x, p.y+p.plotHeight+32, "x", "start", p.f.x.label)
	}
	for i, s := range p.f.series {
		if i < len(c.values) && len(c.values[i]) > 0 {
			p.draws(s, c, c.values[i])
		}
	}
	fmt.Fprintf(p, `<path class="axis" d="M%.1f %.1fv%gh%.1f"/>`+"\n", p.x, p.y, p.plotHeight, p.column)
}

func (p *place) draws(s series, c *plotted, values []float64) {
	if s.level {
		fmt.Fprintf(p, `<path class="level" d="M%.1f %.1fh%.1f"/>`+"\n", p.x, p.up(values[0]), p.column)
	} else {
		fmt.Fprintf(p, `<path class="area c%d" d="M%.1f %.1f%sV%.1fZ"/>`+"\n", s.color, p.across(c.start), p.y+p.plotHeight, p.steps(c, values, "V"), p.y+p.plotHeight)
	}
}

// steps returns a path through values; how it gets to the first is in begin.
func (p *place) steps(c *plotted, values []float64, begin string) string {
	var b strings.Builder
	last := ""
	for i, v := range values {
		y := fmt.Sprintf("%.1f", p.up(v))
		switch {
		case i == 0:
			b.WriteString(begin + y)
		case y != last: // a document is smaller without the others
			fmt.Fprintf(&b, "H%.1fV%s", p.across(c.start+float64(i)*c.step), y)
		}
		last = y
	}
	fmt.Fprintf(&b, "H%.1f", p.across(c.start+float64(len(values))*c.step))
	return b.String()
}
