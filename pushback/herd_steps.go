package pushback

import (
	"math"
	"time"
)

// HerdAllanScales are the sizes of the bins whose arrivals a Herd compares with those of
// the bin before.
var HerdAllanScales = [...]time.Duration{
	100 * time.Millisecond, 200 * time.Millisecond, 500 * time.Millisecond,
	time.Second, 2 * time.Second, 5 * time.Second, 10 * time.Second,
}

const (
	allanSecond = 3 // the scale of 1 s

	allanGain  = 1.0 / 32 // of a new pair of bins
	allanPairs = 32       // before the factor is reported
	allanMean  = 5        // arrivals per bin below which it is not
)

// An allan is the Allan factor at one scale: half the mean squared difference of
// neighbouring bins, over their mean. It is 1 for Poisson arrivals, more for bursts.
// (Lowen and Teich 1996; unlike the Fano factor it does not mistake a daily curve for
// bursts.)
type allan struct {
	sum, first   float64 // the bin that has begun; the first bin of the pair
	parts        uint8   // of the bin that has begun
	second       bool    // of the pair has begun
	pairs, known uint32  // pairs seen; those with a factor
	mean, square float64
	usual        float64 // the mean factor of about an hour
}

// add takes a part of a bin of a scale: the arrivals of 100 ms.
func (a *allan) add(arrivals float64, scale time.Duration) {
	a.sum += arrivals
	if a.parts++; time.Duration(a.parts)*herdTick < scale {
		return
	}
	bin := a.sum
	a.sum, a.parts = 0, 0
	if a.second = !a.second; a.second {
		a.first = bin
		return
	}
	a.pairs = min(a.pairs, math.MaxUint32-1) + 1
	gain := max(allanGain, 1/float64(a.pairs))
	d := bin - a.first
	a.mean += gain * ((bin+a.first)/2 - a.mean)
	a.square += gain * (d*d - a.square)
	if f := a.factor(); f > 0 {
		a.known = min(a.known, math.MaxUint32-1) + 1
		a.usual += max(2*scale.Hours(), 1/float64(a.known)) * (f - a.usual) // 2: a pair is two bins
	}
}

// factor returns the Allan factor; 0 if too little has come to tell.
func (a *allan) factor() float64 {
	if a.pairs < allanPairs || a.mean < allanMean {
		return 0
	}
	return a.square / (2 * a.mean)
}

// ratio returns the factor over the usual one; 0 if it is not known.
func (a *allan) ratio() float64 {
	if a.usual == 0 {
		return 0
	}
	return a.factor() / a.usual
}

const (
	cusumLearn  = 60        // seconds before the mean is taken for known
	cusumGain   = 1.0 / 300 // of a second, for the mean
	cusumFrozen = cusumGain / 10
	cusumSlack  = 0.5 // standard deviations that are no step
	cusumDoubt  = 3   // above it the mean is frozen: the step must not become usual
	cusumMost   = 28  // twice the sum that is a step: after a long one, 0 is reached again in a minute
)

// A cusum adds up by how much the arrivals per second exceed the usual (Page 1954), in
// standard deviations of traffic as uneven as the Allan factor at 1 s says.
type cusum struct {
	seconds   uint8 // seen, up to cusumLearn
	mean, sum float64
}

// add takes the arrivals of one second.
func (c *cusum) add(arrivals, factor float64) {
	if c.seconds < cusumLearn {
		c.seconds++
		c.mean += (arrivals - c.mean) / float64(c.seconds)
		return
	}
	deviation := math.Sqrt(max(1, c.mean*max(1, factor)))
	c.sum = min(max(0, c.sum+(arrivals-c.mean)/deviation-cusumSlack), cusumMost)
	gain := cusumGain
	if c.sum > cusumDoubt {
		gain = cusumFrozen
	}
	c.mean += gain * (arrivals - c.mean)
}
