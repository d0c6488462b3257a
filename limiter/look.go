package limiter

import "time"

// Look is that of a Table, without asking the store: of a key that is not hot it tells the part.
func (e *Escrow) Look(key Key, now time.Duration) (tokens int, wait time.Duration) {
	i, p := key>>(64-shardBits), e.part.Load()
	c := KeyClaim{shard: &e.table.shards[i], key: key}
	now, late := c.shard.lock(p.limit, now)
	defer c.Release()
	h, _ := e.hot[i].find(key)
	if h == nil {
		fullAt, wait := c.ask(p.limit, e.tableSets(), now, late, p.fresh, e.cost)
		return p.limit.tokens(fullAt - now), wait
	}
	if e.settle(p, h, now); h.level < e.price {
		wait = e.waitOf(p, h, now) + late
	}
	return int(h.level / e.limit.interval), wait
}
