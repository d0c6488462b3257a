package share

import (
	"time"

	"github.com/herdshield/shield/pushback"
)

const (
	// Beat is how often a replica tells the store that it lives, and is told what is new.
	Beat = 100 * time.Millisecond

	// Lease is for how long a replica counts as alive that was not heard of: three beats
	// and what they take.
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
	// replicas, and keeps its places.
	RosterTime = 15 * time.Second
)

// Ask is what one replica tells the store about one backend, and asks it for. It is the
// argument of a script, as JSON. All instants and times are whole milliseconds of the
// store's clock.
type Ask struct {
	Name   string `json:"name"`   // of the replica: random, one for each process
	Seq    int64  `json:"seq"`    // higher in each ask
	Lease  int64  `json:"lease"`  // how long the replica counts as alive after this ask
	Alone  bool   `json:"alone"`  // it works with its part of every limit until it is answered
	Leaves bool   `json:"leaves"` // it is its last ask: what it holds goes back

	// Replicas is how many there are, as another answer has said lately; 0: not known. A store
	// that has just been born does not know better.
	Replicas int `json:"replicas"`

	Slots *SlotsAsk `json:"slots,omitempty"`
	News  string    `json:"news,omitempty"` // promises for the other replicas: see Record
	After int64     `json:"after"`          // the last news that it has read: Answer.After
}

// Answer is what the store answers to an Ask.
type Answer struct {
	Now      int64 `json:"now"`             // the store's clock
	Born     int64 `json:"born"`            // when the store began to know of this backend
	Over     bool  `json:"over,omitempty"`  // its lease was over, nothing was done: ask alone
	Stale    bool  `json:"stale,omitempty"` // a later ask was answered already, nothing was done
	Replicas int   `json:"replicas"`        // how many there are
	Rank     int   `json:"rank"`            // of this one among them, by name: 0 to Replicas-1

	Slots *SlotsAnswer `json:"slots,omitempty"`
	News  []string     `json:"news,omitempty"` // of other replicas
	After int64        `json:"after"`
}

// Slots of the line, and what is told about them.
type (
	Slot        = pushback.Slot
	SlotsAsk    = pushback.SlotsAsk
	SlotsAnswer = pushback.SlotsAnswer
)
