package demo

import (
	"os"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/herdshield/shield/loadtest/live"
)

func herdOf(t live.Tally) live.LoadResult { return live.LoadResult{All: t} }

func Example_writeRuns() {
	without := demoRun{
		Name:    "without",
		Herd:    herdOf(live.Tally{Clients: 300, Served: 60, GaveUp: 240, Requests: 2940, LastServed: time.Second}),
		Backend: live.Stats{Peak: 1206, Busiest: 312, Served: 60, Wasted: 540},
	}
	with := demoRun{
		Name:    "with",
		Herd:    herdOf(live.Tally{Clients: 300, Served: 300, Requests: 675, LastServed: 4640 * time.Millisecond}),
		Backend: live.Stats{Peak: 18, Busiest: 95, Served: 300},
	}
	writeRuns(os.Stdout, "", without, with)
	// Output:
	// without     with
	// clients served                 60 of 300   300 of 300
	// clients that gave up           240         0
	// time until all were served     never       4.6 s
	// requests per success           49.0        2.2
	// peak requests in the backend   1206        18
	// peak requests/s reaching it    312         95
	// responses nobody waited for    540 (90%)   0
}

func Example_writePicture() {
	together := demoRun{Name: "together", Herd: live.LoadResult{Tenths: []int{80, 0, 0, 0, 0, 70, 0, 0, 0, 0, 60}}}
	apart := demoRun{Name: "apart", Herd: live.LoadResult{Tenths: []int{80, 0, 0, 0, 10, 10, 11, 9, 10, 10, 10, 10}}}
	writePicture(os.Stdout, "", together, apart)
	// Output:
	// together   █    ▇    ▆
	// apart      █   ▁▁▂▁▁▁▁▁
	//            one column is 0.1 s, the tallest 80 requests
}

func TestPictureFitsATerminal(t *testing.T) {
	for _, tenths := range []int{0, 1, 60, 61, 599, 20 * 60 * 10} {
		var out strings.Builder
		if err := writePicture(&out, "   ", demoRun{Name: "usual limiter", Herd: live.LoadResult{Tenths: slices.Repeat([]int{1}, tenths)}}); err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(out.String()) {
			if n := utf8.RuneCountInString(strings.TrimSpace(line)); n > 80 {
				t.Errorf("%d tenths: a line of %d columns; want at most 80:\n%s", tenths, n, line)
			}
		}
		if bars := strings.Count(out.String(), "█"); (bars == 0) != (tenths == 0) {
			t.Errorf("%d tenths: %d full bars", tenths, bars)
		}
	}
}
