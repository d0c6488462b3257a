package pushback

import "time"

// Forgive forgets what a client was promised, and that it came before its time. It gives its slots
// back. A crowd behind the key is forgotten with its promises. It returns how many there were.
func (a *Appointments) Forgive(now time.Duration, key uint64) (promises, strikes int) {
	for {
		if w, m := a.crowds.of(now, key); w != nil {
			promises += a.disperse(now, w)
			m.Unlock()
		}
		v := a.ledger.forgive(now, key, &strikes)
		if v.Promises == 0 {
			return promises, strikes
		}
		promises++
		a.giveBack(now, v.At, v.Trust, v.Deferred)
		a.news.add(Note{Key: key, Kept: true, At: v.At, Trust: v.Trust, Deferred: v.Deferred})
	}
}

// ForgiveQuota forgets what a client was promised for the end of its quota. key is its key in its
// zone, as in RefuseQuota.
func (a *Appointments) ForgiveQuota(now time.Duration, key uint64) (promises int) {
	for strikes := 0; a.ledger.forgive(now, key, &strikes).Promises > 0; promises++ {
	}
	return promises
}

// giveBack takes a promise out of the calendar.
func (a *Appointments) giveBack(now, at time.Duration, t Trust, deferred bool) {
	switch {
	case deferred:
		a.calendar.Leave()
	case at > now:
		a.calendar.Forget(now, at, t)
	}
}

// disperse takes all promises of a crowd back. The crowd is locked.
func (a *Appointments) disperse(now time.Duration, w *crowd) (promises int) {
	for n := w.from; n <= int64(w.until/SlotWidth); n++ {
		ring := &w.ring[n&(buckets-1)]
		for what := range ring {
			b := &ring[what]
			t := Untried
			if promise(what) == excused {
				t = Proven
			}
			for range b.n {
				if promises++; promise(what) != ask {
					a.giveBack(now, time.Duration(n)*SlotWidth, t, promise(what) == queued)
				}
			}
			w.count(promise(what), -int(b.n))
			b.n, b.number = 0, 0
		}
	}
	return promises
}

// forgive takes away one promise of a client, and returns it as it was; or all that is held
// against the client, if it has no promise.
func (l *Ledger) forgive(now time.Duration, key uint64, strikes *int) (v Visit) {
	_, r, m := l.known(key)
	if r == nil {
		return v
	}
	defer m.Unlock()
	*strikes += int(r.get(fStrikes))
	r.set(fStrikes, 0)
	if v.Promises = r.outstanding(now); v.Promises == 0 {
		r.set(fCount, 0)
		r.set(fClass, 0)
		r.set(fGap, 0)
		r.set(fScore, 0)
		return v
	}
	v.At, v.Trust, v.Deferred = r.due(now), r.trust(), r.get(fDeferred) == 1
	r.set(fCount, uint64(v.Promises-1))
	if v.Promises == 1 && !r.recall(now) {
		r.setDue(now)
		r.setPass(now)
	}
	return v
}
