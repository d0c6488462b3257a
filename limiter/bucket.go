package limiter

import (
	"sync"
	"time"
)

// A Bucket is the token bucket of one key. It stores only the moment at which it will be full again, so nothing
// has to refill it and it can't drift. If you pass a new Limit, it owes the same number of tokens under that
// one. The zero Bucket is full. A Bucket is safe for concurrent use and must not be copied.
type Bucket struct {
	mu     sync.Mutex
	fullAt time.Duration // guarded by mu
	unit   Limit         // guarded by mu; what fullAt was written under
	stock  *stock        // guarded by mu; nil: the bucket is not shared
}

// Take decides on one request of cost n that arrives at now. It takes the tokens and returns 0, or takes
// nothing and returns how long to wait.
func (b *Bucket) Take(l Limit, now time.Duration, n int) (wait time.Duration) {
	c, wait := b.Claim(l, now, n)
	if wait == 0 {
		c.Commit()
	}
	c.Release()
	return wait
}

// Claim is the first half of Take: it locks the bucket and returns the wait. Call Release soon afterwards, and
// Commit before that if wait is 0 and you want to charge the request. A negative n gives back tokens that were
// owed.
func (b *Bucket) Claim(l Limit, now time.Duration, n int) (c Claim, wait time.Duration) {
	return b.claim(l, now, n, 0)
}

// claim locks the bucket. Only a stock looks at the reserve.
func (b *Bucket) claim(l Limit, now time.Duration, n, reserve int) (c Claim, wait time.Duration) {
	b.mu.Lock()
	if b.stock != nil {
		return Claim{b, time.Duration(n)}, b.stock.wait(l, now, n, reserve)
	}
	if b.unit != l {
		b.fullAt, b.unit = l.carry(b.unit, b.fullAt, now), l
	}
	paid, wait := l.take(b.fullAt, now, n)
	return Claim{b, paid}, wait
}

// ClaimAbove is Claim for a request that must leave the last reserve tokens to others: it waits for n+reserve.
// A reserve that would leave less than n of the burst is reduced.
func (b *Bucket) ClaimAbove(l Limit, now time.Duration, n, reserve int) (c Claim, wait time.Duration) {
	c, wait = b.claim(l, now, n, reserve)
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

// A Claim keeps one bucket locked between looking and deciding, so that you can check several limits first and
// charge them together. If a goroutine holds several claims, it must take them in the same order as everyone
// else, or two goroutines can deadlock.
type Claim struct {
	bucket *Bucket
	paid   time.Duration // the bucket's new instant; of one that is shared, so many tokens
}

// Commit charges the request. Call it once, before Release, and only if the wait was 0.
func (c Claim) Commit() {
	if s := c.bucket.stock; s != nil {
		s.tokens -= float64(c.paid)
		s.watch()
		return
	}
	c.bucket.fullAt = c.paid
}

// Owe claims a token that isn't earned yet, and returns how long earning it takes. Committing puts the bucket
// into debt, so that later requests wait behind it. Use it if the bucket has no token.
func (c Claim) Owe(l Limit, now time.Duration) (Claim, time.Duration) {
	switch s := c.bucket.stock; {
	case s != nil && s.alone(now):
		return c, s.earns(l, now, 1-s.tokens)
	case s != nil:
		from := s.next
		if now-s.heard > freshTime { // other replicas may have owed the next tokens since
			from = s.each
		}
		// Others may owe as much, of which the pool has not been told either.
		return c, max(0, from-now) + time.Duration((s.owed+max(0, -s.tokens))*float64(s.Replicas)*float64(l.interval))
	}
	c.paid = max(c.bucket.fullAt, now) + l.interval
	return c, c.paid - now - l.depth
}

// Release unlocks the bucket. Call it exactly once.
func (c Claim) Release() { c.bucket.mu.Unlock() }
