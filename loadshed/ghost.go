package loadshed

import (
	"sync"
	"sync/atomic"
	"time"
)

// maxGhosts bounds how much work without a client is kept account of, 16 kB. Ours:
// as many as there are places at most by default.
const maxGhosts = 1024

// Orphans are requests whose clients have gone before they were answered. Few
// backends notice, so the work goes on, and its place in flight is kept for as long
// as it is expected to take. Without that, clients that give up and come again in an
// overload have ever more work done for nobody: what sustains it after its cause has
// gone (Bronson et al., "Metastable Failures in Distributed Systems", HotOS '21).
//
// The zero Orphans is empty. It is safe for concurrent use, allocates nothing but its
// room with the first ghost, and must not be copied.
type Orphans struct {
	n    atomic.Int64
	next atomic.Int64 // at[0] while n > 0: lets Due do without the lock

	mu sync.Mutex        // guards what follows, and writes of what precedes
	at *[maxGhosts]ghost // a binary heap, the earliest instant first; nil until there was one
}

type ghost struct {
	until time.Duration
	owner uint64
}

// Len returns how many there are. It costs one atomic load.
func (g *Orphans) Len() int { return int(g.n.Load()) }

// Keep keeps a place until an instant, and whose it is. It reports false if 1024 are
// kept already; then the place is to be given back at once.
func (g *Orphans) Keep(until time.Duration, owner uint64) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	n := int(g.n.Load())
	if n == maxGhosts {
		return false
	}
	if g.at == nil {
		g.at = new([maxGhosts]ghost)
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
	g.at[i] = ghost{until, owner}
	g.next.Store(int64(g.at[0].until))
	g.n.Store(int64(n + 1))
	return true
}

// Due forgets a ghost whose work is done by now, and returns whose it is: its place is
// to be given back. It reports false if there is none, at the cost of two atomic loads.
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
