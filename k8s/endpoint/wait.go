package endpoint

import (
	"container/list"
	"sync"
	"sync/atomic"
)

// A line is the FIFO queue of requests that wait for a permit at an endpoint of a Set. The caller has limited
// what is in flight to the permits that there are, but some endpoints are ejected, or have just left.
type line struct {
	length atomic.Int64 // of waiters, so that a Release takes no lock if there are none

	mu      sync.Mutex // guards waiters
	waiters list.List  // of *Waiter, the first one first
}

// A Waiter is a place in the line. Its methods are for one goroutine.
type Waiter struct {
	// Turn gets a value when a permit may have become free: then Pick.
	Turn <-chan struct{}

	// First: the line was empty, so a Pick at once may succeed.
	First bool

	turn chan struct{}
	line *line
	at   *list.Element
}

// Waiting reports whether the line has waiters, so that a newcomer should join it.
func (s *Set) Waiting() bool { return s.line.length.Load() > 0 }

// Wait joins the line. The caller must call Leave in any case.
func (s *Set) Wait() *Waiter {
	w := &Waiter{turn: make(chan struct{}, 1), line: &s.line}
	w.Turn = w.turn
	s.line.mu.Lock()
	defer s.line.mu.Unlock()
	w.at = s.line.waiters.PushBack(w)
	w.First = s.line.length.Add(1) == 1
	return w
}

// Leave leaves the line and gives the next waiter a turn: its own, if it has not taken it,
// else because more permits may have become free than turns were given.
func (w *Waiter) Leave() {
	l := w.line
	l.mu.Lock()
	defer l.mu.Unlock()
	l.waiters.Remove(w.at)
	l.length.Add(-1)
	l.next()
}

// freed gives a turn to the first waiter without one, who gives the next one a turn as it leaves: so all get one, however many
// permits have become free.
func (l *line) freed() {
	if l.length.Load() == 0 {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.next()
}

// next gives one turn. The caller holds mu.
func (l *line) next() {
	for at := l.waiters.Front(); at != nil; at = at.Next() {
		select {
		case at.Value.(*Waiter).turn <- struct{}{}:
			return
		default: // it has one
		}
	}
}
