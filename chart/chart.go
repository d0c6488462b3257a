// Package chart draws charts over time on pages, by [Script] and [Style], which a page
// has to contain. It knows nothing of what they are about.
package chart

import (
	_ "embed"
	"math"
	"strconv"
)

// Script defines Chart, a function that draws a figure into an element of a page.
// Style belongs to it, and to SVG documents.
var (
	//go:embed chart.js
	Script string
	//go:embed chart.css
	Style string
)

// round rounds v to four digits, as a figure needs no more.
func round(v float64) float64 {
	r, _ := strconv.ParseFloat(strconv.FormatFloat(v, 'g', 4, 64), 64) // without an error: it is a number
	return r
}

// Number writes v with at most four digits, or all before the point, in threes.
func Number(v float64) string {
	if v < 0 {
		return "-" + Number(-v)
	}
	if v < 1000 {
		return strconv.FormatFloat(round(v)+0, 'f', -1, 64) // without an exponent
	}
	s := strconv.FormatFloat(math.Round(v), 'f', 0, 64)
	for i := len(s) - 3; i > 0; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}
