package live

import (
	"fmt"
	"io"
	"time"
)

// Watch writes line, which shows the progress of a run, to w until stop is called. stop
// writes the last state, and returns when nothing more will be written. On a terminal one
// line is redrawn in place; elsewhere there is a line per second.
func Watch(w io.Writer, terminal bool, line func() string) (stop func()) {
	period, begin, end := time.Second, "", "\n"
	if terminal {
		period, begin, end = 100*time.Millisecond, "\r\x1b[K", "" // to the left margin, and clear the line
	}
	write := func() { fmt.Fprintf(w, "%s   %s%s", begin, line(), end) }
	quit, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		ticker := time.NewTicker(period)
		defer ticker.Stop()
		for {
			select {
			case <-ticker.C:
				write()
			case <-quit:
				write()
				if terminal {
					fmt.Fprintln(w)
				}
				return
			}
		}
	}()
	return func() { close(quit); <-ended }
}
