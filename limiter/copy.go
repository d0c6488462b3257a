package limiter

import "time"

// CopyTo makes a zero Bucket one that is as b is now. Nothing that it is asked to take is missing in b.
func (b *Bucket) CopyTo(c *Bucket) {
	b.mu.Lock()
	defer b.mu.Unlock()
	c.fullAt, c.unit = b.fullAt, b.unit
	if s := b.stock; s != nil {
		c.stock = &stock{
			Term: s.Term, tokens: s.tokens, pool: s.pool, next: s.next, last: s.last, at: s.at,
			missed: s.missed, low: s.low,
		}
	}
}

// CopyTo makes a zero Table one that decides on a request of cost n for key at now as t would,
// and knows no other key. It assumes that a full shard that may grow can.
func (t *Table) CopyTo(c *Table, l Limit, maxKeys int, key Key, now time.Duration, n int) {
	s := &t.shards[key>>(64-shardBits)]
	s.mu.Lock()
	defer s.mu.Unlock()
	to := &c.shards[key>>(64-shardBits)]
	to.latest, to.unit = s.latest, l
	latest := max(now, s.latest)
	to.sets = make([]set, 1)
	if fullAt, owes := s.peek(tableSets(maxKeys), key, latest, l, n); owes {
		to.sets[0].owner[0], to.sets[0].fullAt[0] = key, fullAt
	}
}

// peek returns the instant of the bucket for a key, under l, and whether there is one.
func (s *shard) peek(maxSets int, key Key, now time.Duration, l Limit, n int) (fullAt time.Duration, owes bool) {
	if len(s.sets) == 0 {
		return 0, false
	}
	under := func(at time.Duration) time.Duration {
		if s.unit != l {
			return l.carry(s.unit, at, now)
		}
		return at
	}
	a, b := s.setsOf(key)
	for _, p := range [...]*set{a, b} {
		for i := range ways {
			if p.owner[i] == key {
				return under(p.fullAt[i]), true
			}
		}
	}
	least, free := pickSlot(a, b, now)
	if free || len(s.sets) < maxSets && s.stuck != maxSets {
		return 0, false
	}
	if _, wait := l.take(under(*least.fullAt), now, n); wait > 0 {
		return under(a.shared), true // it has no bucket of its own
	}
	return 0, false
}

// CopyTo makes a zero Table one that decides on a request for key at now as e would without
// asking the store. It is for the whole limit.
func (e *Escrow) CopyTo(c *Table, key Key, now time.Duration) {
	i := key >> (64 - shardBits)
	s, p := &e.table.shards[i], e.part.Load()
	s.mu.Lock()
	defer s.mu.Unlock()
	now = max(now, s.latest)
	level, wait := time.Duration(0), time.Duration(0)
	if h, _ := e.hot[i].find(key); h != nil {
		is := *h
		e.settle(p, &is, now)
		if level = is.level; level < e.price {
			wait = e.waitOf(p, &is, now)
		}
	} else {
		fullAt, owes := s.peek(e.tableSets(), key, now, p.limit, e.cost)
		if !owes {
			fullAt = now
		}
		fullAt = max(fullAt, p.fresh)
		_, wait = p.limit.take(fullAt, now, e.cost)
		level = max(0, p.limit.depth-max(0, fullAt-now)) / time.Duration(p.Replicas)
	}
	to := &c.shards[i]
	to.latest, to.unit, to.sets = now, e.limit, make([]set, 1)
	fullAt := now + e.limit.depth - min(level, e.limit.depth)
	if wait > 0 {
		fullAt = now + wait + e.limit.depth - e.price
	}
	to.sets[0].owner[0], to.sets[0].fullAt[0] = key, fullAt
}

// Tokens returns how many whole tokens the bucket of a key holds, in a Table that CopyTo
// has made.
func (t *Table) Tokens(l Limit, key Key, now time.Duration) int {
	s := &t.shards[key>>(64-shardBits)]
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.sets) == 0 || s.sets[0].owner[0] != key {
		return l.burst
	}
	owed := max(0, s.sets[0].fullAt[0]-max(now, s.latest))
	return l.burst - int(min(time.Duration(l.burst), (owed+l.interval-1)/max(1, l.interval)))
}
