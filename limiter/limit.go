package limiter

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"math/bits"
	"time"
)

// maxRefill bounds how long an empty bucket may take to fill: a contract says so much per year at most.
const maxRefill = 366 * 24 * time.Hour

// leastDebt is how long a bucket that may be in debt takes to earn it, at most, if it does not take longer to fill. Ours: costs that
// are known too late, or are wrong, reject a client for no longer than that.
const leastDebt = time.Hour

// Never is the wait for a request that costs more than the burst.
const Never time.Duration = math.MaxInt64

// Config describes a Limit in the units you think in.
type Config struct {
	Rate  float64       // tokens earned per Per: more than 0; at most 1e9 per second
	Per   time.Duration // more than 0. 0 means one second
	Burst int           // tokens in a full bucket: at least 1. 0 means the default of New or of NewCapacity
}

// A Limit is a checked Config in the algorithm's units. It never changes. The zero Limit admits nothing.
type Limit struct {
	interval time.Duration // time to earn one token
	depth    time.Duration // time to earn burst tokens
	burst    int
	kind     kind
}

// A kind is what else is true of a Limit. It is one field, as Claim would else have one argument too many for registers (a tenth of its time).
type kind uint8

const (
	isPart kind = 1 << iota // of a larger limit: another burst adds no tokens to a bucket
	owes                    // an empty bucket may owe tokens: see debt
)

// New returns the Limit of one client that c describes, or an error that names every field of c that is out of
// range.
//
// The default burst is the number in the rate: 50 for 50/s, 100 for 100/m, or for a period below a second, one
// second's worth. It is at least 1. We chose it because people think of a rate as a quota, which other
// limiters' fixed windows admit all in one burst, and because a page load has to fit: half of all pages take
// over 70 requests (HTTP Archive, Web Almanac 2024, Page Weight).
func New(c Config) (Limit, error) {
	return build(c, func(perSecond float64) float64 { return max(perSecond, c.Rate) })
}

// The default burst of a capacity: a tenth of a second, but at least leastCapacityBurst.
// Ours: a backend that serves a request in a tenth of a second is sent as much as it has
// workers. One second's worth at once is ten times that. In shield simulate, with 1000 clients
// at a capacity of 100/s, 88 requests were in a backend of 10 workers; with a tenth, 18.
//
// Requests come at random, so a few tokens are not enough: at 0.9 of 10/s, 86% of clients that do not retry are
// served with a burst of 3, and 98% with 10 (papers/metafor.go), the last after up to a second at one worker.
const (
	capacityBurstTime  = 0.1 // seconds
	leastCapacityBurst = 10
)

// NewCapacity is New for the limit of a backend, which all clients share. Its default burst is a tenth of a
// second's worth, but at least 10, and never more than one second's worth or less than 1.
func NewCapacity(c Config) (Limit, error) {
	return build(c, func(perSecond float64) float64 {
		return min(perSecond, max(leastCapacityBurst, capacityBurstTime*perSecond))
	})
}

// build returns the Limit that c describes. The default burst is a function of the rate.
func build(c Config, burst func(perSecond float64) float64) (Limit, error) {
	c.Per = cmp.Or(c.Per, time.Second)
	perSecond := c.Rate / c.Per.Seconds()
	if c.Burst == 0 { // the noise of floating point must not make 3 of 0.3 × 10 a 2
		c.Burst = max(1, int(min(burst(perSecond)+1e-6, perSecond*maxRefill.Seconds(), 1e9)))
	}
	var errs []error
	// Written so that NaN and infinity fail too.
	if !(perSecond > 0 && perSecond <= 1e9) || c.Per < 0 {
		errs = append(errs, fmt.Errorf("rate is %v per %v; use more than 0 and at most 1e9 per second", c.Rate, c.Per))
	}
	if c.Burst < 1 {
		errs = append(errs, fmt.Errorf("burst is %d; use at least 1", c.Burst))
	}
	if refill := float64(c.Burst) / perSecond; errs == nil && refill > maxRefill.Seconds() {
		errs = append(errs, fmt.Errorf("burst %d at a rate of %v per %v takes %.3g s to refill; the limit is %.0f s (366 days)",
			c.Burst, c.Rate, c.Per, refill, maxRefill.Seconds()))
	}
	if err := errors.Join(errs...); err != nil {
		return Limit{}, err
	}
	// Rounded up, so that the rate is never above what was asked for; but not
	// for the noise of floating point, or 1e9/3 per second would earn in 4 ns,
	// not in 3.
	exact := float64(c.Per) / c.Rate
	interval := time.Duration(math.Ceil(exact))
	if nearest := math.Round(exact); math.Abs(exact-nearest) < 1e-6 {
		interval = time.Duration(nearest)
	}
	return Limit{interval: interval, depth: interval * time.Duration(c.Burst), burst: c.Burst}, nil
}

// WithDebt returns the limit for buckets whose requests can turn out to cost more than they took: see
// Table.Settle. A bucket owes at most one burst, or an hour's earnings if that is more. With 100 per minute and
// a burst of 100, that is 6,000.
func (l Limit) WithDebt() Limit {
	l.kind |= owes
	return l
}

// debt returns how long it takes to earn what an empty bucket may owe.
func (l Limit) debt() time.Duration {
	if l.kind&owes == 0 {
		return 0
	}
	return max(l.depth, leastDebt)
}

// Debt returns how many tokens an empty bucket can owe.
func (l Limit) Debt() float64 { return float64(l.debt()) / float64(max(1, l.interval)) }

// Burst returns how many tokens a full bucket holds.
func (l Limit) Burst() int { return l.burst }

// Rate returns how many tokens are earned per second.
func (l Limit) Rate() float64 {
	if l.interval == 0 {
		return 0
	}
	return float64(time.Second) / float64(l.interval)
}

// Interval returns how long it takes to earn one token.
func (l Limit) Interval() time.Duration { return l.interval }

// Refill returns how long it takes to fill an empty bucket.
func (l Limit) Refill() time.Duration { return l.depth }

// take is the whole algorithm; the package comment states its law. It returns
// the bucket's new instant and a wait of 0, or the old one and a wait above 0.
// n is the cost in tokens; a cost of 0 is always admitted, and less gives back.
func (l Limit) take(fullAt, now time.Duration, n int) (paid, wait time.Duration) {
	if n > l.burst {
		return fullAt, Never
	}
	if n <= 0 {
		return fullAt + l.interval*time.Duration(n), 0
	}
	paid = max(fullAt, now) + l.interval*time.Duration(n)
	if short := paid - now - l.depth; short > 0 {
		return fullAt, short
	}
	return paid, 0
}

// tokens returns how many whole tokens a bucket holds that will be full again in so long: below 0 if it is in debt.
func (l Limit) tokens(owed time.Duration) int {
	return l.burst - int(min(time.Duration(l.burst)+time.Duration(l.Debt()), (max(0, owed)+l.interval-1)/max(1, l.interval)))
}

// carry converts an instant that was written under the limit old to l. The bucket owes
// the same number of tokens, but no more than a burst, so that it is at worst empty, or as far in debt as l allows: a
// client that had used up a burst of 1000 does not wait until all of them are earned at a
// rate for ten. Fractions of a nanosecond are rounded up.
func (l Limit) carry(old Limit, fullAt, now time.Duration) time.Duration {
	if fullAt <= now || old.interval == 0 {
		return fullAt
	}
	if l.kind&old.kind&isPart != 0 {
		return l.carryPart(old, fullAt, now)
	}
	hi, lo := bits.Mul64(uint64(fullAt-now), uint64(l.interval))
	owed := l.depth + l.debt()
	if hi < uint64(old.interval) {
		q, r := bits.Div64(hi, lo, uint64(old.interval))
		if r > 0 {
			q++
		}
		owed = time.Duration(min(q, uint64(owed)))
	}
	return now + owed
}

// partOf returns the limit of one replica of several, for the keys that all of them know
// nothing of: its part of the rate, and of half of the burst. The other half is the pool.
// whole is false if the part is less than a request of cost n: then it is one request.
func (l Limit) partOf(replicas, n int) (part Limit, whole bool) {
	burst := l.burst / (2 * replicas)
	whole = burst >= n
	burst = max(burst, n)
	interval := min(l.interval, math.MaxInt64/4/time.Duration(replicas*burst)) * time.Duration(replicas)
	return Limit{interval: interval, depth: interval * time.Duration(burst), burst: burst, kind: l.kind | isPart}, whole
}

// carryPart converts an instant between two parts of one limit. The bucket has the same
// number of tokens, rounded down, or as many as fit.
func (l Limit) carryPart(old Limit, fullAt, now time.Duration) time.Duration {
	has := (old.depth - min(max(0, fullAt-now), old.depth)) / old.interval
	return now + l.depth - min(l.depth, l.interval*has)
}
