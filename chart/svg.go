package chart

import (
	"bytes"
	"encoding/xml"
	"fmt"
	"hash/crc32"
	"io"
	"strings"
	"unicode/utf8"
)

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

// WriteSVG writes figures as one SVG document, below each other, under a title. It is
// dark where its reader prefers that. Fonts are the reader's.
func WriteSVG(w io.Writer, title string, figures []Figure) error {
	most := 1
	for _, f := range figures {
		most = max(most, len(f.Charts))
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
		description += " " + f.Title + "."
		for _, c := range f.Charts {
			description += " " + c.Name + "; " + strings.TrimSuffix(c.Text, ".") + "."
		}
	}
	d.id = fmt.Sprintf("chart-%08x-", crc32.ChecksumIEEE([]byte(title+description)))
	fmt.Fprintf(&d.Buffer, `<svg xmlns="http://www.w3.org/2000/svg" class="chart" width="%g" height="%g" viewBox="0 0 %[1]g %[2]g" role="img" aria-labelledby="%[3]stitle %[3]sdesc">`+"\n", width, height, d.id)
	fmt.Fprintf(&d.Buffer, "<title id=\"%stitle\">%s</title>\n<desc id=\"%[1]sdesc\">%[3]s</desc>\n", d.id, escape(title), escape(strings.TrimSpace(description)))
	fmt.Fprintf(&d.Buffer, "<style>%s</style>\n", escape(Style))
	fmt.Fprintf(&d.Buffer, `<rect class="paper" width="%g" height="%g"/>`+"\n", width, height)
	d.text(leftMargin, 22, "title", "start", title)
	y := float64(titleHeight)
	for i := range figures {
		y = d.figure(&figures[i], y)
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
func (d *document) lines(f *Figure) int {
	most := 1
	for _, c := range f.Charts {
		most = max(most, len(d.wrap(c.Text)))
	}
	return most
}

// head returns how much room f needs above its charts.
func (d *document) head(f *Figure) float64 {
	height := float64(headHeight + (d.lines(f)-1)*lineHeight)
	if f.Note != "" {
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

// figure draws f from y on, and returns where it ends.
func (d *document) figure(f *Figure, y float64) float64 {
	below := y + d.head(f)
	d.text(leftMargin, y+12, "name", "start", f.Title)
	fmt.Fprintf(d, `<text x="%d" y="%.1f">`, leftMargin, y+28)
	for _, s := range f.Series {
		sign := map[Kind]string{Area: "■", Line: "━", Level: "╌╌"}[s.Kind]
		fmt.Fprintf(d, `<tspan class="swatch c%d">%s</tspan> %s`+"\u2003", s.Color, sign, escape(s.Name))
	}
	d.WriteString("</text>\n")
	if f.Note != "" {
		d.text(leftMargin, y+44, "note", "start", f.Note)
	}
	y = below
	for i := range f.Charts {
		x := leftMargin + float64(i)*(d.column+columnGap)
		c := &f.Charts[i]
		top := y - 8 - lineHeight*float64(d.lines(f)-1)
		d.text(x, top-14, "name", "start", c.Name)
		for i, line := range d.wrap(c.Text) {
			d.text(x, top+lineHeight*float64(i), "text", "start", line)
		}
		p := plot{document: d, f: f, x: x, y: y}
		p.draw(c, i == 0)
	}
	return y + d.plotHeight + axisHeight
}

// A plot is a chart in its place: x and y are its upper left corner.
type plot struct {
	*document
	f    *Figure
	x, y float64
}

// at returns where a value of an axis is, in pixels.
func (p *plot) across(v float64) float64 { return p.x + p.column*p.f.X.at(v) }
func (p *plot) up(v float64) float64     { return p.y + p.plotHeight*(1-p.f.Y.at(v)) }

// draw draws c. Only the first chart of a row has numbers beside it.
func (p *plot) draw(c *Chart, first bool) {
	for _, s := range p.f.Spans {
		if s.To >= p.f.X.Min && s.From <= p.f.X.Max {
			from := p.across(s.From)
			fmt.Fprintf(p, `<rect class="span" x="%.1f" y="%.1f" width="%.1f" height="%g"/>`+"\n", from, p.y, max(2, p.across(s.To)-from), p.plotHeight)
		}
	}
	for _, v := range p.f.Y.ticks(4) {
		fmt.Fprintf(p, `<path class="grid" d="M%.1f %.1fh%.1f"/>`+"\n", p.x, p.up(v), p.column)
		if first {
			p.text(p.x-6, p.up(v)+4, "y", "end", Number(v)+p.f.Y.Unit)
		}
	}
	for _, v := range p.f.X.ticks(6) {
		fmt.Fprintf(p, `<path class="axis" d="M%.1f %.1fv4"/>`+"\n", p.across(v), p.y+p.plotHeight)
		p.text(p.across(v), p.y+p.plotHeight+16, "x", "middle", Number(v)+p.f.X.Unit)
	}
	if first {
		p.text(p.x, p.y+p.plotHeight+32, "x", "start", p.f.X.Label)
	}
	for i, s := range p.f.Series {
		if i < len(c.Values) && len(c.Values[i]) > 0 {
			p.series(s, c, c.Values[i])
		}
	}
	fmt.Fprintf(p, `<path class="axis" d="M%.1f %.1fv%gh%.1f"/>`+"\n", p.x, p.y, p.plotHeight, p.column)
}

func (p *plot) series(s Series, c *Chart, values []float64) {
	switch s.Kind {
	case Area:
		fmt.Fprintf(p, `<path class="area c%d" d="M%.1f %.1f%sV%.1fZ"/>`+"\n", s.Color, p.across(c.Start), p.y+p.plotHeight, p.steps(c, values, "V"), p.y+p.plotHeight)
	case Line:
		fmt.Fprintf(p, `<path class="line c%d" d="%s"/>`+"\n", s.Color, p.steps(c, values, fmt.Sprintf("M%.1f ", p.across(c.Start))))
	case Level:
		fmt.Fprintf(p, `<path class="level" d="M%.1f %.1fh%.1f"/>`+"\n", p.x, p.up(values[0]), p.column)
	}
}

// steps returns a path through values; how it gets to the first is in begin.
func (p *plot) steps(c *Chart, values []float64, begin string) string {
	var b strings.Builder
	last := ""
	for i, v := range values {
		y := fmt.Sprintf("%.1f", p.up(v))
		switch {
		case i == 0:
			b.WriteString(begin + y)
		case y != last: // a document is smaller without the others
			fmt.Fprintf(&b, "H%.1fV%s", p.across(c.Start+float64(i)*c.Step), y)
		}
		last = y
	}
	fmt.Fprintf(&b, "H%.1f", p.across(c.Start+float64(len(values))*c.Step))
	return b.String()
}
