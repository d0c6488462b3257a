package seeds

import (
	"math"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/herdshield/shield/loadtest/clients"
)

// How the Outages of loadtest/lab/seeds/README.md are played. Ours: so many clients that the noise
// of a bin, where the curves are steep, is a percent, and that of a local maximum
// less.
const (
	Crowd = 1_000_000
	Bin   = 10 * time.Millisecond
	Shown = time.Minute

	Smooth = 0.05 // of the time after the first second
	Depth  = 0.06 // of Peaks
)

// golden is the fraction of the golden ratio, whose multiples fill [0, 1) most evenly.
const golden = math.Phi - 1

// Down plays the outage for the policy with that name, and panics if there is none.
func Down(name string, n int) *Outage { return Play(Policy(name), n, 1, Bin, Shown) }

// Policy returns the policy of the textbooks or of the Catalog with that name, and panics if there is
// none.
func Policy(name string) clients.Policy {
	for _, e := range slices.Concat(textbook, clients.Catalog()) {
		if e.Name == name {
			return e.Policy
		}
	}
	panic("unknown policy " + name)
}

// Waves are the Peaks of the smoothed curve.
func (o *Outage) Waves() []Peak { return o.Curve(Smooth).Peaks(Depth) }

// An Outage is how clients come back to a server that stays down: all send their
// first request at time 0, and whatever they send fails in no time with a 503
// that says nothing.
type Outage struct {
	Clients int
	Bin     time.Duration
	Counts  []int         // retries in each Bin from 0 on
	Retries int           // in all of them
	GaveUp  int           // clients whose policy has stopped
	Last    time.Duration // when the last retry came
}

// Play plays an Outage of n clients until that time, in bins that it is a multiple
// of. Time goes by attempts: all first retries, then all second ones. That is the
// order in which a budget of the process that all clients are in, as google-sre's,
// is used up; a retry counts when it is decided on.
//
// The first waits are not drawn at random, but spread evenly (Weyl's sequence), or
// there would be more noise in the first second than in the rest.
func Play(p clients.Policy, n int, seed uint64, bin, until time.Duration) *Outage {
	o := &Outage{Clients: n, Bin: bin, Counts: make([]int, int(until/bin))}
	type client struct{ sent, gap time.Duration }
	crowd := make([]client, n) // who still come
	draw := rand.New(rand.NewPCG(seed, 0))
	requests, retries := int64(n), int64(0)
	for attempt := 1; len(crowd) > 0; attempt++ {
		left := crowd[:0]
		for i, c := range crowd {
			u := draw.Float64()
			if attempt == 1 {
				_, u = math.Modf(golden * float64(i))
			}
			wait, again := p.Next(clients.Rejected{
				Attempt: attempt, Gap: c.gap, Elapsed: c.sent, U: u, Retries: retries, Requests: requests,
			})
			if !again {
				o.GaveUp++
				continue
			}
			requests, retries = requests+1, retries+1
			c = client{sent: c.sent + wait, gap: wait}
			if c.sent >= until {
				continue
			}
			o.Counts[c.sent/bin]++
			o.Retries++
			o.Last = max(o.Last, c.sent)
			left = append(left, c)
		}
		crowd = left
	}
	return o
}

// A Point of a Curve is how often each client retries per second, around a time.
type Point struct{ At, Rate float64 }

// A Curve is a rate of retries, per client and second, over time in seconds.
type Curve []Point

// Curve returns the rate in each bin, as the mean of all bins around it within a half
// of that share of its time after the first second: later bins, in which less happens,
// are smoothed more. 0 smooths nothing.
func (o *Outage) Curve(share float64) Curve {
	sums := make([]int, len(o.Counts)+1)
	for i, c := range o.Counts {
		sums[i+1] = sums[i] + c
	}
	curve := make(Curve, len(o.Counts))
	for i := range curve {
		reach := int(max(0, float64(i)-1/o.Bin.Seconds()) * share / 2)
		from, to := max(0, i-reach), min(len(o.Counts), i+reach+1)
		curve[i] = Point{
			At:   (float64(i) + 0.5) * o.Bin.Seconds(),
			Rate: float64(sums[to]-sums[from]) / float64(to-from) / float64(o.Clients) / o.Bin.Seconds(),
		}
	}
	return curve
}

// By returns how many retries per client have come by a time.
func (o *Outage) By(at time.Duration) float64 {
	sum := 0
	for _, c := range o.Counts[:min(len(o.Counts), int(at/o.Bin))] {
		sum += c
	}
	return float64(sum) / float64(o.Clients)
}

// A Peak is a local maximum, and the least before it since the one before.
type Peak struct{ Top, Before Point }

// Rise is the Peak's rate in terms of that before it; of 0, infinite.
func (p Peak) Rise() float64 { return p.Top.Rate / p.Before.Rate }

// Peaks returns the local maxima of the curve, in the order of their times: points
// from which it rises, or falls, by less than depth (0.03 is 3%) before it goes on do
// not count, so that noise does not. The first maximum, to which a curve rises from
// its beginning, is one if it rises at all.
func (c Curve) Peaks(depth float64) []Peak {
	if len(c) == 0 {
		return nil
	}
	var peaks []Peak
	low, top, rising := c[0], c[0], false
	for _, p := range c {
		switch {
		case rising && p.Rate > top.Rate:
			top = p
		case rising && p.Rate < top.Rate*(1-depth):
			peaks = append(peaks, Peak{Top: top, Before: low})
			rising, low = false, p
		case !rising && p.Rate < low.Rate:
			low = p
		case !rising && p.Rate > low.Rate*(1+depth):
			rising, top = true, p
		}
	}
	return peaks
}

// A Burst is a stretch of time in which retries come, with silence before and after.
type Burst struct {
	From, To float64 // seconds; bins
	Share    float64 // retries in it, per client
}

// Bursts returns the stretches of bins in which retries come, which silences that are
// longer than the given one part.
func (o *Outage) Bursts(silence time.Duration) (bursts []Burst) {
	bin := o.Bin.Seconds()
	for i, n := range o.Counts {
		if n == 0 {
			continue
		}
		if k := len(bursts); k == 0 || (float64(i)-0.5)*bin-bursts[k-1].To > silence.Seconds() {
			bursts = append(bursts, Burst{From: float64(i) * bin})
		}
		b := &bursts[len(bursts)-1]
		b.To = float64(i+1) * bin
		b.Share += float64(n) / float64(o.Clients)
	}
	return bursts
}

// Most returns the most retries per client in one of the windows of that length that
// follow each other, when it begins, in seconds, and in what share of the windows
// no client comes.
func (o *Outage) Most(window time.Duration) (most, at, silent float64) {
	size := int(window / o.Bin)
	windows := len(o.Counts) / size
	for i := range windows {
		sum := 0
		for _, n := range o.Counts[i*size : (i+1)*size] {
			sum += n
		}
		if share := float64(sum) / float64(o.Clients); share > most {
			most, at = share, float64(i)*window.Seconds()
		}
		if sum == 0 {
			silent += 1 / float64(windows)
		}
	}
	return most, at, silent
}
