package loadshed

import (
	"sync"
	"sync/atomic"
	"time"
)

// maxGhosts bounds how much work without a client is kept account of, 8 kB. Ours:
// as many as there are places at most by default.
const maxGhosts = 1024

// Ghosts are requests whose clients have gone before they were answered. Few
// backends notice, so the work goes on, and its place in flight is kept for as long
// as it is expected to take. The zero Ghosts is empty. It is safe for concurrent use.
type Ghosts struct {
	n  atomic.Int64
	mu sync.Mutex // guards what follows
	// at is a binary heap of instants: a sorted list with cheap insertion.
	at [maxGhosts]time.Duration
}

// Len returns how many there are. It costs one atomic load.
func (g *Ghosts) Len() int { return int(g.n.Load()) }

// Keep keeps a place until an instant. It reports false if there is no room; then
// the place is to be given back at once.
func (g *Ghosts) Keep(until time.Duration) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	n := int(g.n.Load())
	if n == maxGhosts {
		return false
	}
	i := n
	for i > 0 {
		parent := (i - 1) / 2
		if g.at[parent] <= until {
			break
		}
		g.at[i] = g.at[parent]
		i = parent
	}
	g.at[i] = until
	g.n.Store(int64(n + 1))
	return true
}

// Due returns how many ghosts' work is done by now, and forgets them: so many
// places are to be given back.
func (g *Ghosts) Due(now time.Duration) (due int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	n := int(g.n.Load())
	for n > 0 && g.at[0] <= now {
		n--
		due++
		last := g.at[n]
		i := 0
		for {
			child := 2*i + 1
			if child >= n {
				break
			}
			if child+1 < n && g.at[child+1] < g.at[child] {
				child++
			}
			if last <= g.at[child] {
				break
			}
			g.at[i] = g.at[child]
			i = child
		}
		g.at[i] = last
	}
	g.n.Store(int64(n))
	return due
}
