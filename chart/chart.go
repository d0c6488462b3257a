// Package chart draws charts over time: on pages by [Script] and [Style], which a page
// has to contain, and as SVG documents by [WriteSVG]. Both draw the same [Figure]s. It
// knows nothing of what they are about.
package chart

import (
	_ "embed"
	"math"
	"strconv"
)

// Script defines Chart, a function that draws a Figure into an element of a page.
// Style belongs to it, and to SVG documents.
var (
	//go:embed chart.js
	Script string
	//go:embed chart.css
	Style string
)

// A Figure is a row of charts with the same axes and series.
type Figure struct {
	Title  string   `json:"title"`
	Note   string   `json:"note,omitempty"`
	X      Axis     `json:"x"`
	Y      Axis     `json:"y"`
	Series []Series `json:"series"`
	Spans  []Span   `json:"spans,omitempty"`
	Charts []Chart  `json:"charts"`
}

// An Axis goes from Min to Max. If it is logarithmic, Min is a power of ten. The Unit
// follows each number, with the space that belongs before it.
type Axis struct {
	Label string  `json:"label"`
	Unit  string  `json:"unit"`
	Min   float64 `json:"min"`
	Max   float64 `json:"max"`
	Log   bool    `json:"log,omitempty"`
}

// A Series is what a colour means, from 1 to 8, and 0 for that of text.
type Series struct {
	Name  string `json:"name"`
	Kind  Kind   `json:"kind"`
	Color int    `json:"color"`
}

// A Kind is how a Series is drawn.
type Kind string

// The kinds of series.
const (
	Area  Kind = "area"  // filled steps; a later series covers an earlier one
	Line  Kind = "line"  // a line of steps, none if all values are 0
	Level Kind = "level" // a dashed line at the one value that there is, on pages also of steps
)

// A Span of the x axis has a grey ground. It can be empty: it is drawn as a line then.
type Span struct {
	From float64 `json:"from"`
	To   float64 `json:"to"`
}

// A Chart has values for each Series of its Figure: of an Area or Line one for each
// Step, from Start on.
type Chart struct {
	Name   string      `json:"name"`
	Text   string      `json:"text"` // a description in a line
	Start  float64     `json:"start"`
	Step   float64     `json:"step"`
	Values [][]float64 `json:"values"`
}

// at returns where v is on an axis, 0 to 1. A value beyond the axis is at its end.
func (a Axis) at(v float64) float64 {
	least, most := a.Min, a.Max
	if a.Log {
		least, most, v = math.Log10(least), math.Log10(most), math.Log10(max(v, a.Min))
	}
	return min(1, max(0, (v-least)/(most-least)))
}

// ticks returns about n round values on an axis, or its powers of ten.
func (a Axis) ticks(n float64) (at []float64) {
	if a.Log {
		for v := a.Min; v <= a.Max*1.0001; v *= 10 {
			at = append(at, v)
		}
		return at
	}
	span := a.Max - a.Min
	step := math.Pow(10, math.Floor(math.Log10(span/n)))
	for _, times := range []float64{1, 2, 5, 10} {
		if span/(times*step) <= n+1e-9 {
			step *= times
			break
		}
	}
	for i := math.Ceil(a.Min/step - 1e-9); i*step <= a.Max+step*1e-9; i++ {
		at = append(at, i*step)
	}
	return at
}

// Round rounds v to four digits, as a figure needs no more.
func Round(v float64) float64 {
	r, _ := strconv.ParseFloat(strconv.FormatFloat(v, 'g', 4, 64), 64) // without an error: it is a number
	return r
}

// Number writes v with at most four digits, or all before the point, in threes.
func Number(v float64) string {
	if v < 0 {
		return "-" + Number(-v)
	}
	if v < 1000 {
		return strconv.FormatFloat(Round(v)+0, 'f', -1, 64) // without an exponent
	}
	s := strconv.FormatFloat(math.Round(v), 'f', 0, 64)
	for i := len(s) - 3; i > 0; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}
