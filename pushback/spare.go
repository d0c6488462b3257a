package pushback

import (
	"math"
	"time"
)

// baseLoad is the rate of requests that keep no promise: an EWMA over 30 s. A backlog
// means that a herd has come. It must not count as base load, or the spare rate would
// fall when it is needed. So the average moves twenty times slower then, and no second
// counts for more than three times of what is known.
type baseLoad struct {
	rate float64       // requests per second
	seen time.Duration // how long has been averaged, up to baseWindow
}

const baseWindow = 30 * time.Second

// add averages what came within d. beyond: more requests came that were over their clients'
// quotas, so that the others are what those clients may use, and not what always comes.
func (b *baseLoad) add(requests float64, d time.Duration, backlog, beyond bool) {
	if d <= 0 {
		return
	}
	rate := requests / d.Seconds()
	gain := 1 - math.Exp(-d.Seconds()/baseWindow.Seconds())
	if b.seen < baseWindow && !beyond { // a plain average, as long as little is known
		gain = max(gain, d.Seconds()/(b.seen+d).Seconds())
	}
	if backlog {
		gain /= 20
		rate = min(rate, 3*b.rate+10)
	} else if !beyond {
		b.seen = min(b.seen+d, baseWindow)
	}
	b.rate += min(gain, 1) * (rate - b.rate)
}

// keptPromises measures the share of promises that clients come back for: an EWMA over
// keptWindow of them. A client that comes late counts when it comes. Without a backlog the
// share goes back to 1: the next crowd is trusted.
type keptPromises struct {
	made, kept float64
}

const (
	// keptWindow is over how many promises the share of kept ones is averaged.
	keptWindow = 200

	// keptForgetTime is the time constant of forget. Ours: a minute after a load test
	// from which no client came back, the next crowd should be trusted again.
	keptForgetTime = 15 * time.Second

	// keptPrior is how many kept promises are assumed at the beginning.
	keptPrior = 10

	// minKeptShare bounds overbooking: no slot is promised to more than four clients.
	minKeptShare = 0.25
)

func (k *keptPromises) add(made, kept float64) {
	fade := math.Exp(-made / keptWindow)
	k.made = k.made*fade + made
	k.kept = k.kept*fade + kept // may be above made: a neighbour's
}

// forget is for a time in which no client waits: the next crowd need not be like the
// last one.
func (k *keptPromises) forget(d time.Duration) {
	fade := math.Exp(-d.Seconds() / keptForgetTime.Seconds())
	k.made *= fade
	k.kept *= fade
}

func (k *keptPromises) addLate() { k.kept = max(k.kept, min(k.kept+1, k.made)) }

// share returns the share, minKeptShare to 1.
func (k *keptPromises) share() float64 {
	return min(max(minKeptShare, (k.kept+keptPrior)/(k.made+keptPrior)), 1)
}
