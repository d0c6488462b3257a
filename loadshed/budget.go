package loadshed

import (
	"math"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// minRetries is how many retries per second are let in at least. Otherwise a backend
	// that is too slow for its first attempts would never serve a retry again.
	minRetries = 1

	// budgetWeight is the EWMA weight of the newest second in the rate of first attempts:
	// enough to follow an overload, little enough for chance not to matter.
	budgetWeight = 0.2

	// budgetMemory is after how long without a retry that rate is measured anew.
	budgetMemory = 10 * time.Second
)

// A budget is a retry budget: it keeps a retry storm from outliving its cause. A backend
// that can do C requests per second and gets λ first attempts can do C − λ retries. That
// is C/λ − 1 of the first attempts. More would keep it overloaded after the cause has gone.
// Bronson et al., "Metastable Failures in Distributed Systems" (HotOS '21), have a backend
// of 300/s with 280 first attempts, which recovers only if retries stay below 20/s. A fixed
// share is too much there and too little elsewhere: "Site Reliability Engineering" (Beyer
// et al., 2016, chapter 21) has 10 %, several proxies 20 %.
//
// The allowance is renewed once per second in which Take is called. The unused rest is
// lost, so that no burst follows a quiet minute. The zero budget is ready. It is safe for
// concurrent use.
type budget struct {
	first atomic.Uint64 // attempts in all
	until atomic.Int64  // when the allowance is renewed
	left  atomic.Int64  // retries left of this second's allowance

	mu     sync.Mutex // guards the fields below
	at     time.Duration
	before uint64  // first, then
	rate   float64 // first attempts per second, EWMA; negative: not known
}

// First counts a first attempt, whether it is let in or not.
func (b *budget) First() { b.first.Add(1) }

// Take reports whether a retry may be let in at now, to a backend that can do capacity
// requests per second, and counts it if so. Infinite capacity lets all in. After
// budgetMemory without a call, only minRetries are let in during the first second: what
// was measured is older than the cause of the retries.
func (b *budget) Take(now time.Duration, capacity float64) bool {
	if math.IsInf(capacity, 1) {
		return true
	}
	if int64(now) >= b.until.Load() {
		b.renew(now, capacity)
	}
	// Calls that race for the last one leave it below zero, until it is renewed.
	return b.left.Load() > 0 && b.left.Add(-1) >= 0
}

// renew sets the allowance of the next second, unless another goroutine does.
func (b *budget) renew(now time.Duration, capacity float64) {
	if !b.mu.TryLock() {
		return
	}
	defer b.mu.Unlock()
	if int64(now) < b.until.Load() {
		return
	}
	first, passed, spare := b.first.Load(), now-b.at, float64(minRetries)
	if b.until.Load() > 0 && passed <= budgetMemory {
		rate := float64(first-b.before) / passed.Seconds()
		if b.rate < 0 {
			b.rate = rate
		}
		b.rate += budgetWeight * (rate - b.rate)
		spare = max(spare, min(capacity-b.rate, math.MaxInt32))
	} else {
		b.rate = -1
	}
	b.at, b.before = now, first
	b.left.Store(int64(spare))
	b.until.Store(int64(now + time.Second))
}
