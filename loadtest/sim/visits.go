package sim

import (
	"math"
	"net/http"
	"time"

	"github.com/herdshield/shield"
	"github.com/herdshield/shield/loadtest/clients"
	"github.com/herdshield/shield/loadtest/plant"
	"github.com/herdshield/shield/pushback"
)

// A visit is a request that is not over as soon as it is decided on: 24 bytes, as
// there may be millions at a backend without protection.
type visit struct {
	arrived int64
	who     uint32
	ticket  int32 // of its replica
	replica uint8
	stage   stage
	refs    uint8 // events, and the Plant's queue, that name it: it is kept until there are none
	gone    bool  // its client has hung up
}

type stage uint8

const (
	over    stage = iota
	queued        // in the server's queue
	waits         // in the Plant's queue
	works         // in work: an event says when it will be done
	replies       // its answer is on the way from the backend
	lost          // the backend has restarted
)

// maxVisits bounds the memory of a run without limits: 400 MB.
const maxVisits = 1 << 24

// noVisit is no visit.
const noVisit uint32 = math.MaxUint32

// enter makes a visit of a request that has come.
func (r *run) enter(at int64, who uint32, replica int, ticket int32) uint32 {
	var i uint32
	if n := len(r.unused); n > 0 {
		i, r.unused = r.unused[n-1], r.unused[:n-1]
	} else {
		i = uint32(len(r.visits))
		r.visits = append(r.visits, visit{})
	}
	r.visits[i] = visit{arrived: at, who: who, ticket: ticket, replica: uint8(replica)}
	if r.Timeout > 0 {
		r.schedule(at+int64(r.Timeout), i, hangsUp)
	}
	return i
}

// schedule has something happen to a visit.
func (r *run) schedule(at int64, i uint32, what int32) {
	r.visits[i].refs++
	r.queue.push(event{at: at, who: i, what: what})
}

// quit ends a visit.
func (r *run) quit(i uint32) {
	r.visits[i].stage = over
	r.drop(i)
}

// drop makes room for another visit where one is over and nothing names it.
func (r *run) drop(i uint32) {
	if v := &r.visits[i]; v.stage == over && v.refs == 0 {
		r.unused = append(r.unused, i)
	}
}

// happens handles the event of a visit.
func (r *run) happens(e event) {
	v := &r.visits[e.who]
	v.refs--
	if v.stage == over {
		r.drop(e.who)
		return
	}
	switch e.what {
	case done:
		r.done(e.at, e.who)
	case hangsUp:
		r.hangUp(e.at, e.who)
	default:
		r.answered(e.at, e.who, e.what)
	}
}

// submit brings an admitted request to the backend. i is its visit, or noVisit.
func (r *run) submit(at, arrived int64, who uint32, i uint32, replica int, ticket int32) {
	if r.backend == nil {
		takes := int64(r.serviceTime(who))
		if takes <= 0 {
			r.finish(time.Duration(at), replica, ticket, End{Outcome: shield.Served})
			r.hear(at, arrived, who, answeredWell)
			if i != noVisit {
				r.quit(i)
			}
			return
		}
		if i == noVisit {
			i = r.enter(arrived, who, replica, ticket)
		}
		r.visits[i].stage = works
		r.working++
		r.schedule(at+takes, i, done)
		return
	}
	if i == noVisit {
		i = r.enter(arrived, who, replica, ticket)
	}
	now := r.sinceHerd(at)
	switch fate, end := r.backend.Submit(now, i, r.demand(who)); fate {
	case plant.Begun:
		r.begin(end, i)
	case plant.Waits:
		r.visits[i].stage = waits
		r.visits[i].refs++
	default:
		// As an event even if there is no latency, so that a queue of requests that
		// are refused one after the other is no recursion.
		what := cannotConnect
		if fate == plant.Unavailable {
			what = unavailable
		}
		r.visits[i].stage = replies
		r.schedule(at+int64(r.backend.Latency(now)), i, what)
	}
}

// sinceHerd is the time that a Plant goes by.
func (r *run) sinceHerd(at int64) time.Duration { return time.Duration(at - r.herdAt) }

// begin takes note of who is worked on, until end.
func (r *run) begin(end time.Duration, i uint32) {
	r.visits[i].stage = works
	r.schedule(int64(end)+r.herdAt, i, done)
}

// done ends the work on a request.
func (r *run) done(at int64, i uint32) {
	if r.backend == nil {
		r.working--
		r.answered(at, i, answeredWell)
		return
	}
	now := r.sinceHerd(at)
	r.backend.Done()
	for {
		next, end, ok := r.backend.Next(now, r.leaves)
		if !ok {
			break
		}
		r.visits[next].refs-- // of the queue
		r.begin(end, next)
	}
	if latency := r.backend.Latency(now); latency > 0 {
		r.visits[i].stage = replies
		r.schedule(at+int64(latency), i, answeredWell)
		return
	}
	r.answered(at, i, answeredWell)
}

// unqueue is a visit that the Plant has taken out of its queue, as its client has
// gone.
func (r *run) unqueue(i uint32) {
	r.visits[i].refs--
	r.quit(i)
}

// answered is the backend's answer to a visit when it is at the server.
func (r *run) answered(at int64, i uint32, what int32) {
	v := r.visits[i]
	r.quit(i)
	if v.gone {
		r.wasted(at, what)
		return
	}
	e := End{Outcome: shield.Served}
	if what != answeredWell {
		e.Outcome = shield.Overloaded
		if what == unavailable {
			e.RetryAfter = r.Plant.RetryAfter
		}
	}
	r.finish(time.Duration(at), int(v.replica), v.ticket, e)
	r.hear(at, v.arrived, v.who, what)
	r.settle(at, int(v.replica))
}

func (r *run) wasted(at int64, what int32) {
	if what == answeredWell {
		r.counts.Wasted++
		r.binOf(at).Wasted++
	}
}

// late reports whether a client hangs up before it has what the server sends at
// an instant.
func (r *run) late(at, arrived int64) bool {
	return r.Timeout > 0 && at+2*int64(r.Delay) > arrived+int64(r.Timeout)
}

// hear is a client that is sent the backend's answer.
func (r *run) hear(at, arrived int64, who uint32, what int32) {
	if r.late(at, arrived) {
		r.wasted(at, what)
		r.timedOut(at, arrived, who)
		return
	}
	if what == answeredWell {
		r.counts.Answered++
		r.ended(Answered, at, arrived, who)
		r.serve(at, who)
		return
	}
	r.counts.Failed++
	r.ended(Failed, at, arrived, who)
	status, hint := http.StatusBadGateway, pushback.Hint{}
	if what == unavailable {
		status = http.StatusServiceUnavailable
		if s := int((r.Plant.RetryAfter + time.Second - 1) / time.Second); s > 0 {
			hint = pushback.Hint{Seconds: s, Ms: 1000 * s}
		}
	}
	r.fail(at, at+int64(r.Delay), who, status, hint, false)
}

// timedOut is a client that has heard nothing for too long.
func (r *run) timedOut(at, arrived int64, who uint32) {
	r.counts.TimedOut++
	r.binOf(at).TimedOut++
	r.ended(TimedOut, arrived+int64(r.Timeout-2*r.Delay), arrived, who)
	r.fail(at, arrived+int64(r.Timeout-r.Delay), who, clients.NoAnswer, pushback.Hint{}, false)
}

// hangUp is a client that hangs up, as the server sees it.
func (r *run) hangUp(at int64, i uint32) {
	v := &r.visits[i]
	replica, ticket, arrived, who := int(v.replica), v.ticket, v.arrived, v.who
	if v.stage == queued {
		r.queued[replica]--
		r.servers[replica].(Queuer).Abandon(time.Duration(at), ticket)
		r.quit(i)
	} else {
		v.gone = true
		r.finish(time.Duration(at), replica, ticket, End{Outcome: shield.Aborted})
	}
	r.timedOut(at, arrived, who)
	r.settle(at, replica)
}

// finish tells a server how what a ticket stands for has ended.
func (r *run) finish(now time.Duration, replica int, ticket int32, e End) {
	if ticket > 0 {
		r.servers[replica].Finish(now, ticket, e)
	}
}

// wait has a request wait in the server's queue.
func (r *run) wait(at int64, who uint32, replica int, ticket int32) {
	i := r.enter(at, who, replica, ticket)
	r.visits[i].stage = queued
	r.queued[replica]++
	of := &r.tickets[replica]
	for len(*of) <= int(ticket) {
		*of = append(*of, noVisit)
	}
	(*of)[ticket] = i
	r.settle(at, replica) // it may have displaced another
	r.sweepLater(at, replica)
}

// sweepEvery is how often a server's queue is swept while any request waits in it, as
// the Guard's own timer does.
const sweepEvery = 5 * time.Millisecond

func (r *run) sweepLater(at int64, replica int) {
	if r.queued[replica] > 0 && !r.sweeping[replica] {
		r.sweeping[replica] = true
		r.queue.push(event{at: at + int64(sweepEvery), who: sweep, what: int32(replica)})
	}
}

func (r *run) sweep(at int64, replica int) {
	r.sweeping[replica] = false
	if r.queued[replica] > 0 {
		r.servers[replica].(Queuer).Sweep(time.Duration(at))
		r.settle(at, replica)
	}
	r.sweepLater(at, replica)
}

// settle looks who of those in a server's queue has been told something.
func (r *run) settle(at int64, replica int) {
	for r.queued[replica] > 0 {
		ticket, a, ok := r.servers[replica].(Queuer).Settled(time.Duration(at))
		if !ok {
			return
		}
		i := r.tickets[replica][ticket]
		r.queued[replica]--
		v := r.visits[i]
		r.decided(at, v.arrived, v.who, i, replica, a)
	}
}

// breakOff breaks the connections of those who wait in a server's queue, as it
// restarts.
func (r *run) breakOff(at int64, replica int) {
	for i := range r.visits {
		v := &r.visits[i]
		if v.stage != queued || int(v.replica) != replica {
			continue
		}
		who, arrived := v.who, v.arrived
		r.queued[replica]--
		r.servers[replica].(Queuer).Abandon(time.Duration(at), v.ticket)
		r.quit(uint32(i))
		r.counts.Failed++
		r.ended(Failed, at, arrived, who)
		r.fail(at, at+int64(r.Delay), who, clients.NoConnection, pushback.Hint{}, false)
	}
}

// lose restarts the backend: all that is there is lost.
func (r *run) lose(at int64) {
	for i := range r.visits {
		switch v := &r.visits[i]; v.stage {
		case waits:
			v.refs--
			v.stage = lost
		case works:
			v.stage = lost
		}
	}
	r.backend.Lose()
	for i := range r.visits { // what comes of it is at the new backend, and not lost
		if v := r.visits[i]; v.stage == lost {
			r.quit(uint32(i))
			if v.gone {
				continue
			}
			r.finish(time.Duration(at), int(v.replica), v.ticket, End{Outcome: shield.Overloaded})
			r.hear(at, v.arrived, v.who, cannotConnect)
		}
	}
	for replica := range r.servers {
		r.settle(at, replica)
	}
}

// demand is how much work a client's request is.
func (r *run) demand(who uint32) time.Duration {
	return r.service(r.clients[who].share).at(float64(key(r.work+uint64(who))>>11) / (1 << 53))
}

// inFlight returns how many requests are at the backend.
func (r *run) inFlight() int {
	if r.backend != nil {
		return r.backend.Busy() + r.backend.Waiting()
	}
	return r.working
}
