package sim

import (
	"time"

	"github.com/herdshield/shield/limiter"
	"github.com/herdshield/shield/loadtest/clients"
	"github.com/herdshield/shield/pushback"
)

// client is what is known of a client: 24 bytes, as there may be a million.
type client struct {
	born     int64  // nanoseconds since the epoch
	gap      int64  // its wait before this attempt; once served, how long all took
	attempts uint32 // of its call
	share    uint8  // of the Mix
	state    state
	punctual bool  // it comes when it was told
	calls    uint8 // of its task, that were answered
}

type state uint8

const (
	trying state = iota
	served
	gone
)

// punctuality is how late a client may come and still call a rejection a broken
// appointment. Ours: ten times the mean reaction of an exact client.
const punctuality = 50 * time.Millisecond

// key returns the key of number n, never NoKey: the mixer of SplitMix64
// (Steele, Lea, Flood 2014), which maps no two numbers to one key.
func key(n uint64) limiter.Key {
	n = (n + 1) * 0x9e3779b97f4a7c15
	n = (n ^ n>>30) * 0xbf58476d1ce4e5b9
	n = (n ^ n>>27) * 0x94d049bb133111eb
	return limiter.Key(max(1, n^n>>31))
}

// address returns the key by which servers know a client: that of its address.
func (r *run) address(who uint32) limiter.Key {
	const herds, newClients = 1 << 40, 2 << 40 // above the number of every client
	switch n, i := uint64(r.Addresses), uint64(who); {
	case int(who) < r.Clients && n > 0:
		return key(r.keys + herds + i%n)
	case int(who) >= r.Clients && r.NewClientsAddresses > 0:
		return key(r.keys + newClients + i%uint64(r.NewClientsAddresses))
	default:
		return key(r.keys + i)
	}
}

func (r *run) arrive(at int64, who uint32) {
	c := &r.clients[who]
	c.attempts++
	r.counts.Decided++
	r.shares[c.share].requests++
	retry := c.attempts > 1
	b := r.binOf(at)
	b.Door(int(who) < r.Clients).Came++
	if retry {
		b.Retries++
		r.returns.count(at - r.herdAt - int64(r.Within))
	}
	of := &r.mixes[c.share]
	q := Request{
		Client:  r.address(who),
		Attempt: int(c.attempts),
		Retry:   retry && of.SaysRetry,
		Precise: of.Precise,
		U:       r.behaviour.Float64(),
	}
	if r.Classes != nil {
		q.Class = r.Classes[c.share]
	}
	if of.SaysTimeout && r.Timeout > 0 {
		q.Deadline = time.Duration(at) + r.Timeout
	}
	replica := 0
	switch {
	case r.Replicas > 1 && r.Balance != nil:
		replica = r.Balance(r.sinceHerd(at), int(who), int(c.attempts))
	case r.Replicas > 1:
		replica = r.balance.IntN(r.Replicas)
	}
	i := r.enter(at, who, replica)
	if a := r.replicas[replica].Arrive(time.Duration(at), q); a.Queued {
		r.wait(at, i, a.Ticket)
	} else {
		r.decided(at, i, a)
	}
	r.lookAtLinks(at, replica)
}

// fail is a client that knows at learned that its attempt has failed. own: it was
// rejected by the server, and what it is told is an appointment.
func (r *run) fail(at, learned int64, who uint32, status int, hint pushback.Hint, own bool) {
	c := &r.clients[who]
	of := &r.shares[c.share]
	wait, again := r.mixes[c.share].Policy.Next(clients.Rejected{
		Attempt:  int(c.attempts),
		Hint:     hint,
		Gap:      time.Duration(c.gap),
		Elapsed:  time.Duration(learned-c.born) + r.Delay, // born at the server, a Delay after it was sent
		U:        r.behaviour.Float64(),
		Status:   status,
		Retries:  of.retries,
		Requests: of.requests,
	})
	next := learned + int64(wait+r.Delay)
	if !again || r.Patience > 0 && next-c.born > int64(r.Patience) {
		c.state = gone
		r.binOf(at).GaveUp++
		if c.attempts > 1 {
			r.waiting--
		}
		if of.returns && int(who) < r.Clients {
			r.counts.GaveUp++
			r.leave(at)
		}
		return
	}
	of.retries++ // now, not when it is sent: all of a herd decide before the first comes back
	if c.attempts == 1 {
		r.waiting++
	}
	c.gap = int64(wait)
	c.punctual = own && hint.Seconds > 0 && wait >= time.Duration(hint.Ms)*time.Millisecond &&
		wait <= time.Duration(hint.Seconds)*time.Second+punctuality
	r.queue.push(event{at: next, who: who})
}

func (r *run) serve(at int64, who uint32) {
	c := &r.clients[who]
	r.binOf(at).Served++
	if c.attempts > 1 {
		r.waiting--
	}
	if c.calls++; int(c.calls) < r.Calls {
		c.attempts, c.gap, c.punctual = 0, 0, false
		r.queue.push(event{at: at + 2*int64(r.Delay), who: who})
		return
	}
	c.state = served
	c.gap = at - c.born
	if int(who) < r.Clients && r.shares[c.share].returns {
		r.leave(at)
	}
}

// leave is a client of the herd that is not waited for any more.
func (r *run) leave(at int64) {
	if r.left--; r.left == 0 {
		r.drained = at
	}
}
