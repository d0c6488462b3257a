package pushback

import "time"

// CopyTo makes zero Appointments ones that answer at now as a would, for the clients of the
// keys: what a knows of others is not in them, nor of agents that do not wait for a rejection,
// and they know no tickets. No call to them changes a.
func (a *Appointments) CopyTo(c *Appointments, now time.Duration, keys ...uint64) {
	a.copyTo(&c.Line)
	c.promises.resize(max(MinMaxClients, len(keys)*ways))
	for _, key := range keys {
		if w := a.groups.find(key); w != nil {
			is := *w
			c.groups.promises = a.groups.promises
			a.groups.mu.Unlock()
			c.groups.of = map[uint64]*group{key: &is}
			c.groups.n.Store(1)
		}
		a.promises.each(now, key, 0, func(p promise, _ Turn) bool {
			c.promises.add(p)
			return true
		})
	}
}

// A Client is what is known of one client.
type Client struct {
	Promises int           // how many times are promised to it
	Due      time.Duration // the nearest of them, as the time since the epoch
	Deferred bool          // it is no slot, but the time at which to ask again
	Kind     Class         // how it came back last
	Proven   bool          // it has come back
	Shared   bool          // it is one of several behind one key
}

// Client returns what is known of a client, and changes nothing.
func (a *Appointments) Client(now time.Duration, key uint64) (c Client) {
	note := func(t Turn) {
		if c.Promises++; c.Promises == 1 || t.At < c.Due {
			c.Due, c.Deferred = t.At, !t.Slot
		}
		c.Proven = c.Proven || t.Trust == Proven
	}
	if w := a.groups.find(key); w != nil {
		defer a.groups.mu.Unlock()
		c.Shared = true
		w.all(note)
		return c
	}
	a.promises.each(now, key, a.serving(), func(p promise, t Turn) bool {
		if c.Kind = p.kind(); p.has(isPast) {
			c.Proven = c.Proven || p.has(isProven)
		} else {
			note(t)
		}
		return true
	})
	return c
}

// Forgive forgets what a client was promised, and how it has come back. Its slots are free
// again. A group behind the key is forgotten with its promises. It returns how many there
// were.
func (a *Appointments) Forgive(now time.Duration, key uint64) (promises int) {
	giveBack := func(t Turn) {
		promises++
		a.giveBack(now, &t)
	}
	if w := a.groups.find(key); w != nil {
		w.all(giveBack)
		a.groups.drop(w)
		a.groups.mu.Unlock()
	}
	a.promises.each(now, key, a.serving(), func(p promise, t Turn) bool {
		switch {
		case p.has(isQuota): // the line has no slot of it
			promises++
		case !p.has(isPast):
			giveBack(t)
		}
		return false
	})
	return promises
}
