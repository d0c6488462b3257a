package limiter

import (
	"slices"
	"time"
)

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
}

// Hold notes that n tokens, which were committed, are held until h is settled. It is valid once after Commit, before Release.
func (c *KeyClaim) Hold(h *Hold, n int) {
	s := c.shard
	if s.holds == nil {
		s.holds = map[Key][]*Hold{}
	}
	*h = Hold{key: c.key, n: n, least: c.paid - s.latest}
	s.holds[c.key] = append(s.holds[c.key], h)
}

// owed notes what a key's bucket owes, before that changes. Older Holds have a lower least, or the same.
func (s *shard) owed(key Key, owed time.Duration) {
	owed = max(0, owed)
	for _, h := range slices.Backward(s.holds[key]) {
		if h.least <= owed {
			break
		}
		h.least = owed
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
	more := min(real, h.n+l.burst+int(l.Debt())) - h.n
	c.paid = fullAt - c.shard.drop(h, l.interval*time.Duration(min(h.n, max(0, -more))))
	if more > 0 {
		c.paid = min(max(fullAt, now)+l.interval*time.Duration(more), max(fullAt, now+l.depth+l.debt()))
	}
	if c.paid != fullAt {
		c.store()
	}
}

// Drop ends a Hold of a key in the table without a difference, because the request cost what it took.
func (t *Table) Drop(h *Hold) {
	if h.key == 0 {
		return
	}
	s := &t.shards[h.key>>(64-shardBits)]
	s.mu.Lock()
	defer s.mu.Unlock()
	s.drop(h, 0)
}

// drop forgets a Hold, and returns how much of so much the bucket gets back. Had the request not taken it, the bucket would have owed so
// much less ever since.
func (s *shard) drop(h *Hold, most time.Duration) (back time.Duration) {
	back = min(most, h.least)
	holds := s.holds[h.key]
	at := slices.Index(holds, h)
	for _, older := range holds[:at] {
		older.least = min(older.least, h.least-back)
	}
	for _, newer := range holds[at:] {
		newer.least = max(0, newer.least-back)
	}
	if s.holds[h.key] = slices.Delete(holds, at, at+1); len(holds) == 1 {
		delete(s.holds, h.key)
	}
	*h = Hold{}
	return back
}
