package live

import (
	"math/rand/v2"
	"slices"
	"time"
)

// arrivals generates the instants at which clients come. It is pure: the same LoadConfig
// gives the same instants.
type arrivals struct {
	cfg    LoadConfig
	random *rand.Rand
	herd   []time.Duration // still to come, ascending
	others time.Duration   // when the next client by Rate comes; Duration or later: none does
	nth    int             // of the others
}

func newArrivals(c LoadConfig) *arrivals {
	a := &arrivals{cfg: c, random: rand.New(rand.NewPCG(c.Seed, 0))}
	a.herd = make([]time.Duration, c.Herd)
	for i := range a.herd {
		share := float64(i) / float64(c.Herd)
		if !c.Even {
			share = a.random.Float64()
		}
		a.herd[i] = c.HerdAfter + time.Duration(share*float64(c.Within))
	}
	slices.Sort(a.herd)
	a.others = c.Duration
	if c.Rate > 0 {
		a.others = 0
		a.step()
	}
	return a
}

// step draws the next client by Rate.
func (a *arrivals) step() {
	a.nth++
	if a.cfg.Even { // from the start, so that rounding does not add up
		a.others = within(float64(a.nth-1) / a.cfg.Rate)
		return
	}
	a.others += within(a.random.ExpFloat64() / a.cfg.Rate)
}

// within returns seconds as a Duration, bounded so that the sum of two does not overflow.
func within(seconds float64) time.Duration {
	return time.Duration(min(seconds, 2*MaxDuration.Seconds()) * float64(time.Second))
}

// next returns when the next client comes, since the start of the run, and whether it
// belongs to the herd. ok is false if no client is left.
func (a *arrivals) next() (at time.Duration, herd, ok bool) {
	if len(a.herd) > 0 && (a.others >= a.cfg.Duration || a.herd[0] <= a.others) {
		at = a.herd[0]
		a.herd = a.herd[1:]
		return at, true, true
	}
	if a.cfg.Rate == 0 || a.others >= a.cfg.Duration {
		return 0, false, false
	}
	at = a.others
	a.step()
	return at, false, true
}
