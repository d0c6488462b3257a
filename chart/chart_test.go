package chart

import (
	"encoding/xml"
	"io"
	"os/exec"
	"regexp"
	"strings"
	"testing"
)

// mostLines is how long the script may be. Ours: it stays readable, and smaller than any
// library.
const mostLines = 300

func TestScript(t *testing.T) {
	if n := strings.Count(Script, "\n"); n > mostLines {
		t.Errorf("chart.js has %d lines; want at most %d", n, mostLines)
	}
	// Strings that a page's policy would stop, or that make text into HTML.
	for _, not := range []string{"innerHTML", "outerHTML", "insertAdjacent", "document.write", "eval(", "Function(", "fetch(", `setAttribute("style"`, ".cssText", "</"} {
		if strings.Contains(Script, not) {
			t.Errorf("chart.js has %s", not)
		}
	}
	node, err := exec.LookPath("node")
	if err != nil {
		t.Skip("needs node to check the syntax")
	}
	cmd := exec.CommandContext(t.Context(), node, "--check", "-")
	cmd.Stdin = strings.NewReader(Script)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}

func TestNumber(t *testing.T) {
	for v, want := range map[float64]string{0: "0", 0.5: "0.5", 123.4: "123.4", 12345.6: "12,346", -2: "-2", 1e6: "1,000,000", 999.96: "1000", 1e-9: "0.000000001"} {
		if got := Number(v); got != want {
			t.Errorf("%v is %s; want %s", v, got, want)
		}
	}
}

// long is wider than a chart.
var long = strings.Repeat("seven letters ", 10)

// example has a series of each kind.
func example() Figure {
	return Figure{
		Title: "a < b", Note: "note & note", X: Axis{Label: "time", Unit: " s", Min: -1, Max: 3}, Y: Axis{Unit: "%", Max: 100},
		Series: []Series{{"area", Area, 1}, {"line", Line, 2}, {"level", Level, 0}},
		Spans:  []Span{{1, 2}, {2, 2}, {50, 60}},
		Charts: []Chart{
			{Name: "one", Text: "text", Start: -1, Step: 1, Values: [][]float64{{0, 50, 50, 100}, {1, 2, 3}, {40}}},
			{Name: "nothing", Start: -1, Step: 1, Text: long},
		},
	}
}

// A document is XML, whatever its texts are. How charts look in it is shown by the pictures in docs/guides, which tests draw.
func TestSVG(t *testing.T) {
	var b strings.Builder
	if err := WriteSVG(&b, `"title"`, []Figure{example(), example()}); err != nil {
		t.Fatal(err)
	}
	svg := b.String()
	for d := xml.NewDecoder(strings.NewReader(svg)); ; {
		if _, err := d.Token(); err == io.EOF {
			break
		} else if err != nil {
			t.Fatalf("%v in\n%s", err, svg)
		}
	}
	for _, want := range []string{
		"a &lt; b", "note &amp; note", "&#34;title&#34;", ">100%<", ">-1 s<", ">seven letters seven letters seven letters seven letters seven<",
	} {
		if !strings.Contains(svg, want) {
			t.Errorf("no %s in\n%s", want, svg)
		}
	}
	if n := strings.Count(svg, `class="span"`); n != 2*2*2 { // figures, charts, spans on the axis
		t.Errorf("%d spans; want 8", n)
	}
}

// A page can hold several documents, even under one title: each refers to IDs that it has, and that no other has.
func TestSVGsCanShareAPage(t *testing.T) {
	of := map[string]int{}
	for n, figures := range [][]Figure{{example()}, {example(), example()}} {
		var b strings.Builder
		if err := WriteSVG(&b, "title", figures); err != nil {
			t.Fatal(err)
		}
		for _, m := range regexp.MustCompile(` id="([^"]+)"`).FindAllStringSubmatch(b.String(), -1) {
			if other, is := of[m[1]]; is {
				t.Errorf("document %d has the ID %s of %d", n, m[1], other)
			}
			of[m[1]] = n
		}
		refers := regexp.MustCompile(`labelledby="(\S+) (\S+)"`).FindAllStringSubmatch(b.String(), -1)
		if len(refers) != 1 {
			t.Errorf("document %d refers to IDs %d times; want once", n, len(refers))
		}
		for _, m := range refers {
			for _, id := range m[1:] {
				if is, has := of[id]; id != "" && (!has || is != n) {
					t.Errorf("document %d refers to %s, which it does not have", n, id)
				}
			}
		}
	}
}
