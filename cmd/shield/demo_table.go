package main

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/herdshield/shield/loadtest/live"
)

// A demoRun is one herd against one backend, under a name for the table's head.
type demoRun struct {
	name    string
	herd    live.LoadResult
	backend live.Stats
}

// writeRuns writes runs side by side, one column each, in words for readers that do not
// know this program. Lines begin with indent.
func writeRuns(w io.Writer, indent string, runs ...demoRun) error {
	tw := tabwriter.NewWriter(w, 0, 0, 3, ' ', 0)
	row := func(label string, cell func(all *live.Tally, s live.Stats) string) {
		fmt.Fprint(tw, indent, label)
		for _, r := range runs {
			fmt.Fprint(tw, "\t", cell(&r.herd.All, r.backend))
		}
		fmt.Fprintln(tw)
	}
	fmt.Fprint(tw, indent)
	for _, r := range runs {
		fmt.Fprint(tw, "\t", r.name)
	}
	fmt.Fprintln(tw)
	row("clients served", func(t *live.Tally, _ live.Stats) string { return fmt.Sprintf("%d of %d", t.Served, t.Clients) })
	row("clients that gave up", func(t *live.Tally, _ live.Stats) string { return fmt.Sprint(t.GaveUp) })
	if slices.ContainsFunc(runs, func(r demoRun) bool { return r.herd.All.Trying > 0 }) {
		row("still trying when stopped", func(t *live.Tally, _ live.Stats) string { return fmt.Sprint(t.Trying) })
	}
	row("time until all were served", func(t *live.Tally, _ live.Stats) string {
		if t.Served < t.Clients { // the time of the last success would flatter a backend that died early
			return "never"
		}
		return fmt.Sprintf("%.1f s", t.LastServed.Seconds())
	})
	row("requests per client served", func(t *live.Tally, _ live.Stats) string {
		if t.Served == 0 {
			return "none served"
		}
		return fmt.Sprintf("%.1f", t.PerSuccess())
	})
	row("most inside the backend at once", func(_ *live.Tally, s live.Stats) string { return fmt.Sprint(s.Peak) })
	row("most reaching it in one second", func(_ *live.Tally, s live.Stats) string { return fmt.Sprint(s.Busiest) })
	row("work for clients that had gone", func(_ *live.Tally, s live.Stats) string {
		if s.Wasted == 0 {
			return "0"
		}
		return fmt.Sprintf("%d (%d %%)", s.Wasted, 100*s.Wasted/(s.Served+s.Wasted))
	})
	return tw.Flush()
}

// columns is how wide a picture is at most. Ours: with a name before it, it fits
// on a terminal of 80.
const columns = 60

// writePicture draws how many requests the clients of each run sent over time: one line
// per run, all to one scale. Lines begin with indent.
func writePicture(w io.Writer, indent string, runs ...demoRun) error {
	longest := 0
	for _, r := range runs {
		longest = max(longest, len(r.herd.Tenths))
	}
	width := max(1, (longest+columns-1)/columns) // of one bar, in tenths of a second
	bars := make([][]int, len(runs))
	tallest := 0
	for i, r := range runs {
		for tenths := range slices.Chunk(r.herd.Tenths, width) {
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
		fmt.Fprintf(tw, "%s%s\t%s\n", indent, r.name, draw(bars[i], tallest))
	}
	fmt.Fprintf(tw, "%s\tone column is %g s, the tallest %d requests\n", indent,
		(time.Duration(width) * 100 * time.Millisecond).Seconds(), tallest)
	return tw.Flush()
}

// draw returns one column for each bar: empty for 0, else as high as its share
// of tallest, rounded up.
func draw(bars []int, tallest int) string {
	levels := []rune(" ▁▂▃▄▅▆▇█")
	var b strings.Builder
	for _, n := range bars {
		b.WriteRune(levels[(n*(len(levels)-1)+tallest-1)/max(1, tallest)])
	}
	return b.String()
}
