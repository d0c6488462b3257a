package redis

import (
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/herdshield/shield/share"
)

// Status is what a Client knows of its store.
type Status struct {
	Address      string  `json:"address"`
	Prefix       string  `json:"prefix"`
	Up           bool    `json:"up"`                    // it answers in time
	ForSeconds   float64 `json:"for_seconds"`           // how long it has, or has not
	AloneSeconds float64 `json:"alone_seconds"`         // how long it has not, in all, since the Client was opened
	RTTSeconds   float64 `json:"rtt_seconds,omitempty"` // of the last exchange that was answered
	Error        string  `json:"error,omitempty"`       // of the last exchange, if it failed

	// What became of the exchanges: answered within share.MaxTrip; slow, so of use, but the replica works alone;
	// late, so given up; rejected by the server; failed without a connection, or with one that broke.
	Exchanges map[string]uint64 `json:"exchanges"`

	Shared []Shared `json:"-"` // by name
}

// Shared is one thing that replicas share.
type Shared struct {
	Kind Kind
	Name string
	share.Sharing
}

// Sharing returns what is known of one thing that is shared, nil if it is not served. The Status may be nil.
func (s *Status) Sharing(kind Kind, name string) *share.Sharing {
	if s == nil {
		return nil
	}
	for _, of := range s.Shared {
		if of.Kind == kind && of.Name == name {
			return &of.Sharing
		}
	}
	return nil
}

// Status returns the state of the store as this process sees it.
func (c *Client) Status() Status {
	now := c.now()
	c.mu.Lock()
	defer c.mu.Unlock()
	s := c.status
	s.ForSeconds, s.Exchanges = (now - c.since).Seconds(), maps.Clone(s.Exchanges)
	if !s.Up {
		s.AloneSeconds += s.ForSeconds
	}
	for of := range c.served {
		one := of.shown
		one.Alone, one.Replicas = of.Alone(now)
		s.Shared = append(s.Shared, one)
	}
	slices.SortFunc(s.Shared, func(a, b Shared) int { return strings.Compare(a.Name, b.Name) })
	return s
}

// The outcomes of an exchange.
const (
	inTime   = "answered"
	slow     = "slow"
	late     = "late"
	rejected = "rejected"
	failed   = "failed"
)

// note counts what became of an exchange, and reports whether there is an answer that counts.
func (c *Client) note(s *served, sent, now time.Duration, answer share.LeaseAnswer, err error) (answered bool) {
	trip, outcome := now-sent, failed
	switch {
	case err == nil && trip <= share.MaxTrip:
		outcome = inTime
	case err == nil && trip <= share.GiveUp:
		outcome, err = slow, fmt.Errorf("a response took %v; the limit is %v", trip.Round(time.Millisecond), share.MaxTrip)
	case err == nil || os.IsTimeout(err):
		outcome, err = late, fmt.Errorf("no response within %v", share.GiveUp)
	case code(err) != "":
		outcome = rejected
	}
	if answered = outcome == inTime || outcome == slow; answered && c.answered != nil {
		c.answered(trip)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	is, up := &c.status, err == nil
	is.Exchanges[outcome]++
	if answered {
		is.RTTSeconds = trip.Seconds()
		if !answer.Stale {
			s.shown.Others = answer.Others
		}
	}
	switch {
	case up && !is.Up:
		is.AloneSeconds, c.since = is.AloneSeconds+(now-c.since).Seconds(), now
	case !up && is.Up:
		c.since = sent
	}
	is.Up, is.Error = up, ""
	if !up {
		is.Error = err.Error()
	}
	return answered
}
