package limiter

import "time"

// Look returns how many whole tokens a key has, and how long a request of cost n would have to
// wait. It takes none, but may make room for the key as Claim does.
func (t *Table) Look(l Limit, maxKeys int, key Key, now time.Duration, n int) (tokens int, wait time.Duration) {
	c := KeyClaim{shard: &t.shards[key>>(64-shardBits)], key: key}
	now, late := c.shard.lock(l, now)
	defer c.Release()
	return c.look(l, tableSets(maxKeys), now, late, 0, n)
}

// Look is that of a Table, without asking the store: of a key that is not hot it tells the part.
func (e *Escrow) Look(key Key, now time.Duration) (tokens int, wait time.Duration) {
	i, p := key>>(64-shardBits), e.part.Load()
	c := KeyClaim{shard: &e.table.shards[i], key: key}
	now, late := c.shard.lock(p.limit, now)
	defer c.Release()
	h, _ := e.hot[i].find(key)
	if h == nil {
		return c.look(p.limit, e.tableSets(), now, late, p.fresh, e.cost)
	}
	if e.settle(p, h, now); h.level < e.price {
		wait = e.waitOf(p, h, now) + late
	}
	return int(h.level / e.limit.interval), wait
}

// look looks at the claim's bucket, which is not full before fresh.
func (c *KeyClaim) look(l Limit, maxSets int, now, late, fresh time.Duration, n int) (tokens int, wait time.Duration) {
	fullAt := max(c.findSlot(l, maxSets, now, n), fresh)
	if _, wait = l.take(fullAt, now, n); wait > 0 && wait != Never {
		wait += late
	}
	return l.tokens(fullAt - now), wait
}
