package sim

import (
	"time"

	"github.com/herdshield/shield/loadtest/clients"
	"github.com/herdshield/shield/pushback"
)

// A replica is a Server, and the visits in its queue.
type replica struct {
	Server
	queued   int      // how many wait in it
	visits   []uint32 // which they are, by ticket
	sweeping bool     // the next sweep is in the run's queue
}

func (r *run) wait(at int64, i uint32, ticket int32) {
	r.watch(i)
	v := &r.visits.of[i]
	v.stage, v.ticket = queued, ticket
	p := &r.replicas[v.replica]
	p.queued++
	for len(p.visits) <= int(ticket) {
		p.visits = append(p.visits, 0)
	}
	p.visits[ticket] = i
	r.settle(at, int(v.replica)) // it may have displaced another
	r.sweepLater(at, int(v.replica))
}

func (r *run) abandon(at int64, i uint32) {
	v := &r.visits.of[i]
	p := &r.replicas[v.replica]
	p.queued--
	p.Server.(Queuer).Abandon(time.Duration(at), v.ticket)
	r.quit(i)
}

// sweepEvery is how often a server's queue is looked at while any request waits in it.
const sweepEvery = 5 * time.Millisecond

func (r *run) sweepLater(at int64, replica int) {
	if p := &r.replicas[replica]; p.queued > 0 && !p.sweeping {
		p.sweeping = true
		r.queue.push(event{at: at + int64(sweepEvery), who: sweep, what: int32(replica)})
	}
}

func (r *run) sweep(at int64, replica int) {
	p := &r.replicas[replica]
	p.sweeping = false
	r.settle(at, replica)
	r.sweepLater(at, replica)
}

// settle looks which of those in a server's queue have been told something.
func (r *run) settle(at int64, replica int) {
	for p := &r.replicas[replica]; p.queued > 0; {
		ticket, a, ok := p.Server.(Queuer).Settled(time.Duration(at))
		if !ok {
			return
		}
		p.queued--
		r.decided(at, p.visits[ticket], a)
	}
}

// breakOff breaks the connections of those who wait in a server's queue, as it
// restarts.
func (r *run) breakOff(at int64, replica int) {
	for i := range r.visits.of {
		if v := &r.visits.of[i]; v.stage == queued && int(v.replica) == replica {
			r.abandon(at, uint32(i))
			r.failed(at, v, clients.NoConnection, pushback.Hint{})
		}
	}
}
