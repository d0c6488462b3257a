package live

import (
	"math/rand/v2"
	"slices"
	"time"
)

// arrivals says when clients come. It is pure: the same for the same LoadConfig.
type arrivals struct {
	cfg    LoadConfig
	random *rand.Rand
	herd   []time.Duration // still to come, ascending
	others time.Duration   // when the next of the others comes; Duration or later: none does
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

// step moves the next of the others.
func (a *arrivals) step() {
	a.nth++
	if a.cfg.Even { // from the start, so that rounding does not add up
		a.others = within(float64(a.nth-1) / a.cfg.Rate)
		return
	}
	a.others += within(a.random.ExpFloat64() / a.cfg.Rate)
}

// within returns a number of seconds as a Duration, into which any two fit.
func within(seconds float64) time.Duration {
	return time.Duration(min(seconds, 2*MaxDuration.Seconds()) * float64(time.Second))
}

// next returns when the next client comes, since the start of the run, and
// whether it is of the herd. It is false when none does.
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
