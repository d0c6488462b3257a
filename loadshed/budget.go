package loadshed

import (
	"math"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// leastRetries is how many retries per second are let in at any rate. A backend
	// that is too slow for its first attempts would never serve one again otherwise.
	leastRetries = 1

	// budgetMemory is over how many seconds first attempts are averaged: short
	// enough to follow an overload, long enough for chance not to matter.
	budgetMemory = 10
)

// A Budget bounds what retries may take: of a backend that can do C requests per
// second and gets λ first attempts, C − λ per second, which is C/λ − 1 of the
// first attempts. More of them would keep it overloaded after the cause has gone:
// in the metastable failure of Bronson et al., "Metastable Failures in Distributed
// Systems" (HotOS '21), a backend of 300/s with 280 first attempts recovers only if
// retries stay below 20/s. A fixed share, such as the 10 % of "Site Reliability
// Engineering" (Beyer et al., 2016, chapter 21) or the 20 % of several proxies, is
// too much there, and too little elsewhere.
//
// The allowance is reckoned once per second in which somebody asks; what is not used
// of it is lost, so that a quiet minute is not followed by a burst.
//
// The zero Budget is ready. It is safe for concurrent use.
type Budget struct {
	first atomic.Uint64 // attempts in all
	until atomic.Int64  // when the allowance is reckoned anew
	left  atomic.Int64  // retries of this second's allowance

	mu     sync.Mutex // guards what follows
	at     time.Duration
	before uint64  // first, then
	turns  float64 // measurements in rate, at most budgetMemory
	rate   float64 // of first attempts, per second
	rest   float64 // of the last allowance: less than one retry
	begun  bool
}

// First counts a first attempt, whether it is let in or not. It costs one atomic
// addition.
func (b *Budget) First() { b.first.Add(1) }

// Take reports whether a retry may be let in at now, to a backend that can do
// capacity requests per second, and counts it if so. Infinite capacity lets in all.
//
// First attempts are measured while somebody asks. In the first second after 10 in
// which nobody has, only one is let in: what is known is from before what made them
// retry.
func (b *Budget) Take(now time.Duration, capacity float64) bool {
	if math.IsInf(capacity, 1) {
		return true
	}
	if int64(now) >= b.until.Load() {
		b.renew(now, capacity)
	}
	// Those who find the last one gone after they have looked leave it below zero,
	// until it is reckoned anew.
	return b.left.Load() > 0 && b.left.Add(-1) >= 0
}

// renew reckons the allowance of the next second. Whoever finds another doing so
// goes on with what is left.
func (b *Budget) renew(now time.Duration, capacity float64) {
	if !b.mu.TryLock() {
		return
	}
	defer b.mu.Unlock()
	if int64(now) < b.until.Load() {
		return
	}
	first, passed := b.first.Load(), (now - b.at).Seconds()
	spare := 0.0
	if b.begun && passed <= budgetMemory {
		// Until there are enough of them, the mean of all measurements.
		b.turns = min(b.turns+1, budgetMemory)
		weight := min(1, max(1/b.turns, passed/budgetMemory))
		b.rate += weight * (float64(first-b.before)/passed - b.rate)
		spare = capacity - b.rate + b.rest
	} else {
		b.begun, b.turns, b.rate = true, 0, 0
	}
	b.at, b.before = now, first
	if !(spare > leastRetries) { // NaN too
		spare = leastRetries
	}
	spare = min(spare, math.MaxInt32)
	whole := math.Floor(spare)
	b.rest = spare - whole
	b.left.Store(int64(whole))
	b.until.Store(int64(now + time.Second))
}
