package sim

import (
	"fmt"
	"math"
	"math/rand/v2"
	"time"

	"github.com/herdshield/shield/loadtest/clients"
	"github.com/herdshield/shield/loadtest/plant"
)

// Markers in event.who, above every index of a client.
const (
	newClient uint32 = math.MaxUint32 - iota // the next one arrives
	change                                   // the next Change is due
	sweep                                    // the queue of a replica
	restart                                  // of the backend
	storeTrip                                // an exchange with the Store
	storeLook                                // a replica may have something to tell it
	markers
)

// The kinds of events of visits, all below 0.
const (
	done          int32 = -1 - iota // the work on it
	hangsUp                         // its client
	answeredWell                    // by the backend
	unavailable                     // 503 by the backend
	cannotConnect                   // to the backend: 502
	letGo                           // its client has hung up long ago
)

// Streams of random numbers, so that the herd and the new clients are the same
// whatever the server does.
const (
	herdStream = iota + 1
	newClientStream
	behaviourStream
	balanceStream
	workStream
	costStream
)

// run is a Scenario being played.
type run struct {
	*Scenario
	mixes      clients.Population // of the herd, then of the new clients if they have their own
	replicas   []replica
	backend    *plant.Plant[uint32]
	keys       uint64 // whitens the clients' keys
	work       uint64 // the same, for how much work their requests are
	newClients *rand.Rand
	behaviour  *rand.Rand
	balance    *rand.Rand
	costs      *rand.Rand

	queue   queue
	clients []client // the herd, then the new clients
	herdAt  int64    // the herd's first moment
	end     int64
	changed int // how many Changes have been made

	visits slots[visit]
	store  *store // nil: nothing is shared
	lives  int    // of replicas that were started again

	shares  []mixShare
	left    int // clients of the herd that come back and have not been served
	waiting int // clients, new clients too, that were rejected and come back

	returns returns
	bin     int64 // in which the run is
	unseen  Bin   // counts what happens in a run without a Series

	counts  Result // what can be counted while it is played
	drained int64  // when left became 0
	cleared int64  // when no other client waited any more, or the end
}

// mixShare is what is known of a share of the Mix.
type mixShare struct {
	returns           bool // its clients come back
	requests, retries int64
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
	if n := len(s.mixes()); n == 0 || n > clients.MaxShares {
		return nil, fmt.Errorf("the mixes have %d shares; use 1 to %d", n, clients.MaxShares)
	}
	if s.Calls < 0 || s.Calls > math.MaxUint8 {
		return nil, fmt.Errorf("calls is %d; use 0 to %d", s.Calls, math.MaxUint8)
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
	s.Replicas = max(1, s.Replicas)
	r := &run{
		Scenario:   &s,
		mixes:      s.mixes(),
		newClients: rand.New(rand.NewPCG(s.Seed, newClientStream)),
		behaviour:  rand.New(rand.NewPCG(s.Seed, behaviourStream)),
		balance:    rand.New(rand.NewPCG(s.Seed, balanceStream)),
		costs:      rand.New(rand.NewPCG(s.Seed, costStream)),
		work:       rand.New(rand.NewPCG(s.Seed, workStream)).Uint64(),
		herdAt:     int64(s.Warmup),
		end:        int64(s.Warmup + s.Until),
		clients:    make([]client, s.Clients, s.Clients+s.Clients/8),
		queue:      make(queue, 0, s.Clients+64),
	}
	for i := range s.Replicas {
		server, err := maker(r.configOf(s.Config, i, false))
		if err != nil {
			return nil, err
		}
		r.replicas = append(r.replicas, replica{Server: server})
	}
	for _, of := range r.mixes {
		r.shares = append(r.shares, mixShare{returns: of.Returns()})
	}
	r.newStore()
	r.plan()
	c := plant.Config{Workers: math.MaxInt} // at once
	if s.Plant != nil {
		c = *s.Plant
	}
	if c.Queue == 0 {
		c.Queue = maxWaiting
	}
	r.backend = plant.New[uint32](c)
	if at := r.herdAt + int64(c.Restart[0]); c.Restarts() && at >= 0 {
		r.queue.push(event{at: at, who: restart})
	}
	return r, nil
}

// plan puts into the queue what does not depend on the server.
func (r *run) plan() {
	herd := rand.New(rand.NewPCG(r.Seed, herdStream))
	r.keys = herd.Uint64()
	for i := range r.clients {
		c := &r.clients[i]
		c.born = r.herdAt + int64(herd.Float64()*float64(r.Within))
		c.share = uint8(r.Mix.Pick(herd.Float64()))
		if r.shares[c.share].returns {
			r.left++
		}
		r.queue.push(event{at: c.born, who: uint32(i)})
	}
	r.counts.Reachable = r.left
	if r.Background > 0 {
		r.queue.push(event{who: newClient})
	} else {
		r.nextNewClient(0)
	}
	for _, c := range r.Changes {
		r.queue.push(event{at: r.herdAt + int64(c.At), who: change})
	}
}

// maxWaiting bounds the queue of a Plant that has no bound of its own. Ours: four
// times a million clients.
const maxWaiting = 1 << 22

// play handles events until one of the Scenario's ends is reached. If it asks for no Series
// it also ends when all of the herd that come back are served and no other client waits.
func (r *run) play() error {
	cleared := false
	progress := int64(0)
	allCame := r.herdAt + int64(r.Within)
	for {
		cleared = cleared || r.left == 0 && r.waiting == 0 && r.counts.Reachable > 0
		if cleared && r.Bin == 0 && (len(r.queue) == 0 || r.queue[0].at > allCame) {
			break
		}
		if len(r.queue) == 0 || r.queue[0].at > r.end {
			if !cleared {
				r.cleared = r.end
			}
			break
		}
		if r.MaxRequests > 0 && r.counts.Decided >= r.MaxRequests {
			break
		}
		if len(r.visits.of) > maxVisits {
			return fmt.Errorf("more than %d requests are open concurrently; use a limit, or a backend that rejects", maxVisits)
		}
		e := r.queue.pop()
		if !cleared {
			r.cleared = e.at
		}
		if r.Progress != nil && e.at >= progress {
			r.Progress(time.Duration(e.at), time.Duration(r.end))
			progress = e.at - e.at%int64(time.Second) + int64(time.Second)
		}
		if r.Bin > 0 {
			r.gauge(e.at / int64(r.Bin))
		}
		if err := r.handle(e); err != nil {
			return err
		}
	}
	if r.left > 0 || r.counts.Reachable == 0 {
		r.drained = r.cleared
	}
	if r.Bin > 0 {
		r.gauge(int64(len(r.counts.Series)))
	}
	r.close()
	return nil
}

func (r *run) handle(e event) error {
	switch {
	case e.who == change:
		return r.change(e.at)
	case e.who == newClient:
		r.nextNewClient(e.at)
		mix, before := r.Mix, 0
		if r.NewClientsMix != nil {
			mix, before = r.NewClientsMix, len(r.Mix)
		}
		r.clients = append(r.clients, client{born: e.at, share: uint8(before + mix.Pick(r.newClients.Float64()))})
		r.arrive(e.at, uint32(len(r.clients)-1))
	case e.who == sweep:
		r.sweep(e.at, int(e.what))
	case e.who == restart:
		r.lose(e.at)
	case e.who == storeTrip:
		r.travels(e.at, e.what)
	case e.who == storeLook:
		r.lookAtLine(e.at, e.what)
	case e.what > 0:
		r.sent(e)
	case e.what < 0:
		r.happens(e)
	default:
		r.arrive(e.at, e.who)
	}
	return nil
}

// nextNewClient schedules the new client after one that has come at an instant.
func (r *run) nextNewClient(at int64) {
	due := r.newClients.ExpFloat64() // new clients until then, on average
	now := r.sinceHerd(at)
	rate := r.Rates.At(now, r.Background)
	for _, step := range r.Rates {
		if step.From <= now {
			continue
		}
		before := rate * (step.From - now).Seconds()
		if due < before {
			break
		}
		due -= before
		at, now, rate = r.herdAt+int64(step.From), step.From, step.Value
	}
	if rate > 0 {
		r.queue.push(event{at: at + int64(due/rate*float64(time.Second)), who: newClient})
	}
}

// gauge takes note of how things stand at the end of all bins before the given one.
func (r *run) gauge(bin int64) {
	if bin <= r.bin {
		return
	}
	waiting, limit := 0, 0
	for i := range r.replicas {
		waiting += r.replicas[i].queued
		if g, ok := r.replicas[i].Server.(Gauge); ok {
			limit += g.Limit()
		}
	}
	for ; r.bin < bin; r.bin++ {
		b := r.binOf(r.bin * int64(r.Bin))
		b.InFlight, b.Queued, b.Limit = int32(r.backend.Busy()+r.backend.Waiting()), int32(waiting), int32(min(limit, math.MaxInt32))
	}
}

func (r *run) change(at int64) error {
	c := r.Changes[r.changed]
	r.changed++
	for i := range r.replicas {
		if !c.hits(i) {
			continue
		}
		if c.Restart {
			r.breakOff(at, i)
		}
		if err := r.replicas[i].Change(r.configOf(c.Config, i, c.Restart), c.Restart); err != nil {
			return fmt.Errorf("change at %v: %w", c.At, err)
		}
	}
	return nil
}
