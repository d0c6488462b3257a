package pushback

import (
	"math"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// GroupThreshold is from how many promises on the clients of one key are a group.
	GroupThreshold = 8

	// maxGroups bounds the groups: 800 KiB. The one with the fewest promises gives way.
	maxGroups = 256

	quarter  = 250 * time.Millisecond
	quarters = 512 // 128 s
)

// groups are the keys behind which many clients are: a NAT, a gateway, or an attacker. Their
// clients are told apart by their times only. An arrival has the earliest promise that has
// come. It belongs to no one, so it does not go before new clients where tokens are short.
//
// All groups together have at most half of the slots within the longest wait. So a few
// addresses that ask for more than the backend can do leave the other half to the rest.
type groups struct {
	n     atomic.Int64
	mu    sync.Mutex // guards what follows, and all groups
	of    map[uint64]*group
	slots int // promised to all of them
	asks  int // promises to ask again
}

// A group counts the promises of one key by the quarter of a second.
type group struct {
	key         uint64
	from        int64 // all cells before this quarter are empty
	slots, asks int
	seen        time.Duration
	cells       [quarters]groupCell
}

type groupCell struct{ slots, proven, asks uint16 }

// find locks the group of a key, if there is one.
func (g *groups) find(key uint64) *group {
	if g.n.Load() == 0 || key == 0 {
		return nil
	}
	g.mu.Lock()
	if w := g.of[key]; w != nil {
		return w
	}
	g.mu.Unlock()
	return nil
}

// begin makes a group of a key, and locks it. It has no promises yet, if it is new.
func (g *groups) begin(now time.Duration, key uint64) *group {
	g.mu.Lock()
	if w := g.of[key]; w != nil {
		return w
	}
	if g.of == nil {
		g.of = map[uint64]*group{}
	}
	for len(g.of) >= maxGroups {
		var least *group
		for _, w := range g.of {
			if now-w.seen > maxLate {
				least = w
				break
			}
			if least == nil || w.slots+w.asks < least.slots+least.asks {
				least = w
			}
		}
		g.drop(least)
	}
	w := &group{key: key, seen: now, from: int64(now / quarter)}
	g.of[key] = w
	g.n.Store(int64(len(g.of)))
	return w
}

func (g *groups) drop(w *group) {
	g.count(w, -w.slots, -w.asks)
	delete(g.of, w.key)
	g.n.Store(int64(len(g.of)))
}

// take uses up the earliest promise that has come.
func (g *groups) take(now time.Duration, w *group) (t Turn, n int) {
	w.seen = now
	for end := int64((now + tolerance) / quarter); w.from <= end; w.from++ {
		c := &w.cells[w.from&(quarters-1)]
		t.At = time.Duration(w.from) * quarter
		switch late := now - t.At - quarter; {
		case late > abandonAfter: // it cannot be told whose it was
			g.count(w, -int(c.slots), -int(c.asks))
			*c = groupCell{}
		case c.slots > 0:
			c.slots--
			g.count(w, -1, 0)
			t.Slot = true
			if c.proven > 0 {
				c.proven--
				t.Trust = Proven
			}
			return t, 1
		case c.asks > 0:
			c.asks--
			g.count(w, 0, -1)
			return t, 1
		}
	}
	w.from--
	return Turn{}, 0
}

// count counts promises of one group, and of all.
func (g *groups) count(w *group, slots, asks int) {
	w.slots, w.asks, g.slots, g.asks = w.slots+slots, w.asks+asks, g.slots+slots, g.asks+asks
}

// put notes a promise.
func (g *groups) put(w *group, t *Turn) {
	n := int64(t.At / quarter)
	if n < w.from || n >= w.from+quarters {
		return
	}
	c := &w.cells[n&(quarters-1)]
	if c.slots == math.MaxUint16 || c.asks == math.MaxUint16 {
		return // a new client again when it comes
	}
	if t.Slot {
		c.slots++
		if t.Trust == Proven {
			c.proven++
		}
		g.count(w, 1, 0)
		return
	}
	c.asks++
	g.count(w, 0, 1)
}

// use takes away the promise of a kind nearest to an instant, as another replica has seen it
// kept.
func (g *groups) use(w *group, t *Turn) {
	for n := max(w.from, int64(t.At/quarter)-1); n < min(w.from+quarters, int64(t.At/quarter)+8); n++ {
		c := &w.cells[n&(quarters-1)]
		switch {
		case t.Slot && c.slots > 0:
			c.slots--
			c.proven = min(c.proven, c.slots)
			g.count(w, -1, 0)
			return
		case !t.Slot && c.asks > 0:
			c.asks--
			g.count(w, 0, -1)
			return
		}
	}
}

// all calls do with all promises of a group.
func (w *group) all(do func(t Turn)) {
	for n := w.from; n < w.from+quarters; n++ {
		c := w.cells[n&(quarters-1)]
		for i := range c.slots + c.asks {
			t := Turn{At: time.Duration(n) * quarter, Slot: i < c.slots}
			if i < c.proven {
				t.Trust = Proven
			}
			do(t)
		}
	}
}
