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

	// budgetWindow is over how many seconds first attempts are averaged: short enough to
	// follow an overload, long enough for chance not to matter.
	budgetWindow = 10
)

// A Budget is a retry budget: it keeps a retry storm from outliving its cause. A backend
// that can do C requests per second and gets λ first attempts can do C − λ retries. That
// is C/λ − 1 of the first attempts. More would keep it overloaded after the cause has gone.
// Bronson et al., "Metastable Failures in Distributed Systems" (HotOS '21), have a backend
// of 300/s with 280 first attempts, which recovers only if retries stay below 20/s. A fixed
// share is too much there and too little elsewhere: "Site Reliability Engineering" (Beyer
// et al., 2016, chapter 21) has 10 %, several proxies 20 %.
//
// The allowance is renewed once per second in which Take is called. The unused rest is
// lost, so that no burst follows a quiet minute. The zero Budget is ready. It is safe for
// concurrent use.
type Budget struct {
	first atomic.Uint64 // attempts in all
	until atomic.Int64  // when the allowance is renewed
	left  atomic.Int64  // retries left of this second's allowance

	mu     sync.Mutex // guards what follows
	at     time.Duration
	before uint64  // first, then
	turns  float64 // measurements in rate, at most budgetWindow
	rate   float64 // first attempts per second, EWMA
	rest   float64 // fraction of a retry left of the last allowance
	begun  bool
}

// First counts a first attempt, whether it is let in or not.
func (b *Budget) First() { b.first.Add(1) }

// Take reports whether a retry may be let in at now, to a backend that can do capacity
// requests per second, and counts it if so. Infinite capacity lets all in. After
// budgetWindow without a call, only minRetries are let in during the first second: what
// was measured is older than the cause of the retries.
func (b *Budget) Take(now time.Duration, capacity float64) bool {
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
	if b.begun && passed <= budgetWindow {
		// The plain mean of the measurements, until there are enough for an EWMA.
		b.turns = min(b.turns+1, budgetWindow)
		weight := min(1, max(1/b.turns, passed/budgetWindow))
		b.rate += weight * (float64(first-b.before)/passed - b.rate)
		spare = capacity - b.rate + b.rest
	} else {
		b.begun, b.turns, b.rate = true, 0, 0
	}
	b.at, b.before = now, first
	if !(spare > minRetries) { // NaN too
		spare = minRetries
	}
	spare = min(spare, math.MaxInt32)
	whole := math.Floor(spare)
	b.rest = spare - whole
	b.left.Store(int64(whole))
	b.until.Store(int64(now + time.Second))
}
