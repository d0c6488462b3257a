package pushback

import "time"

// LineStats is a snapshot of a Line.
type LineStats struct {
	Backlog   time.Duration // how far the promised slots reach
	Waiting   int           // promised slots whose clients may still come
	Deferred  int           // clients in the tail
	Promises  Promises
	KeptShare float64 // of the times that new clients were told, how many they come at
}

// Open reports whether rejected clients are still expected: they have an appointment ahead, or no appointment yet. If all of them returned
// before the last appointment, none is.
func (s *LineStats) Open() bool {
	return (s.Backlog > 0 || s.Deferred > 0) && s.Waiting+s.Deferred > 0
}

// stats returns the LineStats at now.
func (l *Line) stats(now time.Duration) LineStats {
	l.mu.Lock()
	defer l.mu.Unlock()
	return LineStats{l.Ahead(now), int(l.waiting.Load()), int(l.issued - l.served), l.counts, l.keep(Untried)}
}

func (l *Line) copyTo(to *Line) {
	l.mu.Lock()
	defer l.mu.Unlock()
	to.until.Store(l.until.Load())
	to.last.Store(l.last.Load())
	to.waiting.Store(l.waiting.Load())
	to.servedNow.Store(l.servedNow.Load())
	to.lineState = l.lineState
	to.noMore, to.times = false, nil // it asks no store
}
