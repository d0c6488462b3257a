// Command recording plays the demo, and draws what a terminal shows meanwhile as an animated SVG:
//
//	go -C loadtest/lab run ./recording ../../docs/demo.svg
//
// The animation is made of CSS, so that it plays in a page that shows it by <img>. Readers who prefer
// reduced motion, and programs that know no CSS animations, see the last frame.
package main

import (
	"context"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/herdshield/shield/loadtest/demo"
)

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: recording FILE")
		os.Exit(2)
	}
	var r recorder
	r.begin = time.Now()
	err := demo.Run(context.Background(), &r, true)
	if err == nil {
		err = os.WriteFile(os.Args[1], draw(&r, time.Since(r.begin)), 0o644)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "recording:", err)
		os.Exit(1)
	}
}

// A recorder is a terminal that notes when each of its lines was written.
type recorder struct {
	begin time.Time
	lines []line
	open  bool // the last line has no end yet
}

// A line is what is written into one row, one text after the other.
type line struct {
	texts       []string
	first, last time.Duration // when the first and the last text was written
}

// rewrite is how the demo begins a line anew: package live has it.
const rewrite = "\r\x1b[K"

func (r *recorder) Write(p []byte) (int, error) {
	now := time.Since(r.begin)
	for part := range strings.Lines(string(p)) {
		text, ended := strings.CutSuffix(part, "\n")
		text, again := strings.CutPrefix(text, rewrite)
		if !r.open {
			r.lines = append(r.lines, line{first: now})
		}
		l := &r.lines[len(r.lines)-1]
		l.last = now
		switch n := len(l.texts); {
		case n > 0 && !again:
			l.texts[n-1] += text
		default:
			l.texts = append(l.texts, text)
		}
		r.open = !ended
	}
	return len(p), nil
}
