package caddymodule

import (
	"sync"
	"time"
)

// backgroundAfter is when a background read begins at the earliest; twice that at the latest. Ours:
// many requests are over by then, whose reads would only find that nothing has come.
const backgroundAfter = 10 * time.Millisecond

// A backgroundRead is net/http's read of one byte while a handler has a request, to see whether
// the client is still there. Its methods may be called by any goroutine.
type backgroundRead struct {
	mu      sync.Mutex // guards the fields below
	changed sync.Cond  // due or over has changed
	wary    bool       // a request of the connection was refused
	request uint64     // the number of the request
	over    bool       // no read may go on
	due     bool       // the read is due

	timer *time.Timer // nil: none was needed so far
	runs  bool        // the timer runs
	since uint64      // the request that there was when it was started
}

// next notes that there is another request.
func (b *backgroundRead) next() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.request++
	b.due = false
}

// refused notes that a request was refused.
func (b *backgroundRead) refused() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.wary = true
}

// setOver ends the read, or allows the next one.
func (b *backgroundRead) setOver(over bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.over = over; over {
		b.changed.Signal()
	}
}

// wait waits until the read is due. It reports false if it is over first.
func (b *backgroundRead) wait() (due, wary bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.changed.L = &b.mu
	if !b.runs {
		b.runs, b.since = true, b.request
		if b.timer == nil {
			b.timer = time.AfterFunc(backgroundAfter, b.tick)
		} else {
			b.timer.Reset(backgroundAfter)
		}
	}
	for !b.over && !b.due {
		b.changed.Wait()
	}
	return !b.over, b.wary
}

// waitOver waits until the read is over.
func (b *backgroundRead) waitOver() {
	b.mu.Lock()
	defer b.mu.Unlock()
	for !b.over {
		b.changed.Wait()
	}
}

// tick is what the timer does. The end of a request does not stop it: the next one is likely to
// need it.
func (b *backgroundRead) tick() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.since == b.request {
		b.runs, b.due = false, true
		b.changed.Signal()
		return
	}
	b.since = b.request
	b.timer.Reset(backgroundAfter)
}
