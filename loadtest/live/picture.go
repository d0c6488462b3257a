package live

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
	"time"
)

// columns is how wide a picture is at most. Ours: with a name before it, it fits
// on a terminal of 80.
const columns = 60

// levels are the heights of a bar.
var levels = []rune("▁▂▃▄▅▆▇█")

// WritePicture draws how many requests the clients of each run sent over time:
// one line per run, all to one scale. Lines begin with indent.
func WritePicture(w io.Writer, indent string, runs ...Run) error {
	longest := 0
	for _, r := range runs {
		longest = max(longest, len(r.Herd.Sent))
	}
	width := max(1, (longest+columns-1)/columns) // of one bar, in tenths of a second
	bars := make([][]int, len(runs))
	tallest := 0
	for i, r := range runs {
		for tenths := range slices.Chunk(r.Herd.Sent, width) {
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
		fmt.Fprintf(tw, "%s%s\t%s\n", indent, r.Name, draw(bars[i], tallest))
	}
	fmt.Fprintf(tw, "%s\tone column is %g s, the tallest %d requests\n", indent,
		(time.Duration(width) * 100 * time.Millisecond).Seconds(), tallest)
	return tw.Flush()
}

// draw returns one column for each bar: empty for 0, else as high as its share
// of tallest, rounded up.
func draw(bars []int, tallest int) string {
	var b strings.Builder
	for _, n := range bars {
		if n == 0 {
			b.WriteByte(' ')
			continue
		}
		b.WriteRune(levels[(n*len(levels)-1)/tallest])
	}
	return b.String()
}
