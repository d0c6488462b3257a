package demo

import (
	"fmt"
	"io"
	"math"
	"slices"
	"strings"
	"text/tabwriter"
	"text/template"
	"time"

	"github.com/herdshield/shield/loadtest/live"
)

// A demoRun is one herd against one backend, under a name for the table's head.
type demoRun struct {
	Name    string
	Herd    live.LoadResult
	Backend live.Stats
}

// demoTable shows runs side by side, in words for readers that do not know this program. If
// a client was not served, there is no time: that of the last success would flatter a
// backend that died early.
var demoTable = template.Must(template.New("demo").Funcs(template.FuncMap{"wasted": wasted}).Parse(`{{range .}} │ {{.Name}}{{end}}
clients served{{range .}} │ {{.Herd.All.Served}} of {{.Herd.All.Clients}}{{end}}
clients that gave up{{range .}} │ {{.Herd.All.GaveUp}}{{end}}
{{- range .}}{{if .Herd.All.Trying}}
still trying when stopped{{range $}} │ {{.Herd.All.Trying}}{{end}}{{break}}{{end}}{{end}}
time until all were served{{range .}} │ {{if lt .Herd.All.Served .Herd.All.Clients}}never{{else}}
{{- printf "%.1f s" .Herd.All.LastServed.Seconds}}{{end}}{{end}}
requests per success{{range .}} │ {{if .Herd.All.Served}}{{printf "%.1f" .Herd.All.PerSuccess}}{{else}}none served{{end}}{{end}}
peak requests in the backend{{range .}} │ {{.Backend.Peak}}{{end}}
peak requests/s reaching it{{range .}} │ {{.Backend.Busiest}}{{end}}
responses nobody waited for{{range .}} │ {{.Backend.Wasted}}{{if .Backend.Wasted}} ({{wasted .Backend}}%){{end}}{{end}}
`))

// wasted is the share of all work that was wasted, in percent.
func wasted(s live.Stats) int { return 100 * s.Wasted / max(1, s.Served+s.Wasted) }

// writeRuns writes the demoTable. Lines begin with indent.
func writeRuns(w io.Writer, indent string, runs ...demoRun) error {
	var text strings.Builder
	if err := demoTable.Execute(&text, runs); err != nil {
		return err
	}
	tw := tabwriter.NewWriter(w, 0, 0, 3, ' ', 0)
	for line := range strings.Lines(text.String()) {
		fmt.Fprint(tw, indent, strings.ReplaceAll(line, " │ ", "\t"))
	}
	return tw.Flush()
}

// columns is how wide a picture is. Ours: with a name before it, it fits 80 columns.
const columns = 60

// writePicture draws how many requests the clients of each run sent over time: one line
// per run, all to one scale. Lines begin with indent.
func writePicture(w io.Writer, indent string, runs ...demoRun) error {
	longest := 0
	for _, r := range runs {
		longest = max(longest, len(r.Herd.Tenths))
	}
	width := max(1, (longest+columns-1)/columns) // of one bar, in tenths of a second
	bars := make([][]int, len(runs))
	tallest := 0
	for i, r := range runs {
		for tenths := range slices.Chunk(r.Herd.Tenths, width) {
			sum := 0
			for _, n := range tenths {
				sum += n
			}
			bars[i] = append(bars[i], sum)
			tallest = max(tallest, sum)
		}
	}
	tw := tabwriter.NewWriter(w, 0, 0, 3, ' ', 0)
	for i, r := range runs {
		fmt.Fprintf(tw, "%s%s\t%s\n", indent, r.Name, bar(bars[i], tallest))
	}
	fmt.Fprintf(tw, "%s\tone column is %g s, the tallest %d requests\n", indent,
		(time.Duration(width) * 100 * time.Millisecond).Seconds(), tallest)
	return tw.Flush()
}

// bar returns a column of text for each value, as high as its share of the tallest, rounded up.
func bar(values []int, tallest int) string {
	levels := []rune(" ▁▂▃▄▅▆▇█")
	var b strings.Builder
	for _, n := range values {
		b.WriteRune(levels[int(math.Ceil(float64(len(levels)-1)*float64(n)/float64(max(1, tallest))))])
	}
	return b.String()
}
