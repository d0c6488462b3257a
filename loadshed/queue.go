package loadshed

import (
	"cmp"
	"math/bits"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// priorities is how many ranks a queue tells apart: for each class those of clients that are hopeless, new ones, known ones, and those that
// are due. Each has a bit in the queue's state.
const priorities = 4 * maxClasses

// A priority is a rank in a queue, 0 to priorities-1: the higher goes first.
type priority uint8

// A Verdict is how the wait of a request has ended.
type Verdict uint8

const (
	waiting Verdict = iota
	Granted         // it has got a permit in flight
	expired         // its timeout is over, or it can no longer meet its deadline
	dropped         // a request of a higher rank replaces it in the queue
	gone            // it has left before any other verdict
)

// A request waits until queuePermits permits have become free, but at least Facebook's 100 ms: a second for one permit of 50 ms. Of those
// slower than ten a second it waits for fewer, 200 ms at one a second: it can come back by appointment meanwhile, and with 2 s for eight
// permits of 10 s a tenth fewer were served. A rank that has not been empty for so long has a standing queue, which only delays. With ten
// permits, a backend with one worker lost a tenth at 0.9 of its capacity; with 32 the p99 of two rose in an overload (loadtest/lab/papers).
//
// One that is due, or in the middle of a task, waits for dueQueue in any case: less than any client we know of gives up after, and sooner
// than it could be back. Of tasks of four calls that obey, 0.44 succeed instead of 0.41.
const (
	queuePermits  = 20
	shortestQueue = 100 * time.Millisecond
	queueFades    = 200 * time.Millisecond * time.Second
	dueQueue      = 350 * time.Millisecond
)

// A queue holds requests that wait for a permit in flight. The zero queue is empty and
// ready. It is safe for concurrent use and must not be copied.
//
// The higher rank goes first. Within a rank the rule is Facebook's adaptive LIFO (Maurer,
// "Fail at Scale", ACM Queue 2015). While the rank empties now and then, the oldest goes
// first. Once it has not been empty for long, the newest goes first, as its client is the
// most likely to be still there, and those who are let in have hardly waited. Its timeout of
// 5 ms then is not taken over: a backend that takes longer has nothing to do after it.
//
// There is no goroutine and no timer. The caller tells when a permit has become free
// (Wake) and when the time of a request is over (Leave).
type queue struct {
	state atomic.Uint64 // length<<priorities | set of the ranks that have waiters, a bit each
	extra atomic.Int64  // permits that they wait for, beyond one each
	pool  sync.Pool     // of waiters: in an overload each request may be one

	mu      sync.Mutex // guards changes, the fields below, and the waiters
	ranks   [priorities]line
	longest time.Duration // as of the last Join
	ended   [gone + 1]uint64
	waited  time.Duration
}

// line holds the waiters of one rank.
type line struct {
	waiters  []*waiter     // the oldest first
	held     *waiter       // goes first until it has all permits that it needs, or those that come later would take each
	filledAt time.Duration // when it was empty last
}

// A waiter is a request in a queue.
type waiter struct {
	told          chan Verdict // receives one, unless it is gone before; of capacity 1
	joined, until time.Duration
	rank          priority
	verdict       Verdict
	weight        int32 // permits that it needs, or has got
}

// Release ends the use of a waiter that has got its verdict, or left.
func (q *queue) Release(w *waiter) {
	select {
	case <-w.told: // it has left without reading it
	default:
	}
	*w = waiter{told: w.told}
	q.pool.Put(w)
}

// Len returns how many wait. It is one atomic load.
func (q *queue) Len() int { return int(q.state.Load() >> priorities) }

// Highest returns the highest rank that has waiters, 0 if none has.
func (q *queue) Highest() priority {
	return priority(max(1, bits.Len64(q.state.Load()&(1<<priorities-1))) - 1)
}

// full reports whether max or more wait, none of them in a rank below that.
func (q *queue) full(rank priority, max int) bool {
	s := q.state.Load()
	return int(s>>priorities) >= max && (s == 0 || lowest(s) >= rank)
}

func lowest(state uint64) priority { return priority(bits.TrailingZeros64(state)) }

// Join queues a request until then. It returns nil if there is no time to wait, or if max or
// more wait already, none of them in a lower rank. A rank that has not been empty for longest
// has a standing queue.
//
// If the queue is full, a request of a higher rank replaces the one of the lowest rank
// that would go last. Requests of one rank never replace each other.
//
// A permit may have become free since the caller found none, so it must call Wake after
// Join.
func (q *queue) Join(now, until time.Duration, rank priority, max int, longest time.Duration, weight int) *waiter {
	if q.full(rank, max) {
		return nil // the common case in a flood, without the lock
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	q.longest = longest
	l := &q.ranks[rank]
	if len(l.waiters) == 0 {
		l.filledAt = now
	}
	if until <= now || q.full(rank, max) {
		return nil
	}
	if q.Len() >= max {
		_, last := q.ends(now, lowest(q.state.Load()))
		q.end(last, now, dropped)
	}
	w, _ := q.pool.Get().(*waiter)
	if w == nil {
		w = &waiter{told: make(chan Verdict, 1)}
	}
	w.joined, w.until, w.rank, w.weight = now, until, rank, int32(weight)
	if weight > 1 {
		q.extra.Add(int64(weight - 1))
	}
	l.waiters = append(l.waiters, w)
	q.state.Store(q.state.Load() + 1<<priorities | 1<<w.rank)
	return w
}

// A granter takes permits in flight for a request of a rank and a weight, if there are as many, and returns how many it took.
type granter interface {
	grant(now time.Duration, rank priority, weight int) (taken int)
}

// Wake lets waiters in for as long as g grants them permits, the highest rank first. Those
// whose time is over expire instead. One that needs several permits waits for all of them, and none of its rank or below passes it. Call it whenever a permit has become free; without
// waiters it is one atomic load.
//
// The queue is locked meanwhile, so g must neither call the queue nor block.
func (q *queue) Wake(now time.Duration, g granter) {
	if q.Len() == 0 {
		return
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	for q.Len() > 0 {
		w, _ := q.ends(now, q.Highest())
		if w.until <= now {
			q.end(w, now, expired)
		} else if taken := int32(g.grant(now, w.rank, int(w.weight))); taken > 0 {
			if w.weight > 1 { // it has as many, or all that there are
				q.extra.Add(int64(taken - w.weight))
				w.weight = taken
			}
			q.end(w, now, Granted)
		} else {
			if w.weight > 1 {
				q.ranks[w.rank].held = w
			}
			return
		}
	}
}

// Leave ends the wait of w with v, which is expired or gone, unless it had a verdict already. It returns the one that
// w has now.
func (q *queue) Leave(w *waiter, now time.Duration, v Verdict) Verdict {
	q.mu.Lock()
	defer q.mu.Unlock()
	if w.verdict == waiting {
		q.end(w, now, v)
	}
	return w.verdict
}

// queueStats counts what a queue has done since it was made. Length + Granted +
// Expired + Dropped + Gone requests have joined.
type queueStats struct {
	Length                          int // how many wait now
	Granted, Expired, Dropped, Gone uint64
	Waited                          time.Duration // total, without Gone
}

// Stats returns the counts of one instant.
func (q *queue) Stats() queueStats {
	q.mu.Lock()
	defer q.mu.Unlock()
	return queueStats{
		q.Len(), q.ended[Granted], q.ended[expired], q.ended[dropped], q.ended[gone], q.waited,
	}
}

// The methods below require q.mu to be held.

// ends returns the waiters of rank that go first and last.
func (q *queue) ends(now time.Duration, rank priority) (first, last *waiter) {
	l := &q.ranks[rank]
	if first, last = l.waiters[0], l.waiters[len(l.waiters)-1]; now-l.filledAt > q.longest {
		first, last = last, first // it has a standing queue
	}
	return cmp.Or(l.held, first), last
}

// end removes w from the queue and sends it the verdict, unless it has gone.
func (q *queue) end(w *waiter, now time.Duration, v Verdict) {
	l, state := &q.ranks[w.rank], q.state.Load()-1<<priorities
	i := slices.Index(l.waiters, w)
	if l.waiters = slices.Delete(l.waiters, i, i+1); len(l.waiters) == 0 {
		state &^= 1 << w.rank
	}
	if l.held == w {
		l.held = nil
	}
	q.state.Store(state)
	if w.weight > 1 {
		q.extra.Add(int64(1 - w.weight))
	}
	q.ended[v]++
	w.verdict = v
	if v != gone {
		q.waited += now - w.joined
		w.told <- v
	}
}
