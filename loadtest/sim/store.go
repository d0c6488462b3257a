package sim

import (
	"fmt"
	"slices"
	"time"

	"github.com/herdshield/shield"
	"github.com/herdshield/shield/share"
)

// A Store is what the replicas of a Scenario share limits and promises through.
type Store struct {
	Trip   time.Duration // there and back; 0: 1 ms
	Faults []Fault
}

// A Fault of a Store.
type Fault struct {
	From, To time.Duration // since the herd's first moment
	Replica  int           // that it is a fault for, from 1; 0: all
	Trip     time.Duration // how long a trip takes then; 0: it is never answered
	Flush    bool          // instead, the Store forgets everything, at From
}

// A Linked is a Server whose replicas may share something through a Store.
type Linked interface {
	Link(now time.Duration) *share.Link
	Tick(now time.Duration) // looks at the counters if it is time to
}

// store is a Store in a run.
type store struct {
	*Store
	model share.Model
	trips slots[trip]
	looks []int64 // when each replica's link is looked at next
	flush int     // Faults that have flushed it
	asked int     // exchanges
}

// trip is one exchange.
type trip struct {
	replica int
	link    *share.Link
	ask     share.Ask
	answer  share.Answer
	stage   tripStage
	sent    time.Duration
}

type tripStage uint8

const (
	onTheWay tripStage = iota
	onTheWayBack
	lost
)

// epoch is the store's time at the run's first moment, in milliseconds: no multiple of what
// replicas count in.
const epoch = 1_700_000_000_137

// defaultTrip is within a data centre.
const defaultTrip = time.Millisecond

func (r *run) newStore() {
	if r.Store == nil {
		return
	}
	r.store = &store{Store: r.Store, looks: make([]int64, r.Replicas)}
	for i := range r.replicas {
		r.lookAtLink(0, i)
	}
}

// at returns how long a trip takes one way at an instant, and whether it arrives.
func (s *store) at(now time.Duration, replica int) (way time.Duration, arrives bool) {
	trip := s.Trip
	if trip == 0 {
		trip = defaultTrip
	}
	for _, f := range s.Faults {
		if f.Flush || now < f.From || now >= f.To || f.Replica != 0 && f.Replica != replica+1 {
			continue
		}
		if f.Trip == 0 {
			return 0, false
		}
		trip = f.Trip
	}
	return trip / 2, true
}

// lookAtLink has a replica tell the store what is due.
func (r *run) lookAtLink(at int64, replica int) {
	if r.store == nil {
		return
	}
	linked, ok := r.replicas[replica].Server.(Linked)
	if !ok {
		return
	}
	now := time.Duration(at)
	link := linked.Link(now)
	if link == nil {
		return
	}
	linked.Tick(now)
	s := r.store
	if ask, ok := link.Due(now); ok {
		s.asked++
		way, arrives := s.at(r.sinceHerd(at), replica)
		t := trip{replica: replica, link: link, ask: ask, sent: now}
		if !arrives {
			t.stage, way = lost, share.GiveUp
		}
		r.queue.push(event{at: at + int64(way), who: storeTrip, what: s.trips.put(t)})
	}
	if next := int64(link.Next(now)); next > at && (s.looks[replica] <= at || next < s.looks[replica]) {
		s.looks[replica] = next
		r.queue.push(event{at: next, who: storeLook, what: int32(replica)})
	}
}

// travels is the next that happens to an exchange.
func (r *run) travels(at int64, number int32) {
	s := r.store
	t := s.trips.of[number]
	now := time.Duration(at)
	switch t.stage {
	case onTheWay:
		for ; s.flush < len(s.Faults) && (!s.Faults[s.flush].Flush || s.Faults[s.flush].From <= r.sinceHerd(at)); s.flush++ {
			if s.Faults[s.flush].Flush {
				s.model = share.Model{}
			}
		}
		t.answer, t.stage = s.model.Plan(epoch+at/int64(time.Millisecond), t.ask), onTheWayBack
		way, arrives := s.at(r.sinceHerd(at), t.replica)
		if !arrives {
			t.stage, way = lost, share.GiveUp
		}
		s.trips.of[number] = t
		r.queue.push(event{at: at + int64(way), who: storeTrip, what: number})
		return
	case onTheWayBack:
		t.link.Heard(now, t.sent, t.answer)
	case lost:
		t.link.Missed(now)
	}
	s.trips.drop(number)
	r.settle(at, t.replica)
	r.lookAtLink(at, t.replica)
}

// Balance is how requests are spread over replicas.
type Balance string

// The Balances.
const (
	BalanceRandom Balance = "random" // each goes to any of them; "" is the same
	BalanceOther  Balance = "other"  // a client never goes to the one that refused it
	BalanceSticky Balance = "sticky"
	BalanceSkewed Balance = "skewed" // nine tenths go to the first one
	BalanceMoving Balance = "moving" // all go to one, to the next one after 3 s
)

// Balances are all Balances.
var Balances = []Balance{BalanceRandom, BalanceOther, BalanceSticky, BalanceSkewed, BalanceMoving}

// pick returns the replica that a client's request goes to.
func (r *run) pick(at int64, who uint32, attempt int) int {
	n := r.Replicas
	switch r.Balance {
	case BalanceOther:
		return (int(who) + attempt) % n
	case BalanceSticky:
		return int(who) % n
	case BalanceSkewed:
		if r.balance.Float64() < 0.9 {
			return 0
		}
		return 1 + r.balance.IntN(n-1)
	case BalanceMoving:
		return int(r.sinceHerd(at)/(3*time.Second)+1<<20) % n
	}
	return r.balance.IntN(n)
}

// replicaName names one life of a replica.
func replicaName(replica, life int) string { return fmt.Sprintf("replica-%02d-%d", replica, life) }

// configOf returns what a replica is configured with.
func (r *run) configOf(c shield.Config, replica int, restarts bool) shield.Config {
	if r.Store == nil {
		return c
	}
	if restarts {
		r.lives++
	}
	c.Shared, c.Secret = true, []byte("the secret of a simulation")
	c.Replica, c.Replicas = replicaName(replica, r.lives), r.Replicas
	c.Zones = slices.Clone(c.Zones)
	for i := range c.Zones {
		c.Zones[i].Shared = true
	}
	return c
}
