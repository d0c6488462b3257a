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

	// maxGroups bounds the groups: 600 KiB. The one with the fewest promises gives way.
	maxGroups = 256

	quarter  = 250 * time.Millisecond
	quarters = 512 // 128 s
)

// groups are the keys behind which many clients are: a NAT, a gateway, or an attacker. Their
// clients are told apart by their times only. An arrival has the earliest promise that has
// come. It belongs to no one, so it does not go before new clients where tokens are short, and
// whether a client has come back before is not known.
//
// All groups together have at most half of the slots within the longest wait. So a few
// addresses that ask for more than the backend can do leave the other half to the rest.
type groups struct {
	n        atomic.Int64
	mu       sync.Mutex // guards what follows, and all groups
	of       map[uint64]*group
	promises kinds // of all of them
}

// kinds are how many promises are to ask again, and how many are slots.
type kinds [2]int

func kindOf(slot bool) int {
	if slot {
		return 1
	}
	return 0
}

// A group counts the promises of one key by the quarter of a second.
type group struct {
	key      uint64
	from     int64 // all cells before this quarter are empty
	promises kinds
	seen     time.Duration
	cells    [quarters][2]uint16 // as kinds
}

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
	if len(g.of) >= maxGroups {
		var least *group
		for _, w := range g.of {
			if least == nil || w.promises[0]+w.promises[1] < least.promises[0]+least.promises[1] {
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

// tick drops groups whose clients have all been away for longer than any can be late, with what was promised to them.
func (g *groups) tick(now time.Duration) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, w := range g.of {
		if now-w.seen > 2*maxLate {
			g.drop(w)
		}
	}
}

func (g *groups) drop(w *group) {
	for kind, n := range w.promises {
		g.promises[kind] -= n
	}
	delete(g.of, w.key)
	g.n.Store(int64(len(g.of)))
}

// add adds promises of a kind in a quarter.
func (g *groups) add(w *group, quarter int64, kind, n int) {
	c := &w.cells[quarter&(quarters-1)][kind]
	*c = uint16(int(*c) + n)
	w.promises[kind] += n
	g.promises[kind] += n
}

// take uses up the earliest promise that has come.
func (g *groups) take(now time.Duration, w *group) (t Turn, n int) {
	w.seen = now
	for end := int64((now + tolerance) / quarter); w.from <= end; w.from++ {
		t.At = time.Duration(w.from) * quarter
		for kind := 1; kind >= 0; kind-- {
			switch n := int(w.cells[w.from&(quarters-1)][kind]); {
			case now-t.At-quarter > abandonAfter: // it cannot be told whose it was
				g.add(w, w.from, kind, -n)
			case n > 0:
				g.add(w, w.from, kind, -1)
				t.Slot = kind == 1
				return t, 1
			}
		}
	}
	w.from--
	return Turn{}, 0
}

// put notes a promise.
func (g *groups) put(w *group, t *Turn) {
	n, kind := int64(t.At/quarter), kindOf(t.Slot)
	if n >= w.from && n < w.from+quarters && w.cells[n&(quarters-1)][kind] < math.MaxUint16 { // or it is a new client when it comes
		g.add(w, n, kind, 1)
	}
}

// use takes away the promise of a kind nearest to an instant, as another replica has seen it
// kept.
func (g *groups) use(w *group, t *Turn) {
	at, kind := int64(t.At/quarter), kindOf(t.Slot)
	for n := max(w.from, at-1); n < min(w.from+quarters, at+8); n++ {
		if w.cells[n&(quarters-1)][kind] > 0 {
			g.add(w, n, kind, -1)
			return
		}
	}
}

// all calls do with all promises of a group.
func (w *group) all(do func(t Turn)) {
	for n := w.from; n < w.from+quarters; n++ {
		for kind, promises := range w.cells[n&(quarters-1)] {
			for range promises {
				do(Turn{At: time.Duration(n) * quarter, Slot: kind == 1})
			}
		}
	}
}
