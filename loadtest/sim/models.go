package sim

import (
	"net/http"
	"time"

	"github.com/herdshield/shield"
	"github.com/herdshield/shield/limiter"
	"github.com/herdshield/shield/pushback"
)

// Models of what others tell rejected clients. All of them admit by a token
// bucket with the Config's Capacity, answer 429, and differ in the Retry-After alone.

// A Rule returns what a rejected client is told: whole seconds, 0 for nothing.
// wait is how long until there is a token.
type Rule func(now, wait time.Duration, r Request) int

// bucket admits while there are tokens, and tells by a rule.
type bucket struct {
	limiter.Bucket
	limit limiter.Limit
	fresh func() Rule
	rule  Rule
}

// Telling returns the Maker of a bucket whose Rule is what fresh returns when it starts.
func Telling(fresh func() Rule) Maker {
	return func(c shield.Config) (Server, error) {
		b := &bucket{fresh: fresh}
		return b, b.Change(c, true)
	}
}

func (b *bucket) Arrive(now time.Duration, r Request) Answer {
	wait := b.Take(b.limit, now, 1)
	if wait == 0 {
		return Answer{Admit: true}
	}
	return Answer{Hint: wholeSeconds(time.Duration(b.rule(now, wait, r)) * time.Second), Status: http.StatusTooManyRequests}
}

// wholeSeconds is the Hint of a Retry-After, rounded up.
func wholeSeconds(wait time.Duration) pushback.Hint {
	s := int((wait + time.Second - 1) / time.Second)
	return pushback.Hint{Seconds: s, Ms: 1000 * s}
}

func (*bucket) Finish(time.Duration, int32, End) {}

func (b *bucket) Change(c shield.Config, restart bool) (err error) {
	if restart {
		b.Bucket, b.rule = limiter.Bucket{}, b.fresh()
	}
	b.limit, err = limiter.NewCapacity(c.Capacity)
	return err
}

// stateless returns the Maker of a bucket with a rule that remembers nothing.
func stateless(r Rule) Maker { return Telling(func() Rule { return r }) }

// NoHint rejects without Retry-After, as most servers do by default.
var NoHint = stateless(func(time.Duration, time.Duration, Request) int { return 0 })

// FixedHint tells all clients the same: a constant in a config file, the most common of all.
func FixedHint(seconds int) Maker {
	return stateless(func(time.Duration, time.Duration, Request) int { return seconds })
}

// NextToken tells all clients when there will be a token, rounded up: what libraries with a
// generic cell rate algorithm tell (redis-cell, throttled).
var NextToken = stateless(func(_, wait time.Duration, _ Request) int {
	return wholeSeconds(wait).Seconds
})
