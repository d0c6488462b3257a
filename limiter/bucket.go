package limiter

import (
	"sync"
	"time"
)

// A Bucket is the token bucket of one key, stored as the moment at which it will be
// full again. It counts no tokens, so it cannot drift and needs no refill. It follows
// the Limit that it is given: it owes the same number of tokens under a new one. The
// zero Bucket is full. A Bucket is safe for concurrent use and must not be copied.
type Bucket struct {
	mu     sync.Mutex
	fullAt time.Duration // guarded by mu
	unit   Limit         // guarded by mu; what fullAt was written under
	stock  *stock        // guarded by mu; nil: the bucket is not shared
}

// Take decides on one request of cost n that arrives at now. It returns 0 and
// takes the tokens, or returns how long to wait and takes nothing.
func (b *Bucket) Take(l Limit, now time.Duration, n int) (wait time.Duration) {
	c, wait := b.Claim(l, now, n)
	if wait == 0 {
		c.Commit()
	}
	c.Release()
	return wait
}

// Claim is the first half of Take: it locks the bucket and returns the wait. The
// caller must Release the claim soon, and may Commit it before if wait is 0. An n below 0 gives tokens back that were owed.
func (b *Bucket) Claim(l Limit, now time.Duration, n int) (c Claim, wait time.Duration) {
	return b.claim(l, now, n, 0, 0)
}

// claim locks the bucket. Only a stock looks at the reserve, and gives credit.
func (b *Bucket) claim(l Limit, now time.Duration, n, reserve, credit int) (c Claim, wait time.Duration) {
	b.mu.Lock()
	if b.stock != nil {
		return Claim{b, time.Duration(n)}, b.stock.wait(l, now, n, reserve, credit)
	}
	if b.unit != l {
		b.fullAt, b.unit = l.carry(b.unit, b.fullAt, now), l
	}
	paid, wait := l.take(b.fullAt, now, n)
	return Claim{b, paid}, wait
}

// ClaimAbove is Claim for a request that may not take the last reserve tokens: the
// wait is until there are n+reserve. A reserve that leaves less than n of the burst
// is cut.
func (b *Bucket) ClaimAbove(l Limit, now time.Duration, n, reserve int) (c Claim, wait time.Duration) {
	c, wait = b.claim(l, now, n, reserve, credit)
	if reserve = min(reserve, l.burst-n); b.stock == nil && wait == 0 && reserve > 0 {
		_, wait = l.take(b.fullAt, now, n+reserve)
	}
	return c, wait
}

// Level returns how many whole tokens the bucket holds.
func (b *Bucket) Level(l Limit, now time.Duration) int {
	c, _ := b.Claim(l, now, 0)
	defer c.Release()
	if b.stock != nil {
		return b.stock.all(l, now)
	}
	return l.tokens(b.fullAt - now)
}

// A Claim holds one bucket still between the look and the decision, so that
// several limits can be checked first and then charged together. A goroutine
// that holds several claims must have taken them in an order that all others
// follow, or two of them may wait for each other for ever.
type Claim struct {
	bucket *Bucket
	paid   time.Duration // the bucket's new instant; of one that is shared, so many tokens
}

// Commit charges the request. It is valid once, before Release, and only if
// the wait was 0.
func (c Claim) Commit() {
	if s := c.bucket.stock; s != nil {
		s.pay(float64(c.paid))
		return
	}
	c.bucket.fullAt = c.paid
}

// Owe returns the claim of one token that is not earned yet, and how long that takes: to Commit it leaves the bucket in
// debt, so that whoever comes next waits behind it. It is for a bucket that has no token.
func (c Claim) Owe(l Limit, now time.Duration) (Claim, time.Duration) {
	if s := c.bucket.stock; s != nil {
		return c, s.earns(l, now, 1-s.tokens)
	}
	c.paid = max(c.bucket.fullAt, now) + l.interval
	return c, c.paid - now - l.depth
}

// Release unlocks the bucket. It must be called exactly once.
func (c Claim) Release() { c.bucket.mu.Unlock() }
