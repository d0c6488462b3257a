package share

import (
	_ "embed"
	"math"
	"slices"
	"time"

	"github.com/herdshield/shield/limiter"
	"github.com/herdshield/shield/pushback"
)

// Script is what a store runs for each exchange. It is the only definition of what a store does: tests
// and simulations run it, too, with an instant of their own as the first argument.
//
//go:embed lease.lua
var Script string

const (
	// Beat is how often a replica tells the store that it is alive, and gets the news.
	Beat = 100 * time.Millisecond

	// Lease is how long a silent replica still counts as alive: two beats, and 150 ms that they take. It is LEASE in the
	// script. With another beat, it is that much longer.
	Lease = 350 * time.Millisecond

	// MaxTrip is how long a request waits for the store at most. A replica also works alone after a trip that
	// takes longer. We chose 25 ms because waiting longer costs a herd more than divided limits do, while trips
	// within a data center take less than 2 ms.
	MaxTrip = 25 * time.Millisecond

	// IdleBeat is the Beat of a replica that hasn't had a request for IdleTime.
	IdleBeat = 500 * time.Millisecond
	IdleTime = 10 * time.Second

	// GiveUp is how long to wait for a response. Later ones don't count.
	GiveUp = 250 * time.Millisecond

	// RosterTime is how long a silent replica still counts in the number of replicas and keeps its permits. It
	// is FORGET in the script.
	RosterTime = 15 * time.Second
)

// What no store says.
const (
	mostTime    = 4_000_000_000_000 // milliseconds, of the store's clock: with any uptime added it is less than a Duration holds
	mostRate    = 1e9               // per second, as in limiter.Config
	mostNumbers = 1 << 53           // of the line: above, a float64 does not count one by one
	maxTexts    = 64                // news in one answer, and units: as in the script
)

// A LeaseAsk is what one replica tells the store about one unit, and what it asks for. It is the second
// argument of Script, as JSON. Times are in milliseconds, and instants are those of the store's clock.
type LeaseAsk struct {
	Me     string `json:"me"`             // the name of the replica: random, one for each process
	Seq    int64  `json:"seq"`            // higher in each ask
	Life   int64  `json:"life"`           // higher after each time in which the replica worked alone
	Last   int64  `json:"last"`           // the Seq of the last ask that was answered; 0: none was
	Heard  int64  `json:"heard"`          // LeaseAnswer.Now of the last answer that counted; 0: there was none
	Till   int64  `json:"till"`           // pools earn for the replica until then, and a later ask is too late
	Alone  bool   `json:"alone"`          // it works with its part of all limits, and only looks for the store
	Back   bool   `json:"back,omitempty"` // the store's clock was set back, by less than it has been silent, so that it doesn't know
	Leaves bool   `json:"leaves"`         // it is its last ask: what it holds goes back
	N      int    `json:"n"`              // by how many replicas it divides what it has: at least 1. The store has said so, if it was heard of

	Of    []PoolKind   `json:"of,omitempty"`
	Pools [][5]float64 `json:"pools,omitempty"` // index in Of, held, given back (of permits: what it may have), wanted, and what a request costs: fewer are of no use
	Keys  []string     `json:"-"`               // of Pools

	Slots *pushback.SlotsAsk `json:"slots,omitempty"` // of the line

	After int64  `json:"after"` // LeaseAnswer.After of the last answer
	Notes string `json:"-"`     // for the other replicas; the third argument

	What string `json:"what,omitempty"` // how the unit is defined, if the answer is to have Others
}

// A Unit is something that replicas share under a name. Replicas with another Unit of that name have keys of
// their own.
type Unit struct {
	What     string `json:"what"`     // all that is defined alike
	Replicas int    `json:"replicas"` // that have it
}

// Sharing is how replicas share a unit.
type Sharing struct {
	Replicas int    `json:"replicas"`         // that share it, this one included
	Alone    bool   `json:"alone"`            // this one does without the store, with its part of the limits
	Unit     string `json:"unit"`             // how it is defined: replicas share only what they define alike
	Others   []Unit `json:"others,omitempty"` // how others define it
}

// A PoolKind is what several pools have in common.
type PoolKind struct {
	Rate  float64 `json:"rate"`           // tokens per millisecond; 0: permits
	Cap   float64 `json:"cap"`            // the burst, or the limit in flight
	Parts float64 `json:"parts"`          // a replica without the pool has cap ÷ parts ÷ replicas: 1, or 2 of the keys of zones
	Cost  float64 `json:"cost"`           // of a request, at least: fewer tokens are of no use
	Debt  float64 `json:"debt,omitempty"` // that the pool may owe at most, for requests that turned out to cost more
	Stay  int64   `json:"stay"`           // for how long the pool earns for a replica that tells nothing more about it
}

// A LeaseAnswer is the store's response to a LeaseAsk.
type LeaseAnswer struct {
	Now   int64 `json:"now"`             // the store's clock
	Stale bool  `json:"stale,omitempty"` // the ask is too late, or a later one was answered: nothing was done
	New   bool  `json:"new,omitempty"`   // the store has just begun, and lost nothing
	Born  int64 `json:"born"`            // when it has lost something last; 0: never
	N     int   `json:"n"`               // how many replicas there are

	Pools []PoolAnswer          `json:"pools,omitempty"` // in the order of the ask
	Slots *pushback.SlotsAnswer `json:"slots,omitempty"`

	News  []string `json:"news,omitempty"` // notes, those of this replica included
	After int64    `json:"after"`
	More  bool     `json:"more,omitempty"` // there is more news

	Others []Unit `json:"others,omitempty"` // of the same name
}

// Fits reports whether a working store can have sent this response. If the store is damaged, or others write to
// it, its numbers must not overflow anything or admit more than was asked for, so such a response doesn't
// count.
func (a *LeaseAnswer) Fits(ask *LeaseAsk) bool {
	if !between(0, float64(a.Now), mostTime) || a.N < 1 || a.N > limiter.MaxReplicas || len(a.Pools) != len(ask.Pools) ||
		len(a.News) > maxTexts || len(a.Others) > maxTexts {
		return false
	}
	if s := a.Slots; s != nil && (ask.Slots == nil || len(s.Times) > ask.Slots.Want || !between(0, s.Rate, mostRate) ||
		!between(0, s.Base, mostRate) || !between(float64(a.Now), float64(s.Ends), float64(a.Now+ask.Slots.Max)) || !between(0, s.Served, s.Issued) || s.Issued > mostNumbers ||
		slices.ContainsFunc(s.Times, func(at int64) bool { return at < a.Now || at > a.Now+ask.Slots.Max })) {
		return false
	}
	for i, p := range a.Pools {
		of := ask.Of[int(ask.Pools[i][0])-1]
		most := of.Cap
		if of.Rate > 0 {
			most = min(most, ask.Pools[i][3])
		}
		if !between(0, p.Got, most) || p.Got != math.Floor(p.Got) || !between(-of.Cap-of.Debt, p.Left, of.Cap) {
			return false
		}
	}
	return true
}

// between reports whether x lies between two numbers; NaN does not.
func between(least, x, most float64) bool { return x >= least && x <= most }

// A PoolAnswer is the response about one pool.
type PoolAnswer struct {
	Got  float64 `json:"g"` // tokens; or how many permits the replica may have
	Left float64 `json:"p"` // in the pool
}
