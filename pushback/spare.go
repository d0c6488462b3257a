package pushback

import (
	"math"
	"time"
)

// base is how many requests per second come that keep no promise: an average
// over 30 s. While a backlog stands, a herd is at the door; it must not be taken
// for what always comes, or the spare rate would fall when it is needed. So the
// average moves twenty times slower then, and no second counts for more than
// three times of what is known.
type base struct {
	rate float64
	seen time.Duration // how long has been averaged, up to 30 s
}

const baseMemory = 30 * time.Second

func (b *base) add(requests float64, d time.Duration, standing bool) {
	if d <= 0 {
		return
	}
	rate := requests / d.Seconds()
	gain := 1 - math.Exp(-d.Seconds()/baseMemory.Seconds())
	if b.seen < baseMemory { // a plain average, as long as little is known
		gain = max(gain, d.Seconds()/(b.seen+d).Seconds())
	}
	if standing {
		gain /= 20
		rate = min(rate, 3*b.rate+10)
	} else {
		b.seen = min(b.seen+d, baseMemory)
	}
	b.rate += min(gain, 1) * (rate - b.rate)
}

// kept is the share of promises that clients come back for, averaged over the
// last keptMemory of them. Those who come late count when they come.
type kept struct {
	made, kept float64
}

// keptRest is how fast that is. Ours: a minute after a load test that nobody came
// back from, the next crowd should be trusted again.
const keptRest = 15 * time.Second

// prior is how many kept promises are taken for granted at the beginning.
const prior = 10

func (k *kept) add(made, kept float64) {
	fade := math.Exp(-made / keptMemory)
	k.made = k.made*fade + made
	k.kept = k.kept*fade + kept // may be above made: a neighbour's
}

// rest forgets, while nobody waits: the next crowd need not be like the last one.
func (k *kept) rest(d time.Duration) {
	fade := math.Exp(-d.Seconds() / keptRest.Seconds())
	k.made *= fade
	k.kept *= fade
}

func (k *kept) late() { k.kept = max(k.kept, min(k.kept+1, k.made)) }

// share returns the share, leastKept to 1.
func (k *kept) share() float64 {
	return min(max(leastKept, (k.kept+prior)/(k.made+prior)), 1)
}
