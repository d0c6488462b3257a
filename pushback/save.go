package pushback

import (
	"slices"
	"time"
)

// A Record is what single clients had been promised at an instant, as it is kept over a restart. How many others come is
// measured again within seconds, and clients that are a group behind one key are new when they come.
type Record struct {
	Issued, Served   float64 // numbers in the tail
	Made, Came, Kept [trusts]float64
	Who, Due         []uint64 // of each promise, but due from then on
}

// Save returns what is promised at now. Promises are copied under one lock after the other, as by Clients.
func (a *Appointments) Save(now time.Duration) *Record {
	a.mu.Lock()
	is, p := &Record{Issued: a.issued, Served: a.served, Made: a.made, Came: a.came, Kept: a.kept}, &a.promises
	a.mu.Unlock()
	for i := 0; i < stripes && p.table.Load() != nil; i++ {
		room := (p.sets()/stripes + 1) * ways // so that they do not grow under the lock
		is.Who, is.Due = slices.Grow(is.Who, room), slices.Grow(is.Due, room)
		m := &p.locks[i].Mutex
		m.Lock()
		table := *p.table.Load()
		for j := i; j < len(table); j += stripes {
			for _, one := range table[j] {
				if in, ok := one.in(now); ok {
					is.Who, is.Due = append(is.Who, one.who), append(is.Due, dueOf(in, one.due))
				}
			}
		}
		m.Unlock()
	}
	return is
}

// Load takes what was promised a time since, as far as there is room, if nothing else is yet. rate is what the backend can
// take per second. The tail's numbers stay as they were: no one has been served since.
func (a *Appointments) Load(is *Record, since, now time.Duration, rate float64) {
	if a.Expects(now) || len(is.Who) != len(is.Due) {
		return
	}
	a.mu.Lock()
	defer a.unlock()
	a.advance(now, min(rate, maxRate))
	a.issued, a.served, a.issuedTold, a.made, a.came, a.kept = is.Issued, is.Served, is.Issued, is.Made, is.Came, is.Kept
	spare, first := a.spare(min(rate, maxRate), utilization), now+maxLate
	for i, due := range is.Due {
		in := time.Duration(int32(due>>32))*time.Millisecond - since
		one := promise{is.Who[i], dueOf(now+in, due)}
		if in < -maxLate || !a.promises.add(one, now) || one.has(isPast) {
			continue
		}
		t := one.turn(now, is.Served)
		if a.last.Store(max(a.last.Load(), int64(t.At))); in <= 0 {
			continue // its second is over
		}
		if a.Line.tell(t); t.Slot {
			a.book(t.At, t.Trust, spare, true)
			first = min(first, t.At)
		}
	}
	if first < now+maxLate { // the room of its second before it is gone
		a.secondOf(first).lost += float32((first % time.Second).Seconds() * spare)
	}
}

// add remembers a promise, if there is room.
func (p *promises) add(one promise, now time.Duration) bool {
	set, m := p.open(one.tag(), true)
	defer m.Unlock()
	for i := range set {
		if _, ok := set[i].in(now); !ok {
			set[i] = one
			return true
		}
	}
	return false
}

// dueOf returns that of a promise with its number, for another time.
func dueOf(at time.Duration, number uint64) uint64 {
	return uint64(uint32(at/time.Millisecond))<<32 | number&(1<<32-1)
}
