package share

import (
	_ "embed"
	"time"

	"github.com/herdshield/shield/pushback"
)

// Script is what a store runs for each exchange. It is the only definition of what a store does: tests
// and simulations run it, too, with an instant of their own as the first argument.
//
//go:embed lease.lua
var Script string

const (
	// Beat is how often a replica tells the store that it lives, and is told what is new.
	Beat = 100 * time.Millisecond

	// Lease is for how long a replica counts as alive that was not heard of: three beats
	// and what they take. It is LEASE in the script.
	Lease = 350 * time.Millisecond

	// MaxTrip is how long a request waits for the store at most, and a trip that takes
	// longer makes a replica work alone. Ours: waiting for longer costs a herd more than
	// divided limits do; trips within a data centre take less than 2 ms.
	MaxTrip = 25 * time.Millisecond

	// IdleLease is the lease of a replica to which no request has come for IdleTime, and
	// IdleBeat how often it tells that it lives.
	IdleLease = 1200 * time.Millisecond
	IdleBeat  = 500 * time.Millisecond
	IdleTime  = 10 * time.Second

	// GiveUp is how long after it was sent an exchange is given up: a later answer does not
	// count.
	GiveUp = 250 * time.Millisecond

	// RosterTime is how long after it was heard of a replica counts in the number of
	// replicas, and keeps its places: FORGET in the script.
	RosterTime = 15 * time.Second
)

// A LeaseAsk is what one replica tells the store about one unit, and asks it for. It is the second argument of
// Script, as JSON. Times are milliseconds; instants are of the store's clock.
type LeaseAsk struct {
	Me     string `json:"me"`     // the name of the replica: random, one for each process
	Seq    int64  `json:"seq"`    // higher in each ask
	Life   int64  `json:"life"`   // higher after each time in which the replica worked alone
	Last   int64  `json:"last"`   // the Seq of the last ask that was answered; 0: none was
	Till   int64  `json:"till"`   // pools earn for the replica until then, and a later ask is too late
	Alone  bool   `json:"alone"`  // it works with its part of all limits, and only looks for the store
	Leaves bool   `json:"leaves"` // it is its last ask: what it holds goes back
	N      int    `json:"n"`      // by how many replicas it divides what it has: at least 1
	Known  int    `json:"known"`  // how many there are, as the store has said; 0: it was not heard of

	Of    []PoolKind   `json:"of,omitempty"`
	Pools [][4]float64 `json:"pools,omitempty"` // index in Of, held, given back (of places: in use), wanted
	Keys  []string     `json:"-"`               // of Pools

	Slots *pushback.SlotsAsk `json:"slots,omitempty"` // of the line

	After int64  `json:"after"` // LeaseAnswer.After of the last answer
	Notes string `json:"-"`     // for the other replicas; the third argument

	What string `json:"what,omitempty"` // how the unit is defined, if the answer is to have Others
}

// A Unit is what some replicas share under a name: those of another Unit have keys of their own.
type Unit struct {
	What     string `json:"what"`     // all that is defined alike
	Replicas int    `json:"replicas"` // that have it
}

// A PoolKind says what some pools have in common.
type PoolKind struct {
	Rate  float64 `json:"rate"`  // tokens per millisecond; 0: places
	Cap   float64 `json:"cap"`   // the burst, or the limit in flight
	Parts float64 `json:"parts"` // a replica without the pool has cap ÷ parts ÷ replicas: 1, or 2 of the keys of zones
	Cost  float64 `json:"cost"`  // of a request: fewer tokens are of no use
	Stay  int64   `json:"stay"`  // for how long the pool earns for a replica that tells nothing more about it
}

// A LeaseAnswer is the store's answer to a LeaseAsk.
type LeaseAnswer struct {
	Now   int64 `json:"now"`             // the store's clock
	Stale bool  `json:"stale,omitempty"` // the ask is too late, or a later one was answered: nothing was done
	New   bool  `json:"new,omitempty"`   // the store has just begun, and lost nothing
	Born  int64 `json:"born"`            // when it has lost something last; 0: never
	N     int   `json:"n"`               // how many replicas there are
	Rank  int   `json:"rank"`            // of this one among them, by name: 0 to N-1

	Pools []PoolAnswer          `json:"pools,omitempty"` // in the order of the ask
	Slots *pushback.SlotsAnswer `json:"slots,omitempty"`

	News  []string `json:"news,omitempty"` // notes, those of this replica included
	After int64    `json:"after"`
	More  bool     `json:"more,omitempty"` // there is more news

	Others []Unit `json:"others,omitempty"` // of the same name
}

// A PoolAnswer is about one pool.
type PoolAnswer struct {
	Got  float64 `json:"g"` // tokens; or how many places the replica may have
	Left float64 `json:"p"` // in the pool
}
