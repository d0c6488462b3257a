package endpoint

import (
	"container/list"
	"sync"
	"sync/atomic"
)

// A line is who waits for a place at some endpoint of a Set, because those that are
// good have none: the caller has made sure that there are places enough, but some
// endpoints are ejected, or have just left. First come, first served.
type line struct {
	length atomic.Int64 // of waiters, so that a Release asks nobody else if there are none

	mu      sync.Mutex // guards what follows
	waiters list.List  // of *Waiter, the first one first
}

// A Waiter is a place in the line. Its methods are for one goroutine.
type Waiter struct {
	// Turn gets a value when a place may have become free: then Pick.
	Turn <-chan struct{}

	// First: nobody was in the line before, so it is worth to Pick at once.
	First bool

	turn chan struct{}
	line *line
	at   *list.Element
}

// Waiting reports whether anybody is in the line: who comes now should join it.
func (s *Set) Waiting() bool { return s.line.length.Load() > 0 }

// Wait joins the line. The Waiter must Leave it, whatever has become of it.
func (s *Set) Wait() *Waiter {
	w := &Waiter{turn: make(chan struct{}, 1), line: &s.line}
	w.Turn = w.turn
	s.line.mu.Lock()
	defer s.line.mu.Unlock()
	w.at = s.line.waiters.PushBack(w)
	w.First = s.line.length.Add(1) == 1
	return w
}

// Leave leaves the line. The next one gets a turn: this one's, if it has not been taken,
// and else because more places may have become free than there were turns to give.
func (w *Waiter) Leave() {
	l := w.line
	l.mu.Lock()
	defer l.mu.Unlock()
	l.waiters.Remove(w.at)
	l.length.Add(-1)
	l.next()
}

// freed gives a turn to the first who has none yet.
func (l *line) freed() {
	if l.length.Load() == 0 {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.next()
}

// changed gives everybody a turn: how many places have become free is not known.
func (l *line) changed() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for range l.waiters.Len() {
		l.next()
	}
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
