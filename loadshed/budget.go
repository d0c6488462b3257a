package loadshed

import (
	"sync"
	"sync/atomic"
	"time"
)

const (
	// leastRetries is how many retries per second are let in at any rate, or a
	// backend that is too slow for its first attempts would never see one again.
	leastRetries = 1

	// budgetMemory is over how many seconds first attempts are averaged.
	budgetMemory = 10
)

// A Budget bounds what retries may take: of a backend that can do C requests per
// second and gets λ first attempts, C − λ per second, which is C/λ − 1 of the
// first attempts. More of them would keep it overloaded after the cause has gone:
// in the metastable failure of Bronson et al., "Metastable Failures in Distributed
// Systems" (HotOS '21), a backend of 300/s with 280 first attempts recovers if
// retries stay below 20/s. Fixed shares, such as 10 or 20 %, are too much there, and
// too little elsewhere.
//
// The zero Budget is ready. It is safe for concurrent use.
type Budget struct {
	first atomic.Uint64 // attempts since the epoch
	until atomic.Int64  // when the allowance is reckoned anew
	left  atomic.Int64  // retries of this second's allowance

	mu     sync.Mutex // guards what follows
	at     time.Duration
	before uint64  // first, then
	rate   float64 // of first attempts, per second
	known  bool
}

// First counts a first attempt.
func (b *Budget) First() { b.first.Add(1) }

// Take reports whether a retry may be let in at now, to a backend that can do
// capacity requests per second, and counts it if so.
func (b *Budget) Take(now time.Duration, capacity float64) bool {
	if int64(now) >= b.until.Load() {
		b.renew(now, capacity)
	}
	for {
		left := b.left.Load()
		if left <= 0 {
			return false
		}
		if b.left.CompareAndSwap(left, left-1) {
			return true
		}
	}
}

// renew reckons the allowance of the next second.
func (b *Budget) renew(now time.Duration, capacity float64) {
	if !b.mu.TryLock() {
		return
	}
	defer b.mu.Unlock()
	if int64(now) < b.until.Load() {
		return
	}
	if passed := (now - b.at).Seconds(); passed >= 1 {
		first := b.first.Load()
		rate := float64(first-b.before) / passed
		switch {
		case !b.known: // it counts from nobody knows when
			b.rate, b.known = 0, b.at > 0
			if b.at > 0 {
				b.rate = rate
			}
		default:
			b.rate += min(1, passed/budgetMemory) * (rate - b.rate)
		}
		b.at, b.before = now, first
	}
	b.left.Store(int64(min(max(leastRetries, capacity-b.rate), 1e9)))
	b.until.Store(int64(now + time.Second))
}
