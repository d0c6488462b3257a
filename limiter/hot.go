package limiter

import "time"

const (
	// staleTime is for how long it is believed that a pool has no token, where other replicas may give some back when their
	// requests have ended. Ours: replicas tell the store something ten times a second anyway, and a client that is told 60 s in place
	// of 20 is not served for so long (with 1 s, four replicas served 0.73 of a bucket where a deposit is all of it).
	staleTime = 100 * time.Millisecond

	// maxHot bounds the hot keys of an Escrow.
	maxHot = 1 << 16
)

// A hotShard has the hot keys of one shard of the table, under its lock.
type hotShard struct {
	of   map[Key]*hotKey
	list []*hotKey // all of them, in the order in which they are to be looked at
}

// hotKey is what this replica holds of a hot key. Tokens are kept as the time that the
// whole rate takes to earn them.
type hotKey struct {
	key   Key
	level time.Duration
	at    time.Duration // what it has earned here is in level up to then
	until time.Duration // the pool earns for it until then
	empty time.Duration // the pool had no token for it then, as far as is known, and has earned since
	whole time.Duration // all of its burst was there then, as far as is known

	noted   time.Duration // when all replicas were told that the key is hot; 0: never
	waiting int           // tokens for which requests wait until the next exchange
	need    int           // what the last request cost: fewer are of no use
	life    int64         // of the replica: what the pool earned in another one has ended
	asked   bool          // it is in the queue
	sent    bool          // it was told, and not answered yet
	used    bool          // a request has come since
}

// heat makes a key hot, with what it has left of its part. It returns nil if there is no
// room. A slot of the table that was found before it is void.
func (e *Escrow) heat(p *part, i, key Key, now time.Duration) *hotKey {
	s := &e.hot[i]
	for range min(2, len(s.list)) { // the oldest: in the end all are looked at
		h := s.list[0]
		if s.list = s.list[1:]; !e.isOver(p, h, now) {
			s.list = append(s.list, h)
			continue
		}
		delete(s.of, h.key)
		e.hotKeys.Add(-1)
	}
	if len(s.list) >= max(1, min(int(e.maxKeys.Load())/4, maxHot)/shards) {
		return nil
	}
	h := &hotKey{key: key, at: now, life: p.Life, empty: longAgo, need: e.cost}
	if p.whole {
		c := KeyClaim{shard: &e.table.shards[i], key: key}
		owed := max(0, max(c.findSlot(p.limit, e.tableSets(), now, e.cost), p.fresh)-now)
		if c.owner == nil {
			return nil // it shares its bucket
		}
		if *c.owner == key {
			*c.fullAt = 0
		}
		h.level = max(0, p.limit.depth-owed) / time.Duration(p.Replicas)
		h.used = owed > 0
	} else if p.alone(now) && now >= p.Paid {
		h.level = e.priceOf(e.cost)
	}
	if s.of == nil {
		s.of = map[Key]*hotKey{}
	}
	s.of[key], s.list = h, append(s.list, h)
	e.hotKeys.Add(1)
	return h
}

// isOver reports whether a hot key may be forgotten: the pool does not know it any more, and it has all of its part again.
func (e *Escrow) isOver(p *part, h *hotKey, now time.Duration) bool {
	e.settle(p, h, now)
	return !h.asked && !h.sent && h.until <= now && (h.level >= e.full(p, h) || !p.whole && !p.alone(now))
}

// full returns what a key has at most that earns here: its part, or one request of which that is less.
func (e *Escrow) full(p *part, h *hotKey) time.Duration {
	return e.priceOf(max(p.limit.burst, h.need))
}

// settle adds what a key has earned here, because the pool did not earn it.
func (e *Escrow) settle(p *part, h *hotKey, now time.Duration) {
	if h.life != p.Life {
		if h.sent || h.until > p.Began {
			h.until = p.Began
		}
		h.life, h.sent, h.empty = p.Life, false, longAgo
		if !p.whole {
			h.level = 0
		}
	}
	from := max(h.at, h.paid(p))
	h.at = max(h.at, now)
	if from >= now || !p.whole && !p.alone(now) {
		return
	}
	if full := e.full(p, h); h.level < full {
		h.level = min(full, h.level+(now-from)/time.Duration(p.Replicas))
	}
}

// take decides on a request of cost n for a hot key.
func (e *Escrow) take(p *part, h *hotKey, now time.Duration, n int) (wait time.Duration, ask bool) {
	e.settle(p, h, now)
	h.used, h.need = true, n
	if h.level+now-h.empty >= e.limit.depth {
		h.whole = now
	}
	left := h.level - e.priceOf(n)
	may := (now >= h.next(-left) || e.limit.kind&owes != 0 && now > h.until-e.Stay()+staleTime) && !p.alone(now)
	if left >= 0 {
		if may && 2*left < e.full(p, h) { // where the part is one request: at once
			e.ask(h)
		}
		return 0, false
	}
	if !may {
		return e.waitOf(p, h, now, n), false
	}
	e.ask(h)
	h.waiting = min(h.waiting+n, 1<<30)
	return -left, true
}

// waitOf returns how long a key without tokens has to wait: until the pool has one, or it
// has earned one here.
func (e *Escrow) waitOf(p *part, h *hotKey, now time.Duration, n int) time.Duration {
	if !p.alone(now) {
		return max(1, h.next(e.priceOf(n)-h.level)-now)
	}
	return max(0, h.paid(p)-now) + (e.priceOf(n)-h.level)*time.Duration(p.Replicas)
}

// next returns when the pool may have tokens of that price, if nobody takes any before.
func (h *hotKey) next(price time.Duration) time.Duration { return h.empty + max(0, price) }

// longAgo is when the pool of a key had no token of which is not known that it had none.
const longAgo = -2 * maxRefill

// paid returns until when the pool may earn for a key.
func (h *hotKey) paid(p *part) time.Duration {
	if h.sent {
		return p.Paid
	}
	return min(h.until, p.Paid)
}
