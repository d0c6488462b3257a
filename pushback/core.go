package pushback

import (
	"fmt"
	"math"
	"os"
	"sync"
	"sync/atomic"
	"time"
)

// Simple has the Core decide instead of the calendar.
var Simple = os.Getenv("SHIELD_CORE") == "line"

// A Core is the Line and who has which number in it.
type Core struct {
	line  Line
	turns Turns

	mu       sync.Mutex
	many     atomic.Int64
	groups   map[uint64]*group
	promised int // to all of them
}

// Arrive looks up what a client was promised, and takes it.
func (c *Core) Arrive(now time.Duration, key uint64, s Supply2, v *Visit) {
	if c.many.Load() > 0 {
		c.mu.Lock()
		if g := c.groupOf(key); g != nil {
			c.promised -= g.n
			t, ok := g.take(now)
			c.promised += g.n
			v.Crowd = true
			if ok {
				v.turn, v.Standing, v.Promises, v.Deferred = t, OnTime, 1, !t.Slot
				v.Due = c.line.Came(now, s, &t)
			}
			v.At = t.At
			c.mu.Unlock()
			return
		}
		c.mu.Unlock()
	}
	c.line.mu.Lock()
	c.line.advance(now, s)
	standing, served := c.line.Long(now, time.Second), c.line.served
	c.line.mu.Unlock()
	f := c.turns.Take(now, key, served, standing)
	v.Pass, v.tried = f.known, f.tried
	switch {
	case !f.ok:
		return
	case f.unheard:
		v.BeforeAnswer, v.Promises = true, f.n
		return
	}
	v.turn, v.At, v.Promises, v.Deferred = f.turn, f.turn.At, f.n, !f.turn.Slot
	if f.early {
		v.Standing, v.Rejected, v.Hammers = TooEarly, standing, true
		return
	}
	v.Standing = OnTime
	v.Due = c.line.Came(now, s, &f.turn)
}

// Admitted takes note that a client is let in.
func (c *Core) Admitted(now time.Duration, key uint64, v *Visit) {
	var before *Turn
	if v.Standing == OnTime && !v.Due || v.Standing == TooEarly {
		before = &v.turn
	}
	c.line.Admitted(now, v.Standing == Stranger && !v.Pass, before)
	if (v.Standing == OnTime || v.Pass) && !v.Crowd && key != 0 && c.line.last.Load() > int64(now) {
		c.turns.Put(now, key, &Turn{At: now + passAfter}, now, isTried|isPast)
	}
}

const passAfter = 4 * time.Second

// Refuse gives a client its turn.
func (c *Core) Refuse(now time.Duration, key uint64, v *Visit, s Supply2, shortest, longest, token time.Duration) (p Appointment) {
	var t Turn
	var whole time.Duration
	if v.Standing == TooEarly { // no one waited, and there is nothing
		t, whole = v.turn, v.turn.At-now
		c.turns.Put(now, key, &t, now, 0)
		return Appointment{At: t.At, Wait: whole}
	}
	if !v.Crowd && v.BeforeAnswer && v.Promises >= CrowdThreshold {
		c.mu.Lock()
		c.gather(now, key)
		c.mu.Unlock()
		v.Crowd = true
	}
	if v.Crowd {
		c.mu.Lock()
		defer c.mu.Unlock()
		g := c.groupOf(key)
		if g == nil {
			g = c.gather(now, key)
		}
		if v.Standing == Stranger && float64(c.promised) >= c.share(s, longest) {
			c.line.mu.Lock()
			at := now + max(shortest, time.Duration((0.5+0.5*c.line.draw())*float64(longest)))
			c.line.mu.Unlock()
			return Appointment{At: at, Wait: at - now, Deferred: true}
		}
		t, whole = c.line.Next(now, s, had(v), v.Due, v.Standing == OnTime || v.tried, shortest, longest, token)
		c.promised -= g.n
		g.put(now, t)
		c.promised += g.n
		return Appointment{At: t.At, Wait: whole, Deferred: !t.Slot}
	}
	t, whole = c.line.Next(now, s, had(v), v.Due, v.Standing == OnTime || v.tried, shortest, longest, token)
	return Appointment{At: t.At, Wait: whole, Deferred: !t.Slot, turn: t}
}

// share is how many promises of a group there may be: half of what the horizon holds.
func (c *Core) share(s Supply2, longest time.Duration) float64 {
	return max(CrowdThreshold, c.line.pace(s)*longest.Seconds()/2)
}

func had(v *Visit) *Turn {
	if v.Standing == OnTime {
		return &v.turn
	}
	return nil
}

// Write remembers the turn of a client, that is told at an instant.
func (c *Core) Write(now time.Duration, key uint64, v *Visit, p *Appointment, told time.Duration) {
	if key == 0 || p.turn == (Turn{}) {
		return
	}
	flags := uint64(0)
	if v.Standing == OnTime || v.tried {
		flags = isTried
	}
	if !c.turns.Put(now, key, &p.turn, max(told, now+minAnswerTransit), flags) && v.Promises >= 2 {
		c.mu.Lock()
		c.gather(now, key).put(now, p.turn)
		c.mu.Unlock()
	}
}

// Reserve returns which share of the burst a request leaves to those that are due.
func (c *Core) Reserve(v *Visit) float64 {
	switch {
	case v.Due && !v.Crowd:
		return 0
	case v.Pass:
		return 0.2
	case v.Crowd: // whoever comes could be the one that is due: after first tries
		return 0.5
	case v.Standing == OnTime:
		return 0.3
	}
	return 0.3 + 0.7*c.line.doubt()
}

func (c *Core) stats(s *CalendarStats) {
	l := &c.line
	l.mu.Lock()
	defer l.mu.Unlock()
	s.KeptShare = l.keep()[0]
	s.Deferred = 0
	s.Waiting = int(max(0, l.issued-l.served))
	s.Promises = Promises{Made: l.counts.Made, Deferred: l.counts.Deferred, Kept: l.counts.Kept, Late: l.counts.Late}
}

var inf = math.Inf(1)

// refuseQuota tells a client over its quota when its token is earned, and no sooner than the
// line's end. It takes no number: what it may not use it need not book.
func (a *Appointments) refuseQuota(now time.Duration, c *Caller, key uint64, wait, each time.Duration, t *Terms, s Supply, d *Told) {
	r := a.rates(c, t, s)
	f := a.Core.turns.Take(now, key, 0, true)
	p := Appointment{At: now + min(wait, r.Max)}
	switch {
	case f.early && !f.unheard:
		if now+wait <= f.turn.At+repeatSlack {
			d.Tell(f.turn.At-now, false, t)
			return
		}
	case f.unheard:
		p.At = now + min(wait+time.Duration(f.n)*each, r.Max)
	}
	p.Wait = p.At - now
	a.tell(now, c, t, p, f.ok, d)
	if f.n < CrowdThreshold {
		a.Core.turns.Put(now, key, &Turn{At: p.At, Slot: true}, max(now+d.Hold, now+minAnswerTransit), 0)
	}
}

func (c *Core) Dump() string {
	l := &c.line
	return fmt.Sprintf("ahead %.0f kept %.3f base %.1f until %.1f made %.0f came %.0f %+v", l.issued-l.served, l.keep(), l.base, time.Duration(l.until.Load()-int64(l.at)).Seconds(), l.made, l.came, l.counts)
}
