package pushback

import "time"

// A Record is what single clients had been promised at an instant, as it is kept over a restart. How many others come is
// measured again within seconds, and clients that are a group behind one key are new when they come.
type Record struct {
	Issued, Served   float64 // numbers in the tail
	Made, Came, Kept [trusts]float64
	Who, Due         []uint64 // of each promise, but due from then on
}

// Save returns what is promised at now. Promises are copied under one lock after the other.
func (a *Appointments) Save(now time.Duration) *Record {
	a.mu.Lock()
	is := &Record{Issued: a.issued, Served: a.served, Made: a.made, Came: a.came, Kept: a.kept}
	a.mu.Unlock()
	a.promises.all(func(one promise) {
		if in, ok := one.in(now); ok {
			is.Who, is.Due = append(is.Who, one.who), append(is.Due, dueOf(in, one.due))
		}
	})
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
	a.advance(now, rate)
	a.issued, a.served, a.issuedTold, a.made, a.came, a.kept = is.Issued, is.Served, is.Issued, is.Made, is.Came, is.Kept
	spare, first := a.spare(rate, utilization), now+maxLate
	for i, due := range is.Due {
		in := time.Duration(int32(due>>32))*time.Millisecond - since
		one := promise{is.Who[i], dueOf(now+in, due)}
		if in < -maxLate || !a.promises.add(one) || one.has(isPast|isQuota) {
			continue
		}
		t := one.turn(now, is.Served)
		if a.last.Store(max(a.last.Load(), int64(t.At))); in <= 0 {
			continue // its second is over
		}
		if a.Line.tell(t); t.Slot {
			a.book(t.At, t.Trust, spare)
			first = min(first, t.At)
		}
	}
	if first < now+maxLate { // the room of its second before it is gone
		a.secondOf(first).lost += float32((first % time.Second).Seconds() * spare)
	}
}

// dueOf returns that of a promise with its number, for another time.
func dueOf(at time.Duration, number uint64) uint64 {
	return uint64(uint32(at/time.Millisecond))<<32 | number&(1<<32-1)
}
