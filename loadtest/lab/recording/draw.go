package main

import (
	"bytes"
	"encoding/xml"
	"fmt"
	"math"
	"strings"
	"time"
	"unicode/utf8"
)

// What a reader sees. Ours: the table and the last part of the demo fit the rows, and few readers watch
// for longer.
const (
	columns, rows = 80, 25
	plays         = 20 * time.Second // from the first line to the last
	stays         = 10 * time.Second // the last frame, before it begins again
)

// Measures, in pixels.
const (
	wide, high = 7.8, 18.0 // a letter of 13 px in a fixed-width font
	margin     = 16.0
	bar        = 30.0 // above the rows
)

const style = `text{font:13px ui-monospace,"SF Mono",Menlo,Consolas,"Liberation Mono","DejaVu Sans Mono",monospace;fill:#d6dde6;white-space:pre}
.prompt{fill:#7ee2a8}.dim{fill:#8b96a5}.new{fill:#79b8ff}
`

// draw draws the recording, which took so long.
func draw(r *recorder, took time.Duration) []byte {
	lines := append([]line{{texts: []string{"$ go run ./cmd/demo"}}}, r.lines...)
	width, height := math.Ceil(columns*wide+2*margin), rows*high+bar+margin

	var moves, body bytes.Buffer
	share := func(at time.Duration) float64 { // in percent of the animation
		return 100 * float64(at) / float64(took) * float64(plays) / float64(plays+stays)
	}
	// Lines that appear together are one group.
	up := 0 // how many rows are above what is seen
	var scroll strings.Builder
	for i := 0; i < len(lines); {
		j := i + 1
		for j < len(lines) && lines[j].first-lines[i].first < 50*time.Millisecond {
			j++
		}
		at := share(lines[i].first)
		fmt.Fprintf(&moves, "@keyframes g%d{0%%,%.2f%%{visibility:hidden}%.2f%%,100%%{visibility:visible}}\n.g%[1]d{animation:g%[1]d var(--t) step-end infinite}\n", i, at, at+0.01)
		fmt.Fprintf(&body, `<g class="g%d">`+"\n", i)
		for k := i; k < j; k++ {
			y := float64(k) * high
			if l := lines[k]; len(l.texts) == 1 {
				row(&body, y, l.texts[0], k == 0)
			} else {
				fmt.Fprintf(&moves, "@keyframes p%d{0%%,%.2f%%{transform:none;animation-timing-function:steps(%d)}%.2f%%,100%%{transform:translateY(%gpx)}}\n.p%[1]d{animation:p%[1]d var(--t) infinite}\n",
					k, share(l.first), len(l.texts)-1, share(l.last), -high*float64(len(l.texts)-1))
				strip(&body, y, k, l.texts)
			}
		}
		body.WriteString("</g>\n")
		if above := max(0, j-rows); above > up {
			fmt.Fprintf(&scroll, "%.2f%%{transform:translateY(%gpx)}", at, -high*float64(up))
			up = above
			fmt.Fprintf(&scroll, "%.2f%%{transform:translateY(%gpx)}", at+0.01, -high*float64(up))
		}
		i = j
	}
	fmt.Fprintf(&moves, "@keyframes scroll{0%%{transform:none}%s100%%{transform:translateY(%gpx)}}\n.scroll{animation:scroll var(--t) step-end infinite}\n", &scroll, -high*float64(up))

	var b bytes.Buffer
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %.0f %.0f" width="%[1]g" height="%[2]g" role="img" aria-labelledby="title desc">`+"\n", width, height)
	b.WriteString("<title id=\"title\">The demo of shield in a terminal</title>\n" +
		"<desc id=\"desc\">300 clients meet a fragile backend three times: without a limit, with a usual rate limiter, and with shield. " +
		"A table compares the three: only with shield all clients are served.</desc>\n")
	fmt.Fprintf(&b, "<style>\n%s.scroll{transform:translateY(%gpx)}\n", style, -high*float64(up))
	for k, l := range lines {
		if len(l.texts) > 1 {
			fmt.Fprintf(&b, ".p%d{transform:translateY(%gpx)}\n", k, -high*float64(len(l.texts)-1))
		}
	}
	fmt.Fprintf(&b, "@media (prefers-reduced-motion:no-preference){\nsvg{--t:%gs}\n%s}\n</style>\n", (plays + stays).Seconds(), &moves)
	fmt.Fprintf(&b, `<rect width="%.0f" height="%.0f" rx="8" fill="#12161c" stroke="#3a4554"/>`+"\n", width, height)
	for i, color := range []string{"#ef6b5e", "#f2bd4b", "#5fc26a"} {
		fmt.Fprintf(&b, `<circle cx="%d" cy="15" r="5" fill="%s"/>`+"\n", 18+17*i, color)
	}
	fmt.Fprintf(&b, `<text x="%.0f" y="19" text-anchor="end" class="dim">played %.1f times as fast</text>`+"\n", width-margin, took.Seconds()/plays.Seconds())
	fmt.Fprintf(&b, `<svg x="%g" y="%g" width="%.0f" height="%g"><g class="scroll">`+"\n%s</g></svg>\n</svg>\n", margin, bar, width-2*margin, rows*high, &body)
	return b.Bytes()
}

// row writes a line that stays. Cells stand where a terminal has them, whatever font a reader has.
func row(b *bytes.Buffer, y float64, text string, prompt bool) {
	if strings.TrimSpace(text) == "" {
		return
	}
	class := "row"
	if prompt {
		class = "prompt"
	}
	fmt.Fprintf(b, `<text class="%s" y="%g">`, class, y+13)
	for _, c := range cells(text) {
		blocks := ""
		if n := utf8.RuneCountInString(c.text); n > 1 && strings.Trim(c.text, "▁▂▃▄▅▆▇█") == "" {
			blocks = fmt.Sprintf(` textLength="%.1f" lengthAdjust="spacingAndGlyphs"`, wide*float64(n))
		}
		fmt.Fprintf(b, `<tspan x="%.1f"%s>%s</tspan>`, wide*float64(c.column), blocks, escape(c.text))
	}
	b.WriteString("</text>\n")
}

// strip writes the texts of a line below each other, of which a window shows one.
func strip(b *bytes.Buffer, y float64, number int, texts []string) {
	fmt.Fprintf(b, `<svg y="%g" width="%g" height="%g"><g class="p%d">`+"\n", y, columns*wide, high, number)
	for i, text := range texts {
		trimmed := strings.TrimLeft(text, " ")
		fmt.Fprintf(b, `<text class="new" x="%.1f" y="%g">%s</text>`+"\n", wide*float64(len(text)-len(trimmed)), high*float64(i)+13, escape(trimmed))
	}
	b.WriteString("</g></svg>\n")
}

// A cell is a text without two spaces in a row, and the column where it begins.
type cell struct {
	column int
	text   string
}

func cells(text string) (all []cell) {
	column := 0
	for part := range strings.SplitSeq(text, "  ") {
		trimmed := strings.TrimLeft(part, " ")
		if trimmed != "" {
			all = append(all, cell{column + utf8.RuneCountInString(part) - utf8.RuneCountInString(trimmed), trimmed})
		}
		column += utf8.RuneCountInString(part) + 2
	}
	return all
}

// escape makes text one that XML can hold.
func escape(text string) string {
	var b strings.Builder
	_ = xml.EscapeText(&b, []byte(text)) // a Builder takes all
	return b.String()
}
