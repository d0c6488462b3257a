package share

import "time"

const (
	// SlotWidth is the width of a bucket of slots: that of the calendar.
	SlotWidth = 250 * time.Millisecond

	// Beat is how often a replica tells the store that it lives, and is told what is new.
	Beat = 100 * time.Millisecond

	// Lease is for how long a replica counts as alive that was not heard of: three beats
	// and what they take.
	Lease = 350 * time.Millisecond

	// MaxTrip is how long a request waits for the store at most, and a trip that takes
	// longer makes a replica work alone. Ours: waiting for longer costs a herd more than
	// divided limits do; trips within a data centre take less than 2 ms.
	MaxTrip = 25 * time.Millisecond

	// RosterTime is how long after it was heard of a replica counts in the number of
	// replicas, and keeps its places.
	RosterTime = 15 * time.Second
)

// Ask is what one replica tells the store about one backend, and asks it for. It is the
// argument of a script, as JSON. All instants and times are whole milliseconds of the
// store's clock.
type Ask struct {
	Name     string `json:"name"`     // of the replica: random, one for each process
	Life     int64  `json:"life"`     // higher in each life of the replica: see Answer.Over
	Seq      int64  `json:"seq"`      // higher in each ask of this life
	Alone    bool   `json:"alone"`    // it works with its part of every limit until it is answered
	Replicas int    `json:"replicas"` // how many there are at least, as far as it knows

	Tokens *TokensAsk `json:"tokens,omitempty"` // nil: the backend has no capacity set
	Slots  *SlotsAsk  `json:"slots,omitempty"`
	Places *PlacesAsk `json:"places,omitempty"` // nil: the backend has no limit in flight
	News   string     `json:"news,omitempty"`   // promises for the other replicas: see Record
	After  string     `json:"after"`            // the last news that it has read: Answer.After
}

// Answer is what the store answers to an Ask.
type Answer struct {
	Now      int64 `json:"now"`             // the store's clock
	Born     int64 `json:"born"`            // when the store began to know of this backend
	Over     bool  `json:"over,omitempty"`  // the life is over, nothing was done: take another
	Stale    bool  `json:"stale,omitempty"` // a later ask was answered already, nothing was done
	Replicas int   `json:"replicas"`        // how many there are
	Rank     int   `json:"rank"`            // of this one among them, by name: 0 to Replicas-1

	Tokens *TokensAnswer `json:"tokens,omitempty"`
	Slots  *SlotsAnswer  `json:"slots,omitempty"`
	Places *PlacesAnswer `json:"places,omitempty"`
	News   []string      `json:"news,omitempty"` // of other replicas
	After  string        `json:"after"`
}

// TokensAsk is about the backend's capacity: a pool of tokens in the store, from which
// replicas fetch some.
type TokensAsk struct {
	Rate  float64 `json:"rate"`  // tokens per second, of all replicas
	Burst int     `json:"burst"` // of all replicas
	Held  float64 `json:"held"`  // by this replica; below 0: it has overdrawn
	Gave  float64 `json:"gave"`  // of what it held, given back with this ask
	Want  int     `json:"want"`
}

// TokensAnswer has the tokens that a replica gets.
type TokensAnswer struct {
	Got  int     `json:"got"`
	Pool float64 `json:"pool"` // what is left there
	Wait int64   `json:"wait"` // until there is a whole one, 0 if there is
}

// A Slot is room for returns in one bucket of the calendar.
type Slot struct {
	Bucket int64   `json:"n"` // its number since the store's epoch: time / SlotWidth
	Size   float64 `json:"x"` // expected returns
}

// SlotsAsk is about the calendar: which returns this replica may promise.
type SlotsAsk struct {
	Rate    float64 `json:"rate"`              // what this replica adds to the backend's rate, per second
	Limit   float64 `json:"limit"`             // the rate is no more than this, of all replicas; 0: no limit
	Base    float64 `json:"base"`              // what comes anyway, here, per second
	Min     int64   `json:"min"`               // the shortest wait
	Max     int64   `json:"max"`               // the longest wait
	Want    float64 `json:"want"`              // expected returns
	Guessed []Slot  `json:"guessed,omitempty"` // promised without a grant
	Back    []Slot  `json:"back,omitempty"`    // granted and not needed
	Anew    []Slot  `json:"anew,omitempty"`    // all that it holds, after the store has forgotten it

	Numbers float64 `json:"numbers"` // numbers issued in the queue of deferred clients since the last ask; may be below 0
	Served  float64 `json:"served"`  // numbers that were served out of turn since then
	Dry     bool    `json:"dry"`     // the queue has run dry: all numbers are served
	Kept    float64 `json:"kept"`    // share of promises that is kept, 0 to 1
}

// SlotsAnswer has the slots that a replica gets.
type SlotsAnswer struct {
	Rate   float64 `json:"rate"`   // what the other replicas add to the backend's rate
	Base   float64 `json:"base"`   // what comes to the others anyway
	First  int64   `json:"first"`  // buckets from this one on are granted, those before divided; 0: none is granted
	Cursor int64   `json:"cursor"` // all buckets before this one are granted already
	Grants []Slot  `json:"grants,omitempty"`
	Issued float64 `json:"issued"` // numbers, by all replicas
	Served float64 `json:"served"`
}

// PlacesAsk is about requests in flight.
type PlacesAsk struct {
	Limit int `json:"limit"` // of all replicas
	Held  int `json:"held"`  // that this replica uses, or may use
	Want  int `json:"want"`  // that it has use for
}

// PlacesAnswer has how many requests a replica may have in flight.
type PlacesAnswer struct {
	Limit int `json:"limit"` // what it has beyond this it gives back as requests end
}
