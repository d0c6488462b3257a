package shield

import (
	"math"
	"slices"
	"time"

	"github.com/herdshield/shield/pushback"
)

// An Explanation says what each limit of a Guard has to say of one client at one instant.
type Explanation struct {
	Outlook
	Client    pushback.Client // what is known of the client itself, but for what zones have promised it
	Blocked   time.Duration   // for how long an operator has blocked it; 0: it is not
	InFlight  int             // its requests in flight, as far as they are counted by client
	Zones     []ZoneExplanation
	Capacity  BucketExplanation // of the backend, for all clients
	Occupancy Occupancy
}

// An Outlook is what a request of the client would get.
type Outlook struct {
	Admit      bool          // a request would be admitted
	Queued     bool          // it would wait for a place in flight
	Reason     Reason        // for which it would be refused, or would have been in observe mode
	Zone       int           // that would refuse for Quota, as an index into Config.Zones; otherwise -1
	Status     int           // of the refusal; 0 if it would be admitted
	RetryAfter time.Duration // what the client would be told; 0 if it would be admitted, or told not to come back
	Class      string        // that the request would be treated as
}

// A BucketExplanation says what is left of one bucket. The zero one is of a limit that there is
// not, or that does not count the request.
type BucketExplanation struct {
	Tokens, Burst int
	Wait          time.Duration // until it has enough for one request
}

// A ZoneExplanation is that of the client's bucket in one zone.
type ZoneExplanation struct {
	Name    string
	Counted bool // the zone counts the request: it has a key
	Shared  bool // the store may have more tokens than this replica knows of

	// Client is what it was promised for the end of this quota. A further request is told to come
	// after that, and so later than the bucket's Wait.
	Client pushback.Client
	BucketExplanation
}

// An Occupancy is how much is in flight, and how much may be. A Limit of 0 is none.
type Occupancy struct{ InFlight, Limit, Waiting, QueueSize int }

// Explain returns what Admit would answer to the same request at now, and why. It changes
// nothing, charges nothing, and counts nothing: it asks a copy of what is known of the client.
// The request's ticket is not looked at. It speaks of the state as of the last Tick.
//
// With limits that replicas share it says what this one would answer without asking the store.
//
// It copies some 100 KB, and is meant for operators. It is safe for concurrent use; while other
// requests are decided on, its parts may be of slightly different instants.
func (g *Guard) Explain(now time.Duration, r Request) (e Explanation) {
	r.Ticket = ""
	r.Keys = slices.Clone(r.Keys)
	c := g.copyFor(now, &r)
	e.Client = c.backend.clients.Client(now, uint64(r.Client))
	e.Blocked = c.backend.blocks.left(now, r.Client)
	e.InFlight = c.backend.inFlight.InFlightOf(uint64(r.Client), uint64(r.InFlightKey))
	for _, at := range c.order {
		z := &c.zones[at]
		is := ZoneExplanation{Name: z.name, Shared: z.shared}
		if is.Counted = z.index < len(r.Keys) && r.Keys[z.index] != NoKey; is.Counted {
			key := r.Keys[z.index]
			is.Tokens, is.Burst = z.table.Tokens(z.limit, key, now), z.limit.Burst()
			claim, wait, _ := z.claim(key, now)
			claim.Release()
			is.Wait, is.Client = wait, c.backend.clients.Client(now, uint64(key)^z.salt)
		}
		e.Zones = append(e.Zones, is)
	}
	if c.hasCapacity {
		e.Capacity = BucketExplanation{c.backend.capacity.Level(c.capacity, now), c.capacity.Burst(), c.tokenIn(now)}
	}
	e.Occupancy = Occupancy{c.backend.inFlight.InFlight(), c.Limit(), c.backend.inFlight.Waiting(), c.QueueSize()}
	d := c.Admit(now, r)
	e.Admit, e.Queued, e.Reason, e.Zone = d.Admit, d.Queued(), d.Reason, d.Zone
	e.Class = c.Classes().At(int(d.Class)).Name
	if !d.Admit && !d.Queued() {
		e.Status = c.Answers().Status(d.Refusal())
		if !d.Hint.Never {
			e.RetryAfter = time.Duration(d.Hint.Seconds) * time.Second
		}
	}
	return e
}

// copyFor returns a Guard that decides on r at now as g would, on a State of its own, which knows
// what g's does of r's client, and no link to a store.
func (g *Guard) copyFor(now time.Duration, r *Request) *Guard {
	c := &Guard{settings: g.settings, order: g.order, backend: new(Backend), serial: g.serial}
	c.terms.Secret = nil
	keys := []uint64{uint64(r.Client)}
	for i := range g.zones {
		z := g.zones[i]
		to := NewZoneState(z.name)
		if z.index < len(r.Keys) && r.Keys[z.index] != NoKey {
			key := r.Keys[z.index]
			keys = append(keys, uint64(key)^z.salt)
			if of := z.share.Load(); z.shared && of != nil {
				of.Escrow().CopyTo(&to.table, key, now)
			} else {
				z.table.CopyTo(&to.table, z.limit, z.maxKeys, key, now, z.cost)
			}
		}
		z.ZoneState = to
		c.zones = append(c.zones, z)
	}
	b, to := g.backend, c.backend
	b.capacity.CopyTo(&to.capacity)
	b.inFlight.CopyTo(&to.inFlight)
	to.inFlight.Use(g.plan)
	b.clients.CopyTo(&to.clients, now, keys...)
	for range g.classes {
		c.classes = append(c.classes, new(classCounts))
	}
	to.ticker.next.Store(math.MaxInt64) // what it has learned is as of the last tick
	to.blocks.until.Store(b.blocks.until.Load())
	c.inUse.Store(true)
	return c
}
