package sim

import (
	"fmt"
	"math"
	"math/rand/v2"
	"time"

	"github.com/herdshield/shield/limiter"
	"github.com/herdshield/shield/loadtest/clients"
)

// Markers in event.who, above every index of a client.
const (
	stranger uint32 = math.MaxUint32 - iota // the next one arrives
	change                                  // the next Change is due
)

// client is what is known of a client: 24 bytes, as there may be a million.
type client struct {
	born     int64 // nanoseconds since the epoch
	gap      int64 // its wait before this attempt; once served, how long all took
	attempts uint32
	share    uint8 // of the Mix
	state    state
	punctual bool // it comes when it was told
}

type state uint8

const (
	trying state = iota
	served
	gone
)

// punctuality is how late a client may come and still call a refusal a broken
// promise. Ours: ten times the mean reaction of an exact client.
const punctuality = 50 * time.Millisecond

// Streams of random numbers, so that the herd and the strangers are the same
// whatever the server does.
const (
	herdStream = iota + 1
	strangerStream
	behaviourStream
)

// run is a Scenario being played.
type run struct {
	*Scenario
	server    Server
	keys      uint64 // whitens the clients' keys
	strangers *rand.Rand
	behaviour *rand.Rand

	queue   queue
	clients []client // the herd, then the strangers
	herdAt  int64    // the herd's first moment
	end     int64
	changed int // how many Changes have been made

	returns []bool // by share: whether its clients come back
	varied  []bool // by share: whether they are Varied
	left    int    // clients of the herd that come back and have not been served
	waiting int    // clients, strangers too, that were refused and come back

	level  level
	bins   bins
	series series

	requests                  int // decided on
	reachable, gaveUp, broken int // of the herd; see Result
	held, mostHeld            int
	drained                   int64 // when left became 0
	cleared                   int64 // when nobody else waited any more, or the end
}

// Run plays s against the Server that maker makes; nil means the real Guard.
func Run(s Scenario, maker Maker) (Result, error) {
	r, err := newRun(s, maker)
	if err != nil {
		return Result{}, err
	}
	if err := r.play(); err != nil {
		return Result{}, err
	}
	return r.result(), nil
}

func newRun(s Scenario, maker Maker) (*run, error) {
	if err := s.check(); err != nil {
		return nil, err
	}
	if maker == nil {
		maker = Guard
	}
	if s.Warmup == 0 {
		s.Warmup = defaultWarmup
	}
	if s.Until == 0 {
		s.Until = max(time.Minute, 10*s.optimum(s.Clients))
	}
	if s.Bin > 0 && (s.Warmup+s.Until)/s.Bin >= maxBins {
		return nil, fmt.Errorf("bin is %v, of a run of %v; want fewer than %d bins", s.Bin, s.Warmup+s.Until, maxBins)
	}
	server, err := maker(s.Config)
	if err != nil {
		return nil, err
	}
	r := &run{
		Scenario:  &s,
		server:    server,
		strangers: rand.New(rand.NewPCG(s.Seed, strangerStream)),
		behaviour: rand.New(rand.NewPCG(s.Seed, behaviourStream)),
		herdAt:    int64(s.Warmup),
		end:       int64(s.Warmup + s.Until),
		clients:   make([]client, s.Clients, s.Clients+s.Clients/8),
		queue:     make(queue, 0, s.Clients+64),
	}
	for _, share := range s.Mix {
		_, varied := share.Policy.(Varied)
		r.returns, r.varied = append(r.returns, share.Returns()), append(r.varied, varied)
	}
	herd := rand.New(rand.NewPCG(s.Seed, herdStream))
	r.keys = herd.Uint64()
	for i := range r.clients {
		c := &r.clients[i]
		c.born = r.herdAt + int64(herd.Float64()*float64(s.Within))
		c.share = uint8(s.Mix.Pick(herd.Float64()))
		if r.returns[c.share] {
			r.left++
		}
		r.queue.push(event{at: c.born, who: uint32(i)})
	}
	r.reachable = r.left
	r.level.follow(s.Config.Capacity, true)
	if s.Background > 0 {
		r.queue.push(event{who: stranger})
	}
	for _, c := range s.Changes {
		r.queue.push(event{at: r.herdAt + int64(c.At), who: change})
	}
	return r, nil
}

// play handles events until one of the Scenario's ends is reached, or, if it asks
// for no Series, all of the herd who come back are served and nobody else waits.
func (r *run) play() error {
	cleared := false
	for {
		if cleared = cleared || r.left == 0 && r.waiting == 0 && r.reachable > 0; cleared && r.Bin == 0 {
			break
		}
		if len(r.queue) == 0 || r.queue[0].at > r.end {
			if !cleared {
				r.cleared = r.end
			}
			break
		}
		if r.MaxRequests > 0 && r.requests >= r.MaxRequests {
			break
		}
		e := r.queue.pop()
		if !cleared {
			r.cleared = e.at
		}
		switch {
		case e.who == change:
			if err := r.change(); err != nil {
				return err
			}
		case e.who == stranger:
			gap := r.strangers.ExpFloat64() / r.Background * float64(time.Second)
			r.queue.push(event{at: e.at + int64(gap), who: stranger})
			r.clients = append(r.clients, client{born: e.at, share: uint8(r.Mix.Pick(r.strangers.Float64()))})
			r.arrive(e.at, uint32(len(r.clients)-1))
		case e.ticket > 0:
			r.held--
			r.close(e)
		case e.ticket < 0:
			r.close(e)
			r.serve(e.at, e.who)
		default:
			r.arrive(e.at, e.who)
		}
	}
	if r.left > 0 || r.reachable == 0 {
		r.drained = r.cleared
	}
	for len(r.queue) > 0 { // leave nothing open
		if e := r.queue.pop(); e.ticket != 0 {
			r.close(e)
		}
	}
	return nil
}

// close tells the server that the hold or the service is over that e ends.
func (r *run) close(e event) {
	if ticket := max(e.ticket, -e.ticket) - 1; ticket > 0 {
		r.server.Finish(time.Duration(e.at), ticket)
	}
}

// change makes the next Change.
func (r *run) change() error {
	c := r.Changes[r.changed]
	r.changed++
	if err := r.server.Change(c.Config, c.Restart); err != nil {
		return fmt.Errorf("change at %v: %w", c.At, err)
	}
	r.level.follow(c.Config.Capacity, c.Restart)
	return nil
}

// key returns the key of number n, never Outside: the mixer of SplitMix64
// (Steele, Lea, Flood 2014), which maps no two numbers to one key.
func key(n uint64) limiter.Key {
	n = (n + 1) * 0x9e3779b97f4a7c15
	n = (n ^ n>>30) * 0xbf58476d1ce4e5b9
	n = (n ^ n>>27) * 0x94d049bb133111eb
	return limiter.Key(max(1, n^n>>31))
}

// arrive decides on one request.
func (r *run) arrive(at int64, who uint32) {
	now := time.Duration(at)
	c := &r.clients[who]
	c.attempts++
	r.requests++
	share := &r.Mix[c.share]
	r.bins.count(at-r.herdAt-int64(r.Within), c.attempts > 1)
	herd := int(who) < r.Clients
	client := key(r.keys + uint64(who))
	kind := uint64(client)
	if r.varied[c.share] {
		kind += uint64(c.attempts)
	}
	a := r.server.Arrive(now, Request{
		Client:  client,
		Kind:    key(kind),
		Attempt: int(c.attempts),
		Precise: share.Precise,
		U:       r.behaviour.Float64(),
	})
	r.level.decided(at, r.herdAt, a.Admit)
	if r.Bin > 0 {
		r.series.decided(at/int64(r.Bin), herd, a.Admit)
	}
	if a.Admit {
		done := event{at: at + int64(r.serviceTime()), who: who, ticket: -a.Ticket - 1}
		if done.at > at {
			r.queue.push(done)
			return
		}
		r.close(done)
		r.serve(at, who)
		return
	}

	if c.punctual {
		r.broken++
	}
	if a.Hold > 0 {
		r.held++
		r.mostHeld = max(r.mostHeld, r.held)
		r.queue.push(event{at: at + int64(a.Hold), who: who, ticket: a.Ticket + 1})
	}
	learnt := at + int64(a.Hold+r.Delay) // when the client has read the refusal
	wait, again := share.Policy.Next(clients.Refused{
		Attempt: int(c.attempts),
		Hint:    a.Hint,
		Gap:     time.Duration(c.gap),
		Elapsed: time.Duration(learnt - c.born),
		U:       r.behaviour.Float64(),
	})
	if !again {
		c.state = gone
		if r.returns[c.share] {
			if c.attempts > 1 {
				r.waiting--
			}
			if herd {
				r.gaveUp++
				r.leave(at)
			}
		}
		return
	}
	if c.attempts == 1 {
		r.waiting++
	}
	c.gap = int64(wait)
	c.punctual = a.Hint.Seconds > 0 && wait >= time.Duration(a.Hint.Ms)*time.Millisecond &&
		wait <= time.Duration(a.Hint.Seconds)*time.Second+punctuality
	r.queue.push(event{at: learnt + int64(wait+r.Delay), who: who})
}

// serve ends a client's wait.
func (r *run) serve(at int64, who uint32) {
	c := &r.clients[who]
	c.state = served
	c.gap = at - c.born
	if c.attempts > 1 {
		r.waiting--
	}
	if int(who) < r.Clients && r.returns[c.share] {
		r.leave(at)
	}
}

// leave is a client of the herd that is not waited for any more.
func (r *run) leave(at int64) {
	if r.left--; r.left == 0 {
		r.drained = at
	}
}

func (r *run) serviceTime() time.Duration {
	if r.Service.Exponential {
		return time.Duration(r.behaviour.ExpFloat64() * float64(r.Service.Mean))
	}
	return r.Service.Mean
}
