package shield

import (
	"time"

	"github.com/herdshield/shield/loadshed"
	"github.com/herdshield/shield/pushback"
)

// An Explanation says how each limit of a Guard sees one client at one instant.
type Explanation struct {
	// What a request of the client would get.
	Admit      bool          // it would be admitted
	Queued     bool          // it would wait, for a permit in flight or, if the Reason is Capacity, for its token
	Reason     Reason        // for which it would be rejected, or would have been in observe mode
	Zone       int           // that would reject for Quota, as an index into Config.Zones; otherwise -1
	Status     int           // of the rejection; 0 if it would be admitted
	RetryAfter time.Duration // what the client would be told; 0 if it would be admitted, or told not to come back
	Class      string        // that the request would be treated as

	Client    pushback.Client // what is known of the client itself, but for what zones have promised it
	Blocked   time.Duration   // for how long an operator has blocked it; 0: it is not
	Weight    int             // permits that the request would take of the limit in flight
	InFlight  int             // its requests in flight, as far as they are counted by client
	Zones     []ZoneExplanation
	Capacity  BucketExplanation // of the backend, for all clients
	Occupancy Occupancy
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
	Cost    int  // what a request takes now, where that varies; BucketExplanation is in the same unit, and below 0 in debt

	// Client is what it was promised for the end of this quota. A further request is told to come
	// after that, and so later than the bucket's Wait.
	Client pushback.Client
	BucketExplanation
}

// An Occupancy is how much is in flight, by weight, and how much may be; and how many requests wait. A Limit of 0 is none.
type Occupancy struct {
	InFlight  int `json:"in_flight"`
	Limit     int `json:"limit"`
	Waiting   int `json:"waiting"`
	QueueSize int `json:"queue_size"`
}

// Explain returns what Admit would decide on the same request at now, and why. It is a dry run: it charges no
// limit, makes no appointment and counts nothing. It ignores the request's ticket, its deadline and whether it
// is a retry, and uses the state as of the last Tick.
//
// If replicas share limits, it answers for this replica without asking the store, although it may fetch a token
// of the capacity in advance, as it would before a request.
//
// It is meant for operators and safe for concurrent use. While other requests are being decided, its parts may
// be from slightly different instants.
func (g *Guard) Explain(now time.Duration, r Request) (e Explanation) {
	b, d := g.backend, Decision{Zone: -1, at: now, came: now}
	d.permit = loadshed.DryPermit()
	r.Ticket, r.Deadline, r.Retry = "", 0, false
	t := try{Request: &r, d: &d, dry: true, final: true}
	keys := []uint64{uint64(r.Client)}
	for i := range g.zones {
		if key := g.zones[i].key(&r); key != NoKey {
			keys = append(keys, uint64(key)^g.zones[i].salt)
		}
	}
	g = &Guard{settings: g.settings, zones: g.zones, backend: b, clients: new(pushback.Appointments)}
	b.clients.CopyTo(g.clients, now, keys...)
	e.Client = g.clients.Client(now, uint64(r.Client))
	e.Weight = max(1, g.weigh(&r))
	e.Blocked = b.blocks.left(now, r.Client)
	e.InFlight = b.inFlight.InFlightOf(uint64(r.Client), uint64(r.InFlightKey))
	if g.hasCapacity {
		e.Capacity = BucketExplanation{b.capacity.Level(g.capacity, now), g.capacity.Burst(), g.tokenIn(now)}
	}
	e.Occupancy = Occupancy{b.inFlight.InFlight(), g.Limit(), b.inFlight.Waiting(), g.plan.Queue.Size}

	e.Zones = make([]ZoneExplanation, len(g.zones))
	g.meet(now, &t)
	asked := d.Reason == None
	for i := range g.zones {
		z := &g.zones[i]
		is, key := &e.Zones[z.index], z.key(&r)
		if is.Name, is.Shared = z.name, z.Shared; key == NoKey {
			continue
		}
		is.Counted, is.Client, is.Burst = true, g.clients.Client(now, uint64(key)^z.salt), z.inUnits(z.limit.Burst())
		n := z.price(&r, key)
		tokens, wait := z.look(key, now, n)
		if z.varies {
			is.Cost = z.inUnits(n)
		}
		if is.Tokens, is.Wait = z.inUnits(tokens), wait; asked {
			t.over(z, n, wait)
		}
	}
	if asked {
		g.claimBackend(now, &t)
	}
	e.Queued, e.Reason, e.Zone, e.Class = d.Queued(), d.Reason, d.Zone, g.plan.Classes[d.Class].Name
	if e.Admit = d.Reason == None || g.observe; e.Admit || e.Queued {
		return e
	}
	g.appoint(now, &t)
	e.Status = g.Responses().Status(d.Rejection())
	if !d.Hint.Never {
		e.RetryAfter = time.Duration(d.Hint.Seconds) * time.Second
	}
	return e
}
