package loadshed

import (
	"math"
	"sync"
	"sync/atomic"
	"time"
)

// budgetMemory is after how long without a retry the rate of first attempts is measured anew.
const budgetMemory = 10 * time.Second

// A budget is a retry budget. A backend that can do C requests per second and gets λ first
// attempts can do C − λ retries. More would keep it overloaded after the cause has gone: see
// Bronson et al., "Metastable Failures in Distributed Systems" (HotOS '21). At least one per
// second is let in, or a backend that is too slow for its first attempts never served another.
//
// The allowance is renewed once per second in which Take is called, and the unused rest is
// lost. The zero budget is ready. It is safe for concurrent use.
type budget struct {
	first atomic.Uint64 // attempts that were decided on, whether they are let in or not

	mu     sync.Mutex // guards the fields below
	at     time.Duration
	before uint64  // first, then
	left   float64 // retries left of this second's allowance
}

// Take reports whether a retry may be let in at now, to a backend that can do capacity
// requests per second, and counts it if so.
func (b *budget) Take(now time.Duration, capacity float64) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if passed := now - b.at; b.at == 0 || passed >= time.Second {
		first := b.first.Load()
		b.left = 1 // also if the rate is not known
		if b.at > 0 && passed <= budgetMemory {
			b.left = max(1, math.Floor(capacity-float64(first-b.before)/passed.Seconds()))
		}
		b.at, b.before = now, first
	}
	b.left--
	return b.left >= 0
}
