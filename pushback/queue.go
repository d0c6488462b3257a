package pushback

import (
	"math"
	"time"
)

const (
	// maxChances is how many chances can be saved up: see Calendar.Chance.
	maxChances = 10

	// The queue has run dry where the promises reach less far than a queueDryFraction-th
	// of the horizon. Then the clients whose turn it is have gone for good, as after a
	// flood of clients that never come back, and the first to ask is the first served.
	// Ours: at one request per second and more, no simulated herd of clients that come
	// back let it fall so far. Where a horizon holds only a few slots it happens, and the
	// order suffers a little.
	queueDryFraction = 16

	// farHops is the number of hops from which on a deferred client's next time is
	// random, not computed: see Calendar.hop.
	farHops = 4
)

// A queue is the order of the deferred clients, which a Calendar's horizon had no slot
// for.
//
// No deferred client is stored: it carries a number, and the queue is how many numbers
// have been issued and how many of them served. served moves on with time, at the rate
// at which slots come into reach, whether or not the clients come for them. So a client
// that never returns does not hold up the others. A client asks again with its number.
// If that is served, as it usually is by then, it gets a slot of the calendar, otherwise
// the next time to ask.
//
// It is guarded by the Calendar's lock.
type queue struct {
	issued, served float64 // numbers up to served may have a slot
	servedAt       time.Duration
	chances        float64 // how many clients that ask may be served at once: see Chance
	random         uint64  // state of the generator for hops
}

// Later returns a random time, within about twice as long as others wait, for a client
// that must wait but gets neither a slot nor a number.
func (c *Calendar) Later(now time.Duration, r Rates) Appointment {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.counts.Deferred++
	reach := min(r.Max, 2*c.Ahead(now)+2*time.Second)
	wait := c.Ahead(now)
	if c.issued > c.served {
		reach, wait = r.Max, c.wait(c.issued+1, r)
	}
	at := now + max(r.Min, time.Duration(c.draw()*float64(reach)))
	c.last.Store(max(c.last.Load(), int64(at)))
	return Appointment{At: at, Deferred: true, Wait: max(wait, at-now), Window: now + r.Max - at}
}

// Ask returns when a client shall ask again that must wait until from, and for so many
// more slots to be used after it.
func (c *Calendar) Ask(now, from time.Duration, more int, r Rates) Appointment {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.counts.Deferred++
	wait := float64(from-now) + float64(more)/c.spare(r.Rate)*float64(time.Second)
	at, hops := c.jitter(now, r), math.Ceil(wait/float64(r.Max))
	if hops < farHops {
		at = now + max(r.Min, time.Duration(wait/hops))
	}
	c.last.Store(max(c.last.Load(), int64(at)))
	return Appointment{At: at, Deferred: true, Wait: time.Duration(wait) + c.Ahead(now)}
}

// Rebook gives a deferred client that has come back in time its slot, if it is near,
// otherwise the next time to ask.
func (c *Calendar) Rebook(now time.Duration, v Visit, r Rates) Appointment {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.advance(now, r)
	number := v.number(c.served)
	if number <= c.served {
		if a, ok := c.slot(now, r, 1, v.Trust); ok {
			return a
		}
	}
	return c.hop(now, number, r)
}

// Overdue reports whether a deferred client's slot would have been before now: a
// horizon after its number was served.
func (c *Calendar) Overdue(now time.Duration, v Visit, r Rates) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.advance(now, r)
	return v.number(c.served) < c.served-r.Max.Seconds()*c.spare(r.Rate)/c.share(Untried)
}

// Chance reports whether a deferred client that asks again in time may have a token at
// once, if there is one. That saves a request, but takes the token from a stranger. So
// deferred clients get at most as many as strangers bring, and fewer if they fill more
// than two horizons. Otherwise a very large herd would be served alone until it has
// gone.
func (c *Calendar) Chance(now time.Duration, r Rates) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.advance(now, r)
	return c.chances >= 1
}

// Unqueue takes back the last number: its client is not remembered, or shall not come back.
func (c *Calendar) Unqueue() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.issued = max(c.served, c.issued-1)
}

// Leave removes a deferred client that has been served without a slot: the others move up.
func (c *Calendar) Leave() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.served = min(c.issued, c.served+1)
	c.left++
	c.chances = max(0, c.chances-1)
}

// advance brings the queue to now.
func (c *Calendar) advance(now time.Duration, r Rates) {
	c.mature(now)
	if passed := now - c.servedAt; passed > 0 && c.issued > c.served { // the rate may be infinite
		rate := c.spare(r.Rate) / c.share(Untried)
		c.served = min(c.issued, c.served+passed.Seconds()*rate)
		perHorizon := rate * r.Max.Seconds()
		share := min(1, 2*perHorizon/max(1, c.issued-c.served))
		c.chances = min(maxChances, c.chances+passed.Seconds()*share*c.base.rate)
	}
	if c.issued > c.served && r.Token < r.Max && c.dry(now, r) { // else no slot could be promised
		c.served, c.dried = c.issued, true
	}
	c.servedAt = max(c.servedAt, now)
}

// dry reports whether the queue has run dry. In a flood the promises may reach far, but
// mean little: then it has where most of the next slots are free, by what is known now.
func (c *Calendar) dry(now time.Duration, r Rates) bool {
	reach := r.Max / queueDryFraction
	if c.Ahead(now) < reach {
		return true
	}
	if c.planned() > 0 {
		return false
	}
	first := c.number(now+r.Min) + 1
	last := first + int64(reach/SlotWidth)
	load := 0.0
	for n := first; n <= last; n++ {
		if b := c.bucket(n); b != nil {
			load += c.load(b)
		}
	}
	return load < c.spare(r.Rate)*SlotWidth.Seconds()*float64(last-first+1)/2
}

// hop returns when a deferred client with a number shall ask again. Its slot will come
// into reach when those before it have theirs: after wait. It needs at least
// wait/horizon hops, and takes them equally long, so that it asks no more often than it
// must, and all keep their order. Where that would bring too many back at about the
// same time, it gets a random time in the last quarter of the horizon.
func (c *Calendar) hop(now time.Duration, number float64, r Rates) Appointment {
	c.counts.Deferred++
	a := Appointment{Deferred: true, Number: number, Wait: c.wait(number, r)}
	wait := a.Wait.Seconds()
	if hops := math.Ceil(wait / r.Max.Seconds()); hops >= 2 && hops < farHops && r.Token <= r.Max {
		a.At = now + max(r.Min, time.Duration(wait/hops*float64(time.Second)))
		c.last.Store(max(c.last.Load(), int64(a.At)))
	} else {
		a.At = c.jitter(now, r)
		a.Window = now + r.Max - a.At
	}
	return a
}

// wait returns how long a client with a number waits.
func (c *Calendar) wait(number float64, r Rates) time.Duration {
	rate := c.spare(r.Rate) / c.share(Untried)
	wait := r.Max.Seconds() + max(0, number-c.served)/rate
	return time.Duration(min(wait, 1e9) * float64(time.Second))
}

// jitter returns a random time in the last quarter of the horizon.
func (c *Calendar) jitter(now time.Duration, r Rates) time.Duration {
	d := time.Duration((0.75 + 0.25*c.draw()) * float64(r.Max))
	at := now + max(r.Min, d)
	c.last.Store(max(c.last.Load(), int64(at)))
	return at
}

// draw returns a number in [0, 1): SplitMix64 (Steele, Lea and Flood, 2014). It needs no
// seed: clients cannot predict it, as they do not know how many were drawn before.
func (q *queue) draw() float64 {
	q.random += 0x9e3779b97f4a7c15
	z := q.random
	z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
	z = (z ^ z>>27) * 0x94d049bb133111eb
	return float64((z^z>>31)>>11) / (1 << 53)
}
