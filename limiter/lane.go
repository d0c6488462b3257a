package limiter

import (
	"math"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// askAhead is for how long tokens are fetched in advance.
const askAhead = 1000 * time.Millisecond

// slowRefill is how long a part takes to fill that a replica gives back when others use the
// key, and it has no use for it. One that is full again sooner is kept: the next request
// need not wait then.
const slowRefill = 10 * time.Second

// maxPause bounds how long a busy key that found the pool empty is told to wait longer
// than it has to, so that several tokens come with one exchange.
const maxPause = 50 * time.Millisecond

// A lane is what concerns the keys in one slot of the store.
type lane struct {
	aloneAt atomic.Int64  // from when on the store counts as gone
	life    atomic.Uint32 // of the replica there
	began   atomic.Int64  // when it began
	paidTo  atomic.Int64  // the pool earns for hot keys until then, at the latest

	mu    sync.Mutex
	queue []Key     // to be told; guarded by mu
	later []granted // in the order of their times; guarded by mu
	_     [64]byte
}

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
}

// A Grant is what the store answers.
type Grant struct {
	Got  int           // tokens
	Wait time.Duration // until the pool has enough for one request
	Stay time.Duration // for how long the pool earns for the key
}

func (l *lane) alone(now time.Duration) bool { return int64(now) >= l.aloneAt.Load() }

// SlotOf returns the slot of a key.
func (e *Escrow) SlotOf(key Key) int { return int(key) & (len(e.lanes) - 1) }

func (e *Escrow) laneOf(key Key) *lane { return &e.lanes[e.SlotOf(key)] }

// ask puts a key into the queue of its lane.
func (e *Escrow) ask(l *lane, h *hotKey, key Key) {
	if h.asked || h.sent && h.wants {
		return
	}
	h.asked = true
	l.mu.Lock()
	l.queue = append(l.queue, key)
	first := len(l.queue) == 1
	l.mu.Unlock()
	if first && e.Wake != nil {
		e.Wake(e.SlotOf(key))
	}
}

// Queued returns how many keys of a slot are to be told.
func (e *Escrow) Queued(slot int) int {
	l := &e.lanes[slot]
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.queue)
}

// Collect returns what is to be told about the keys of a slot, no more than limit, after
// what is in list. Each of them is to be answered by Grant or Missed.
func (e *Escrow) Collect(now time.Duration, slot, limit int, list []Held) []Held {
	l := &e.lanes[slot]
	var batch [64]Key
	for limit > 0 {
		l.mu.Lock()
		n := copy(batch[:min(limit, len(batch))], l.queue)
		rest := copy(l.queue, l.queue[n:])
		l.queue = l.queue[:rest]
		l.mu.Unlock()
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
		e.settle(p, h, key, now)
		f(p, h, now)
	}
}

// tell returns what is to be told about a key. Tokens that are not enough for one request
// go back, and all of them if none has come since the last exchange, and they are missed.
func (e *Escrow) tell(p *part, h *hotKey, key Key, now time.Duration) Held {
	want := p.limit.burst
	if h.since > 0 {
		demand := float64(h.tried) / max(0.001, (now-h.since).Seconds())
		h.busy = demand > e.limit.Rate()/4
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
	h.since, h.tried, h.waiting, h.asked, h.sent, h.wants = now, 0, 0, false, true, t.Want > 0
	return t
}

// Grant gives a key what the store has answered.
func (e *Escrow) Grant(now time.Duration, key Key, g Grant) {
	e.with(key, now, func(p *part, h *hotKey, now time.Duration) {
		h.sent = false
		h.level = min(e.limit.depth, h.level+e.limit.interval*time.Duration(g.Got))
		h.until = now + g.Stay
		h.next = 0
		if h.level < e.price && g.Wait > 0 {
			h.next = now + g.Wait
			if h.busy && p.whole {
				h.next = max(h.next, now+min(maxPause, 2*e.limit.interval*time.Duration(p.replicas)))
			}
		}
		if g.Got > 0 && !p.whole {
			l := e.laneOf(key)
			l.mu.Lock()
			l.later = append(l.later, granted{key, now})
			l.mu.Unlock()
		}
	})
}

// Missed tells that it is not known whether the store has heard of a key. It is told
// again.
func (e *Escrow) Missed(now time.Duration, key Key) {
	e.with(key, now, func(_ *part, h *hotKey, _ time.Duration) {
		if h.sent {
			h.sent = false
			e.ask(e.laneOf(key), h, key)
			h.sent = true
		}
	})
}

// Learn tells that a key is hot for another replica, and will be for stay. It reports
// whether the store is to be told what this one holds of it.
func (e *Escrow) Learn(now time.Duration, key Key, stay time.Duration) bool {
	i, p := key>>(64-shardBits), e.part.Load()
	s := &e.table.shards[i]
	now, _ = s.lock(p.limit, now)
	defer s.mu.Unlock()
	h, _ := e.hot[i].find(key)
	if h == nil {
		if h, _ = e.heat(p, i, key, now); h == nil {
			return false
		}
	}
	e.settle(p, h, key, now)
	if h.until+maxPause >= now+stay {
		return false
	}
	e.ask(e.laneOf(key), h, key)
	return true
}

// Return puts keys into the queue that were given tokens for requests that waited: where
// the part is less than a request, no replica keeps what it does not need, and what was
// used is told at once.
func (e *Escrow) Return(now time.Duration, slot int) {
	l := &e.lanes[slot]
	l.mu.Lock()
	n := 0
	for n < len(l.later) && l.later[n].at+useTime <= now {
		n++
	}
	due := slices.Clone(l.later[:n])
	l.later = slices.Delete(l.later, 0, n)
	l.mu.Unlock()
	for _, g := range due {
		e.with(g.key, now, func(_ *part, h *hotKey, _ time.Duration) { e.ask(l, h, g.key) })
	}
}

// Returns reports when there is something to Return.
func (e *Escrow) Returns(slot int) (at time.Duration, ok bool) {
	l := &e.lanes[slot]
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.later) == 0 {
		return 0, false
	}
	return l.later[0].at + useTime, true
}

// State reports whether a key is in the queue, and whether it was told and not answered.
func (e *Escrow) State(now time.Duration, key Key) (queued, sent bool) {
	e.with(key, now, func(_ *part, h *hotKey, _ time.Duration) { queued, sent = h.asked, h.sent })
	return queued, sent
}

// Paid tells that the pools of a slot earn for this replica until then, at the latest.
func (e *Escrow) Paid(slot int, until time.Duration) {
	l := &e.lanes[slot]
	l.paidTo.Store(max(l.paidTo.Load(), int64(until)))
}

// Live begins another life of the replica at a slot: its pools have ended to earn for hot
// keys.
func (e *Escrow) Live(now time.Duration, slot int) {
	l := &e.lanes[slot]
	l.began.Store(int64(now))
	l.life.Add(1)
}

// AloneFrom sets from when on the replica works with its part of the limit, because the
// store does not answer. A new Escrow does from the beginning.
func (e *Escrow) AloneFrom(slot int, from time.Duration) { e.lanes[slot].aloneAt.Store(int64(from)) }

// IsAlone reports whether it does at now.
func (e *Escrow) IsAlone(slot int, now time.Duration) bool { return e.lanes[slot].alone(now) }

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

// Lanes returns how many slots the store has.
func (e *Escrow) Lanes() int { return len(e.lanes) }

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
