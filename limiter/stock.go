package limiter

import (
	"math"
	"sync/atomic"
	"time"
)

const (
	// stockTime is for how long a stock should last: a few trips to the pool.
	stockTime = 30 * time.Millisecond

	// idleTime is how long after the last request a replica gives its stock back: what
	// idle replicas hold is missing in the pool.
	idleTime = 300 * time.Millisecond

	// emptyTime is how long after it was found empty the pool is asked again, at least.
	emptyTime = 5 * time.Millisecond

	// credit is how many tokens a request that is due may overdraw. The pool repays them, and
	// so several replicas admit one request each beyond the limit at most, but return later.
	credit = 1
)

// A stock is what one replica holds of a Bucket that several share: tokens that it has
// fetched from their pool. Without the pool it earns its part of the limit. It is guarded by
// the Bucket's lock.
type stock struct {
	tokens float64       // held; below 0: overdrawn
	pool   float64       // in the pool when it was heard of last
	next   time.Duration // when the pool may have a token
	last   time.Duration // the last request
	parts  int           // into which the limit is divided without the pool; 0: there is a pool
	at     time.Duration // as of when tokens are, without the pool

	missed int         // requests since the last Refill that wait for the pool
	low    float64     // with less the pool is to be asked
	wants  atomic.Bool // it is to be asked
}

// A Refill is what a stock is to exchange with the pool.
type Refill struct {
	Held float64 // what is left of it; below 0 if overdrawn
	Gave float64 // that were too many
	Want int
}

// Draw has the bucket draw on a pool that several replicas share. It begins empty. Until the
// pool is Heard, it earns one of so many parts of its limit. wants is true while the pool is
// to be asked, see AsksAt.
func (b *Bucket) Draw(now time.Duration, parts int) (wants *atomic.Bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.stock == nil {
		b.stock = &stock{parts: max(1, parts), at: now}
	}
	return &b.stock.wants
}

// pay takes tokens from the stock.
func (s *stock) pay(tokens float64) {
	s.tokens -= tokens
	s.watch()
}

// watch brings wants up to date.
func (s *stock) watch() {
	wants := s.parts == 0 && (s.missed > 0 || s.tokens < s.low)
	if wants != s.wants.Load() {
		s.wants.Store(wants)
	}
}

// Undraw has the bucket do without a pool, on all of its limit. It begins with what it has.
func (b *Bucket) Undraw(l Limit, now time.Duration) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if s := b.stock; s != nil {
		owed := float64(l.burst) - min(float64(l.burst), max(0, s.level(l, now)))
		b.fullAt, b.unit, b.stock = now+time.Duration(owed*float64(l.interval)), l, nil
	}
}

// Part has the bucket earn one of so many parts of its limit, as the pool is gone; the pool may have earned for it until
// an instant, which may be ahead.
func (b *Bucket) Part(l Limit, now, earned time.Duration, parts int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if s := b.stock; s != nil {
		s.level(l, now)
		s.parts, s.at, s.pool = max(1, parts), max(now, s.at, earned), 0
		s.watch()
	}
}

// Lose forgets the tokens that the bucket holds: the pool has given them to others.
func (b *Bucket) Lose() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.stock != nil {
		b.stock.tokens = min(0, b.stock.tokens)
	}
}

// Refill returns what is to be exchanged with a pool of so many replicas.
func (b *Bucket) Refill(l Limit, now time.Duration, replicas int) (r Refill) {
	b.mu.Lock()
	defer b.mu.Unlock()
	s := b.stock
	if s == nil {
		return r
	}
	level := s.level(l, now)
	target := float64(s.target(l, now, replicas))
	s.low = target / 2
	r.Want = int(math.Ceil(target - level))
	if s.parts > 0 { // what it earns alone is its own
		r.Want = max(0, r.Want)
	} else if r.Want < 0 {
		r.Gave = float64(-r.Want)
		s.tokens -= r.Gave
	}
	r.Want = min(max(0, r.Want, s.missed), l.burst)
	r.Held, s.missed = s.tokens, 0
	s.wants.Store(false) // until there is an answer
	return r
}

// target returns how many tokens a replica should hold: all of them together a fourth of the burst at most.
func (s *stock) target(l Limit, now time.Duration, replicas int) int {
	if now-s.last > idleTime {
		return 0
	}
	return min((l.burst+2*replicas)/(4*replicas), int(math.Ceil(l.Rate()/float64(replicas)*stockTime.Seconds())))
}

// Heard tells what the pool has given, what is left there, and how long it takes until there
// is a token.
func (b *Bucket) Heard(now time.Duration, got int, pool float64, wait time.Duration) {
	b.mu.Lock()
	defer b.mu.Unlock()
	s := b.stock
	if s == nil {
		return
	}
	s.tokens += float64(got)
	s.pool, s.next, s.parts = pool, now+wait, 0
	if got == 0 && pool < 1 {
		s.next = max(s.next, now+emptyTime)
	}
	s.watch()
}

// Misses reports whether a request that finds no token should wait for the pool. It is valid before Release.
func (c Claim) Misses(now time.Duration) bool {
	s := c.bucket.stock
	if s == nil || s.parts > 0 || now < s.next {
		return false
	}
	s.missed++
	s.watch()
	return true
}

// AsksAt returns when the pool is to be asked, because requests wait for it or the stock is low; [Never] if it is not.
func (b *Bucket) AsksAt() time.Duration {
	b.mu.Lock()
	defer b.mu.Unlock()
	if s := b.stock; s != nil && s.wants.Load() {
		return s.next
	}
	return Never
}

// level returns how many tokens are held at now.
func (s *stock) level(l Limit, now time.Duration) float64 {
	if s.parts > 0 && now > s.at {
		most := max(1, float64(l.burst)/float64(s.parts))
		if s.tokens < most {
			s.tokens = min(most, s.tokens+(now-s.at).Seconds()*l.Rate()/float64(s.parts))
		}
		s.at = now
	}
	return s.tokens
}

// all returns how many whole tokens all replicas have, as far as is known. Without the pool
// they are assumed to have as many each.
func (s *stock) all(l Limit) int {
	return min(l.burst, int(max(0, s.tokens)*float64(max(1, s.parts))+s.pool))
}

// wait returns how long a request of cost n has to wait, which may not take the last
// reserve tokens of all that there are. If the reserve is 0, it may overdraw by credit.
func (s *stock) wait(l Limit, now time.Duration, n, reserve, credit int) time.Duration {
	if n > 0 {
		s.last = max(s.last, now)
	}
	level := s.level(l, now)
	short := float64(n) - level
	if s.parts > 0 {
		reserve /= s.parts
	}
	if short > 0 && reserve <= 0 && level-float64(n) >= -float64(credit) {
		return 0
	}
	switch {
	case n == 0:
		return 0
	case n > l.burst:
		return Never
	case short > 0 && s.parts > 0:
		return time.Duration(short * float64(l.interval) * float64(s.parts))
	case short > 0:
		return max(s.next-now, l.interval)
	case reserve > 0 && level+s.pool < float64(n+min(reserve, l.burst-n)):
		return l.interval
	}
	return 0
}
