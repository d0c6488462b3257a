package demo

import (
	"html"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/herdshield/shield/loadtest/live"
)

// The README shows what the demo writes, and docs/demo.svg shows it in motion. Both have the lines that the
// demo writes now; their figures are those of the machine that ran it.
func TestRecordingAndReadme(t *testing.T) {
	var out strings.Builder
	var runs []demoRun
	for _, p := range newPlan().parts() {
		runs = append(runs, demoRun{Name: p.name, Herd: live.LoadResult{All: live.Tally{Clients: 300, Served: 300}, Tenths: []int{300}}})
	}
	if err := writeRuns(&out, "", runs...); err != nil {
		t.Fatal(err)
	}
	out.WriteString("requests of the clients over time\n")
	if err := writePicture(&out, "", runs...); err != nil {
		t.Fatal(err)
	}
	want := headings(out.String())
	for name, text := range map[string]string{"README.md": read(t, "../../README.md"), "docs/demo.svg": svgRows(read(t, "../../docs/demo.svg"))} {
		if !strings.Contains(headings(text), want) {
			t.Errorf("%s does not show the lines that the demo writes:\n%s\ngo -C loadtest/lab run ./recording ../../docs/demo.svg records it again", name, want)
		}
	}
}

var (
	gap    = regexp.MustCompile(` {2,}`)
	figure = regexp.MustCompile(`[0-9][0-9.]*`)
	tag    = regexp.MustCompile(`<[^>]*>`)
	bars   = regexp.MustCompile(`[▁▂▃▄▅▆▇█]+`)
)

// headings returns what the lines of a text are about: the first cell of each, or all if they are the heads of
// columns. All figures are 0, and empty lines are left out.
func headings(text string) string {
	b := strings.Builder{}
	b.WriteString("\n")
	for line := range strings.Lines(text) {
		cells := gap.Split(strings.TrimSpace(bars.ReplaceAllString(line, "")), -1)
		if strings.ContainsAny(line, "0123456789") {
			cells = cells[:1]
		}
		if head := figure.ReplaceAllString(strings.Join(cells, " | "), "0"); head != "" {
			b.WriteString(head + "\n")
		}
	}
	return b.String()
}

func read(t *testing.T, path string) string {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// svgRows returns the lines that the last frame shows.
func svgRows(svg string) string {
	var rows strings.Builder
	for _, row := range regexp.MustCompile(`<text class="row[^>]*>(.*?)</text>`).FindAllStringSubmatch(svg, -1) {
		rows.WriteString(html.UnescapeString(tag.ReplaceAllString(row[1], "   ")) + "\n")
	}
	return rows.String()
}
