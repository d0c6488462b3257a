package live

import (
	"fmt"
	"io"
	"time"
)

// Watch redraws a line on a terminal, which shows the progress of a run, until stop is called. stop
// writes the last state, and returns when nothing more will be written.
func Watch(w io.Writer, line func() string) (stop func()) {
	write := func(end string) { fmt.Fprintf(w, "\r\x1b[K   %s%s", line(), end) } // to the left margin, and clear the line
	quit, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		ticker := time.NewTicker(100 * time.Millisecond)
		defer ticker.Stop()
		for {
			select {
			case <-ticker.C:
				write("")
			case <-quit:
				write("\n")
				return
			}
		}
	}()
	return func() { close(quit); <-ended }
}
