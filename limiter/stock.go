package limiter

import (
	"math"
	"time"
)

const (
	// stockTime is for how long a stock should last: a few trips to the pool.
	stockTime = 30 * time.Millisecond

	// idleTime is how long after the last request a replica gives its stock back: what
	// idle replicas hold is missing in the pool.
	idleTime = 300 * time.Millisecond

	// emptyTime is how long after it was found empty the pool is asked again, at least: a few trips.
	emptyTime = 20 * time.Millisecond

	// debtTime is how often a replica that owes tokens tells the pool. Ours: few requests come in so short a time.
	debtTime = 5 * time.Millisecond

	// freshTime is for how long what was heard of the pool's debts holds: then others may owe as much again. Ours: several trips within
	// a data center. With the store 20 ms away four replicas admitted 7.8 tokens beyond the limit at once, and admit 4.0.
	freshTime = 15 * time.Millisecond
)

// A stock is what one replica holds of a Bucket that several share: tokens that it has
// fetched from their pool. While the pool does not earn for it, it earns its part of the
// limit. It is guarded by the Bucket's lock.
type stock struct {
	Term
	tokens float64       // held; below 0: a debt of which the pool is to be told
	owed   float64       // the debt of which it is being told
	at     time.Duration // what was earned here is in tokens up to then
	pool   float64       // in the pool when it was heard of last
	heard  time.Duration // when that was
	next   time.Duration // when the pool may have a token
	each   time.Duration // when it may have one for each replica, or is full
	last   time.Duration // the last request

	missed int     // requests since the last Refill that wait for the pool
	low    float64 // with less the pool is to be asked
	wants  bool    // it is to be asked
	wake   func()  // tells that
}

// draws calls f with the stock, if the bucket draws on a pool.
func (b *Bucket) draws(f func(s *stock)) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.stock != nil {
		f(b.stock)
	}
}

// Follow makes the bucket draw on a pool that several replicas share, by a Term. At first it is empty. wake is called when
// the pool should be asked, see AsksAt. It must not block or use the Bucket.
func (b *Bucket) Follow(l Limit, now time.Duration, t Term, wake func()) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.stock == nil {
		b.stock = &stock{Term: t, at: now, wake: wake}
	}
	b.stock.level(l, now)
	b.stock.Term = t
}

// watch brings wants up to date.
func (s *stock) watch() {
	wanted := s.wants
	if s.wants = s.missed > 0 || s.tokens < s.low; s.wants && !wanted {
		s.wake()
	}
}

// Undraw makes the bucket work without a pool, on the whole limit. It keeps what it has.
func (b *Bucket) Undraw(l Limit, now time.Duration) {
	b.draws(func(s *stock) {
		owed := float64(l.burst) - min(float64(l.burst), s.level(l, now)-s.owed)
		b.fullAt, b.unit, b.stock = now+time.Duration(owed*float64(l.interval)), l, nil
	})
}

// Lose drops the tokens the bucket holds, because the pool has given them to others.
func (b *Bucket) Lose() { b.draws(func(s *stock) { s.tokens = min(0, s.tokens) }) }

// Refill returns what to exchange with the pool: the tokens the stock then holds; those it gives back because it has too
// many, below 0 if it passes on a debt; and how many it wants. A debt is all replicas': the pool gives nothing until it has
// earned it, so that a new client of one doesn't get the token for which one that is due waits at another.
func (b *Bucket) Refill(l Limit, now time.Duration) (held, gave float64, want int) {
	b.draws(func(s *stock) {
		level, target := s.level(l, now), float64(s.target(l, now))
		if !s.alone(now) { // what it earns alone is its own, and so is what it owes
			gave = min(level, max(0, math.Floor(level-target)))
			s.tokens, s.owed = s.tokens-gave, max(0, -level)
		}
		held, want = s.tokens, min(max(0, int(math.Ceil(target-s.tokens)), s.missed), l.burst)
		s.low, s.missed, s.wants = target/2, 0, false // until there is a response
	})
	return held, gave, want
}

// target returns how many tokens a replica should hold: all of them together a fourth of the burst at most.
func (s *stock) target(l Limit, now time.Duration) int {
	if now-s.last > idleTime {
		return 0
	}
	most := l.burst / (4 * s.Replicas)
	if l.burst >= 2*s.Replicas {
		most = max(1, most)
	}
	return min(most, int(math.Ceil(l.Rate()/float64(s.Replicas)*stockTime.Seconds())))
}

// Heard reports what the pool gave, and what is left in it.
func (b *Bucket) Heard(l Limit, now time.Duration, got int, pool float64) {
	earns := func(tokens int) time.Duration {
		return now + time.Duration(max(0, float64(tokens)-pool)*float64(l.interval))
	}
	b.draws(func(s *stock) {
		s.tokens, s.owed = s.tokens+float64(got), 0
		s.pool, s.heard, s.next, s.each = pool, now, earns(1), earns(min(s.Replicas, l.burst))
		if got == 0 && pool < 1 {
			s.next = max(s.next, now+emptyTime)
		}
		s.watch()
	})
}

// Unheard reports that the pool may not have been told of a debt.
func (b *Bucket) Unheard() {
	b.draws(func(s *stock) {
		s.tokens, s.owed = s.tokens-s.owed, 0
		s.watch()
	})
}

// Misses reports whether a request that finds no token should wait for the pool, which may have one. It is valid before
// Release. One that has to leave a reserve to others does not wait if there can hardly be as many.
func (c Claim) Misses(l Limit, now time.Duration, reserve int) bool {
	s := c.bucket.stock
	if s == nil || now < s.next || s.alone(now) || reserve > 0 && s.tokens+s.inPool(l, now) < float64(1+reserve) {
		return false
	}
	s.missed++
	s.watch()
	return true
}

// Lends reports whether the pool has a token for a request that finds none, as far as is known, so that one which must not wait for the
// store, because it is only observed or explained, would have got it. It is valid before Release. Committing makes a debt.
func (c Claim) Lends(l Limit, now time.Duration, reserve int) bool {
	s := c.bucket.stock
	return s != nil && !s.alone(now) && s.tokens-s.owed+s.inPool(l, now) >= float64(1+min(reserve, l.burst-1))
}

// AsksAt returns when to ask the pool, because it is to know a debt, requests wait for it, or the stock is low; Never if
// there is no need. With debts it is asked 200 times per second at most, and for tokens when it may have some.
func (b *Bucket) AsksAt() (at time.Duration) {
	at = Never
	b.draws(func(s *stock) {
		switch {
		case !s.wants:
		case s.tokens < 0:
			at = s.heard + debtTime
		default:
			at = s.next
		}
	})
	return at
}

// level returns how many tokens are held at now.
func (s *stock) level(l Limit, now time.Duration) float64 {
	from, most := max(s.at, s.Paid), max(1, float64(l.burst)/float64(s.Replicas))
	if s.at = max(s.at, now); now > from && s.tokens < most {
		s.tokens = min(most, s.tokens+(now-from).Seconds()*l.Rate()/float64(s.Replicas))
	}
	return s.tokens
}

// all returns how many whole tokens all replicas have, as far as is known. Without the pool
// they are assumed to have as many each.
func (s *stock) all(l Limit, now time.Duration) int {
	tokens := max(0, s.level(l, now))
	if s.alone(now) {
		return min(l.burst, int(tokens*float64(s.Replicas)))
	}
	return min(l.burst, max(0, int(tokens+s.inPool(l, now))))
}

// inPool returns how many tokens the pool may have now: those of which was heard, and what it has earned since, if others
// use their even part of that.
func (s *stock) inPool(l Limit, now time.Duration) float64 {
	return min(float64(l.burst), s.pool+(now-s.heard).Seconds()*l.Rate()/float64(s.Replicas))
}

// wait returns how long a request of cost n has to wait, which may not take the last
// reserve tokens of all that there are.
func (s *stock) wait(l Limit, now time.Duration, n, reserve int) time.Duration {
	if n <= 0 {
		return 0
	}
	if n > l.burst {
		return Never
	}
	s.last = max(s.last, now)
	all, pool := s.level(l, now), s.inPool(l, now)
	short := float64(n) - all
	if s.alone(now) {
		reserve, pool = reserve/s.Replicas, 0
	}
	switch {
	case short > 0 && s.alone(now):
		return s.earns(l, now, short)
	case short > 0:
		return max(s.next-now, l.interval)
	case reserve > 0 && all+pool < float64(n+min(reserve, l.burst-n)):
		return l.interval
	}
	return 0
}

// earns returns how long it takes a replica that is alone to earn so many more tokens.
func (s *stock) earns(l Limit, now time.Duration, tokens float64) time.Duration {
	return time.Duration(tokens*float64(l.interval)*float64(s.Replicas)) + max(0, s.Paid-now)
}
