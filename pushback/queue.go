package pushback

import (
	"math"
	"time"
)

const (
	// maxChances is how many chances can be saved up: see Calendar.Chance.
	maxChances = 10

	// dry is what part of the horizon the promises reach at least while those in
	// the queue come for theirs. Where they reach less far, those whose turn it is
	// have gone for good, as after a flood of clients that never come back, and
	// whoever asks first is served first. Ours: at one request per second and more,
	// no simulated herd of clients that come back ever let it fall so far; where a
	// horizon holds but a few slots it happens, and the order suffers a little.
	dry = 16

	// farHops is from how many hops on a deferred client's next time is drawn,
	// not reckoned: see Calendar.hop.
	farHops = 4
)

// A queue is the order of those for whom a Calendar's horizon has had no room.
//
// A deferred client is not kept anywhere: it carries a number, and the queue is
// how many numbers have been issued and how many of them served. served moves
// on with time, at the rate at which slots come into reach, whether or not those
// whose numbers they are come for them; so one that never returns holds nobody
// up. A client asks again with its number, and where that is served gets a slot
// of the calendar, or else the next time to ask.
//
// It is guarded by the Calendar's lock.
type queue struct {
	issued, served float64 // numbers up to served may have a slot
	servedAt       time.Duration
	chances        float64 // how many who ask may be served at once: see Chance
	random         uint64  // state of the generator for hops
}

// Later returns a time for a client that is to wait but gets no place anywhere: a
// random one, within about twice as long as others wait.
func (c *Calendar) Later(now time.Duration, r Rates) Appointment {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.counts.Deferred++
	reach := min(r.Max, 2*c.Ahead(now)+2*time.Second)
	if c.issued > c.served {
		reach = r.Max
	}
	at := now + max(r.Min, time.Duration(c.draw()*float64(reach)))
	c.last.Store(max(c.last.Load(), int64(at)))
	return Appointment{At: at, Deferred: true, Wait: at - now, Window: now + r.Max - at}
}

// Rebook gives a deferred client that has come back in time its slot, if it is
// near, or else the next time to ask.
func (c *Calendar) Rebook(now time.Duration, v Visit, r Rates) Appointment {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.advance(now, r)
	number := v.number(c.served)
	if number <= c.served {
		if at, ok := c.slot(now+max(r.Min, r.Token), now+r.Max, r, 1); ok {
			return c.promise(now, at)
		}
	}
	return c.hop(now, number, r)
}

// Overdue reports whether a deferred client's slot would have been before now:
// a horizon after its number was served.
func (c *Calendar) Overdue(now time.Duration, v Visit, r Rates) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.advance(now, r)
	return v.number(c.served) < c.served-r.Max.Seconds()*c.spare(r.Service)/c.kept.share()
}

// Chance reports whether a deferred client that asks again in time, and for whom
// there is a token, may have it at once. That saves a request; but the token
// would have been a stranger's. So those who ask get at most as many as strangers bring,
// and fewer where they fill more than two horizons: or nobody but the herd would
// be served until a very large one has gone.
func (c *Calendar) Chance(now time.Duration, r Rates) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.advance(now, r)
	return c.chances >= 1
}

// Unqueue takes back the number that was given last: its client is not
// remembered, or has been told never to come back.
func (c *Calendar) Unqueue() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.issued = max(c.served, c.issued-1)
}

// Leave takes a deferred client out of the queue that has been served without a
// slot. The others move up.
func (c *Calendar) Leave() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.served = min(c.issued, c.served+1)
	c.chances = max(0, c.chances-1)
}

// advance brings the queue to now. A deferred client's number is served when
// there is a slot for it within the horizon: at the rate at which slots come
// into reach.
func (c *Calendar) advance(now time.Duration, r Rates) {
	c.mature(now)
	if passed := now - c.servedAt; passed > 0 && c.issued > c.served { // the rate may be infinite
		rate := c.spare(r.Service) / c.kept.share()
		c.served = min(c.issued, c.served+passed.Seconds()*rate)
		within := rate * r.Max.Seconds() // as many as fit into the horizon
		share := min(1, 2*within/max(1, c.issued-c.served))
		c.chances = min(maxChances, c.chances+passed.Seconds()*share*c.base.rate)
	}
	if c.Ahead(now) < r.Max/dry && r.Token < r.Max { // else there are no slots that could be promised
		c.served = c.issued
	}
	c.servedAt = max(c.servedAt, now)
}

// hop returns when a deferred client with a number is to ask again. Its slot
// will come into reach when those before it have theirs: after wait. It needs at
// least wait/horizon hops, and takes them equally long, so that it is not asked
// more often than it must, and all keep their order. Where that would bring
// too many back at about the same time, it is a random time in the last
// quarter of the horizon.
func (c *Calendar) hop(now time.Duration, number float64, r Rates) Appointment {
	c.counts.Deferred++
	rate := c.spare(r.Service) / c.kept.share()
	wait := r.Max.Seconds() + max(0, number-c.served)/rate
	a := Appointment{Deferred: true, Number: number, Wait: time.Duration(min(wait, 1e9) * float64(time.Second))}
	if hops := math.Ceil(wait / r.Max.Seconds()); hops >= 2 && hops < farHops && r.Token <= r.Max {
		a.At = now + max(r.Min, time.Duration(wait/hops*float64(time.Second)))
		c.last.Store(max(c.last.Load(), int64(a.At)))
	} else {
		a.At = c.jitter(now, r)
		a.Window = now + r.Max - a.At
	}
	return a
}

// jitter returns a random time in the last quarter of the horizon.
func (c *Calendar) jitter(now time.Duration, r Rates) time.Duration {
	d := time.Duration((0.75 + 0.25*c.draw()) * float64(r.Max))
	at := now + max(r.Min, d)
	c.last.Store(max(c.last.Load(), int64(at)))
	return at
}

// draw returns a number in [0, 1): SplitMix64 (Steele, Lea and Flood, "Fast
// splittable pseudorandom number generators", 2014). It has no seed: where
// nobody can predict how many were drawn before, nobody can predict it.
func (q *queue) draw() float64 {
	q.random += 0x9e3779b97f4a7c15
	z := q.random
	z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
	z = (z ^ z>>27) * 0x94d049bb133111eb
	return float64((z^z>>31)>>11) / (1 << 53)
}
