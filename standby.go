package shield

import (
	"math"
	"sync/atomic"
	"time"
)

const (
	// scarcity is the burst or limit below which there is too little to leave any of it to
	// others.
	scarcity = 4

	// lossMemory is over how long it is averaged what is lost. acceptedLoss is the share
	// that is given to no request: an orderly backlog loses that much by chance, and if it
	// went to clients on standby, hammering would pay. From heavyLoss on there is no order
	// to protect: all of it is given away. Of 4 to 5 %, acceptedLoss is where clients that
	// hammer are served no sooner than the honest ones in every simulated mix.
	lossMemory   = 3 * time.Second
	acceptedLoss = 0.045
	heavyLoss    = 0.12

	// firstReturns is how long after the first appointment nothing can be said to be lost: no
	// client is told to come sooner than in a second.
	firstReturns = 1500 * time.Millisecond

	// demandMemory is over how long the rates are averaged at which clients come: a few of
	// the calendar's buckets.
	demandMemory = time.Second

	// missedPlaces is how often a client that comes on time may find all places taken.
	missedPlaces = 0.01
)

// A standby learns how much of the backend is lost while only those clients are let in
// that come on time, and strangers. It goes to requests on pushback's Standby: their
// clients have an appointment already, but the backend is not to be idle while requests
// arrive.
type standby struct {
	credit         atomic.Int64  // how many requests on standby may be let in, in thousandths
	tokens         atomic.Int32  // how many of a full bucket's tokens they may take: 1, or 2 if much is lost
	forDue, forAll atomic.Int32  // places to be left free for clients on time, and for all that are not on standby
	came, admitted atomic.Uint64 // requests on standby

	// As of the last look; guarded by the ticker.
	at, since time.Duration // since: of the last look without a backlog
	due, all  meter         // clients on time, and requests that are not on standby
	given     uint64        // admitted, then
	loss      float64       // share of the backend's rate
}

// A meter averages the rate of what a counter counts.
type meter struct {
	last uint64
	rate float64 // per second
}

// read averages the rate, given how long ago it was read last.
func (m *meter) read(count uint64, d time.Duration) {
	n := float64(int64(count - m.last))
	m.last = count
	m.rate += (1 - math.Exp(-d.Seconds()/demandMemory.Seconds())) * (n/d.Seconds() - m.rate)
}

// admit counts a request on standby that is let in.
func (s *standby) admit() {
	s.admitted.Add(1)
	s.credit.Add(-1000)
}

// look learns what is lost. It is called with the ticker locked.
func (g *Guard) look(now time.Duration) {
	b, s := g.backend, &g.backend.standby
	d, service := now-s.at, g.Rate()
	s.at = now
	if d == now { // the first look
		s.since = now
		return
	}
	if d <= 0 || math.IsInf(service, 1) {
		return
	}
	s.due.read(b.clients.OnTime(), d)
	s.all.read(b.admitted.Load()+b.refusals()-s.came.Load(), d)
	admitted := s.admitted.Load()
	could, given := service*d.Seconds(), float64(admitted-s.given)
	s.given = admitted
	if limit := b.inFlight.Limit(g.plan); limit > 0 {
		s.forDue.Store(placesFor(s.due.rate/service, limit))
		s.forAll.Store(placesFor(s.all.rate/service, limit))
	}
	switch lost := min(1, given/could); {
	case !b.clients.Backlogged(now):
		s.loss, s.since = 0, now
	case now-s.since >= firstReturns:
		if g.leaves(now, 1) {
			lost = 1
		}
		s.loss += (1 - math.Exp(-d.Seconds()/lossMemory.Seconds())) * (lost - s.loss)
	}
	tokens, credit := int32(1), 0.0
	switch {
	case g.scarce():
	case s.loss > heavyLoss:
		credit = service
	case s.loss > acceptedLoss:
		left := max(0, float64(s.credit.Load())/1000)
		credit = min(left+(s.loss-acceptedLoss)*could, service/2)
	}
	if s.loss > 4*acceptedLoss {
		tokens = 2 // a bucket near full loses little
	}
	s.tokens.Store(tokens)
	s.credit.Store(int64(1000 * credit))
}

// placesFor returns how many places in flight are to be left free for requests that come
// at a rate of rho of what the backend does, so that few of them find none: all of n
// places are taken with a probability of about rho^n, as in an M/M/n queue. It is at
// most a third of the limit.
func placesFor(rho float64, limit int) int32 {
	most := limit / 3
	switch {
	case rho < missedPlaces:
		return 0
	case rho < 1:
		most = int(min(float64(most), math.Ceil(math.Log(missedPlaces)/math.Log(rho))))
	}
	return int32(most)
}

// spares reports, at little cost, whether there may be something for a request on
// standby: what the backend loses is more than acceptable. Where there is too little for
// any of it to be left aside, the backend must have had headroom for a second.
func (g *Guard) spares(now time.Duration) bool {
	b := g.backend
	if b.standby.credit.Load() >= 1000 {
		return g.leaves(now, int(b.standby.tokens.Load()))
	}
	return g.scarce() && b.inFlight.Idle(now)
}

// scarce reports whether there is too little for any of it to be left to others.
func (g *Guard) scarce() bool {
	limit := g.Limit()
	return limit > 0 && limit < scarcity || g.hasCapacity && g.capacity.Burst() < scarcity
}

// leaves reports whether the backend has more than those requests want that are not on
// standby: a place, and one of so many tokens that are all that a full bucket has.
func (g *Guard) leaves(now time.Duration, tokens int) bool {
	b := g.backend
	if limit := g.Limit(); limit > 0 && b.inFlight.InFlight() >= limit-int(b.standby.forAll.Load()) {
		return false
	}
	return !g.hasCapacity || b.capacity.Level(g.capacity, now) > g.capacity.Burst()-tokens
}

// A reserve is what a request has to leave to others.
type reserve struct{ tokens, places int }

// reserveOf returns what a request has to leave to others while a backlog stands. Tokens
// can be saved up. Places cannot, so only as many are left free as others want in the
// next moment.
func (g *Guard) reserveOf(now time.Duration, t *try) reserve {
	s, burst := &g.backend.standby, g.capacity.Burst()
	if t.visit.Standby {
		return reserve{max(0, burst-int(s.tokens.Load())), int(s.forAll.Load())}
	}
	tenths := t.visit.Reserve()
	if t.visit.Draws() {
		c := t.caller()
		if n, ok := g.backend.clients.Drawn(now, &c, &g.terms, g.supply()); ok {
			tenths = n
		}
	}
	switch forDue := int(s.forDue.Load()); tenths {
	case 0:
		return reserve{}
	case 9:
		return reserve{max(0, min(burst*9/10, burst-3)), max(forDue, g.Limit()*3/10)}
	default:
		return reserve{burst * tenths / 10, forDue}
	}
}
