package loadshed

import (
	"sync"
	"sync/atomic"
	"time"
)

// maxOrphans bounds how many orphaned requests are tracked, in 16 kB. Ours: the default
// maximum of places in flight.
const maxOrphans = 1024

// Orphans are requests whose clients have gone before the answer. Few backends notice
// and stop, so each keeps its place in flight for as long as the work is expected to
// take. Otherwise clients that give up and retry in an overload cause ever more useless
// work, which sustains the overload after its cause has gone (Bronson et al.,
// "Metastable Failures in Distributed Systems", HotOS '21).
//
// The zero Orphans is empty. It is safe for concurrent use, allocates once, with the
// first orphan, and must not be copied.
type Orphans struct {
	n    atomic.Int64
	next atomic.Int64 // at[0].until while n > 0: spares Due the lock

	mu sync.Mutex          // guards at, and writes of n and next
	at *[maxOrphans]orphan // a binary heap, the earliest first; nil before the first one
}

type orphan struct {
	until time.Duration
	owner uint64
}

// Len returns how many there are. It is one atomic load.
func (g *Orphans) Len() int { return int(g.n.Load()) }

// Keep keeps the place of an owner until an instant. It reports false if 1024 are kept
// already; then the caller must give the place back at once.
func (g *Orphans) Keep(until time.Duration, owner uint64) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	n := int(g.n.Load())
	if n == maxOrphans {
		return false
	}
	if g.at == nil {
		g.at = new([maxOrphans]orphan)
	}
	i := n
	for i > 0 {
		parent := (i - 1) / 2
		if g.at[parent].until <= until {
			break
		}
		g.at[i] = g.at[parent]
		i = parent
	}
	g.at[i] = orphan{until, owner}
	g.next.Store(int64(g.at[0].until))
	g.n.Store(int64(n + 1))
	return true
}

// Due removes an orphan whose work should be done by now, and returns its owner. The
// caller must give the place back. It reports false if there is none, after two atomic
// loads.
func (g *Orphans) Due(now time.Duration) (owner uint64, due bool) {
	if g.n.Load() == 0 || int64(now) < g.next.Load() {
		return 0, false
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	n := int(g.n.Load())
	if n == 0 || g.at[0].until > now {
		return 0, false
	}
	n--
	owner = g.at[0].owner
	last := g.at[n]
	i := 0
	for {
		child := 2*i + 1
		if child >= n {
			break
		}
		if child+1 < n && g.at[child+1].until < g.at[child].until {
			child++
		}
		if last.until <= g.at[child].until {
			break
		}
		g.at[i] = g.at[child]
		i = child
	}
	g.at[i] = last
	g.next.Store(int64(g.at[0].until))
	g.n.Store(int64(n))
	return owner, true
}
