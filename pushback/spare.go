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
// quotas, so that the others are what those clients may use, and not what always comes. Of those
// that come while there is a backlog the share called room counts.
func (b *baseLoad) add(requests float64, d time.Duration, backlog, beyond bool, room float64) {
	if d <= 0 {
		return
	}
	rate := requests / d.Seconds()
	gain := 1 - math.Exp(-d.Seconds()/baseWindow.Seconds())
	if b.seen < baseWindow && !beyond { // a plain average, as long as little is known
		gain = max(gain, d.Seconds()/(b.seen+d).Seconds())
	}
	if backlog {
		gain *= room / 20
		rate = min(rate, 3*b.rate+10)
	} else if !beyond {
		b.seen = min(b.seen+d, baseWindow)
	}
	b.rate += min(gain, 1) * (rate - b.rate)
}
