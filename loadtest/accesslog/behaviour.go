package accesslog

import (
	"cmp"
	"maps"
	"math"
	"slices"
	"time"

	"github.com/herdshield/shield/loadtest/clients"
)

// A Behaviour is how a group of rejected clients retries. Most waits of a client decide
// which one it has:
//
//   - An [clients.Exact] waits as Retry-After says, or Retry-After-Ms, from 0.1 s less to 0.25 s
//     more.
//   - A [clients.Late] waits longer, up to 1.5 × Retry-After and a second. By is twice the
//     mean of what its clients add. Four or more waits that are all the same are no Late.
//   - A [clients.Fixed] has four or more other waits with a standard deviation of at most
//     3% of their mean; a [clients.Hammer], of at most 15%. Gaps within √2 of each other
//     are one Behaviour.
//   - A [clients.Exponential] has waits that differ more. Mean and spread of the wait before
//     each attempt define it; its Jitter is 1 for full jitter. Clients with fewer than four
//     waits are shared out between this and the fixed gaps in proportion.
//   - A [clients.GiveUp] did not come back within two minutes after its time. If of those
//     that have tried k times at least 80% do not come back, and 10 have not, the Behaviour
//     has [clients.MaxAttempts] k.
type Behaviour struct {
	Policy  clients.Policy
	Clients int // that have it
	Waits   int // that the Policy is fitted to
}

const (
	minWaits     = 4    // that tell a fixed gap from another
	fixedSpread  = 0.03 // coefficient of variation of a fixed gap, at most
	hammerSpread = 0.15 // of one with a little jitter
	stopShare    = 0.8  // of clients that leave after their last attempt, at least
	minStops     = 10   // clients that must have been seen to leave
)

// A group sums up how clients of one kind retry.
type group struct {
	clients int32

	// Returns by how they compare with Retry-After. All others were too early or too late.
	exact, late, untold int32
	over                float32 // sum of the late returns' delays, as shares of Retry-After

	returns, quits [attempts]int32   // by attempts made before
	sum, squares   [attempts]float32 // of the seconds before each return
}

func (g *group) add(other *group) {
	g.clients += other.clients
	g.late += other.late
	g.over += other.over
	for i := range attempts {
		g.returns[i] += other.returns[i]
		g.quits[i] += other.quits[i]
		g.sum[i] += other.sum[i]
		g.squares[i] += other.squares[i]
	}
}

func (g *group) returned() (n int) {
	for _, r := range g.returns {
		n += int(r)
	}
	return n
}

// gap is the mean of all waits, and their coefficient of variation.
func (g *group) gap() (mean, cv float64) {
	var sum, squares float64
	for i := range attempts {
		sum += float64(g.sum[i])
		squares += float64(g.squares[i])
	}
	return moments(float64(g.returned()), sum, squares)
}

func moments(n, sum, squares float64) (mean, cv float64) {
	mean = sum / n
	if n < 2 || !(mean > 0) {
		return max(0, mean), 0
	}
	return mean, math.Sqrt(max(0, (squares-n*mean*mean)/(n-1))) / mean
}

// bound wraps policy in MaxAttempts if clients stop after so many.
func (g *group) bound(policy clients.Policy) clients.Policy {
	for i := range attempts - 1 { // the last stands for more than one
		if gone := g.quits[i]; gone >= minStops && float64(gone) >= stopShare*float64(gone+g.returns[i]) {
			return clients.MaxAttempts{N: i + 1, Policy: policy}
		}
	}
	return policy
}

// kinds are the clients that were judged, by what they do.
type kinds struct {
	exact, late, never, backoff group

	undecided group          // by too few waits
	fixed     map[int]*group // by the logarithm of the gap
	steadies  int32          // clients in fixed
	judged    int
}

// add puts a client where it belongs, unless nothing is known of it.
func (k *kinds) add(c *group) {
	returned := c.returned()
	obeys := 2*int(c.exact+c.late) > returned-int(c.untold)
	mean, cv := c.gap()
	to := &k.backoff
	switch {
	case returned == 0 && c.quits == [attempts]int32{}: // it may still come
		return
	case returned == 0:
		to = &k.never
	case obeys && c.exact >= c.late:
		to = &k.exact
	case obeys && (returned < minWaits || cv > fixedSpread):
		to = &k.late
	case returned < minWaits:
		to = &k.undecided
	case cv <= hammerSpread: // also one that only looks late
		at := int(math.Round(2 * math.Log2(max(mean, 1e-3))))
		if k.fixed[at] == nil {
			k.fixed[at] = new(group)
		}
		to = k.fixed[at]
		k.steadies++
	}
	to.add(c)
	k.judged++
}

// judge makes Behaviours of the clients, the most frequent first.
func judge(of map[uint64]*caller) (all []Behaviour, judged int) {
	k := kinds{fixed: map[int]*group{}}
	for _, client := range slices.Sorted(maps.Keys(of)) { // sums depend on the order
		k.add(&of[client].group)
	}
	add := func(g *group, n int32, policy clients.Policy) {
		if n > 0 {
			all = append(all, Behaviour{policy, int(n), g.returned()})
		}
	}
	add(&k.exact, k.exact.clients, k.exact.bound(clients.Exact{}))
	by := 2 * float64(k.late.over) / float64(max(1, k.late.late))
	add(&k.late, k.late.clients, k.late.bound(clients.Late{By: max(0.01, round(by))}))
	add(&k.never, k.never.clients, clients.GiveUp{})

	// The undecided clients are shared out in proportion to the others that do not obey.
	known, told, given := k.steadies+k.backoff.clients, int32(0), int32(0)
	share := func(n int32) int32 { // rounded so that the shares add up
		told += n
		before := given
		given = k.undecided.clients * told / max(1, known)
		return given - before
	}
	for _, at := range slices.Sorted(maps.Keys(k.fixed)) {
		g := k.fixed[at]
		add(g, g.clients+share(g.clients), g.bound(steadily(g)))
	}
	if k.steadies == 0 {
		k.backoff.add(&k.undecided)
	} else {
		k.backoff.clients += share(k.backoff.clients)
	}
	add(&k.backoff, k.backoff.clients, k.backoff.bound(fit(&k.backoff)))
	slices.SortStableFunc(all, func(a, b Behaviour) int { return cmp.Compare(b.Clients, a.Clients) })
	return all, k.judged
}

func steadily(g *group) clients.Policy {
	mean, cv := g.gap()
	gap := seconds(max(1e-3, mean))
	if cv > fixedSpread {
		return clients.Hammer{Gap: gap}
	}
	return clients.Fixed{Gap: gap}
}

// fit makes an Exponential of waits by attempt: the least squares of the logarithms of their
// means, over factors from 1 to 4 and over the number of attempts before the cap. Each
// attempt weighs as many waits as it has. The last, which stands for several, is left out.
func fit(g *group) clients.Policy {
	var logs, weights [attempts]float64
	spread, weight := 0.0, 0.0
	reached := 0 // the last attempt that was followed by another
	for i := range attempts - 1 {
		n := float64(g.returns[i])
		if n == 0 {
			continue
		}
		mean, cv := moments(n, float64(g.sum[i]), float64(g.squares[i]))
		logs[i], weights[i] = math.Log(max(mean, 1e-3)), n
		spread += cv * (n - 1)
		weight += n - 1
		reached = i
	}
	base, factor, rises, least := 0.0, 1.0, 0, math.Inf(1)
	for f := 1.0; f < 4.05; f += 0.1 {
		for k := range reached + 1 { // rises after the first attempt
			if f == 1 && k > 0 {
				break
			}
			var sum, squares, n float64
			for i, w := range weights[:reached+1] {
				d := logs[i] - float64(min(i, k))*math.Log(f)
				sum, squares, n = sum+w*d, squares+w*d*d, n+w
			}
			if n == 0 {
				continue
			}
			// Take a more complex fit only if it is better by a hundredth.
			if left := squares - sum*sum/n; left < 0.99*least-1e-9 {
				base, factor, rises, least = math.Exp(sum/n), f, k, left
			}
		}
	}
	base, factor = max(base, 1e-3), math.Round(10*factor)/10
	top := base * math.Pow(factor, float64(rises))
	jitter := 0.0
	if weight > 0 { // of a uniform distribution of ± J the deviation is J/√3
		jitter = min(1, round(spread/weight*math.Sqrt(3)))
	}
	if factor > 1 && rises == reached { // the cap was never reached
		top = max(top, unseenCap.Seconds()/(1+jitter))
	}
	return clients.Exponential{Base: seconds(base), Cap: seconds(top), Factor: factor, Jitter: jitter}
}

// unseenCap is the longest wait, jitter included, if waits were still growing at the last
// attempt.
const unseenCap = time.Minute

// round is x to two digits.
func round(x float64) float64 { return math.Round(100*x) / 100 }

// seconds is s seconds to three digits, the precision of an estimate.
func seconds(s float64) time.Duration {
	d := time.Duration(s * float64(time.Second))
	unit := time.Duration(1)
	for d/unit >= 1000 {
		unit *= 10
	}
	return d.Round(unit)
}
