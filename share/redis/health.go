package redis

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/herdshield/shield/share"
)

// lostAfter is how long no exchange of any link was answered in time until the store
// counts as lost. Links work alone long before: this is about what an operator is told.
const lostAfter = time.Second

// TripBuckets are the upper bounds of the Trips of a Status, which have one more for all
// that take longer.
var TripBuckets = [...]time.Duration{
	250 * time.Microsecond, 500 * time.Microsecond, time.Millisecond, 2 * time.Millisecond, 5 * time.Millisecond,
	10 * time.Millisecond, 25 * time.Millisecond, 50 * time.Millisecond, 100 * time.Millisecond, 250 * time.Millisecond,
}

// Status is what a Client knows of its store.
type Status struct {
	Up    bool          // the store answers in time
	For   time.Duration // how long it has been up, or not
	Alone time.Duration // how long it was not up, since the Client was opened
	Trip  time.Duration // of the last exchange that was answered
	Error string        // of the last exchange, if it failed

	// What became of the exchanges: answered within share.MaxTrip; slow, so of use, but the replica works alone;
	// late, so given up; refused by the server; failed without a connection, or with one that broke.
	Outcomes map[string]uint64
	Trips    [len(TripBuckets) + 1]uint64 // of those answered or slow, by TripBuckets
	Took     time.Duration                // of those, together

	Shared []Shared // by name
}

// Shared is one thing that replicas share.
type Shared struct {
	Kind     Kind
	Name     string
	Alone    bool         // this replica works without the store
	Replicas int          // how many there are, this one included
	What     string       // how it is defined
	Others   []share.Unit // how other replicas define it, that do not share it with this one
}

// Status returns the state of the store as this process sees it.
func (c *Client) Status() Status {
	now := c.shell.Now()
	c.mu.Lock()
	defer c.mu.Unlock()
	h := &c.health
	s := Status{Up: h.up, For: now - h.since, Alone: h.alone, Trip: h.trip, Outcomes: maps.Clone(h.outcomes), Trips: h.trips, Took: h.took}
	if !h.up {
		s.Alone += s.For
	}
	if h.why != nil {
		s.Error = h.why.Error()
	}
	for of := range maps.Keys(c.served) {
		one := Shared{Kind: of.kind, Name: of.name, What: of.what, Others: of.others}
		one.Alone, one.Replicas = of.Alone(now)
		s.Shared = append(s.Shared, one)
	}
	slices.SortFunc(s.Shared, func(a, b Shared) int { return strings.Compare(a.Name, b.Name) })
	return s
}

// The outcomes of an exchange.
const (
	inTime  = "answered"
	slow    = "slow"
	late    = "late"
	refused = "refused"
	failed  = "failed"
)

// health says whether the store answers in time.
type health struct {
	up       bool
	since    time.Duration // of up, or of the last answer before
	lost     bool          // told, and not back yet
	alone    time.Duration // in all, until since
	why      error         // of the last exchange that failed
	trip     time.Duration // of the last exchange that was answered
	outcomes map[string]uint64
	trips    [len(TripBuckets) + 1]uint64
	took     time.Duration
}

var errSilent = fmt.Errorf("no answer within %v", share.GiveUp)

// note counts what became of an exchange, and tells the shell if the store is lost or back. It reports whether there is
// an answer that counts.
func (c *Client) note(sent, now time.Duration, err error) (answered bool) {
	trip, outcome := now-sent, failed
	switch {
	case err == nil && trip <= share.MaxTrip:
		outcome = inTime
	case err == nil && trip <= share.GiveUp:
		outcome, err = slow, fmt.Errorf("an answer took %v; want at most %v", trip.Round(time.Millisecond), share.MaxTrip)
	case err == nil || err == errSilent || errors.Is(err, context.DeadlineExceeded) || errors.Is(err, os.ErrDeadlineExceeded):
		outcome, err = late, errSilent
	case code(err) != "":
		outcome = refused
	}
	c.silent.Store(outcome == late)
	c.mu.Lock()
	h := &c.health
	h.outcomes[outcome]++
	if answered = outcome == inTime || outcome == slow; answered {
		i := 0
		for i < len(TripBuckets) && trip > TripBuckets[i] {
			i++
		}
		h.trips[i]++
		h.took, h.trip = h.took+trip, trip
	}
	away, was := now-h.since, h.lost
	switch h.why = err; {
	case err == nil && !h.up:
		h.up, h.lost, h.alone, h.since = true, false, h.alone+away, now
	case err != nil && h.up:
		h.up, h.since = false, sent
	case err != nil:
		h.lost = h.lost || away >= lostAfter
	}
	is := h.lost
	c.mu.Unlock()
	switch {
	case is && !was && c.shell.Lost != nil:
		c.shell.Lost(err)
	case was && !is && c.shell.Back != nil:
		c.shell.Back(away)
	}
	return answered
}
