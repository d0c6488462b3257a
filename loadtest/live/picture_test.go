package live

import (
	"os"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"
)

func ExampleWritePicture() {
	together := Run{Name: "together", Herd: Result{Sent: []int{80, 0, 0, 0, 0, 70, 0, 0, 0, 0, 60}}}
	apart := Run{Name: "apart", Herd: Result{Sent: []int{80, 0, 0, 0, 10, 10, 11, 9, 10, 10, 10, 10}}}
	WritePicture(os.Stdout, "", together, apart)
	// Output:
	// together   █    ▇    ▆
	// apart      █   ▁▁▂▁▁▁▁▁
	//            one column is 0.1 s, the tallest 80 requests
}

func TestPictureFitsATerminal(t *testing.T) {
	for _, tenths := range []int{0, 1, 60, 61, 599, maxTenths} {
		var out strings.Builder
		if err := WritePicture(&out, "   ", Run{Name: "usual limiter", Herd: Result{Sent: slices.Repeat([]int{1}, tenths)}}); err != nil {
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
