package live

import (
	"fmt"
	"io"
	"time"
)

// Watch writes the progress of h and b to w until the function that it returns
// is called; that one writes the last state and returns when nothing more will
// be written. On a terminal one line is redrawn in place, elsewhere there is a
// line per second.
func Watch(w io.Writer, terminal bool, h *Herd, b *Backend) (stop func()) {
	period, begin, end := time.Second, "", "\n"
	if terminal {
		period, begin, end = 100*time.Millisecond, "\r\x1b[K", "" // to the left margin, and clear the line
	}
	start := time.Now()
	line := func() {
		r := h.Result()
		// 66 columns: a line that wraps cannot be redrawn.
		fmt.Fprintf(w, "%s   %4.1f s: %4d served, %4d trying, %4d gave up; %4d in the backend%s",
			begin, time.Since(start).Seconds(), r.Served, r.Trying(), r.GaveUp, b.Stats().Inside, end)
	}
	quit, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		ticker := time.NewTicker(period)
		defer ticker.Stop()
		for {
			select {
			case <-ticker.C:
				line()
			case <-quit:
				line()
				if terminal {
					fmt.Fprintln(w)
				}
				return
			}
		}
	}()
	return func() { close(quit); <-ended }
}
