package policy

import (
	"slices"
	"time"

	"github.com/herdshield/shield/limiter"
)

// Settle bounds how long it may take until all replicas have seen a change of the
// replicas. Ours: the time a Lease is held for in Kubernetes' own components, after
// which a replica that cannot reach the API server is taken for gone.
const Settle = 15 * time.Second

const (
	// maxLooks bounds how many different looks of the last Settle are remembered. The
	// oldest of more are merged, which makes the share smaller.
	maxLooks = 32

	// noRemainder is the rank of a replica that gets nothing of the remainder of even
	// division.
	noRemainder = -2

	// maxRefill is how long the bucket of a divided rate may take to fill: just below the
	// maximum of limiter.New.
	maxRefill = 30 * 24 * time.Hour
)

// A Division says which share this replica has of limits that are for all replicas
// together. The zero Division has all of them: there is one replica, or no others are
// known.
//
// The law: of a limit L for N replicas each gets L div N, and L mod N of them get one
// more. While the replicas change, each gets the least of its shares by all looks in
// force within the last Settle. A new replica gets nothing for that time, unless it
// is alone. So shares shrink at once and grow later.
//
// Promise: if every replica sees every change, in order, less than Settle after it, and
// one that has left serves no requests, then the shares of all replicas never sum to more
// than L. A Settle after the last of them has seen the last change they sum to L exactly.
//
// Limitation: a replica that is new among others has no share for a Settle, so it should
// not be ready before Next is 0. Or its first See gets an earlier now: by a Settle if the
// others have known it for that long, or if a sum above L until then is the lesser evil.
//
// now is the time since an epoch of the caller. A Division is not safe for concurrent use.
type Division struct {
	seen    bool
	current look
	past    []look // different from each other, in force within Settle, without current
}

// A look is an observation of the replicas.
type look struct {
	rank  int // from 0; -1: not listed; or noRemainder
	count int
	until time.Duration // when it was replaced; of past ones only
}

// See records the newest look at the replicas: this one is the rank'th (from 0) of count in
// an order that all agree on; or it is not listed (rank -1), and has no share. A count
// below 1, or a rank beyond it, is ignored, and the last look stays in force. The same look
// again changes nothing.
func (d *Division) See(now time.Duration, rank, count int) {
	if count < 1 || rank < -1 || rank >= count {
		return
	}
	next := look{rank: rank, count: count}
	switch {
	case !d.seen && count > 1 && rank >= 0:
		d.past = append(d.past, look{rank: -1, count: count, until: now})
	case d.seen && next == d.current:
		return
	case d.seen:
		d.current.until = now
		d.past = append(d.past, d.current)
	}
	d.seen, d.current = true, next
	d.forget(now)
}

// forget drops the looks that are too old, and duplicates.
func (d *Division) forget(now time.Duration) {
	kept := d.past[:0]
	for i, l := range d.past {
		again := func(later look) bool { return later.rank == l.rank && later.count == l.count }
		if l.until+Settle > now && !slices.ContainsFunc(d.past[i+1:], again) {
			kept = append(kept, l)
		}
	}
	d.past = kept
	if len(d.past) > maxLooks {
		// The even share of more replicas is at most what either look gave.
		a, b := d.past[0], d.past[1]
		both := look{rank: noRemainder, count: max(a.count, b.count), until: max(a.until, b.until)}
		if a.rank == -1 || b.rank == -1 {
			both.rank = -1
		}
		d.past = append([]look{both}, d.past[2:]...)
	}
}

// Next returns the next time after now when shares may grow without another look. 0: there
// is none.
func (d *Division) Next(now time.Duration) (at time.Duration) {
	for _, l := range d.past {
		if grow := l.until + Settle; grow > now && (at == 0 || grow < at) {
			at = grow
		}
	}
	return at
}

// Share returns this replica's share of a limit. It may be 0, for instance if there are more
// replicas than limit. salt says which replicas get the remainder of even division: those of
// rank r for which r + salt, modulo the number of replicas, is less than the remainder.
// With hashes as salts, or salts in turn, each replica gets its part of many small limits.
// All replicas must use the same salt for the same limit.
func (d *Division) Share(now time.Duration, limit int, salt uint64) int {
	limit = max(0, limit)
	if !d.seen {
		return limit
	}
	share := d.current.share(limit, salt)
	for _, l := range d.past {
		if l.until+Settle > now {
			share = min(share, l.share(limit, salt))
		}
	}
	return share
}

func (l look) share(limit int, salt uint64) int {
	if l.rank == -1 {
		return 0
	}
	share, rest := limit/l.count, limit%l.count
	// Added as unsigned and reduced, so that it does not overflow.
	if l.rank >= 0 && int((uint64(l.rank)+salt%uint64(l.count))%uint64(l.count)) < rest {
		share++
	}
	return share
}

// Fraction returns this replica's share of a rate, from 0 to 1. Fractions follow the law of
// shares, up to rounding.
func (d *Division) Fraction(now time.Duration) float64 {
	if !d.seen {
		return 1
	}
	fraction := d.current.fraction()
	for _, l := range d.past {
		if l.until+Settle > now {
			fraction = min(fraction, l.fraction())
		}
	}
	return fraction
}

func (l look) fraction() float64 {
	if l.rank == -1 {
		return 0
	}
	return 1 / float64(l.count)
}

// Divide returns this replica's share of the limits of single clients. A Local policy
// is not divided. p is not changed.
//
// A burst and a concurrency are at least 1, since 0 would mean no limit. So with a limit
// below the number of replicas, all together admit one each; and a replica without a
// share, because it is new or not listed, admits one instead of none. A rate is at least one
// that fills its bucket in 30 days.
func (p Ingress) Divide(now time.Duration, d *Division) Ingress {
	if p.Local || !d.seen {
		return p
	}
	p.Zones = slices.Clone(p.Zones)
	for i := range p.Zones {
		p.Zones[i].Limit = divide(p.Zones[i].Limit, limiter.New, now, d)
	}
	if p.PerClient > 0 {
		p.PerClient = max(1, d.Share(now, p.PerClient, 0))
	}
	return p
}

// Divide returns this replica's share of a backend's budget. A Capacity's burst and
// Concurrency are at least 1, as an Ingress's. It does not divide EndpointConcurrency, which
// the caller shares for each endpoint with its own salt; Adaptive, which measures what the
// other replicas leave; and Queue, because waiting requests are no load for the backend.
func (p Service) Divide(now time.Duration, d *Division) Service {
	if !d.seen {
		return p
	}
	if p.Capacity.Rate > 0 {
		p.Capacity = divide(p.Capacity, limiter.NewCapacity, now, d)
	}
	if p.Concurrency > 0 {
		p.Concurrency = max(1, d.Share(now, p.Concurrency, 0))
	}
	return p
}

// divide returns this replica's share of a limit that read, limiter.New or
// limiter.NewCapacity, is to read. It accepts the share if it accepts c.
func divide(c limiter.Config, read func(limiter.Config) (limiter.Limit, error), now time.Duration, d *Division) limiter.Config {
	whole, err := read(c)
	if err != nil {
		return c // the caller's reading returns the error
	}
	fraction := d.Fraction(now)
	if fraction == 1 {
		return c
	}
	if c.Per == 0 {
		c.Per = time.Second
	}
	c.Burst = max(1, d.Share(now, whole.Burst(), 0))
	least := float64(c.Burst) * float64(c.Per) / float64(maxRefill)
	c.Rate = min(c.Rate, max(c.Rate*fraction, least))
	return c
}
