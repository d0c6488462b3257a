package pushback

import "time"

// A group is the clients behind one key of which more than eight have been promised a time at
// once: a NAT, or a flood. It counts promises by the quarter of a second. They belong to
// nobody: whoever comes takes the earliest. So it is no one's right to go before others.
type group struct {
	key         uint64
	from        int64 // all cells before this quarter are empty
	n           int   // promises
	seen        time.Duration
	first, last float64 // the numbers of those that ask again
	hops        int
	cells       [512]cell
}

type cell struct{ slots, tried, hops uint16 }

const (
	quarter   = 250 * time.Millisecond
	groupLate = 8 // quarters after which a promise is given up
	maxGroups = 256
)

// take takes the earliest promise that has come.
func (g *group) take(now time.Duration) (t Turn, ok bool) {
	q := int64((now + tolerant*time.Millisecond) / quarter)
	g.seen = now
	if g.n == 0 {
		g.from = q
		return t, false
	}
	for ; g.from <= q; g.from++ {
		c := &g.cells[g.from&511]
		switch late := q-g.from > groupLate; {
		case late:
			g.n -= int(c.slots) + int(c.hops)
			g.hops -= int(c.hops)
			*c = cell{}
		case c.slots > 0:
			c.slots--
			g.n--
			t = Turn{At: time.Duration(g.from) * quarter, Slot: true, Tried: c.tried > 0}
			if t.Tried {
				c.tried--
			}
			return t, true
		case c.hops > 0:
			c.hops--
			g.n--
			t = Turn{At: time.Duration(g.from) * quarter, Number: g.first}
			if g.hops--; g.hops > 0 {
				g.first += (g.last - g.first) / float64(g.hops)
			}
			return t, true
		}
	}
	return t, false
}

func (g *group) put(now time.Duration, t Turn) {
	q := int64(t.At / quarter)
	if g.n == 0 {
		g.from = min(q, int64(now/quarter))
	}
	if q < g.from || q >= g.from+512 {
		return
	}
	g.n++
	c := &g.cells[q&511]
	if t.Slot {
		c.slots++
		if t.Tried {
			c.tried++
		}
		return
	}
	c.hops++
	if g.hops++; g.hops == 1 {
		g.first, g.last = t.Number, t.Number
	}
	g.first, g.last = min(g.first, t.Number), max(g.last, t.Number)
}

// groupOf returns the group of a key, or nil.
func (c *Core) groupOf(key uint64) *group {
	if c.many.Load() == 0 {
		return nil
	}
	return c.groups[key]
}

// gather makes a group of a key's promises.
func (c *Core) gather(now time.Duration, key uint64) *group {
	if len(c.groups) >= maxGroups {
		var least *group
		for _, g := range c.groups {
			if now-g.seen > time.Minute {
				c.promised -= g.n
				delete(c.groups, g.key)
			} else if least == nil || g.n < least.n {
				least = g
			}
		}
		if len(c.groups) >= maxGroups {
			c.promised -= least.n
			delete(c.groups, least.key)
		}
	}
	if c.groups == nil {
		c.groups = map[uint64]*group{}
	}
	g := &group{key: key, seen: now}
	c.groups[key] = g
	c.many.Store(int64(len(c.groups)))
	c.turns.Each(now, key, c.line.served, func(t Turn) { g.put(now, t) })
	c.promised += g.n
	return g
}
