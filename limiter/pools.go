package limiter

import (
	"slices"
	"time"
)

// slowRefill is how long a part takes to fill that a replica gives back when others use the
// key, and it has no use for it. One that is full again sooner is kept: the next request
// need not wait then.
const slowRefill = 10 * time.Second

// Held is what a replica tells the store about one key.
type Held struct {
	Key  Key
	Held float64 // tokens that it keeps
	Gave float64 // tokens that it gives back
	Want int
	Need int  // fewer are of no use
	Note bool // the other replicas are to be told that the key is hot
}

// Stay is how long the pool of a key earns for a replica that says nothing more about it: twice as long as
// filling an empty bucket or paying the largest debt takes, and much longer than news travels.
func (e *Escrow) Stay() time.Duration { return 2*max(e.limit.depth, e.limit.debt()) + leastStay }

const leastStay = 5 * time.Second

// ask has the store told of a key.
func (e *Escrow) ask(h *hotKey) {
	if h.asked {
		return
	}
	h.asked = true
	e.mu.Lock()
	e.queue = append(e.queue, h.key)
	first := len(e.queue) == 1
	e.mu.Unlock()
	if first && e.Wake != nil {
		e.Wake()
	}
}

// Queued returns how many keys there are to tell the store about.
func (e *Escrow) Queued() int {
	e.mu.Lock()
	defer e.mu.Unlock()
	return len(e.queue)
}

// Collect appends to list what to tell the store, about at most limit keys. Answer each of them with Grant or
// Missed.
func (e *Escrow) Collect(now time.Duration, limit int, list []Held) []Held {
	e.mu.Lock()
	n := min(limit, len(e.queue))
	batch := slices.Clone(e.queue[:n])
	e.queue = slices.Delete(e.queue, 0, n)
	e.mu.Unlock()
	for _, key := range batch {
		e.with(key, now, false, func(p *part, h *hotKey, now time.Duration) {
			list = append(list, e.tell(p, h, now))
		})
	}
	return list
}

// with calls f for a key under its lock, if it is hot, or becomes so.
func (e *Escrow) with(key Key, now time.Duration, heat bool, f func(p *part, h *hotKey, now time.Duration)) {
	i, p := key>>(64-shardBits), e.part.Load()
	s := &e.table.shards[i]
	now, _ = s.lock(p.limit, now)
	defer s.mu.Unlock()
	h := e.hot[i].of[key]
	if h == nil && heat {
		h = e.heat(p, i, key, now)
	}
	if h != nil {
		e.settle(p, h, now)
		f(p, h, now)
	}
}

// tell returns what is to be told about a key. Tokens that are not enough for one request
// go back, and all of them if none has come since the last exchange, and they are missed.
func (e *Escrow) tell(p *part, h *hotKey, now time.Duration) Held {
	want := h.waiting
	if h.used && p.whole && p.limit.burst >= h.need {
		want = max(want, p.limit.burst)
	}
	t := Held{Key: h.key, Need: h.need}
	if h.level < e.priceOf(t.Need) || !h.used && (!p.whole || p.limit.depth > slowRefill) {
		t.Gave = float64(h.level) / float64(e.limit.interval) // below 0: the pool owes what the key does, to all replicas
		h.level = 0
	}
	t.Held = float64(h.level) / float64(e.limit.interval)
	t.Want = max(0, want-int(t.Held))
	if t.Note = h.noted == 0 || now-h.noted > e.Stay()/2; t.Note {
		h.noted = now
	}
	h.used, h.waiting, h.asked, h.sent = false, 0, false, true
	return t
}

// Grant gives a key the tokens from the store's response, and says how many are left in its pool.
func (e *Escrow) Grant(now time.Duration, key Key, got int, left float64) {
	e.with(key, now, false, func(_ *part, h *hotKey, now time.Duration) {
		h.sent = false
		h.level = min(e.limit.depth, h.level+e.limit.interval*time.Duration(got))
		h.until = now + e.Stay()
		h.empty = now - time.Duration(left*float64(e.limit.interval))
	})
}

// Missed reports that it is unknown whether the store has heard about a key, so that it is told again.
func (e *Escrow) Missed(now time.Duration, key Key) {
	e.with(key, now, false, func(_ *part, h *hotKey, _ time.Duration) {
		if h.sent {
			e.ask(h)
		}
	})
}

// Learn reports that a key is hot on another replica. This one then tells the store what it holds of it, unless
// it did recently.
func (e *Escrow) Learn(now time.Duration, key Key) {
	e.with(key, now, true, func(_ *part, h *hotKey, now time.Duration) {
		if h.noted = now; h.until < now+e.Stay()*3/4 {
			e.ask(h)
		}
	})
}

// Forgive gives a key all of this replica's part, and reports whether it had less. What the store and other replicas have of it stays.
func (e *Escrow) Forgive(key Key, now time.Duration) (owed bool) {
	e.with(key, now, false, func(p *part, h *hotKey, now time.Duration) {
		full := e.full(p, h)
		owed = h.level < full
		h.level, h.whole = max(h.level, full), now
	})
	return e.table.Forgive(key, now) || owed
}

// Asked reports whether the store was told about a key and hasn't responded yet.
func (e *Escrow) Asked(now time.Duration, key Key) (is bool) {
	e.with(key, now, false, func(_ *part, h *hotKey, _ time.Duration) { is = h.sent && !h.asked })
	return is
}

// Settle reports that a request that took n tokens of a key at taken has cost real. What the key owes now goes
// to the pool, so that other replicas know about it. There is no refund if the key has had its whole burst since:
// see Hold.
func (e *Escrow) Settle(now time.Duration, key Key, taken time.Duration, n, real int) {
	i, p := key>>(64-shardBits), e.part.Load()
	more := time.Duration(min(real, n+e.limit.burst+int(e.limit.Debt())) - n)
	c := KeyClaim{shard: &e.table.shards[i], key: key}
	now, _ = c.shard.lock(p.limit, now)
	defer c.Release()
	h := e.hot[i].of[key]
	owes := func() time.Duration {
		return max(0, max(c.findSlot(p.limit, e.tableSets(), now, 1), p.fresh)-now+more*p.limit.interval)
	}
	if h == nil && more > 0 && 2*owes() > p.limit.depth {
		h = e.heat(p, i, key, now)
	}
	if h == nil {
		if owed := owes(); owed > 0 && c.owner != nil {
			*c.owner, *c.fullAt = key, now+min(owed, p.limit.depth+p.limit.debt())
		}
		return
	}
	e.settle(p, h, now)
	if more < 0 && h.whole > taken {
		return
	}
	h.level = max(min(e.limit.depth, h.level-more*e.limit.interval), -e.limit.debt())
	if h.level != 0 && h.level < e.priceOf(h.need) {
		e.ask(h)
	}
}
