package sim

import (
	"fmt"
	"slices"
	"time"

	"github.com/herdshield/shield"
	"github.com/herdshield/shield/share"
)

// A Store is what the replicas of a Scenario share limits and appointments through.
type Store struct {
	// New returns an empty unit: one of share/virtual. It is a field so that programs without a Store, as the
	// playground in a browser, need no interpreter of the store's script.
	New    func() Unit
	Trip   time.Duration // there and back; 0: 1 ms
	Faults []Fault
}

// A Unit is a zone or a backend in a Store.
type Unit interface {
	Do(ms int64, ask share.LeaseAsk) share.LeaseAnswer // at an instant of the store's clock
}

// A Fault of a Store.
type Fault struct {
	From, To time.Duration // since the herd's first moment
	Replica  int           // that it is a fault for, from 1; 0: all
	Trip     time.Duration // how long a trip takes then; 0: it is never answered
	Flush    bool          // instead, the Store forgets everything, at From
}

// store is a Store in a run.
type store struct {
	*Store
	units map[int]Unit
	lines []*line   // of all replicas, those that have restarted too
	of    [][]int32 // which are of a replica
	trips slots[trip]
	flush int // Faults that have flushed it
}

// A line carries the exchanges of one link about a unit: a zone, or -1 for the backend.
type line struct {
	link
	of      Queuer
	replica int
	unit    int
	woken   bool
	dead    bool  // its replica has another one
	look    int64 // when it is looked at next
}

// A link is a share.Link or a share.Zone.
type link interface {
	OnWake(wake func())
	Due(now time.Duration) (share.LeaseAsk, bool)
	Heard(now, sent time.Duration, answer share.LeaseAnswer)
	Missed(now time.Duration)
	Next(now time.Duration) time.Duration
}

// A trip is one exchange.
type trip struct {
	line   int32
	stage  tripStage
	sent   time.Duration
	ask    share.LeaseAsk
	answer share.LeaseAnswer
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
	r.store = &store{Store: r.Store, units: map[int]Unit{}, of: make([][]int32, r.Replicas)}
	for i := range r.replicas {
		r.lookAtLinks(0, i)
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

// lookAtLinks has a replica tell the store what is due, if it was woken.
func (r *run) lookAtLinks(at int64, replica int) {
	if r.store == nil {
		return
	}
	s, now := r.store, time.Duration(at)
	linked, ok := r.replicas[replica].Server.(Queuer)
	if !ok {
		return
	}
	if len(s.of[replica]) == 0 {
		s.join(now, replica, linked)
	}
	for _, n := range s.of[replica] {
		if s.lines[n].woken {
			r.lookAtLine(at, n)
		}
	}
}

// join begins to serve a replica.
func (s *store) join(now time.Duration, replica int, of Queuer) {
	add := func(l link, unit int) {
		line := &line{link: l, of: of, replica: replica, unit: unit, woken: true}
		l.OnWake(func() { line.woken = true })
		s.of[replica] = append(s.of[replica], int32(len(s.lines)))
		s.lines = append(s.lines, line)
	}
	if l := of.Link(now); l != nil {
		add(l, -1)
	}
	for i, z := range of.Zones(now) {
		if z != nil {
			add(z, i)
		}
	}
}

func (r *run) lookAtLine(at int64, number int32) {
	s, now := r.store, time.Duration(at)
	l := s.lines[number]
	if l.dead {
		return
	}
	l.woken = false
	l.of.Tick(now)
	if ask, ok := l.Due(now); ok {
		t := trip{line: number, sent: now, ask: ask}
		way, arrives := s.at(r.sinceHerd(at), l.replica)
		if !arrives {
			t.stage, way = lost, share.GiveUp
		}
		r.queue.push(event{at: at + int64(way), who: storeTrip, what: s.trips.put(t)})
	}
	if next := int64(l.Next(now)); next > at && (l.look <= at || next < l.look) {
		l.look = next
		r.queue.push(event{at: next, who: storeLook, what: number})
	}
}

// travels is the next that happens to an exchange.
func (r *run) travels(at int64, number int32) {
	s := r.store
	t := &s.trips.of[number]
	l := s.lines[t.line]
	switch t.stage {
	case onTheWay:
		for ; s.flush < len(s.Faults) && (!s.Faults[s.flush].Flush || s.Faults[s.flush].From <= r.sinceHerd(at)); s.flush++ {
			if s.Faults[s.flush].Flush {
				clear(s.units)
			}
		}
		if s.units[l.unit] == nil {
			s.units[l.unit] = s.New()
		}
		t.answer = s.units[l.unit].Do(epoch+at/int64(time.Millisecond), t.ask)
		way, arrives := s.at(r.sinceHerd(at), l.replica)
		if t.stage = onTheWayBack; !arrives {
			t.stage, way = lost, share.GiveUp
		}
		r.queue.push(event{at: at + int64(way), who: storeTrip, what: number})
		return
	case onTheWayBack:
		l.Heard(time.Duration(at), t.sent, t.answer)
	case lost:
		l.Missed(time.Duration(at))
	}
	of := t.line
	*t = trip{}
	s.trips.drop(number)
	r.settle(at, l.replica)
	r.lookAtLine(at, of)
}

// configOf returns what a replica is configured with.
func (r *run) configOf(c shield.Config, replica int, restarts bool) shield.Config {
	if r.Store == nil {
		return c
	}
	if restarts {
		r.lives++
	}
	if r.store != nil { // it may have other links then
		for _, n := range r.store.of[replica] {
			r.store.lines[n].dead = true
		}
		r.store.of[replica] = nil
	}
	c.Shared, c.Secret = true, []byte("the secret of a simulation")
	c.Replica, c.Replicas = fmt.Sprintf("replica-%02d-%d", replica, r.lives), r.Replicas
	c.Zones = slices.Clone(c.Zones)
	for i := range c.Zones {
		c.Zones[i].Shared = true
	}
	return c
}
