package loadshed

import (
	"encoding/json"
	"math"
	"os"
	"time"
)

// control is the law: what a window of measurements makes of the limit. It is
// not safe for concurrent use, and reads nothing but its arguments.
type control struct {
	limit             float64
	latency, baseline float64 // of the last window, seconds

	// shape is how long a route takes when nothing queues.
	shape [Routes]float64
	seen  [Routes]int

	congestion float64 // smoothed; 0: no window yet
	need       float64 // in flight without a queue, smoothed
	needs      [memory]float64
	needCount  int

	warm, bound, known bool
	before             float64
	best               struct {
		rate, limit float64
		windows     int
	}
	demand   float64
	hot      int
	excess   float64
	pressure float64 // share of recent windows with refusals
	rate     float64 // served per second, while bound

	epoch struct {
		open              bool
		limit, congestion float64
		at                time.Duration
	}
	after struct { // served since the cut of the epoch has settled
		n                       int
		latency, shape, squares float64
	}

	phase     phase
	until     time.Duration // when settling ends
	saved     float64       // the limit before the probe
	verified  bool
	nextProbe time.Duration
	dipped    time.Duration
	every     float64

	refusedAt time.Duration
	random    uint64
}

type phase uint8

const (
	measuring  phase = iota
	settling         // a probe has begun; what ends now has entered before it
	collecting       // a probe measures
)

const memory = 8

func (c *control) begin(l Law) {
	if c.limit == 0 {
		c.limit = float64(l.initial)
	}
	c.limit = min(max(c.limit, float64(l.min)), float64(l.max))
}

func (c *control) wait() time.Duration {
	if c.phase == collecting {
		return seconds(min(max(c.latency/4, .005), .05))
	}
	return seconds(c.enough())
}

func (c *control) enough() float64 { return min(max(2*c.latency, .25), 1) }

func seconds(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }

func (c *control) over(now time.Duration, s *sample) (bool, time.Duration) {
	switch c.phase {
	case settling:
		return now >= c.until, c.until - now
	case collecting:
		return s.good >= 60 && s.effective() >= 30 || s.span > 3, c.wait()
	}
	mean := s.mean()
	if s.n == 0 {
		mean = .1
	}
	enough := min(max(2*mean, .25), 1)
	switch {
	case s.span < enough:
		return false, seconds(enough - s.span)
	case s.n >= 25 && s.effective() >= 12, s.span >= 8*enough:
		return true, 0
	}
	return false, seconds(enough / 8)
}

func (c *control) step(now time.Duration, s *sample, l Law) Reason {
	switch c.phase {
	case settling:
		c.phase = collecting
		return Probed
	case collecting:
		c.phase = measuring
		return c.probed(now, s, l)
	}
	if s.n > 0 {
		c.latency = s.mean()
	}
	if !c.warm {
		c.warm = true
		return Unused
	}
	if s.good == 0 {
		if s.n > 0 {
			c.fall(.7, l)
		}
		return Failed
	}
	return c.adapt(now, s, l)
}

func (c *control) shapes(s *sample) float64 {
	sum := 0.0
	for r := range s.routes {
		m := &s.routes[r]
		if m.n == 0 {
			continue
		}
		if c.seen[r] < 30 {
			sum += m.latency
		} else {
			sum += float64(m.n) * c.shape[r]
		}
	}
	return sum
}

func (c *control) rescale(f float64) {
	for r := range c.shape {
		c.shape[r] *= f
	}
	for i := range c.needs {
		c.needs[i] *= f
	}
	c.need *= f
}

func (c *control) needMax() float64 {
	m := 0.0
	for i := range min(c.needCount, memory) {
		m = max(m, c.needs[i])
	}
	return m
}

func (c *control) adapt(now time.Duration, s *sample, l Law) Reason {
	lmin, lmax, initial := float64(l.min), float64(l.max), float64(l.initial)
	shape := c.shapes(s)
	c.baseline = shape / float64(s.good)
	bound := s.refused > 0 || float64(s.peak) >= .9*c.limit
	r := 0.0
	if s.refused > 0 {
		r = 1
	}
	c.pressure += .15 * (r - c.pressure)
	c.excess += .3 * (float64(s.refused)/float64(s.refused+s.n) - c.excess)
	N0, N := shape/s.span, s.latency/s.span
	X := float64(s.good) / s.span
	S := N / max(N0, 1e-9)
	Sok := s.goodLatency / max(shape, 1e-12)
	if c.congestion == 0 {
		c.congestion, c.need = S, N0
	} else {
		c.congestion += .5 * (S - c.congestion)
		c.need += .5 * (N0 - c.need)
	}
	for r := range s.routes {
		m := &s.routes[r]
		if m.n == 0 {
			continue
		}
		if c.seen[r] < 30 {
			c.shape[r] = (c.shape[r]*float64(c.seen[r]) + m.latency) / float64(c.seen[r]+m.n)
			c.seen[r] += m.n
			continue
		}
		c.shape[r] += min(.5, float64(m.n)/400) * (m.latency/float64(m.n)/max(Sok, 1e-9) - c.shape[r])
	}
	if !bound {
		c.bound, c.epoch.open = false, false
		c.known = true
		c.demand += .3 * (float64(s.n)/s.span - c.demand)
		if float64(s.good) >= .9*float64(s.n) {
			g := P.Up
			if Sok < 1 {
				g = P.Down
			}
			c.rescale(1 + g*(min(max(Sok, .5), 2)-1))
			c.before = 0
			if top := max(initial, 4*float64(s.peak)); c.limit > top {
				c.limit = max(top, .9*c.limit)
			} else if c.limit < initial {
				c.limit = min(initial, c.limit+math.Sqrt(c.limit))
			}
		} else {
			c.limit = max(lmin, min(c.limit, max(float64(s.peak), 1.1*N0+math.Sqrt(N0)+1)))
		}
		return Unused
	}
	if !c.bound {
		c.bound = true
		c.needCount = 0
		wait := 5.0
		if P.Later > 0 && float64(s.n+s.refused)/s.span > 1.5*c.demand {
			wait = P.Later
		} else if P.Sooner > 0 {
			wait = P.Sooner
		}
		if c.verified {
			wait = 20 * (1 + .25*c.draw(now))
		}
		c.nextProbe = now + seconds(wait)
		c.rate = X
		if P.Keep == 0 {
			c.best.rate, c.best.windows = 0, 0
		}
	} else {
		c.rate += .3 * (X - c.rate)
	}
	c.needs[c.needCount%memory] = c.need
	c.needCount++
	nm := c.needMax()
	eta := 1 - (1-P.Eta)*min(max((c.excess-.15)/.35, 0), 1)
	target := nm + eta*((P.Head-1)*nm+P.Sqrt*math.Sqrt(nm)) + 1
	lenient := 1 + .5*min(max((P.E1-c.excess)/(P.E1-P.E0), 0), 1)
	tol := .25 + 1/math.Sqrt(max(1, nm))
	calm := c.demand == 0 || float64(s.n+s.refused)/s.span <= P.Calm*c.demand
	reason := Congested
	if c.congestion > 1+tol {
		c.hot++
	} else {
		c.hot = 0
	}
	if c.before > 0 && (c.congestion > 1+tol && c.hot >= 2 || c.limit >= c.before) {
		c.before = 0
		c.nextProbe = max(c.nextProbe, now+10*time.Second)
	}
	switch {
	case c.before > 0:
		if S < 1+tol {
			c.limit = min(1.5*c.limit+.5, c.before)
		}
		reason = Grown
	case P.Hybrid > 0:
		g := min(max(1.5/c.congestion, .5), 1)
		next := c.limit*g + 4
		c.limit = min(max(lmin, c.limit+.2*(next-c.limit)), lmax)
		reason = Grown
		if g < 1 {
			reason = Congested
		}
	case c.congestion > 1+tol && target < c.limit && (calm || P.HotAll > 0) && c.hot < P.Hot && float64(s.good) >= .9*float64(s.n):
	case c.congestion > 1+tol && target < c.limit:
		failing := float64(s.good) < .9*float64(s.n)
		if !c.epoch.open {
			c.epoch.open, c.epoch.limit, c.epoch.congestion, c.epoch.at = true, c.limit, max(c.congestion, P.Raw*S), now
			c.limit = max(lmin, max(.7*c.limit, target))
			c.known = true
		} else if failing || c.limit > P.Verify*c.epoch.limit {
			c.limit = max(lmin, max(.7*c.limit, target))
		}
	case c.congestion < 1+tol:
		if !c.known {
			lenient = 1.5
		}
		top := lenient * target
		if calm {
			top = max(top, initial)
		}
		if c.limit > top {
			if c.verified {
				c.limit -= P.Relax * (c.limit - top)
			}
		} else if !c.known && P.Gain > 0 {
			c.limit = min(lmax, c.limit+max(.5*math.Sqrt(c.limit)+.5, P.Gain*(top-c.limit)), top)
		} else {
			c.limit = min(lmax, c.limit+max(.5*math.Sqrt(c.limit)+.5), top)
		}
		reason = Grown
	}
	if b := &c.best; P.Lost > 0 {
		b.windows++
		b.rate *= P.Decay
		switch {
		case b.windows > 3 && c.rate > b.rate:
			b.rate, b.limit = c.rate, c.limit
		case b.windows > 6 && s.refused > 0 && c.rate < (1-max(P.Lost, P.Sigma/math.Sqrt(5.7*float64(s.good))))*b.rate && c.limit < .9*b.limit && float64(s.good) >= .9*float64(s.n):
			c.rescale(max(1, c.congestion))
			c.limit = b.limit
			c.congestion = 1
			c.epoch.open = false
			b.rate, b.windows = 0, 0
			c.verified = false
			c.nextProbe = now + 2*time.Second
			return Rebased
		}
	}
	e := &c.epoch
	if e.open && c.limit <= P.Verify*e.limit && (now-e.at).Seconds() > max(P.Settle0, P.Settle*s.mean()) {
		c.after.n += s.good
		c.after.latency += s.goodLatency
		c.after.shape += shape
		c.after.squares += s.squares
	} else {
		c.after.n, c.after.latency, c.after.shape, c.after.squares = 0, 0, 0, 0
	}
	if a := &c.after; a.n >= 60 && a.latency*a.latency >= 40*a.squares || a.n > 0 && (now-e.at).Seconds() > 8 {
		S2 := a.latency / max(a.shape, 1e-12)
		el := math.Log(e.congestion/S2) / math.Log(e.limit/c.limit)
		a.n, a.latency, a.shape, a.squares = 0, 0, 0, 0
		if el < P.Pays && float64(s.good) >= .9*float64(s.n) {
			c.rescale(S2)
			c.limit = e.limit
			c.congestion = 1
			e.open = false
			c.verified = false
			c.nextProbe = now + 2*time.Second
			reason = Rebased
		} else {
			e.limit, e.congestion, e.at = c.limit, c.congestion, now
		}
	}
	if e.open && c.congestion < 1+tol {
		e.open = false
	}
	if !l.noProbe && c.before == 0 && now >= c.nextProbe && c.pressure > .5 && s.good >= 5 && c.limit > lmin {
		c.saved = c.limit
		c.limit = max(lmin, math.Floor(.5*min(nm, c.limit)))
		c.phase = settling
		c.dipped = now
		c.until = now + seconds(max(.05, 1.5*s.mean()))
		reason = Probed
	}
	return reason
}

func (c *control) probed(now time.Duration, s *sample, l Law) Reason {
	rate := float64(s.good) / max(s.span, 1e-3)
	ratio := 1.0
	if shape := c.shapes(s); shape > 0 {
		ratio = s.goodLatency / shape
	}
	c.epoch.open = false
	c.congestion = 1
	if s.refused > 0 && rate > .8*c.rate && c.limit > float64(l.min) {
		c.rescale(min(1, ratio))
		c.verified = false
		c.nextProbe = now + 300*time.Millisecond
		if rate < P.Knee*c.rate {
			c.verified = true
			c.nextProbe = now + seconds(20*(1+.25*c.draw(now)))
		}
		return Proven
	}
	if s.good >= 20 {
		c.rescale(math.Pow(min(max(ratio, .3), 3), P.Pow))
	}
	c.verified = true
	c.limit = c.saved
	every := max(20, P.ProbeCost*(now-c.dipped).Seconds())
	if P.Fast > 0 && ratio > .85 && ratio < 1.15 {
		c.every = min(max(c.every*2, 20), P.Fast)
	} else {
		c.every = 20
	}
	c.nextProbe = now + seconds(max(c.every, every)*(1+.25*c.draw(now)))
	return Restored
}

func (c *control) refusing(now time.Duration, s *sample, l Law) bool {
	if s.overloaded < 2 || float64(s.overloaded) < .1*float64(s.overloaded+s.good) {
		return false
	}
	if c.refusedAt > 0 && (now-c.refusedAt).Seconds() < max(c.latency, .1) {
		return false
	}
	c.refusedAt = now
	c.abandon()
	c.fall(.7, l)
	return true
}

func (c *control) restart(l Law) {
	c.abandon()
	c.fall(.5, l)
}

// fall cuts the limit because the backend failed, not because of its latency, and
// remembers to where it may rise fast.
func (c *control) fall(by float64, l Law) {
	c.before = max(c.before, c.limit)
	c.limit = max(float64(l.min), by*c.limit)
	c.epoch.open = false
}

// abandon ends a probe without a verdict.
func (c *control) abandon() {
	if c.phase != measuring {
		c.limit = c.saved
	}
	c.phase = measuring
	c.epoch.open = false
	c.congestion = 1
}

// draw returns a number from 0 to 1 (SplitMix64, Steele, Lea and Flood, 2014).
// Mixed with the time, so that replicas do not draw the same.
func (c *control) draw(now time.Duration) float64 {
	c.random += 0x9e3779b97f4a7c15 ^ uint64(now)
	z := c.random
	z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
	z = (z ^ z>>27) * 0x94d049bb133111eb
	return float64((z^z>>31)>>11) / (1 << 53)
}

var P = struct {
	Head, Sqrt, E0, E1, Relax, Gain, Fast, ProbeCost                         float64
	Sigma, Knee, Keep, Up, Down, Pow, HotAll, Raw, Hybrid, Calm, Lost, Decay float64
	Hot                                                                      int
	Eta, Verify, Settle, Settle0, Later, Sooner, Pays                        float64
}{Head: 1.1, Sqrt: 1, E0: .02, E1: .1, Relax: .2, Gain: 0.5, Lost: 0.07, Sigma: 3, Knee: .93, Decay: .998, Calm: 1.5, Hot: 2, Pays: .3, Keep: 1, Up: .1, Down: .2, Pow: .7, HotAll: 1, Raw: 1, ProbeCost: 40, Fast: 80, Eta: .5, Settle: 1.5, Settle0: .2, Later: 10, Sooner: 3, Verify: .75}

func init() {
	if s := os.Getenv("P"); s != "" {
		if err := json.Unmarshal([]byte(s), &P); err != nil {
			panic(err)
		}
	}
}
