package pushback

import (
	"sync"
	"sync/atomic"
	"time"
)

const (
	// maxCrowds is how many crowds are known at once, at 8 KiB each, in sets of crowdWays.
	maxCrowds = 256
	crowdWays = 8

	// promiseLife is for how long a promise to one of a crowd may be used by any of it. Ours:
	// clients that obey come within milliseconds, and promises of clients that never come
	// back must not put the crowd before all others.
	promiseLife = 5 * time.Second

	// crowdEarly is how much before its bucket one of a crowd is due, as clocks differ.
	crowdEarly = 50 * time.Millisecond
)

// crowds remembers the promises to clients that share one key, as behind a NAT, a CDN or a
// gateway: not which client has which, but how many are due when. A client that returns
// uses up the nearest. A crowd is forgotten a minute after its last promise. The zero
// crowds is empty. It is safe for concurrent use.
type crowds struct {
	n    atomic.Int32
	sets [maxCrowds / crowdWays][crowdWays]struct {
		key   atomic.Uint64 // 0: none
		mu    sync.Mutex    // guards crowd
		crowd *crowd
	}
}

// A crowd is a ring of the calendar's buckets. Clients that are more than its share of the
// slots wait in a queue of its own: their numbers count the slots that have become free.
type crowd struct {
	ring    [buckets]crowdBucket
	from    int64         // all buckets before it are empty
	until   time.Duration // the last promise
	slots   int           // promised
	freed   uint32        // slots, used or not
	waiting int           // in the crowd's queue
}

// A crowdBucket holds how many clients were promised what within slotWidth, and the mean
// of their numbers.
type crowdBucket [promises]struct {
	number uint32
	n      uint16
}

// A promise is what one of a crowd was told to come for.
type promise uint8

const (
	slot   promise = iota // of the calendar
	turn                  // its number in the crowd's queue will be next
	queued                // a number in the calendar's queue
	ask                   // to ask once more, before its turn
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

// begin makes a crowd of the clients of a key, which have the slots that v says. It
// reports false if there are too many crowds.
func (c *crowds) begin(now time.Duration, key uint64, v *Visit) bool {
	set := &c.sets[key%uint64(len(c.sets))]
	for i := range set {
		s := &set[i]
		s.mu.Lock()
		is := s.key.Load()
		free := is == 0 || now > s.crowd.until+promiseLife
		if free && is != key {
			if s.key.Swap(key) == 0 {
				c.n.Add(1)
			}
			s.crowd = &crowd{from: int64(now / slotWidth)}
			for range v.Promises {
				s.crowd.put(v.At, slot, 0)
			}
		}
		s.mu.Unlock()
		if free || is == key { // another of its requests may have begun it
			return true
		}
	}
	return false
}

// count adds to the number of promises of a kind.
func (w *crowd) count(what promise, n int) {
	switch what {
	case slot:
		w.slots += n
		w.freed += uint32(max(0, -n))
	case turn, ask:
		w.waiting += n
	}
}

// put notes a promise. One that there is no room for makes a stranger of its client.
func (w *crowd) put(at time.Duration, what promise, number uint32) {
	b := &w.ring[int64(at/slotWidth)&(buckets-1)][what]
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
	for end := int64((now - promiseLife) / slotWidth); w.from < end; w.from++ {
		b := &w.ring[w.from&(buckets-1)]
		for what := range b {
			w.count(promise(what), -int(b[what].n))
		}
		*b = crowdBucket{}
	}
}

// due completes a Visit with the earliest promise that has come.
func (w *crowd) due(now time.Duration, v *Visit) {
	v.Crowd = true
	for n := w.from; n <= int64((now+crowdEarly)/slotWidth); n++ {
		for what, b := range w.ring[n&(buckets-1)] {
			if b.n == 0 {
				continue
			}
			v.promise, v.At, v.Promises = promise(what), time.Duration(n)*slotWidth, 1
			v.Number, v.Deferred = b.number, v.promise == queued
			if v.promise == slot || v.promise == queued {
				v.Standing = OnTime
			}
			return
		}
	}
}

// take uses up the promise of a Visit, unless another has.
func (w *crowd) take(v *Visit) {
	b := &w.ring[int64(v.At/slotWidth)&(buckets-1)][v.promise]
	if v.Promises == 0 || b.n == 0 {
		return
	}
	if b.n--; b.n == 0 {
		b.number = 0
	}
	w.count(v.promise, -1)
}

// freedAt returns when so many more of the slots will have become free, or when all of them
// will, and how many more are needed then.
func (w *crowd) freedAt(now time.Duration, n int) (at time.Duration, more int) {
	last := int64(now / slotWidth)
	for b := w.from; n > 0 && b <= int64(w.until/slotWidth); b++ {
		n -= int(w.ring[b&(buckets-1)][slot].n)
		last = max(last, b)
	}
	return time.Duration(last+1) * slotWidth, max(0, n)
}

// keepOne notes that one of a crowd has been admitted.
func (a *Appointments) keepOne(now time.Duration, client uint64, v *Visit) {
	if w, m := a.crowds.of(now, client); w != nil {
		w.take(v)
		m.Unlock()
	}
	switch v.promise {
	case slot:
		a.calendar.Kept(now, v.At)
	case queued:
		a.calendar.Leave()
	}
}

// refuseOne refuses one of a crowd. It gets a slot if the crowd has not more than its share
// of them, or if it has been promised one. If not, it waits in the crowd's queue.
func (a *Appointments) refuseOne(now time.Duration, c *Caller, v *Visit, t *Terms, r Rates, d *Told) {
	w, m := a.crowds.of(now, c.Key)
	if w == nil { // it was forgotten this moment
		a.tell(now, c, t, a.calendar.Later(now, r), false, d)
		return
	}
	share := a.shareOfCrowd(now, r)
	number, booked := w.freed+uint32(w.waiting)+1, w.waiting == 0 && w.slots < share
	if v.Promises > 0 {
		w.take(v)
		number, booked = v.Number, v.Standing == OnTime || w.slots < share
	}
	var p Appointment
	what := slot
	if booked {
		if p, _ = a.book(now, v, r); p.Deferred {
			what, number = queued, uint32(uint64(p.Number)/numberUnit)
		}
	} else {
		from, more := w.freedAt(now, max(1, int(int32(number-w.freed)))+max(0, w.slots-share))
		var last bool
		if p, last = a.calendar.Ask(now, from, more, r); last {
			what = turn
		} else {
			what = ask
		}
	}
	never := t.tooLong(&p, d)
	if !never {
		w.put(p.At, what, number)
	} else if booked {
		a.forget(now, c.Key, p, ReplaceNone)
	}
	m.Unlock()
	if !never {
		a.tell(now, c, t, p, true, d)
	}
}

// shareOfCrowd returns how many slots a crowd may have at once: as many as there are
// left, half of the horizon, and the next crowd a quarter, so that none takes all of it
// from the others. Those are the dynamic thresholds of shared-memory switches (Choudhury
// and Hahne, 1998).
func (a *Appointments) shareOfCrowd(now time.Duration, r Rates) int {
	free := (r.Max - a.calendar.Ahead(now)).Seconds() * a.calendar.Spare(r.Service)
	return max(CrowdThreshold, int(free))
}
