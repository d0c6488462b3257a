package loadshed

import (
	"fmt"
	"math"
	"math/bits"
	"sync"
	"sync/atomic"
	"time"
)

// Ranks is how many ranks a [Queue] tells apart.
const Ranks = 8

// A Rank is a priority in a [Queue], 0 to Ranks-1: the higher goes first.
type Rank uint8

// A Verdict is how the wait of a [Waiter] has ended.
type Verdict uint8

const (
	waiting Verdict = iota
	// Granted: a place was taken for it.
	Granted
	// Expired: its patience is over, or its deadline can no longer be met.
	Expired
	// Dropped: one of a higher rank has its place in the queue.
	Dropped
	// Gone: it has left before any other verdict.
	Gone
)

var verdicts = [...]string{"waiting", "granted", "expired", "dropped", "gone"}

// String returns the verdict as a metric label.
func (v Verdict) String() string {
	if int(v) < len(verdicts) {
		return verdicts[v]
	}
	return fmt.Sprintf("Verdict(%d)", uint8(v))
}

const (
	// standingAfter is how long a queue that never empties is taken for a burst, or
	// standingServices times of service if that is longer. After that it stands: it
	// no longer smooths, it only delays. 100 ms is Facebook's; alone it is about one
	// time of service of a slow backend, and turned away 3.8 % where 27 workers of
	// 90 ms had 0.93 of what they can do, and a limit of 27; with five times, 1.8 %.
	// More than that makes those wait longer who come in an overload.
	standingAfter    = 100 * time.Millisecond
	standingServices = 5

	// hasty is the patience of who joins a queue that stands.
	hasty = 5 * time.Millisecond

	// gapWeight: the mean gap between grants follows the last 16 of them, and is
	// forgotten if the queue is next needed gapMemory after the last.
	gapWeight = 16
	gapMemory = time.Second

	// dropBatch bounds for how long Expire keeps others from the queue: to drop one
	// takes a fraction of a microsecond.
	dropBatch = 64
)

// A Queue is where requests wait for room in flight. The zero Queue is empty and
// ready. It is safe for concurrent use and must not be copied.
//
// The higher rank goes first. Within a rank the rule is Facebook's (Maurer, "Fail
// at Scale", ACM Queue 2015): while the queue empties now and then, the oldest
// goes first and waits up to the timeout; once it has not been empty for 100 ms,
// the newest goes first, as its client is the likeliest to be there still, and who
// joins waits for 5 ms at most. To each rank the queue is who waits in it or in a
// higher one: lower ranks delay nobody above them, so they make nobody hasty.
//
// There is no goroutine and no timer: the caller tells when a place has become
// free (Wake) and when time has passed (Expire). Nothing is allocated but for a
// queue that is longer than ever before.
//
// now is the time since an epoch that the caller keeps, from a monotonic clock. An
// earlier one than the Queue has seen counts as the latest.
type Queue struct {
	state   atomic.Uint64 // length<<8 | the ranks in which somebody waits, a bit each
	soonest atomic.Int64  // when the first patience ends; 0: nobody waits
	pool    sync.Pool     // of *Waiter

	mu        sync.Mutex // guards what follows, and the Waiters that have no verdict
	now       time.Duration
	ranks     [Ranks]line
	occupied  uint8     // as in state
	byTime    []*Waiter // a heap: the one whose patience ends first on top
	gap       time.Duration
	service   time.Duration // as last told to Join
	grantedAt time.Duration
	ended     [Gone + 1]uint64
	waited    time.Duration
}

// line is who waits in one rank.
type line struct {
	oldest, newest *Waiter
	n              int
	filledAt       time.Duration // when somebody joined this or a higher rank, while they all were empty
}

// A Waiter is one place in a [Queue]. Nobody but the caller of Join has it.
type Waiter struct {
	// C receives one verdict, Granted, Expired or Dropped, unless Leave is called
	// before.
	C <-chan Verdict

	c             chan Verdict // of capacity 1, so that a verdict never waits for who reads it
	older, newer  *Waiter
	joined, until time.Duration
	index         int // in byTime
	rank          Rank
	verdict       Verdict
}

// Len returns how many wait. It is one atomic load.
func (q *Queue) Len() int { return int(q.state.Load() >> 8) }

// Highest returns the highest rank in which somebody waits, 0 if nobody does. It
// is one atomic load.
func (q *Queue) Highest() Rank { return highest(uint8(q.state.Load())) }

// Join lets a request wait for room, for up to timeout, behind others of its rank
// and of higher ones. It returns nil if max or more wait already, none of them
// in a lower rank, or if deadline cannot be met: an instant, 0 for none, at which
// the request must have been served, which takes service.
//
// If the queue is full, the one of the lowest rank that would go last makes room
// for a higher rank. Requests of one rank never displace each other: a flood would
// pay for a wait and a wake-up each, where a refusal costs next to nothing.
//
// The wait to be expected is the number of those ahead, and itself, times the mean
// gap between the last grants, or the time since the last if that is longer. It
// counts as no more than the timeout, and as nothing before there are grants to
// measure: who has time for its timeout and service is never refused for its
// deadline, and who has less may yet expire.
//
// A place may have become free since the caller found none, and been offered to an
// empty queue: who joins must look again, and call Wake if there is room. Every
// Waiter is to be given back by one call of Leave or Release.
func (q *Queue) Join(now, deadline time.Duration, rank Rank, max int, timeout, service time.Duration) *Waiter {
	rank = min(rank, Ranks-1)
	if s := q.state.Load(); full(s, max) && lowest(uint8(s)) >= rank && int64(now) < q.soonest.Load() {
		return nil // as most are in a flood: without the lock
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	now = q.advance(now)
	q.service = service
	if len(q.byTime) >= max {
		q.expire(now, dropBatch)
	}
	if len(q.byTime) >= max && (len(q.byTime) == 0 || lowest(q.occupied) >= rank) {
		return nil
	}
	q.fill(now, rank)
	standing := q.standing(now, rank)
	if standing {
		timeout = min(timeout, hasty)
	}
	until := now + timeout
	if until < now && timeout > 0 {
		until = math.MaxInt64
	}
	if deadline != 0 && deadline-service < until {
		if until = deadline - service; now+q.expected(now, rank, standing) > until {
			return nil
		}
	}
	if until <= now {
		return nil
	}
	if len(q.byTime) >= max {
		low := lowest(q.occupied)
		q.end(q.last(now, low), now, Dropped)
	}
	w, _ := q.pool.Get().(*Waiter)
	if w == nil {
		c := make(chan Verdict, 1)
		w = &Waiter{C: c, c: c}
	}
	w.joined, w.until, w.rank, w.verdict = now, until, rank, waiting
	q.link(w)
	q.publish()
	return w
}

// Wake lets in who waits, for as long as enter takes a place for them, and returns
// how many. Those whose time is over expire instead. It is to be called whenever a
// place has become free; if nobody waits it costs an atomic load.
//
// enter is asked for one of the highest rank in which somebody waits, and once it
// has no place for that one, nobody else gets any. It is called with the queue
// locked, so it must not call the queue, nor block. To allocate nothing keep it: a
// new closure for each call is garbage.
func (q *Queue) Wake(now time.Duration, enter func(Rank) bool) (n int) {
	if q.Len() == 0 {
		return 0
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	defer q.publish() // also if enter panics
	now = q.advance(now)
	for len(q.byTime) > 0 {
		w := q.first(now, highest(q.occupied))
		if w.until <= now {
			q.end(w, now, Expired)
			continue
		}
		if !enter(w.rank) {
			break
		}
		// Gaps are those of a queue in which somebody waits: the time without says
		// how few came, not how soon places become free.
		q.gap += (now - max(q.grantedAt, q.ranks[0].filledAt) - q.gap) / gapWeight
		q.grantedAt = now
		q.end(w, now, Granted)
		n++
	}
	return n
}

// Expire ends the wait of all whose time is over. It returns the instant at which
// the next will be, 0 if nobody waits. If there are none it costs an atomic load.
func (q *Queue) Expire(now time.Duration) (next time.Duration) {
	for {
		next = time.Duration(q.soonest.Load())
		if next == 0 || now < next {
			return next
		}
		q.mu.Lock()
		q.expire(q.advance(now), dropBatch)
		q.mu.Unlock()
	}
}

// Leave ends the wait of w, whose client has gone, and gives w back. If it returns
// Granted, w was granted a place before, which the caller must give back, and then
// Wake; Gone if w had no verdict yet. w must not be used afterwards.
func (q *Queue) Leave(w *Waiter) Verdict {
	q.mu.Lock()
	defer q.mu.Unlock()
	if w.verdict == waiting {
		q.end(w, w.joined, Gone) // when is not known
		q.publish()
	}
	v := w.verdict
	select {
	case <-w.c: // nobody has read it
	default:
	}
	q.pool.Put(w)
	return v
}

// Release gives w back after its verdict was received from C. w must not be used
// afterwards.
func (q *Queue) Release(w *Waiter) { q.pool.Put(w) }

// QueueStats is what a [Queue] has done since it was made. Who has joined is
// Length + Granted + Expired + Dropped + Gone.
type QueueStats struct {
	Length                          int // how many wait now
	Granted, Expired, Dropped, Gone uint64
	Waited                          time.Duration // by all of these but who has gone, in total
}

// Stats returns what the queue has done, all of it as at one instant.
func (q *Queue) Stats() QueueStats {
	q.mu.Lock()
	defer q.mu.Unlock()
	return QueueStats{
		len(q.byTime), q.ended[Granted], q.ended[Expired], q.ended[Dropped], q.ended[Gone], q.waited,
	}
}

func full(state uint64, max int) bool { return int(state>>8) >= max }

// highest and lowest are those of a set of ranks, 0 of the empty one.
func highest(set uint8) Rank { return Rank(max(1, bits.Len8(set)) - 1) }
func lowest(set uint8) Rank  { return Rank(bits.TrailingZeros8(set) & 7) }

// What follows requires that q.mu is held.

// advance returns now, or the latest instant seen if that is later.
func (q *Queue) advance(now time.Duration) time.Duration {
	q.now = max(q.now, now)
	return q.now
}

// fill notes for which ranks one that joins rank is the first. Of the ranks above
// those in which somebody waits, none has anybody in it or higher.
func (q *Queue) fill(now time.Duration, rank Rank) {
	for r := bits.Len8(q.occupied); r <= int(rank); r++ {
		q.ranks[r].filledAt = now
	}
	if q.occupied == 0 && now-q.grantedAt > gapMemory {
		q.gap = 0
	}
}

// standing reports whether there has been somebody in rank or above for long.
func (q *Queue) standing(now time.Duration, rank Rank) bool {
	return now-q.ranks[rank].filledAt > max(standingAfter, standingServices*q.service)
}

// expected returns how long one that joins rank will wait.
func (q *Queue) expected(now time.Duration, rank Rank, standing bool) time.Duration {
	ahead := 0
	for r := rank + 1; r < Ranks; r++ {
		ahead += q.ranks[r].n
	}
	if !standing {
		ahead += q.ranks[rank].n
	}
	gap := max(q.gap, now-max(q.grantedAt, q.ranks[0].filledAt))
	return time.Duration(ahead+1) * gap
}

// first returns who of rank goes first, last who goes last.
func (q *Queue) first(now time.Duration, rank Rank) *Waiter {
	if q.standing(now, rank) {
		return q.ranks[rank].newest
	}
	return q.ranks[rank].oldest
}

func (q *Queue) last(now time.Duration, rank Rank) *Waiter {
	if q.standing(now, rank) {
		return q.ranks[rank].oldest
	}
	return q.ranks[rank].newest
}

// expire ends the wait of up to n whose time is over.
func (q *Queue) expire(now time.Duration, n int) {
	for ; n > 0 && len(q.byTime) > 0 && q.byTime[0].until <= now; n-- {
		q.end(q.byTime[0], now, Expired)
	}
	q.publish()
}

// publish shows what can be read without the lock.
func (q *Queue) publish() {
	var soonest time.Duration
	if len(q.byTime) > 0 {
		soonest = q.byTime[0].until
	}
	q.soonest.Store(int64(soonest))
	q.state.Store(uint64(len(q.byTime))<<8 | uint64(q.occupied))
}

// end takes w out of the queue and tells it why, unless it has gone. As soon as it
// is told, w is its owner's.
func (q *Queue) end(w *Waiter, now time.Duration, v Verdict) {
	q.unlink(w)
	q.ended[v]++
	q.waited += now - w.joined
	w.verdict = v
	if v != Gone {
		w.c <- v
	}
}

// link puts w into its rank, as the newest, and into byTime.
func (q *Queue) link(w *Waiter) {
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
	q.byTime = append(q.byTime, w)
	w.index = len(q.byTime) - 1
	q.up(w)
}

// unlink undoes link.
func (q *Queue) unlink(w *Waiter) {
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
	end := len(q.byTime) - 1
	moved := q.byTime[end]
	q.byTime[end] = nil
	q.byTime = q.byTime[:end]
	if moved != w {
		moved.index = w.index
		q.up(moved)
		q.down(moved)
	}
}

// up moves w towards the top of byTime until its parent is sooner.
func (q *Queue) up(w *Waiter) {
	i := w.index
	for i > 0 {
		parent := q.byTime[(i-1)/2]
		if parent.until <= w.until {
			break
		}
		q.byTime[i], parent.index = parent, i
		i = (i - 1) / 2
	}
	q.byTime[i], w.index = w, i
}

// down moves w towards the bottom of byTime until its children are later.
func (q *Queue) down(w *Waiter) {
	i := w.index
	for {
		c := 2*i + 1
		if c >= len(q.byTime) {
			break
		}
		if c+1 < len(q.byTime) && q.byTime[c+1].until < q.byTime[c].until {
			c++
		}
		child := q.byTime[c]
		if w.until <= child.until {
			break
		}
		q.byTime[i], child.index = child, i
		i = c
	}
	q.byTime[i], w.index = w, i
}
