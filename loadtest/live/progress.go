package live

import (
	"fmt"
	"io"
	"time"
)

// Watch writes the progress of h and b to w until stop is called. stop writes the last
// state, and returns when nothing more will be written. On a terminal one line is redrawn
// in place; elsewhere there is a line per second.
func Watch(w io.Writer, terminal bool, h *Herd, b *Backend) (stop func()) {
	return watch(w, terminal, func(since time.Duration) string {
		p := h.load.Progress()
		// 66 columns: a line that wraps cannot be redrawn.
		return fmt.Sprintf("%4.1f s: %4d served, %4d trying, %4d gave up; %4d in the backend",
			since.Seconds(), p.Served, h.load.cfg.Herd-p.Served-p.GaveUp, p.GaveUp, b.Stats().Inside)
	})
}

// WatchLoad is Watch for a Load.
func WatchLoad(w io.Writer, terminal bool, l *Load) (stop func()) {
	return watch(w, terminal, func(time.Duration) string {
		p := l.Progress()
		return fmt.Sprintf("%4.1f s: %d came, %d served, %d trying, %d gave up; %d requests",
			p.At.Seconds(), p.Came, p.Served, p.Trying, p.GaveUp, p.Requests)
	})
}

// watch writes lines of line, which gets the time since watch was called.
func watch(w io.Writer, terminal bool, line func(since time.Duration) string) (stop func()) {
	period, begin, end := time.Second, "", "\n"
	if terminal {
		period, begin, end = 100*time.Millisecond, "\r\x1b[K", "" // to the left margin, and clear the line
	}
	start := time.Now()
	write := func() { fmt.Fprintf(w, "%s   %s%s", begin, line(time.Since(start)), end) }
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
