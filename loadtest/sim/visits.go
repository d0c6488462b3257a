package sim

import (
	"net/http"
	"time"

	"github.com/herdshield/shield"
	"github.com/herdshield/shield/loadtest/clients"
	"github.com/herdshield/shield/loadtest/plant"
	"github.com/herdshield/shield/pushback"
)

// A visit is a request that is not over: 24 bytes, as there may be millions at a backend
// without protection.
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
	comes         // it is being decided on
	queued        // in the server's queue
	waits         // in the Plant's queue
	works         // in work: an event says when it will be done
	replies       // its response is on the way from the backend
)

// maxVisits bounds the memory of a run without limits: 400 MB.
const maxVisits = 1 << 24

func (r *run) enter(at int64, who uint32, replica int) uint32 {
	return uint32(r.visits.put(visit{arrived: at, who: who, replica: uint8(replica), stage: comes}))
}

// watch has the client of a visit hang up in time. It is called when the visit first
// waits for anything.
func (r *run) watch(i uint32) {
	if v := &r.visits.of[i]; v.stage == comes && r.Timeout > 0 {
		r.schedule(v.arrived+int64(r.Timeout), i, hangsUp)
	}
}

func (r *run) schedule(at int64, i uint32, what int32) {
	r.visits.of[i].refs++
	r.queue.push(event{at: at, who: i, what: what})
}

// quit ends a visit. It stays readable until the next one enters.
func (r *run) quit(i uint32) {
	r.visits.of[i].stage = over
	r.drop(i)
}

// drop makes room for another visit where one is over and nothing names it.
func (r *run) drop(i uint32) {
	if v := &r.visits.of[i]; v.stage == over && v.refs == 0 {
		r.visits.drop(int32(i))
	}
}

func (r *run) happens(e event) {
	v := &r.visits.of[e.who]
	v.refs--
	switch {
	case v.stage == over:
		r.drop(e.who)
	case e.what == done:
		r.done(e.at, e.who)
	case e.what == hangsUp:
		r.hangUp(e.at, e.who)
	case e.what == letGo:
		r.finish(e.at, v, End{Outcome: shield.Aborted})
		r.settle(e.at, int(v.replica))
	default:
		r.answered(e.at, e.who, e.what)
	}
}

// decided is a visit that its server has decided on, at once or after it has waited.
func (r *run) decided(at int64, i uint32, a Answer) {
	v := &r.visits.of[i]
	v.ticket = a.Ticket
	if a.Admit {
		r.binOf(at).Door(int(v.who) < r.Clients).Admitted++
		r.submit(at, i)
		return
	}
	r.quit(i)
	if r.clients[v.who].punctual {
		r.counts.Broken++
	}
	sent := at + int64(a.Hold)
	if a.Hold > 0 {
		until, who := sent, uint32(v.replica)
		if left := v.arrived + int64(r.Timeout); r.Timeout > 0 && left < sent {
			until, who = left, who|hasLeft
		}
		r.queue.push(event{at: until, who: who, what: 1 + a.Ticket})
	}
	if r.late(sent, v) {
		r.timedOut(at, v)
		return
	}
	r.counts.Rejected++
	r.ended(Rejected, sent, v)
	r.fail(at, sent+int64(r.Delay), v.who, a.Status, a.Hint, true)
}

// hasLeft, beside the replica, is for a rejection whose client hangs up before it is sent.
const hasLeft = 1 << 8

// sent is a rejection that was held back, and is sent, or whose client has gone.
func (r *run) sent(e event) {
	end := End{}
	if e.who&hasLeft != 0 {
		end.Outcome = shield.Aborted
	}
	r.finish(e.at, &visit{replica: uint8(e.who), ticket: e.what - 1}, end)
}

func (r *run) submit(at int64, i uint32) {
	v := &r.visits.of[i]
	takes := r.takes(v.who)
	if takes <= 0 {
		r.quit(i)
		r.reply(at, v, answeredWell)
		return
	}
	r.watch(i)
	now := r.sinceHerd(at)
	switch fate, end := r.backend.Submit(now, i, takes); fate {
	case plant.Begun:
		r.begin(end, i)
	case plant.Waits:
		v.stage = waits
		v.refs++
	default:
		// As an event even if there is no latency, so that a queue of requests that
		// are rejected one after the other is no recursion.
		what := cannotConnect
		if fate == plant.Unavailable {
			what = unavailable
		}
		v.stage = replies
		r.schedule(at+int64(r.backend.Latency(now)), i, what)
	}
}

// takes is how long a client's request takes alone. At a Plant all attempts of a call take the same.
func (r *run) takes(who uint32) time.Duration {
	c := &r.clients[who]
	s := r.service(c.share)
	switch {
	case r.Plant != nil:
		return s.at(float64(key(r.work+uint64(c.calls)<<32+uint64(who))>>11) / (1 << 53))
	case s.Exponential:
		return time.Duration(r.behaviour.ExpFloat64() * float64(s.Mean))
	case s.Lognormal > 0:
		return s.at(r.behaviour.Float64())
	}
	return s.Mean
}

// sinceHerd is the time that a Plant goes by.
func (r *run) sinceHerd(at int64) time.Duration { return time.Duration(at - r.herdAt) }

func (r *run) begin(end time.Duration, i uint32) {
	r.visits.of[i].stage = works
	r.schedule(int64(end)+r.herdAt, i, done)
}

func (r *run) done(at int64, i uint32) {
	now := r.sinceHerd(at)
	r.backend.Done()
	for {
		next, end, ok := r.backend.Next(now)
		if !ok {
			break
		}
		r.visits.of[next].refs-- // of the queue
		r.begin(end, next)
	}
	if latency := r.backend.Latency(now); latency > 0 {
		r.visits.of[i].stage = replies
		r.schedule(at+int64(latency), i, answeredWell)
		return
	}
	r.answered(at, i, answeredWell)
}

// answered is the backend's answer to a visit when it is at the server.
func (r *run) answered(at int64, i uint32, what int32) {
	v := &r.visits.of[i]
	r.quit(i)
	if v.gone {
		o := shield.Overloaded
		if what == answeredWell {
			o = shield.Served
		}
		r.finish(at, v, End{Outcome: o, Left: time.Duration(v.arrived) + r.Timeout - 2*r.Delay}) // if it was kept
		r.settle(at, int(v.replica))
		r.wasted(at, what)
		return
	}
	r.reply(at, v, what)
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
func (r *run) late(at int64, v *visit) bool {
	return r.Timeout > 0 && at+2*int64(r.Delay) > v.arrived+int64(r.Timeout)
}

// reply is what the backend, or the connection to it, has answered: the server learns it,
// and its client is sent it.
func (r *run) reply(at int64, v *visit, what int32) {
	e, status, hint := End{Outcome: shield.Overloaded}, http.StatusBadGateway, pushback.Hint{}
	switch what {
	case answeredWell:
		e.Outcome = shield.Served
	case unavailable:
		e.RetryAfter = r.backend.RetryAfter
		status, hint = http.StatusServiceUnavailable, wholeSeconds(e.RetryAfter)
	}
	r.finish(at, v, e)
	switch {
	case r.late(at, v):
		r.wasted(at, what)
		r.timedOut(at, v)
	case what == answeredWell:
		r.counts.Answered++
		r.ended(Answered, at, v)
		r.serve(at, v.who)
	default:
		r.failed(at, v, status, hint)
	}
}

// failed is a client that learns that the backend has failed, or its connection.
func (r *run) failed(at int64, v *visit, status int, hint pushback.Hint) {
	r.counts.Failed++
	r.ended(Failed, at, v)
	r.fail(at, at+int64(r.Delay), v.who, status, hint, false)
}

// timedOut is a client that has heard nothing for too long.
func (r *run) timedOut(at int64, v *visit) {
	r.counts.TimedOut++
	r.binOf(at).TimedOut++
	r.ended(TimedOut, v.arrived+int64(r.Timeout-2*r.Delay), v)
	r.fail(at, v.arrived+int64(r.Timeout-r.Delay), v.who, clients.NoAnswer, pushback.Hint{}, false)
}

// hangUp is a client that hangs up, as the server sees it.
func (r *run) hangUp(at int64, i uint32) {
	v := &r.visits.of[i]
	if v.stage == queued {
		r.abandon(at, i)
	} else {
		v.gone = true
		if s, ok := r.replicas[v.replica].Server.(Queuer); ok && s.KeepsDisconnected() {
			r.schedule(at+int64(longestDisconnected), i, letGo)
		} else {
			r.finish(at, v, End{Outcome: shield.Aborted})
		}
	}
	r.timedOut(at, v)
	r.settle(at, int(v.replica))
}

// longestDisconnected is how long a server waits for the backend when a client has hung up: that
// of shield.Exchange.
const longestDisconnected = 10 * time.Second

// finish tells a server how a visit has ended, once.
func (r *run) finish(at int64, v *visit, e End) {
	if v.ticket > 0 {
		if r.Cost > 0 && e.Outcome == shield.Served {
			e.Cost = r.Cost * r.costs.ExpFloat64()
		}
		r.replicas[v.replica].Finish(time.Duration(at), v.ticket, e)
		v.ticket = 0
	}
}

// ended tells the Scenario how a visit has ended, if it wants to know.
func (r *run) ended(how Ending, at int64, v *visit) {
	if r.Ended == nil {
		return
	}
	c := &r.clients[v.who]
	r.Ended(Ended{
		At: time.Duration(at), Took: time.Duration(at-v.arrived) + 2*r.Delay, How: how,
		Herd: int(v.who) < r.Clients, Share: int(c.share), Attempt: int(c.attempts),
		Born: time.Duration(c.born), Call: 1 + int(c.calls),
	})
}

// lose restarts the backend: all that is there is lost.
func (r *run) lose(at int64) {
	r.backend.Lose()
	for i := range r.visits.of {
		v := &r.visits.of[i]
		switch v.stage {
		case waits:
			v.refs--
		case works:
		default:
			continue
		}
		r.quit(uint32(i))
		if v.gone {
			r.finish(at, v, End{Outcome: shield.Overloaded})
		} else {
			r.reply(at, v, cannotConnect)
		}
	}
	for i := range r.replicas {
		r.settle(at, i)
	}
}

// close leaves nothing open.
func (r *run) close() {
	at := r.end
	for len(r.queue) > 0 {
		if e := r.queue.pop(); e.who < markers && e.what > 0 {
			r.sent(e)
			at = max(at, e.at)
		}
	}
	for i := range r.visits.of {
		v := &r.visits.of[i]
		if v.stage == over {
			continue
		}
		if v.gone {
			r.finish(at, v, End{Outcome: shield.Detached})
			continue
		}
		r.counts.Open++
		if v.stage == queued {
			r.abandon(at, uint32(i))
		} else {
			r.finish(at, v, End{Outcome: shield.Detached})
		}
	}
}
