package loadshed

import (
	"math"
	"sync/atomic"
	"time"
)

const (
	// lossMemory is over how long it is averaged what is lost. acceptedLoss is the share
	// that is given to no request: an orderly backlog loses that much by chance, and if it
	// went to clients on standby, hammering would pay. Of 4 to 5 %, it is where clients that
	// hammer are served no sooner than the honest ones in every simulated mix. From
	// heavyLoss on there is no order to protect: all of it is given away.
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

	// mostPlaces is the share of the limit that may be left free, inverted. Of a third and a
	// twelfth, with a third a backend with as many workers as the limit lost a quarter.
	mostPlaces = 12
)

// A Standby learns how much of a backend is lost while only those clients are let in that
// come on time, and strangers. That goes to requests on standby: their clients have an
// appointment already, but the backend is not to be idle while requests arrive. The zero
// Standby is ready. It is safe for concurrent use.
type Standby struct {
	credit         atomic.Int64  // how many requests on standby may be let in, in thousandths
	tokens         atomic.Int32  // how many of a full bucket's tokens they may take: 1, or 2 if much is lost
	forDue, forAll atomic.Int32  // places to be left free for clients on time, and for all that are not on standby
	came, admitted atomic.Uint64 // requests on standby
	dueShare       atomic.Int32  // of the backend's rate that clients on time take, in thousandths

	// As of the last Look, by one goroutine at a time.
	at, since time.Duration // since: of the last Look without a backlog
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

// Come counts a request on standby.
func (s *Standby) Come() { s.came.Add(1) }

// Admit counts one that is let in.
func (s *Standby) Admit() {
	s.admitted.Add(1)
	s.credit.Add(-1000)
}

// Lossy reports whether requests on standby may have what would be lost.
func (s *Standby) Lossy() bool { return s.credit.Load() >= 1000 }

// Tokens returns how many tokens of a full bucket requests on standby may take.
func (s *Standby) Tokens() int { return int(s.tokens.Load()) }

// Places returns how many places in flight a request has to leave to clients that come on
// time, and if it is on standby to strangers, too.
func (s *Standby) Places(standby bool) int {
	if standby {
		return int(s.forAll.Load())
	}
	return int(s.forDue.Load())
}

// DueShare returns the share of the backend's rate that clients take that come on time: 0 to
// 1.
func (s *Standby) DueShare() float64 { return float64(s.dueShare.Load()) / 1000 }

// A Demand is what comes to a backend, and what it can do, as far as Look has to know.
type Demand struct {
	Rate             float64 // requests per second that the backend can take
	Limit            int     // in flight; 0: none
	OnTime, Arrivals uint64  // clients that came on time, and all requests, in all
	Backlogged       bool    // clients wait
	Unused           bool    // there is a place that no other request wants next, and a full bucket
	Scarce           bool    // there is too little to leave any of it to others
}

// Look learns what is lost. It is to be called every 100 ms, by one goroutine at a time.
func (s *Standby) Look(now time.Duration, is Demand) {
	d := now - s.at
	s.at = now
	if d == now { // the first look
		s.since = now
	}
	if d <= 0 {
		return
	}
	s.due.read(is.OnTime, d)
	s.all.read(is.Arrivals-s.came.Load(), d)
	admitted := s.admitted.Load()
	could, given := is.Rate*d.Seconds(), float64(admitted-s.given)
	s.given = admitted
	if math.IsInf(could, 1) {
		return
	}
	s.dueShare.Store(int32(1000 * min(1, s.due.rate/is.Rate)))
	s.forDue.Store(placesFor(s.due.rate/is.Rate, is.Limit))
	s.forAll.Store(placesFor(s.all.rate/is.Rate, is.Limit))
	switch lost := min(1, given/could); {
	case !is.Backlogged:
		s.loss, s.since = 0, now
	case now-s.since >= firstReturns:
		if is.Unused {
			lost = 1
		}
		s.loss += (1 - math.Exp(-d.Seconds()/lossMemory.Seconds())) * (lost - s.loss)
	}
	tokens, credit := int32(1), 0.0
	switch {
	case is.Scarce:
	case s.loss > heavyLoss:
		credit = is.Rate
	case s.loss > acceptedLoss:
		left := max(0, float64(s.credit.Load())/1000)
		credit = min(left+(s.loss-acceptedLoss)*could, is.Rate/2)
	}
	if s.loss > 4*acceptedLoss {
		tokens = 2 // a bucket near full loses little
	}
	s.tokens.Store(tokens)
	s.credit.Store(int64(1000 * credit))
}

// placesFor returns how many places are to be left free for requests that come at a rate of
// rho of what the backend does, so that few of them find none. All of n places are taken
// with a probability of about rho^n, as in an M/M/n queue. It is at
// most a mostPlaces-th of the limit: a place that is left free is work that is not done.
func placesFor(rho float64, limit int) int32 {
	most := limit / mostPlaces
	switch {
	case rho < missedPlaces:
		return 0
	case rho < 1:
		most = int(min(float64(most), math.Ceil(math.Log(missedPlaces)/math.Log(rho))))
	}
	return int32(most)
}
