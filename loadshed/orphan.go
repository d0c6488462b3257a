package loadshed

import (
	"cmp"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// maxOrphans bounds how many orphaned requests are tracked, in 16 kB. Ours: the default
// maximum of places in flight.
const maxOrphans = 1024

// Orphans are requests whose clients have gone before the answer. Few backends notice
// and stop, so each keeps its place in flight for as long as the work is expected to
// take. Otherwise clients that give up and retry cause ever more useless work, which
// sustains an overload after its cause has gone: see [Budget].
//
// The zero Orphans is empty. It is safe for concurrent use, allocates once, with the
// first orphan, and must not be copied.
type Orphans struct {
	n    atomic.Int64
	next atomic.Int64 // when the next one is due, while n > 0: spares Due the lock

	mu sync.Mutex // guards at, and writes of n and next
	at []orphan   // the latest first: the next one is removed from the end
}

type orphan struct {
	until time.Duration
	owner owner
}

// An owner is a client in the counts that its request is in; 0: in none.
type owner struct{ perClient, crowd uint64 }

// Len returns how many there are.
func (g *Orphans) Len() int { return int(g.n.Load()) }

// Keep keeps the place of an owner until an instant. It reports false if 1024 are kept
// already; then the caller must give the place back at once.
func (g *Orphans) Keep(until time.Duration, o owner) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if len(g.at) == maxOrphans {
		return false
	}
	if g.at == nil {
		g.at = make([]orphan, 0, maxOrphans)
	}
	i, _ := slices.BinarySearchFunc(g.at, until, func(kept orphan, until time.Duration) int { return cmp.Compare(until, kept.until) })
	g.at = slices.Insert(g.at, i, orphan{until, o})
	g.publish()
	return true
}

// Due removes an orphan whose work should be done by now, and returns its owner. The
// caller must give the place back. It reports false if there is none, after two atomic
// loads.
func (g *Orphans) Due(now time.Duration) (o owner, due bool) {
	if g.n.Load() == 0 || int64(now) < g.next.Load() {
		return owner{}, false
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	last := len(g.at) - 1
	if last < 0 || g.at[last].until > now {
		return owner{}, false
	}
	o, g.at = g.at[last].owner, g.at[:last]
	g.publish()
	return o, true
}

// publish updates the fields that are read without the lock.
func (g *Orphans) publish() {
	if n := len(g.at); n > 0 {
		g.next.Store(int64(g.at[n-1].until))
	}
	g.n.Store(int64(len(g.at)))
}
