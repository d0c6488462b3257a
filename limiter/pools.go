package limiter

import (
	"math"
	"slices"
	"time"
)

// askAhead is for how long tokens are fetched in advance.
const askAhead = 1000 * time.Millisecond

// slowRefill is how long a part takes to fill that a replica gives back when others use the
// key, and it has no use for it. One that is full again sooner is kept: the next request
// need not wait then.
const slowRefill = 10 * time.Second

// granted is a key that was given tokens, and may not need them.
type granted struct {
	key Key
	at  time.Duration
}

// useTime is how long tokens that were fetched for requests that wait are left to them.
const useTime = 2 * time.Millisecond

// Held is what a replica tells the store about one key.
type Held struct {
	Key  Key
	Held float64 // tokens that it keeps
	Gave float64 // tokens that it gives back
	Want int
	Note bool // the other replicas are to be told that the key is hot
}

// A Grant is what the store answers.
type Grant struct {
	Got  int           // tokens
	Wait time.Duration // until the pool has enough for one request
}

// Stay is for how long the pool of a key earns for a replica that tells nothing more about it: twice as long as
// an empty bucket takes to be full, and longer than news take by far.
func (e *Escrow) Stay() time.Duration { return 2*e.limit.depth + leastStay }

const (
	leastStay = 5 * time.Second
	notedUnit = time.Second / 10
)

// ask puts a key into the queue.
func (e *Escrow) ask(h *hotKey, key Key) {
	if h.asked || h.sent && h.wants {
		return
	}
	h.asked = true
	e.mu.Lock()
	e.queue = append(e.queue, key)
	first := len(e.queue) == 1
	e.mu.Unlock()
	if first && e.Wake != nil {
		e.Wake()
	}
}

// Queued returns how many keys are to be told.
func (e *Escrow) Queued() int {
	e.mu.Lock()
	defer e.mu.Unlock()
	return len(e.queue)
}

// Collect returns what is to be told about keys, no more than limit, after what is in list.
// Each of them is to be answered by Grant or Missed.
func (e *Escrow) Collect(now time.Duration, limit int, list []Held) []Held {
	var batch [64]Key
	for limit > 0 {
		e.mu.Lock()
		n := copy(batch[:min(limit, len(batch))], e.queue)
		rest := copy(e.queue, e.queue[n:])
		e.queue = e.queue[:rest]
		e.mu.Unlock()
		if n == 0 {
			break
		}
		limit -= n
		for _, key := range batch[:n] {
			e.with(key, now, func(p *part, h *hotKey, now time.Duration) {
				list = append(list, e.tell(p, h, key, now))
			})
		}
	}
	return list
}

// with calls f for a key under its lock, if it is hot.
func (e *Escrow) with(key Key, now time.Duration, f func(p *part, h *hotKey, now time.Duration)) {
	i, p := key>>(64-shardBits), e.part.Load()
	s := &e.table.shards[i]
	now, _ = s.lock(p.limit, now)
	defer s.mu.Unlock()
	if h, _ := e.hot[i].find(key); h != nil {
		e.settle(p, h, now)
		f(p, h, now)
	}
}

// tell returns what is to be told about a key. Tokens that are not enough for one request
// go back, and all of them if none has come since the last exchange, and they are missed.
func (e *Escrow) tell(p *part, h *hotKey, key Key, now time.Duration) Held {
	want := p.limit.burst
	if h.since > 0 {
		demand := float64(h.tried) / max(0.001, (now-h.since).Seconds())
		want = min(want, int(math.Ceil(demand*askAhead.Seconds())))
	}
	if !p.whole {
		want = 0
	}
	want = max(want, e.cost*int(h.waiting))
	unused := h.tried == 0 && (!p.whole || p.limit.depth > slowRefill)
	if h.tried == 0 {
		want = 0
	}
	t := Held{Key: key}
	if h.level < e.price || unused {
		t.Gave = float64(h.level) / float64(e.limit.interval)
		h.level = 0
	}
	t.Held = float64(h.level) / float64(e.limit.interval)
	t.Want = max(0, want-int(t.Held))
	if t.Note = h.noted == 0 || now-time.Duration(h.noted)*notedUnit > e.Stay()/2; t.Note {
		h.noted = uint32(now / notedUnit)
	}
	h.since, h.tried, h.waiting, h.asked, h.sent, h.wants = now, 0, 0, false, true, t.Want > 0
	return t
}

// Grant gives a key what the store has answered.
func (e *Escrow) Grant(now time.Duration, key Key, g Grant) {
	e.with(key, now, func(p *part, h *hotKey, now time.Duration) {
		h.sent = false
		h.level = min(e.limit.depth, h.level+e.limit.interval*time.Duration(g.Got))
		h.until = now + e.Stay()
		h.next = 0
		if h.level < e.price && g.Wait > 0 {
			h.next = now + g.Wait
		}
		if g.Got > 0 && !p.whole {
			e.mu.Lock()
			e.later = append(e.later, granted{key, now})
			e.mu.Unlock()
		}
	})
}

// Missed tells that it is not known whether the store has heard of a key. It is told
// again.
func (e *Escrow) Missed(now time.Duration, key Key) {
	e.with(key, now, func(_ *part, h *hotKey, _ time.Duration) {
		if h.sent {
			h.sent = false
			e.ask(h, key)
			h.sent = true
		}
	})
}

// Learn tells that a key is hot for another replica. This one tells what it holds of it, if it has not told that lately.
func (e *Escrow) Learn(now time.Duration, key Key) {
	i, p := key>>(64-shardBits), e.part.Load()
	s := &e.table.shards[i]
	now, _ = s.lock(p.limit, now)
	defer s.mu.Unlock()
	h, _ := e.hot[i].find(key)
	if h == nil {
		if h, _ = e.heat(p, i, key, now); h == nil {
			return
		}
	}
	e.settle(p, h, now)
	if h.noted = uint32(now / notedUnit); h.until < now+e.Stay()*3/4 {
		e.ask(h, key)
	}
}

// Return puts keys into the queue that were given tokens for requests that waited: where
// the part is less than a request, no replica keeps what it does not need, and what was
// used is told at once.
func (e *Escrow) Return(now time.Duration) {
	e.mu.Lock()
	n := 0
	for n < len(e.later) && e.later[n].at+useTime <= now {
		n++
	}
	due := slices.Clone(e.later[:n])
	e.later = slices.Delete(e.later, 0, n)
	e.mu.Unlock()
	for _, g := range due {
		e.with(g.key, now, func(_ *part, h *hotKey, _ time.Duration) { e.ask(h, g.key) })
	}
}

// Returns reports when there is something to Return.
func (e *Escrow) Returns() (at time.Duration, ok bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if len(e.later) == 0 {
		return 0, false
	}
	return e.later[0].at + useTime, true
}

// State reports whether a key is in the queue, and whether it was told and not answered.
func (e *Escrow) State(now time.Duration, key Key) (queued, sent bool) {
	e.with(key, now, func(_ *part, h *hotKey, _ time.Duration) { queued, sent = h.asked, h.sent })
	return queued, sent
}

// Paid tells that pools earn for this replica until then, at the latest.
func (e *Escrow) Paid(until time.Duration) { e.paidTo.Store(max(e.paidTo.Load(), int64(until))) }

// Live begins another life of the replica: pools have ended to earn for hot keys.
func (e *Escrow) Live(now time.Duration) {
	e.began.Store(int64(now))
	e.life.Add(1)
}

// AloneFrom sets from when on the replica works with its part of the limit, because the
// store does not answer. A new Escrow does from the beginning.
func (e *Escrow) AloneFrom(from time.Duration) { e.aloneAt.Store(int64(from)) }

// IsAlone reports whether it does at now.
func (e *Escrow) IsAlone(now time.Duration) bool { return int64(now) >= e.aloneAt.Load() }

// LastClaim returns when the last request came. It visits all shards.
func (e *Escrow) LastClaim() (last time.Duration) {
	for i := range e.hot {
		s := &e.table.shards[i]
		s.mu.Lock()
		last = max(last, e.hot[i].claimed)
		s.mu.Unlock()
	}
	return last
}

// Hot returns how many keys are hot. It visits all shards.
func (e *Escrow) Hot() (n int) {
	for i := range e.hot {
		s := &e.table.shards[i]
		s.mu.Lock()
		n += e.hot[i].keys
		s.mu.Unlock()
	}
	return n
}
