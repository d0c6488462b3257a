package limiter

import "time"

// A Hold is a deposit: the tokens a request took before its cost was known. Table.Settle ends it.
//
// A request that took more than it cost gets back what the bucket would hold now if it had taken less, but not
// what the bucket would have lost by being full. For example, a request takes 50 from a bucket of 100 that
// earns 1 per second, and after 50 s the bucket is full again. If the request then turns out to be free,
// nothing is given back, because the client can already send 100 in one burst and must not get 150.
//
// The zero Hold is ready for KeyClaim.Hold.
type Hold struct {
	key   Key
	n     int           // tokens
	least time.Duration // that the bucket has owed since, before anything else was taken: no more is given back

	older, newer *Hold // of the key; an older one has a lower least, or the same
}

// Hold notes that n tokens, which were committed, are held until h is settled. It is valid once after Commit, before Release.
func (c *KeyClaim) Hold(h *Hold, n int) {
	s := c.shard
	if s.holds == nil {
		s.holds = map[Key]*Hold{}
	}
	*h = Hold{key: c.key, n: n, least: c.paid - s.latest, older: s.holds[c.key]}
	if h.older != nil {
		h.older.newer = h
	}
	s.holds[c.key] = h
}

// owed notes what a key's bucket owes, before that changes.
func (s *shard) owed(key Key, owed time.Duration) {
	for h := s.holds[key]; h != nil && h.least > owed; h = h.older {
		h.least = max(0, owed)
	}
}

// Settle ends a Hold of a key in the table, whose request has cost real tokens. The difference is charged now,
// and may put the bucket into debt as far as the Limit allows, or it is refunded. A Hold ends only once.
func (t *Table) Settle(l Limit, maxKeys int, now time.Duration, h *Hold, real int) {
	if h.key == 0 {
		return
	}
	c := KeyClaim{shard: &t.shards[h.key>>(64-shardBits)], key: h.key}
	now, _ = c.shard.lock(l, now)
	defer c.Release()
	fullAt := c.findSlot(l, tableSets(maxKeys), now, 1)
	c.shard.owed(h.key, fullAt-now)
	if most := h.n + l.burst + int(l.Debt()); real > h.n {
		c.paid = min(max(fullAt, now)+l.interval*time.Duration(min(real, most)-h.n), max(fullAt, now+l.depth+l.debt()))
	} else {
		c.paid = fullAt - h.giveBack(l.interval*time.Duration(h.n-max(0, real)))
	}
	c.shard.drop(h)
	if c.paid == fullAt {
		return
	}
	*c.fullAt = c.paid
	if c.owner != nil {
		if c.evict {
			c.shard.stats.Evicted++
		}
		*c.owner = c.key
	}
}

// giveBack returns how much of so much a bucket gets back. Had the request not taken it, the bucket would have owed so much less
// ever since.
func (h *Hold) giveBack(most time.Duration) time.Duration {
	back := min(most, h.least)
	for n := h.newer; n != nil; n = n.newer {
		n.least = max(0, n.least-back)
	}
	for o := h.older; o != nil && o.least > h.least-back; o = o.older {
		o.least = h.least - back
	}
	return back
}

// Drop ends a Hold of a key in the table without a difference, because the request cost what it took.
func (t *Table) Drop(h *Hold) {
	if h.key == 0 {
		return
	}
	s := &t.shards[h.key>>(64-shardBits)]
	s.mu.Lock()
	defer s.mu.Unlock()
	s.drop(h)
}

// drop forgets a Hold.
func (s *shard) drop(h *Hold) {
	switch {
	case h.newer != nil:
		h.newer.older = h.older
	case h.older != nil:
		s.holds[h.key] = h.older
	default:
		delete(s.holds, h.key)
	}
	if h.older != nil {
		h.older.newer = h.newer
	}
	*h = Hold{}
}
