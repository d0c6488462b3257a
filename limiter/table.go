package limiter

import (
	"math/bits"
	"sync"
	"time"
)

const (
	shardBits = 7 // 128 shards: with 64 busy cores two of them meet in one shard rarely
	shards    = 1 << shardBits

	// ways is how many keys one set holds. Seven keys, the shared instant and
	// one spare word are two cache lines of 64 bytes.
	ways = 7

	// MinKeys and MaxKeys are the range of a table's bound on keys. MinKeys is 11 sets in every
	// shard, so that no shard fills up long before the others by chance. MaxKeys is 1 GiB.
	MinKeys = 10_000
	MaxKeys = 1 << 26
)

// A Table holds one bucket per key for very many keys, at 18 bytes per slot.
//
// It grows with use, by a quarter at a time, up to the hard bound you pass with each call:
// it never remembers more than maxKeys keys. It doesn't shrink. Each key can be in two sets
// of seven slots, and while the table can grow, a key in the way is moved to its other set
// first. So a remembered key takes at most 32 bytes, and up to half of the bound there is
// room for every key. Set the bound to twice the number of clients you expect within the
// time an empty bucket takes to refill.
//
// If there is no room for a new key, the table evicts one of the 14 keys in its two sets,
// by the first of these rules that applies:
//
//  1. Evict a key whose bucket is full again, because forgetting it changes nothing.
//  2. Evict the key that owes least, if it could afford another request now. Forgetting it
//     grants at most what it had spent of its burst.
//  3. Evict none, because all of them are over their limit and a flood must not forgive
//     anyone. The new key shares one bucket with other new keys that found no room in its
//     first set, until one of the 14 is no longer over its limit. That may be sooner than
//     the wait it was given.
//
// Like a Bucket, a Table follows the Limit you pass. Because it then visits every key, all
// users should pass the same one, except during a reload. A Table is safe for concurrent
// use. The zero Table is empty and ready to use.
type Table struct {
	shards [shards]shard
}

// Stats are how many keys a Table holds, and counts since it was made.
type Stats struct {
	Keys     int    `json:"keys"`     // that owe something
	Admitted uint64 `json:"admitted"` // requests that took tokens
	Evicted  uint64 `json:"evicted"`  // keys forgotten before their bucket was full again
	Shared   uint64 `json:"shared"`   // requests admitted from a shared bucket, for want of room
}

type shard struct {
	mu    sync.Mutex
	sets  []set // guarded by mu
	stats Stats // guarded by mu; without Keys
	unit  Limit // guarded by mu; what the instants were written under

	// The latest clock reading. Slots are given away by it. An earlier reading counts
	// as the latest, or a key whose slot is gone would be fresh.
	latest time.Duration // guarded by mu

	holds map[Key][]*Hold // of each key, the oldest first; guarded by mu. nil: none was ever made

	_ [128 - 8 - 24 - 32 - 32 - 8 - 8]byte
}

// A set has slots for seven keys. An empty slot is one whose bucket is full.
type set struct {
	owner  [ways]Key
	fullAt [ways]time.Duration
	shared time.Duration // for the keys that find no room
	_      [8]byte
}

// Claim is Bucket.Claim for a request of cost n by key. maxKeys is from MinKeys to MaxKeys. It locks a part of
// the table, not only the key.
func (t *Table) Claim(l Limit, maxKeys int, key Key, now time.Duration, n int) (c KeyClaim, wait time.Duration) {
	s := &t.shards[key>>(64-shardBits)]
	now, late := s.lock(l, now)
	c = KeyClaim{shard: s, key: key}
	_, wait = c.ask(l, tableSets(maxKeys), now, late, 0, n)
	return c, wait
}

// Look returns how many whole tokens a key has, and how long a request of cost n would have to wait. It takes
// no tokens, but may make room for the key as Claim does.
func (t *Table) Look(l Limit, maxKeys int, key Key, now time.Duration, n int) (tokens int, wait time.Duration) {
	c := KeyClaim{shard: &t.shards[key>>(64-shardBits)], key: key}
	now, late := c.shard.lock(l, now)
	defer c.Release()
	fullAt, wait := c.ask(l, tableSets(maxKeys), now, late, 0, n)
	return l.tokens(fullAt - now), wait
}

// tableSets returns how many sets a shard may have.
func tableSets(maxKeys int) int { return max(1, maxKeys/(shards*ways)) }

// lock locks the shard for decisions under l. It returns the time for them, and by how
// much the caller's is behind.
func (s *shard) lock(l Limit, now time.Duration) (latest, late time.Duration) {
	s.mu.Lock()
	late = max(0, s.latest-now)
	s.latest = now + late
	if s.unit != l {
		s.carry(l, s.latest)
	}
	return s.latest, late
}

// A KeyClaim is a Claim on the bucket of one key.
type KeyClaim struct {
	shard *shard
	slot  // its owner is nil if the instant is shared
	paid  time.Duration
	key   Key
	evict bool // the slot's owner will be forgotten too early
}

// ask finds the claim's bucket, which is not full before fresh, and asks it for n tokens at now,
// which is late by the caller's clock.
func (c *KeyClaim) ask(l Limit, maxSets int, now, late, fresh time.Duration, n int) (fullAt, wait time.Duration) {
	fullAt = max(c.findSlot(l, maxSets, now, n), fresh)
	if c.paid, wait = l.take(fullAt, now, n); wait > 0 && wait != Never {
		wait += late
	}
	return fullAt, wait
}

// Commit charges the request, as Claim.Commit does.
func (c *KeyClaim) Commit() {
	if c.shard.holds != nil {
		c.shard.owed(c.key, *c.fullAt-c.shard.latest)
	}
	c.store()
	if c.shard.stats.Admitted++; c.owner == nil {
		c.shard.stats.Shared++
	}
}

// store gives the bucket its new instant, and the key the slot.
func (c *KeyClaim) store() {
	if *c.fullAt = c.paid; c.owner == nil {
		return
	}
	if *c.owner = c.key; c.evict {
		c.shard.stats.Evicted++
	}
}

// Release unlocks the bucket. It must be called exactly once.
func (c *KeyClaim) Release() { c.shard.mu.Unlock() }

// findSlot finds the slot for the claim's key, makes room if it may, and returns the
// bucket's instant. It forgets no key: that is left to Commit.
func (c *KeyClaim) findSlot(l Limit, maxSets int, now time.Duration, n int) time.Duration {
	s, key := c.shard, c.key
	if len(s.sets) == 0 || len(s.sets) > maxSets {
		s.resize(max(1, min(len(s.sets), maxSets)), now)
	}
	for {
		a, b := s.setsOf(key)
		if is, known := find(key, a, b); known {
			c.slot = is
			return *is.fullAt
		}
		least, free := pickSlot(a, b, now)
		if n := len(s.sets); !free && n < maxSets {
			if !s.displace(a, b, now) {
				if n += n/4 + 1; n+n/4 > maxSets {
					n = maxSets // the last step is no smaller: with few sets more, a key might find no slot
				}
				s.resize(n, now)
			}
			continue // and find it free
		}
		if _, wait := l.take(*least.fullAt, now, n); !free && wait > 0 {
			c.fullAt = &a.shared
			return a.shared
		}
		c.slot, c.evict = least, !free
		return now
	}
}

// A slot of a set holds one key.
type slot struct {
	owner  *Key
	fullAt *time.Duration
}

// find returns the slot of a key in its two sets.
func find(key Key, a, b *set) (slot, bool) {
	for i := range ways { // both at once: their cache lines arrive together
		if a.owner[i] == key {
			return slot{&a.owner[i], &a.fullAt[i]}, true
		}
		if b.owner[i] == key {
			return slot{&b.owner[i], &b.fullAt[i]}, true
		}
	}
	return slot{}, false
}

// pickSlot returns a free slot of the emptier set of two (the power of two
// choices), or the slot of the key that owes least if there is none.
func pickSlot(a, b *set, now time.Duration) (s slot, free bool) {
	i, freeA := a.least(now)
	j, freeB := b.least(now)
	if freeB > freeA || freeA == 0 && b.fullAt[j] < a.fullAt[i] {
		a, i = b, j
	}
	return slot{&a.owner[i], &a.fullAt[i]}, freeA+freeB > 0
}

// least returns the slot of the key that owes least, and how many owe nothing.
func (p *set) least(now time.Duration) (least, free int) {
	for i, fullAt := range p.fullAt {
		if fullAt <= now {
			free++
		}
		if fullAt < p.fullAt[least] {
			least = i
		}
	}
	return least, free
}

// setsOf returns the two sets in which a key may stand, which are different if
// there are two. They come from different bits of the key: those after the
// shard's, and its lower half. A shard has at most 2^17 sets.
func (s *shard) setsOf(key Key) (a, b *set) {
	n := uint64(len(s.sets))
	i, _ := bits.Mul64(uint64(key)<<shardBits, n)
	j, _ := bits.Mul64(uint64(key)<<32, n-1)
	if j >= i && n > 1 {
		j++
	}
	return &s.sets[i], &s.sets[j]
}

// carry makes the shard follow another limit.
func (s *shard) carry(l Limit, now time.Duration) {
	for i := range s.sets {
		p := &s.sets[i]
		for j := range p.fullAt {
			p.fullAt[j] = l.carry(s.unit, p.fullAt[j], now)
		}
		p.shared = l.carry(s.unit, p.shared, now)
	}
	for _, holds := range s.holds {
		for _, h := range holds {
			h.least = l.carry(s.unit, now+h.least, now) - now
		}
	}
	s.unit = l
}

// resize moves all keys that still owe something to new sets. If it shrinks, because the
// bound was lowered, the keys that owe least are forgotten. Keys change their sets, so
// all sets get the latest of the shared instants.
func (s *shard) resize(sets int, now time.Duration) {
	old := s.sets
	s.sets = make([]set, sets)
	var shared time.Duration
	for i := range old {
		shared = max(shared, old[i].shared)
		for j, key := range old[i].owner {
			if old[i].fullAt[j] <= now || s.move(key, old[i].fullAt[j], now) {
				continue
			}
			s.stats.Evicted++
		}
	}
	for i := range s.sets {
		s.sets[i].shared = shared
	}
}

// maxMoves bounds the search for a slot when a shard is resized. A shard that has
// grown is at most nine tenths full, where a few moves are enough.
const maxMoves = 128

// move gives a slot to a key that has lost its own. If its sets are full it takes the
// slot of another key, which moves to its other set, and so on (cuckoo hashing: Pagh
// and Rodler, 2001). If that does not end, the key that owes least of the last ones is
// left out, and move reports false.
func (s *shard) move(key Key, fullAt, now time.Duration) bool {
	var from *set // where the key has just been: it does not go back
	for i := range maxMoves {
		a, b := s.setsOf(key)
		if to, free := pickSlot(a, b, now); free {
			*to.owner, *to.fullAt = key, fullAt
			return true
		}
		if a == from {
			a = b
		}
		from = a
		other := i % ways
		key, a.owner[other] = a.owner[other], key
		fullAt, a.fullAt[other] = a.fullAt[other], fullAt
	}
	a, b := s.setsOf(key)
	if least, _ := pickSlot(a, b, now); *least.fullAt < fullAt {
		*least.owner, *least.fullAt = key, fullAt
	}
	return false
}

// displace empties a slot of two full sets by moving its key to the other set
// that it may stand in. It reports false if those are all full too.
func (s *shard) displace(a, b *set, now time.Duration) bool {
	for _, from := range [...]*set{a, b} {
		for i, owner := range from.owner {
			other, second := s.setsOf(owner)
			if other == from {
				other = second
			}
			if j, free := other.least(now); free > 0 {
				other.owner[j], other.fullAt[j] = owner, from.fullAt[i]
				from.owner[i], from.fullAt[i] = 0, 0 // a key must not have two slots
				return true
			}
		}
	}
	return false
}

// Stats returns the Stats at now. It visits the whole table, so it is only meant for metrics.
func (t *Table) Stats(now time.Duration) (sum Stats) {
	for i := range t.shards {
		s := &t.shards[i]
		s.mu.Lock()
		for j := range s.sets {
			_, free := s.sets[j].least(now)
			sum.Keys += ways - free
		}
		sum.Admitted += s.stats.Admitted
		sum.Evicted += s.stats.Evicted
		sum.Shared += s.stats.Shared
		s.mu.Unlock()
	}
	return sum
}

// Clear forgets all keys, and the instant of the last call. What is held is settled with full buckets.
func (t *Table) Clear() {
	for i := range t.shards {
		s := &t.shards[i]
		s.mu.Lock()
		s.sets, s.unit, s.latest = nil, Limit{}, 0
		s.mu.Unlock()
	}
}

// Forgive fills the bucket of a key, and reports whether it wasn't full. A bucket shared by several new keys
// doesn't belong to any of them.
func (t *Table) Forgive(key Key, now time.Duration) bool {
	s := &t.shards[key>>(64-shardBits)]
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.sets) == 0 {
		return false
	}
	a, b := s.setsOf(key)
	is, known := find(key, a, b)
	if !known {
		return false
	}
	owed := *is.fullAt > now
	*is.owner, *is.fullAt = 0, 0
	return owed
}
