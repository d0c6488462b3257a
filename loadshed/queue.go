package loadshed

import (
	"fmt"
	"math"
	"math/bits"
	"sync"
	"sync/atomic"
	"time"
)

// priorities is how many ranks a queue tells apart.
const priorities = 8

// A priority is a rank in a queue, 0 to priorities-1: the higher goes first.
type priority uint8

// A Verdict is how the wait of a request has ended.
type Verdict uint8

const (
	waiting Verdict = iota
	Granted         // it has got a place in flight
	Expired         // its timeout is over, or it can no longer meet its deadline
	Dropped         // a request of a higher rank replaces it in the queue
	Gone            // it has left before any other verdict
)

// String returns the verdict as a metric label.
func (v Verdict) String() string {
	return nameOf("Verdict", v, "waiting", "granted", "expired", "dropped", "gone")
}

// nameOf returns the i-th name, or as Go's stringers do "Kind(i)" if there is none.
func nameOf[T ~uint8](kind string, i T, names ...string) string {
	if int(i) < len(names) {
		return names[i]
	}
	return fmt.Sprintf("%s(%d)", kind, uint8(i))
}

const (
	// A queue that does not empty for standingAfter, nor for standingServices times of
	// service, is a standing queue: it only delays. 100 ms is Facebook's, and about one time of service of a
	// slow backend. Alone it rejected 3.8 % where 27 workers of 90 ms had 0.93 of what
	// they can do, and a limit of 27; with five times of service, 1.8 %. Longer makes
	// requests wait longer in an overload.
	standingAfter    = 100 * time.Millisecond
	standingServices = 5

	// standingQueueTimeout is the timeout of a request that joins a standing queue.
	standingQueueTimeout = 5 * time.Millisecond

	// The mean gap between grants is an EWMA over gapWeight of them. It is dropped if
	// the queue is next used gapMemory after the last.
	gapWeight = 16
	gapMemory = time.Second
)

// A queue holds requests that wait for a place in flight. The zero queue is empty and
// ready. It is safe for concurrent use and must not be copied.
//
// The higher rank goes first. Within a rank the rule is Facebook's adaptive LIFO with
// CoDel-like timeouts (Maurer, "Fail at Scale", ACM Queue 2015). While the queue empties
// now and then, the oldest goes first and waits up to the timeout. Once it has not been
// empty for 100 ms, the newest goes first, as its client is the most likely to be still
// there. Then a request that joins waits for at most 5 ms. A rank's queue is that rank
// and all higher ones: waiters of lower ranks do not delay it, so they do not count.
//
// There is no goroutine and no timer. The caller tells when a place has become free
// (Wake) and when time has passed (Expire). Memory is allocated only when the queue is
// longer than ever before.
//
// A now before the latest that the queue has seen counts as that.
type queue struct {
	state   atomic.Uint64 // length<<8 | set of the ranks that have waiters, a bit each
	soonest atomic.Int64  // no wait is over before; 0: no waiters
	pool    sync.Pool     // of *waiter

	mu        sync.Mutex // guards the fields below, and the Waiters that have no verdict
	now       time.Duration
	ranks     [priorities]line
	occupied  uint8         // as in state
	n         int           // how many wait
	gap       time.Duration // mean gap between grants
	service   time.Duration // as of the last Join
	grantedAt time.Duration
	ended     [Gone + 1]uint64
	waited    time.Duration
}

// line holds the waiters of one rank.
type line struct {
	oldest, newest *waiter
	n              int
	filledAt       time.Duration // the first Join of this or a higher rank since all these were empty
}

// A waiter is a request in a queue. It belongs to the caller of Join.
type waiter struct {
	// C receives one verdict, Granted, Expired or Dropped, unless Leave is called
	// before.
	C <-chan Verdict

	c             chan Verdict // of capacity 1, so that sending a verdict never blocks
	older, newer  *waiter
	joined, until time.Duration
	rank          priority
	verdict       Verdict
}

// Len returns how many wait. It is one atomic load.
func (q *queue) Len() int { return int(q.state.Load() >> 8) }

// Highest returns the highest rank that has waiters, 0 if none has.
func (q *queue) Highest() priority { return highest(uint8(q.state.Load())) }

// Join queues a request for up to timeout. It returns nil if max or more wait already,
// none of them in a lower rank, or if the request cannot meet its deadline: the instant, 0
// for none, at which it must have been served, which takes service.
//
// If the queue is full, a request of a higher rank replaces the one of the lowest rank
// that would go last. Requests of one rank never replace each other: in a flood each
// would cost a wait and a wake-up, where a rejection costs next to nothing.
//
// The expected wait is the number of requests ahead plus one, times the mean gap between
// the last grants, or the time since the last if that is longer. It counts as no more
// than the timeout, and as 0 before any grants. So a request with time for its timeout
// and service is never rejected for its deadline, and one with less may yet expire.
//
// A place may have become free since the caller found none, so it must call Wake after
// Join. It must give every waiter back with one call of Leave or Release.
func (q *queue) Join(now, deadline time.Duration, rank priority, max int, timeout, service time.Duration) *waiter {
	rank = min(rank, priorities-1)
	if s := q.state.Load(); int(s>>8) >= max && lowest(uint8(s)) >= rank && int64(now) < q.soonest.Load() {
		return nil // the common case in a flood, without the lock
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	now = q.advance(now)
	q.service = service
	if q.n >= max {
		q.expire(now)
	}
	if q.n >= max && (q.n == 0 || lowest(q.occupied) >= rank) {
		return nil
	}
	q.fill(now, rank)
	standing := q.standing(now, rank)
	if standing {
		timeout = min(timeout, standingQueueTimeout)
	}
	until := now + timeout
	if deadline != 0 && deadline-service < until {
		if until = deadline - service; now+q.expected(now, rank, standing) > until {
			return nil
		}
	}
	if until <= now {
		return nil
	}
	if q.n >= max {
		_, last := q.ends(now, lowest(q.occupied))
		q.end(last, now, Dropped)
	}
	w, _ := q.pool.Get().(*waiter)
	if w == nil {
		c := make(chan Verdict, 1)
		w = &waiter{C: c, c: c}
	}
	w.joined, w.until, w.rank, w.verdict = now, until, rank, waiting
	q.link(w)
	q.publish()
	return w
}

// Wake lets waiters in for as long as enter, called with the highest rank that has any,
// takes a place for them, and returns how many. Those whose time is over expire instead.
// Call it whenever a place has become free; without waiters it is one atomic load.
//
// The queue is locked meanwhile, so enter must neither call the queue nor block. Pass the
// same func each time: a new closure is an allocation.
func (q *queue) Wake(now time.Duration, enter func(priority) bool) (n int) {
	if q.Len() == 0 {
		return 0
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	defer q.publish() // also if enter panics
	now = q.advance(now)
	for q.n > 0 {
		w, _ := q.ends(now, highest(q.occupied))
		if w.until <= now {
			q.end(w, now, Expired)
			continue
		}
		if !enter(w.rank) {
			break
		}
		// Only gaps while requests wait count: the others say how few came, not how soon
		// places become free.
		q.gap += (now - max(q.grantedAt, q.ranks[0].filledAt) - q.gap) / gapWeight
		q.grantedAt = now
		q.end(w, now, Granted)
		n++
	}
	return n
}

// Expire ends the waits whose time is over. If there are none it is one atomic load.
func (q *queue) Expire(now time.Duration) {
	if next := time.Duration(q.soonest.Load()); next == 0 || now < next {
		return
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	q.expire(q.advance(now))
}

// Leave ends the wait of w, whose client has gone, and gives w back: it must not be used
// afterwards. It returns Gone if w had no verdict yet. If it returns Granted, the caller
// must give the place back and call Wake.
func (q *queue) Leave(w *waiter) Verdict {
	q.mu.Lock()
	defer q.mu.Unlock()
	if w.verdict == waiting {
		q.end(w, w.joined, Gone) // the present instant is not known
		q.publish()
	}
	v := w.verdict
	select {
	case <-w.c: // the verdict has not been read
	default:
	}
	q.pool.Put(w)
	return v
}

// Release gives w back after its verdict was received from C.
func (q *queue) Release(w *waiter) { q.pool.Put(w) }

// QueueStats counts what a queue has done since it was made. Length + Granted +
// Expired + Dropped + Gone requests have joined.
type QueueStats struct {
	Length                          int // how many wait now
	Granted, Expired, Dropped, Gone uint64
	Waited                          time.Duration // total, without Gone
}

// Stats returns the counts of one instant.
func (q *queue) Stats() QueueStats {
	q.mu.Lock()
	defer q.mu.Unlock()
	return QueueStats{
		q.n, q.ended[Granted], q.ended[Expired], q.ended[Dropped], q.ended[Gone], q.waited,
	}
}

// highest and lowest return a rank of a set of ranks, 0 for the empty set.
func highest(set uint8) priority { return priority(max(1, bits.Len8(set)) - 1) }
func lowest(set uint8) priority  { return priority(bits.TrailingZeros8(set) & 7) }

// The methods below require q.mu to be held.

// advance returns now, or the latest instant seen if that is later.
func (q *queue) advance(now time.Duration) time.Duration {
	q.now = max(q.now, now)
	return q.now
}

// fill records when each rank's queue began to fill, for a request that joins rank. The
// queues of the ranks above all waiters are empty.
func (q *queue) fill(now time.Duration, rank priority) {
	for r := bits.Len8(q.occupied); r <= int(rank); r++ {
		q.ranks[r].filledAt = now
	}
	if q.occupied == 0 && now-q.grantedAt > gapMemory {
		q.gap = 0
	}
}

// standing reports whether rank and those above have not been empty for long.
func (q *queue) standing(now time.Duration, rank priority) bool {
	return now-q.ranks[rank].filledAt > max(standingAfter, standingServices*q.service)
}

// expected returns how long a request that joins rank is expected to wait.
func (q *queue) expected(now time.Duration, rank priority, standing bool) time.Duration {
	ahead := 0
	for r := rank + 1; r < priorities; r++ {
		ahead += q.ranks[r].n
	}
	if !standing {
		ahead += q.ranks[rank].n
	}
	gap := max(q.gap, now-max(q.grantedAt, q.ranks[0].filledAt))
	return time.Duration(ahead+1) * gap
}

// ends returns the waiters of rank that go first and last.
func (q *queue) ends(now time.Duration, rank priority) (first, last *waiter) {
	l := &q.ranks[rank]
	if q.standing(now, rank) {
		return l.newest, l.oldest
	}
	return l.oldest, l.newest
}

// expire ends the waits whose time is over. It visits all that wait.
func (q *queue) expire(now time.Duration) {
	if int64(now) < q.soonest.Load() {
		return
	}
	soonest := time.Duration(math.MaxInt64)
	for rank := range q.ranks {
		for w := q.ranks[rank].oldest; w != nil; {
			is := w
			w = w.newer
			if is.until <= now {
				q.end(is, now, Expired)
			} else {
				soonest = min(soonest, is.until)
			}
		}
	}
	if q.n > 0 {
		q.soonest.Store(int64(max(soonest, now+time.Millisecond))) // often enough
	}
	q.publish()
}

// publish updates the state, which is read without the lock.
func (q *queue) publish() {
	q.state.Store(uint64(q.n)<<8 | uint64(q.occupied))
}

// end removes w from the queue and sends it the verdict, unless it has gone. From then
// on w belongs to its owner.
func (q *queue) end(w *waiter, now time.Duration, v Verdict) {
	q.unlink(w)
	q.ended[v]++
	q.waited += now - w.joined
	w.verdict = v
	if v != Gone {
		w.c <- v
	}
}

// link puts w into its rank, as the newest.
func (q *queue) link(w *waiter) {
	l := &q.ranks[w.rank]
	w.older, w.newer = l.newest, nil
	if l.newest != nil {
		l.newest.newer = w
	} else {
		l.oldest = w
	}
	l.newest = w
	l.n++
	q.occupied |= 1 << w.rank
	q.n++
	if soonest := q.soonest.Load(); soonest == 0 || int64(w.until) < soonest {
		q.soonest.Store(int64(w.until))
	}
}

// unlink undoes link.
func (q *queue) unlink(w *waiter) {
	l := &q.ranks[w.rank]
	if w.older != nil {
		w.older.newer = w.newer
	} else {
		l.oldest = w.newer
	}
	if w.newer != nil {
		w.newer.older = w.older
	} else {
		l.newest = w.older
	}
	w.older, w.newer = nil, nil
	if l.n--; l.n == 0 {
		q.occupied &^= 1 << w.rank
	}
	if q.n--; q.n == 0 {
		q.soonest.Store(0)
	}
}
