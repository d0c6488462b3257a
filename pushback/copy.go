package pushback

import "time"

// CopyTo makes zero Appointments ones that answer at now as a would, for the clients of the
// keys: what a knows of others is not in them. No call to them changes a. They
// know no tickets, and have no news for other replicas.
func (a *Appointments) CopyTo(c *Appointments, now time.Duration, keys ...uint64) {
	a.calendar.copyTo(&c.calendar)
	a.ledger.copyTo(&c.ledger, keys)
	a.crowds.copyTo(&c.crowds, now, keys)
	a.patience.copyTo(&c.patience)
	c.moment.n.Store(a.moment.n.Load())
	c.moment.usual.Store(a.moment.usual.Load())
	c.held.Store(a.held.Load())
	c.herds.of = &a.herds
}

func (c *Calendar) copyTo(to *Calendar) {
	c.mu.Lock()
	defer c.mu.Unlock()
	to.until.Store(c.until.Load())
	to.last.Store(c.last.Load())
	to.waiting.Store(c.waiting.Load())
	if c.ring != nil {
		ring := *c.ring
		to.ring = &ring
	}
	to.full, to.fullSize, to.queue = c.full, c.fullSize, c.queue
	to.base, to.kept, to.surge = c.base, c.kept, c.surge
	to.doubt.Store(c.doubt.Load())
	to.slotState = c.slotState
	to.matured, to.missed, to.overQuota, to.shared, to.counts = c.matured, c.missed, c.overQuota, c.shared, c.counts
}

// copyTo copies the records of a few clients. There is always room for them in the copy.
func (l *Ledger) copyTo(to *Ledger, keys []uint64) {
	to.size.Store(int64(max(MinMaxClients/ways, len(keys))))
	for _, key := range keys {
		if _, r, m := l.known(key); r != nil {
			is := *r
			m.Unlock()
			if to.table.Load() == nil {
				to.create()
			}
			if s, unlock := to.open(tagOf(key)); s.find(tagOf(key)) == nil {
				*s.candidate(0, false) = is
				unlock.Unlock()
			} else {
				unlock.Unlock()
			}
		}
	}
}

func (c *crowds) copyTo(to *crowds, now time.Duration, keys []uint64) {
	for _, key := range keys {
		w, m := c.of(now, key)
		if w == nil {
			continue
		}
		is := *w
		m.Unlock()
		for i := range to.sets[key%uint64(len(to.sets))] {
			if s := &to.sets[key%uint64(len(to.sets))][i]; s.key.CompareAndSwap(0, key) {
				s.crowd = &is
				to.n.Add(1)
				break
			}
		}
	}
}

func (p *patience) copyTo(to *patience) {
	for i := range p.debts {
		to.debts[i].Store(p.debts[i].Load())
	}
	to.patient.Store(p.patient.Load()) // a copy hears no client, so it does not write there
}

// A Client is what is known of one client.
type Client struct {
	Promises int           // how many times are promised to it
	Due      time.Duration // the nearest of them, as the time since the epoch
	Deferred bool          // it is no slot, but the time at which to ask again
	Strikes  int           // returns before the time
	Kind     Class         // how it retries, as far as that is known
	Proven   bool          // it has come when it was told
	Crowd    bool          // it is one of several behind one key
}

// Client returns what is known of a client, and changes nothing.
func (a *Appointments) Client(now time.Duration, key uint64) (c Client) {
	if w, m := a.crowds.of(now, key); w != nil {
		defer m.Unlock()
		c.Crowd = true
		for n := w.from; n <= int64(w.until/SlotWidth); n++ {
			for _, b := range w.ring[n&(buckets-1)] {
				if b.n > 0 && c.Promises == 0 {
					c.Due = time.Duration(n) * SlotWidth
				}
				c.Promises += int(b.n)
			}
		}
		return c
	}
	_, r, m := a.ledger.known(key)
	if r == nil {
		return c
	}
	defer m.Unlock()
	c.Strikes, c.Kind, c.Proven = int(r.get(fStrikes)), Class(r.get(fClass)), r.trust() == Proven
	if c.Promises = r.outstanding(now); c.Promises > 0 {
		c.Due, c.Deferred = r.due(now), r.get(fDeferred) == 1
		aside, _ := r.aside(now)
		c.Promises += aside
	}
	return c
}
