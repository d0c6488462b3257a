package main

import (
	"bytes"
	"encoding/xml"
	"fmt"
	"math"
	"strings"
)

// style is light or dark as its reader prefers. Fonts are the reader's.
const style = `text{font:14px system-ui,-apple-system,"Segoe UI",Roboto,"Liberation Sans",Arial,sans-serif;fill:#1b2330}
.code{font-family:ui-monospace,"SF Mono",Menlo,"Liberation Mono",monospace;font-size:13px}
.dim{fill:#5c6675;font-size:12.5px}.b{font-weight:650}
.box{fill:#fff;stroke:#8a97a8;stroke-width:1.2}.leaf{fill:#e3eefb;stroke:#2262a8;stroke-width:1.2}
.bad{fill:#fbe9e2;stroke:#c2492a;stroke-width:1.2}.group{fill:#f1f4f8;stroke:#c9d1db}
.line{fill:none;stroke:#5c6675;stroke-width:1.4}.head{fill:#5c6675}.back{stroke-dasharray:5 4}
.bg{fill:#fbfcfd}
@media (prefers-color-scheme:dark){
text{fill:#e6eaf0}.dim{fill:#a7b2c0}.box{fill:#1f2731;stroke:#6b7889}.leaf{fill:#18324f;stroke:#7db4ea}
.bad{fill:#43241b;stroke:#ef8567}.group{fill:#171d25;stroke:#333d4a}.line{stroke:#98a3b2}.head{fill:#98a3b2}.bg{fill:#12161c}}`

// A diagram is an SVG in the making.
type diagram struct {
	bytes.Buffer
}

func newDiagram(width, height int, title, description string) *diagram {
	d := new(diagram)
	fmt.Fprintf(d, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" width="%[1]d" height="%[2]d" role="img" aria-labelledby="title desc">`+"\n", width, height)
	fmt.Fprintf(d, "<title id=\"title\">%s</title>\n<desc id=\"desc\">%s</desc>\n<style>\n%s\n</style>\n", escape(title), escape(description), style)
	d.WriteString(`<defs><marker id="tip" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="7" markerHeight="7" orient="auto-start-reverse">` +
		`<path class="head" d="M0 0 10 5 0 10z"/></marker></defs>` + "\n")
	fmt.Fprintf(d, `<rect class="bg" width="%d" height="%d" rx="8"/>`+"\n", width, height)
	return d
}

func (d *diagram) svg() []byte { return append(d.Bytes(), "</svg>\n"...) }

// escape makes text one that XML can hold.
func escape(text string) string {
	var b strings.Builder
	_ = xml.EscapeText(&b, []byte(text)) // a Builder takes all
	return b.String()
}

// text writes a line. Marks before it change how it looks: * is bold, - is dim, ` is code in bold.
func (d *diagram) text(x, y float64, anchor, line string) {
	var class []string
	for rest := strings.TrimLeft(line, "*-`"); len(line) > len(rest); line = line[1:] {
		class = append(class, map[byte]string{'*': "b", '-': "dim", '`': "code b"}[line[0]])
	}
	attribute := ""
	if class != nil {
		attribute = ` class="` + strings.Join(class, " ") + `"`
	}
	fmt.Fprintf(d, `<text x="%g" y="%g" text-anchor="%s"%s>%s</text>`+"\n", x, y, anchor, attribute, escape(line))
}

// box draws a box with lines in its middle.
func (d *diagram) box(class string, x, y, width, height float64, lines ...string) {
	round := map[bool]float64{true: 9, false: 7}[class == "group" && len(lines) == 0]
	fmt.Fprintf(d, `<rect class="%s" x="%g" y="%g" width="%g" height="%g" rx="%g"/>`+"\n", class, x, y, width, height, min(round, width/4))
	for i, line := range lines {
		d.text(x+width/2, y+height/2+5+19*(float64(i)-float64(len(lines)-1)/2), "middle", line)
	}
}

// line, arrow, both and back draw a path: without tips, with one at the end or two, and dashed.
func (d *diagram) line(path string)  { d.path(path, "line", "") }
func (d *diagram) arrow(path string) { d.path(path, "line", ` marker-end="url(#tip)"`) }
func (d *diagram) both(path string) {
	d.path(path, "line", ` marker-start="url(#tip)" marker-end="url(#tip)"`)
}
func (d *diagram) dashed(path string) { d.path(path, "line back", "") }
func (d *diagram) back(path string)   { d.path(path, "line back", ` marker-end="url(#tip)"`) }

func (d *diagram) path(path, class, tips string) {
	fmt.Fprintf(d, `<path class="%s" d="%s"%s/>`+"\n", class, path, tips)
}

// message draws an arrow from one line of a sequence to another, with a text above it.
func (d *diagram) message(from, to, y float64, text string) {
	gap := math.Copysign(8, to-from)
	d.arrow(fmt.Sprintf("M%g %gH%g", from+gap, y, to-gap))
	if text != "" {
		d.text((from+to)/2, y-7, "middle", text)
	}
}
