package pushback

import (
	"math"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// maxCrowds is how many crowds are known at once, at 16 KiB each, in sets of crowdWays.
	maxCrowds = 256
	crowdWays = 8

	// promiseLife is for how long a promise to one of a crowd may be used by any of it. Ours:
	// clients that obey come within milliseconds, and promises of clients that never come
	// back must not put the crowd before all others.
	promiseLife = 5 * time.Second

	// maxWaiting is how many of a crowd may wait in its queue. Further ones are told any time,
	// at the cost of a client that comes too early.
	maxWaiting = 1 << 13

	// crowdEarly is how much before its bucket one of a crowd is due, as clocks differ.
	crowdEarly = 50 * time.Millisecond
)

// crowds remembers the promises to clients that share one key, as behind a NAT, a CDN or a
// gateway: not which client has which, but how many are due when. A client that returns
// uses up the nearest. A crowd is forgotten a minute after its last promise. The zero
// crowds is empty. It is safe for concurrent use.
type crowds struct {
	n    atomic.Int32
	sets [maxCrowds / crowdWays][crowdWays]crowdPlace
}

// A crowdPlace is where one crowd is.
type crowdPlace struct {
	key   atomic.Uint64 // 0: none
	mu    sync.Mutex    // guards crowd
	crowd *crowd
}

// A crowd is a ring of the calendar's buckets. Clients beyond the crowds' share of the slots
// wait in a queue of its own: their numbers count the slots that have become free.
type crowd struct {
	ring    [buckets]crowdBucket
	from    int64         // all buckets before it are empty
	until   time.Duration // the last promise
	slots   int           // of the calendar, promised
	freed   uint32        // slots, used or not
	waiting int           // in the crowd's queue
}

// A crowdBucket holds how many clients were promised what within SlotWidth, and the mean
// of their numbers.
type crowdBucket [promises]struct {
	number uint32
	n      uint16
}

// A promise is what one of a crowd was told to come for.
type promise uint8

const (
	slot    promise = iota // of the calendar
	excused                // the same, instead of one that was broken
	queued                 // a number in the calendar's queue
	ask                    // a number in the crowd's queue
	promises
)

// of locks the crowd of a key, if it is one.
func (c *crowds) of(now time.Duration, key uint64) (w *crowd, unlock *sync.Mutex) {
	if c.n.Load() == 0 || key == 0 {
		return nil, nil
	}
	set := &c.sets[key%uint64(len(c.sets))]
	for i := range set {
		s := &set[i]
		if s.key.Load() != key {
			continue
		}
		s.mu.Lock()
		if s.key.Load() == key {
			if now <= s.crowd.until+maxLate {
				s.crowd.forget(now)
				return s.crowd, &s.mu
			}
			s.key.Store(0)
			c.n.Add(-1)
		}
		s.mu.Unlock()
	}
	return nil, nil
}

// begin makes a crowd of the clients of a key, which have the promises that v says. Where all
// places are taken, the crowd with the fewest promises is forgotten: clients that do not come
// when they are told have none after a while.
func (c *crowds) begin(now time.Duration, key uint64, v *Visit) {
	set := &c.sets[key%uint64(len(c.sets))]
	victim, fewest := &set[0], math.MaxInt
	for i := range set {
		s, n := &set[i], 0
		s.mu.Lock()
		is := s.key.Load()
		if is != 0 && now <= s.crowd.until+promiseLife {
			s.crowd.forget(now)
			n = 1 + s.crowd.slots + s.crowd.waiting
		}
		s.mu.Unlock()
		if is == key { // another of its requests has begun it
			return
		}
		if n < fewest {
			victim, fewest = s, n
		}
	}
	victim.mu.Lock()
	defer victim.mu.Unlock()
	if victim.crowd == nil {
		victim.crowd = new(crowd)
	}
	switch victim.key.Swap(key) {
	case 0:
		c.n.Add(1)
	case key:
		return
	}
	*victim.crowd = crowd{from: int64(now / SlotWidth), until: now}
	what := slot
	if v.Deferred {
		what = queued
	}
	for range v.Promises {
		victim.crowd.put(v.At, what, v.Number)
	}
}

// count adds to the number of promises of a kind.
func (w *crowd) count(what promise, n int) {
	switch what {
	case slot, excused:
		w.slots += n
		w.freed += uint32(max(0, -n))
	case ask:
		w.waiting += n
	}
}

// put notes a promise. One that there is no room for makes a stranger of its client.
func (w *crowd) put(at time.Duration, what promise, number uint32) {
	n := max(int64(at/SlotWidth), w.from) // the clock may have been read long ago
	b := &w.ring[n&(buckets-1)][what]
	if b.n == 1<<16-1 {
		return
	}
	b.n++
	b.number += uint32(int32(number-b.number) / int32(b.n))
	w.count(what, 1)
	w.until = max(w.until, at)
}

// forget drops promises that are too old.
func (w *crowd) forget(now time.Duration) {
	for end := int64((now - promiseLife) / SlotWidth); w.from < end; w.from++ {
		b := &w.ring[w.from&(buckets-1)]
		for what := range b {
			w.count(promise(what), -int(b[what].n))
		}
		*b = crowdBucket{}
	}
}

// take uses up the earliest promise that has come, and completes the Visit of the client
// that it is taken to be. strict: one for which there is no room is rejected.
func (w *crowd) take(now time.Duration, strict bool, v *Visit) {
	v.Crowd, v.Excess = true, w.waiting > w.slots/8
	for n := w.from; n <= int64((now+crowdEarly)/SlotWidth); n++ {
		ring := &w.ring[n&(buckets-1)]
		for what := range ring {
			b := &ring[what]
			if b.n == 0 {
				continue
			}
			v.promise, v.At, v.Promises, v.Number = promise(what), time.Duration(n)*SlotWidth, 1, b.number
			if v.Deferred = v.promise == queued; v.promise != ask {
				v.Standing = OnTime
			}
			if v.promise == excused {
				v.Trust = Proven
			}
			if b.n--; b.n == 0 {
				b.number = 0
			}
			w.count(v.promise, -1)
			return
		}
		if n < int64(now/SlotWidth) { // no client is told a time that is over
			w.from = n + 1
		}
	}
	if w.waiting >= maxWaiting {
		v.Standing, v.Rejected, v.Hammers = Ambiguous, strict, true
	}
}

// use takes away the promise of a kind that is nearest to an instant, as another replica has
// seen it kept.
func (w *crowd) use(at time.Duration, what promise) bool {
	for n := max(w.from, int64(at/SlotWidth)-1); n <= int64(w.until/SlotWidth); n++ {
		if b := &w.ring[n&(buckets-1)][what]; b.n > 0 {
			b.n--
			w.count(what, -1)
			return true
		}
	}
	return false
}

// freedAt returns when so many more of the slots will have become free, or when all of them
// will, and how many more are needed then.
func (w *crowd) freedAt(now time.Duration, n int) (at time.Duration, more int) {
	last := int64(now / SlotWidth)
	for b := w.from; n > 0 && b <= int64(w.until/SlotWidth); b++ {
		n -= int(w.ring[b&(buckets-1)][slot].n + w.ring[b&(buckets-1)][excused].n)
		last = max(last, b)
	}
	return time.Duration(last+1) * SlotWidth, max(0, n)
}

// refuseOne refuses one of a crowd. It gets a slot if it had one, or if the crowds have no
// more than their share of them. If not, it waits in the crowd's queue.
func (a *Appointments) refuseOne(now time.Duration, c *Caller, v *Visit, t *Terms, r Rates, d *Told) {
	w, m := a.crowds.of(now, c.Key)
	if w == nil { // it was forgotten this moment
		a.tell(now, c, t, a.calendar.Later(now, r), false, d)
		return
	}
	p, never := a.promiseOne(now, w, c.Key, v, t, r, d)
	m.Unlock()
	if !never {
		a.tell(now, c, t, p, true, d)
	}
}

// promiseOne books for one of a crowd and notes the promise, unless its client is told
// never to come back. The crowd is locked.
func (a *Appointments) promiseOne(now time.Duration, w *crowd, key uint64, v *Visit, t *Terms, r Rates, d *Told) (p Appointment, never bool) {
	what, number, over := slot, w.freed+uint32(w.waiting)+1, 0
	if v.Promises > 0 && v.promise == ask {
		number = v.Number
	}
	ahead := max(0, int(int32(number-w.freed))) // of the crowd's queue
	switch {
	case v.Standing == OnTime:
		p, _ = a.book(now, v, r)
	case v.Excess && v.Promises == 0: // it waits behind those that do
		over = 1
	default:
		p, over = a.calendar.BookShared(now, r)
	}
	switch {
	case over > 0:
		what = ask
		from, more := w.freedAt(now, over+ahead)
		p = a.calendar.Ask(now, from, more, r)
	case p.Trust == Proven:
		what = excused
	case p.Deferred:
		what, number = queued, uint32(uint64(p.Number)/numberUnit)
	}
	if never = t.tooLong(&p, d); !never {
		w.put(p.At, what, number)
		a.news.add(Note{Key: key, Crowd: true, Promise: uint8(what), At: p.At, Trust: p.Trust, Deferred: what == queued || what == ask, Number: number, Told: now})
	} else if over == 0 {
		a.forget(now, 0, p, ReplaceNone)
	}
	return p, never
}
