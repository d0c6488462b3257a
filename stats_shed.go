package shield

import (
	"time"

	"github.com/herdshield/shield/loadshed"
)

// ShedStats is a snapshot of what a Backend does to find, keep and share its room
// in flight.
type ShedStats struct {
	Queue   loadshed.QueueStats
	Paused  time.Duration // how long the backend is still left alone; 0: it is not
	Pauses  uint64
	Ghosts  int // places kept for requests whose clients have gone
	Failed  uint64
	Last    loadshed.Change            // the last change of the adaptive limit; At 0: there was none
	Changes map[loadshed.Reason]uint64 // of the adaptive limit
}

// LimitReasons are all reasons for a change of the adaptive limit.
func LimitReasons() (all []loadshed.Reason) {
	for r := loadshed.Reason(1); r < reasonsOfLimit; r++ {
		all = append(all, r)
	}
	return all
}

// ShedStats returns the counts, each read at a slightly different moment. It is
// meant for scrapes.
func (b *Backend) ShedStats(now time.Duration) ShedStats {
	s := ShedStats{
		Queue: b.queue.Stats(), Paused: b.pause.Left(now), Pauses: b.pause.Count(),
		Ghosts: b.ghosts.Len(), Failed: b.failed.Load(), Changes: map[loadshed.Reason]uint64{},
	}
	c := &b.changes
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.n > 0 {
		s.Last = c.last[(c.n-1)%uint64(len(c.last))]
	}
	for _, r := range LimitReasons() {
		s.Changes[r] = c.count[r]
	}
	return s
}

// Paused returns for how long the backend is still left alone, and how many
// times it has asked for that. It costs two atomic loads.
func (b *Backend) Paused(now time.Duration) (left time.Duration, times uint64) {
	return b.pause.Left(now), b.pause.Count()
}

// ClassStats counts the decisions on the requests of one class.
type ClassStats struct {
	Name                        string
	Share                       float64 // of the room in flight, while higher classes need the rest
	Admitted, Refused, Observed uint64
}

// ClassStats returns what has been decided on each class, the highest first.
func (g *Guard) ClassStats() []ClassStats {
	list := make([]ClassStats, g.classes.Len())
	for i, n := range g.counts {
		c := g.classes.At(i)
		list[i] = ClassStats{c.Name, c.Share, n.admitted.Load(), n.refused.Load(), n.observed.Load()}
	}
	return list
}

// QueueSize returns how many requests may wait for room in flight; 0: none.
func (g *Guard) QueueSize() int { return g.queue.Size }

// DoneAs is Done for a caller that knows better than the response how the request
// has ended. Of all calls of the two the first counts.
func (t *Tracker) DoneAs(o Outcome) { t.finish(o) }
