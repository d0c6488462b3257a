package live

import (
	"iter"
	"math/rand/v2"
	"slices"
	"time"
)

// herdTimes returns when the herd comes, since the start of the run, ascending.
func (c LoadConfig) herdTimes(random *rand.Rand) []time.Duration {
	at := make([]time.Duration, c.Herd)
	for i := range at {
		share := float64(i) / float64(c.Herd)
		if !c.Even {
			share = random.Float64()
		}
		at[i] = c.HerdAfter + time.Duration(share*float64(c.Within))
	}
	slices.Sort(at)
	return at
}

// random returns the source of all arrivals: the same LoadConfig gives the same instants.
func (c LoadConfig) random() *rand.Rand { return rand.New(rand.NewPCG(c.Seed, 0)) }

// arrivals yields when clients come, since the start of the run, and whether in the herd.
func (c LoadConfig) arrivals() iter.Seq2[time.Duration, bool] {
	return func(yield func(time.Duration, bool) bool) {
		random := c.random()
		herd := c.herdTimes(random)
		for n, at := 0, time.Duration(0); c.Rate > 0; n++ {
			if c.Even { // from the start, so that rounding does not add up
				at = within(float64(n) / c.Rate)
			} else {
				at += within(random.ExpFloat64() / c.Rate)
			}
			if at >= c.Duration {
				break
			}
			for len(herd) > 0 && herd[0] <= at {
				if !yield(herd[0], true) {
					return
				}
				herd = herd[1:]
			}
			if !yield(at, false) {
				return
			}
		}
		for _, at := range herd {
			if !yield(at, true) {
				return
			}
		}
	}
}

// within returns seconds as a Duration, bounded so that the sum of two does not overflow.
func within(seconds float64) time.Duration {
	return time.Duration(min(seconds, 2*MaxDuration.Seconds()) * float64(time.Second))
}
