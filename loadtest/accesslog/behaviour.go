package accesslog

import (
	"cmp"
	"maps"
	"math"
	"slices"
	"time"

	"github.com/herdshield/shield/loadtest/clients"
)

// A Behaviour is what some of the refused clients do. Each client that has been
// refused is one of these, by most of its waits:
//
//   - Its waits are what Retry-After said, from 0.1 s less to 0.25 s more: it is
//     a [clients.Exact]. If they are what Retry-After-Ms said, and that is
//     something else, a [clients.ExactMs].
//   - They are longer, up to 1.5 × what it said and a second: a [clients.Late]. By is
//     twice the mean that these clients add. But not if there are four or more and they
//     are all the same: then they are not for what it was told.
//   - They are shorter, or longer than that, or all the same, or it was never told a time. If there are four
//     or more, and their standard deviation is at most 15 % of their mean, it is a
//     [clients.Fixed], or a [clients.Hammer] above 3 %. Gaps that are within √2
//     of each other are one Behaviour.
//   - Of those whose waits differ more, mean and spread of the wait before each attempt make
//     one [clients.Exponential]. Its Jitter is 1 for full jitter. Those with fewer than four
//     waits are counted with the former or with these, as the others are shared out.
//   - It did not come back, within two minutes after its time: a
//     [clients.GiveUp]. If of those who have tried k times at
//     least 80 % do not come back, and 10 have not, the Behaviour has
//     [clients.MaxAttempts] k.
type Behaviour struct {
	Policy  clients.Policy
	Clients int     // that were judged to be such
	Waits   int     // that the Policy was fitted to
	Share   float64 // of the clients that were judged
	Error   float64 // half the width of Share's 95 % confidence interval (Wilson)
}

const (
	fewest    = 4    // waits that tell a fixed gap from another
	steady    = 0.03 // coefficient of variation of a fixed gap
	unsteady  = 0.15 // of one that jitters by a little
	stopsAt   = 0.8  // share of clients that go after an attempt, where it is the last
	stoppedBy = 10   // that must have been seen to
	most      = 6    // fixed gaps that are told apart
)

// A group is of clients of one kind.
type group struct {
	clients        int
	returns, quits [attempts]int
	sum, squares   [attempts]float64
	over           float64
	late           int
}

func (g *group) add(c *caller) {
	g.clients++
	for i := range attempts {
		g.returns[i] += int(c.returns[i])
		g.quits[i] += int(c.quits[i])
		g.sum[i] += float64(c.sum[i])
		g.squares[i] += float64(c.squares[i])
	}
	g.over += float64(c.over)
	g.late += int(c.late)
}

func (g *group) waits() (n int) {
	for _, r := range g.returns {
		n += r
	}
	return n
}

// gap is the mean of all waits and their coefficient of variation.
func (g *group) gap() (mean, cv float64) {
	var sum, squares float64
	for i := range attempts {
		sum += g.sum[i]
		squares += g.squares[i]
	}
	return moments(float64(g.waits()), sum, squares)
}

func moments(n, sum, squares float64) (mean, cv float64) {
	mean = sum / n
	if n < 2 || !(mean > 0) {
		return max(0, mean), 0
	}
	return mean, math.Sqrt(max(0, (squares-n*mean*mean)/(n-1))) / mean
}

// bound puts MaxAttempts around policy if those who try so often stop.
func (g *group) bound(policy clients.Policy) clients.Policy {
	for i := range attempts - 1 { // the last stands for more than one
		if gone := g.quits[i]; gone >= stoppedBy && float64(gone) >= stopsAt*float64(gone+g.returns[i]) {
			return clients.MaxAttempts{N: i + 1, Policy: policy}
		}
	}
	return policy
}

// judge makes Behaviours of what the clients did, the most frequent first.
func judge(of map[uint64]*caller) (all []Behaviour, judged int) {
	var exact, precise, late, never, backoff, few group
	fixed := map[int]*group{} // by the logarithm of the gap
	steadies := 0
	fix := func(c *caller, gap float64) {
		at := int(math.Round(2 * math.Log2(max(gap, 1e-3))))
		if fixed[at] == nil {
			fixed[at] = new(group)
		}
		fixed[at].add(c)
		steadies++
	}
	for _, client := range slices.Sorted(maps.Keys(of)) { // sums depend on the order
		c := of[client]
		var own group
		own.add(c)
		returned, hinted := c.returned(), c.returned()-int(c.untold)
		obeys := int(c.exact) + int(c.precise) + int(c.late)
		mean, cv := own.gap()
		switch {
		case returned == 0 && own.quits == [attempts]int{}: // it may still come
			continue
		case returned == 0:
			never.add(c)
		case hinted > 0 && 2*obeys > hinted:
			switch max(c.exact, c.precise, c.late) {
			case c.exact:
				exact.add(c)
			case c.precise:
				precise.add(c)
			default:
				if returned >= fewest && cv <= steady { // it only looks as if it obeyed
					fix(c, mean)
				} else {
					late.add(c)
				}
			}
		case returned < fewest:
			few.add(c)
		case cv <= unsteady:
			fix(c, mean)
		default:
			backoff.add(c)
		}
		judged++
	}
	add := func(g *group, n int, policy clients.Policy) {
		if n > 0 {
			share, half := wilson(n, judged)
			all = append(all, Behaviour{g.bound(policy), n, g.waits(), share, half})
		}
	}
	add(&exact, exact.clients, clients.Exact{})
	add(&precise, precise.clients, clients.ExactMs{})
	if late.clients > 0 {
		by := 2 * late.over / float64(max(1, late.late))
		add(&late, late.clients, clients.Late{By: max(0.01, round(by))})
	}
	if never.clients > 0 {
		share, half := wilson(never.clients, judged)
		all = append(all, Behaviour{clients.GiveUp{}, never.clients, 0, share, half})
	}

	// The few are shared out as those are who could be told.
	known, told, given := steadies+backoff.clients, 0, 0
	share := func(n int) int { // of the few, so that all of them together are all
		told += n
		before := given
		given = few.clients * told / max(1, known)
		return given - before
	}
	for _, g := range merged(fixed) {
		add(g, g.clients+share(g.clients), steadily(g))
	}
	if steadies == 0 {
		backoff.merge(&few)
	} else {
		backoff.clients += share(backoff.clients)
	}
	add(&backoff, backoff.clients, fit(&backoff))
	slices.SortStableFunc(all, func(a, b Behaviour) int { return cmp.Compare(b.Clients, a.Clients) })
	return all, judged
}

// merged returns the groups of fixed gaps by their gaps, with the smallest of
// more than most put to their neighbours.
func merged(fixed map[int]*group) (groups []*group) {
	var order []int
	for at := range fixed {
		order = append(order, at)
	}
	slices.Sort(order)
	for _, at := range order {
		groups = append(groups, fixed[at])
	}
	for len(groups) > most {
		least := 0
		for i, g := range groups {
			if g.clients < groups[least].clients {
				least = i
			}
		}
		to := least - 1
		if least == 0 || least+1 < len(groups) && groups[least+1].clients > groups[to].clients {
			to = least + 1
		}
		groups[to].merge(groups[least])
		groups = slices.Delete(groups, least, least+1)
	}
	return groups
}

// steadily is the policy of a group with a fixed gap.
func steadily(g *group) clients.Policy {
	mean, cv := g.gap()
	gap := seconds(max(1e-3, mean))
	if cv > steady {
		return clients.Hammer{Gap: gap}
	}
	return clients.Fixed{Gap: gap}
}

// fit makes an Exponential of waits by attempt: the least squares of the
// logarithms of their means, over factors from 1 to 4 and over how many attempts it takes to reach
// the cap. Each attempt weighs as much as it was seen; the last, which stands for
// more than one, does not count.
func fit(g *group) clients.Policy {
	var mean, cv [attempts]float64
	spread, weight := 0.0, 0.0
	reached := 0 // the last attempt after which somebody came
	for i := range attempts - 1 {
		n := g.returns[i]
		if n == 0 {
			continue
		}
		mean[i], cv[i] = moments(float64(n), g.sum[i], g.squares[i])
		mean[i] = max(mean[i], 1e-3)
		if n > 1 {
			spread += cv[i] * float64(n-1)
			weight += float64(n - 1)
		}
		reached = i
	}
	base, factor, rises, least := 0.0, 1.0, 0, math.Inf(1)
	for f := 1.0; f < 4.05; f += 0.1 {
		for k := range reached + 1 { // rises after the first attempt
			if f == 1 && k > 0 {
				break
			}
			var sum, squares, n float64
			for i := range reached + 1 {
				if g.returns[i] > 0 {
					w := float64(g.returns[i])
					d := math.Log(mean[i]) - float64(min(i, k))*math.Log(f)
					sum, squares, n = sum+w*d, squares+w*d*d, n+w
				}
			}
			if n == 0 {
				continue
			}
			// What is not better by a hundredth is not better.
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
	if factor > 1 && rises == reached { // nobody saw it end
		top = max(top, unseenCap.Seconds()/(1+jitter))
	}
	return clients.Exponential{Base: seconds(base), Cap: seconds(top), Factor: factor, Jitter: jitter}
}

// unseenCap is the longest wait, jitter included, of waits that nobody saw stop to
// grow.
const unseenCap = time.Minute

func (g *group) merge(other *group) {
	g.clients += other.clients
	for i := range attempts {
		g.returns[i] += other.returns[i]
		g.quits[i] += other.quits[i]
		g.sum[i] += other.sum[i]
		g.squares[i] += other.squares[i]
	}
	g.over += other.over
	g.late += other.late
}

// wilson is n/of, and half the width of its 95 % confidence interval (Wilson,
// 1927), which is not 0 where n is 0 or of.
func wilson(n, of int) (share, half float64) {
	const z = 1.96
	p, m := float64(n)/float64(of), float64(of)
	return p, z / (1 + z*z/m) * math.Sqrt(p*(1-p)/m+z*z/(4*m*m))
}

// round is x to two digits.
func round(x float64) float64 { return math.Round(100*x) / 100 }

// seconds is s seconds, to three digits: more are not known.
func seconds(s float64) time.Duration {
	d := time.Duration(s * float64(time.Second))
	unit := time.Duration(1)
	for d/unit >= 1000 {
		unit *= 10
	}
	return d.Round(unit)
}
