package pushback

import (
	"math"
	"time"
)

// HerdPeriods are the periods at which a Herd looks for pulses: those of cron jobs, of
// timers and of clients' fixed intervals.
var HerdPeriods = [...]time.Duration{
	time.Second, 2 * time.Second, 5 * time.Second, 10 * time.Second, 15 * time.Second,
	30 * time.Second, time.Minute, 5 * time.Minute, time.Hour,
}

const (
	// pulseKeep is the weight of a cycle after the next: exp(-1/16), so that about 16
	// cycles are remembered.
	pulseKeep = 0.939413062813475786

	// pulseAlarm is the Q above which there is a herd. In 200 weeks of 1 s cycles of
	// noise, Q exceeded 5 on 237 occasions, 6 on 5, and 7 on none; longer periods have
	// fewer cycles.
	pulseAlarm = 7

	// pulseCycles is how many cycles must have been seen before an alarm.
	pulseCycles = 12

	// pulseShare is the share of the requests that must be in step for an alarm: a
	// smaller herd does not matter, however regular it is.
	pulseShare = 0.03

	// An alarm ends below the share pulseClear of pulseAlarm.
	pulseClear = 0.6
)

// A pulse measures whether the arrivals of every cycle of a period come at the same
// time in it. The arrivals of a cycle are added up as vectors of length one, in the
// direction of their time on the clock face of the period. Vectors of cycles with a
// common pulse point the same way and add up; others cancel. Their sum is compared with
// their own lengths, not with those of Poisson arrivals, so bursts without a period
// change nothing, however big. (The Rayleigh test with a robust variance. Ours.)
type pulse struct {
	cos, sin float64 // the direction of the bin that comes next
	bins     int     // of the cycle that has begun

	// The cycle that has begun: its vector and how many came; and how many
	// came in the one before.
	x, y, n, before float64

	// All cycles, each worth pulseKeep of the next: their vectors, these
	// vectors' squared lengths, the arrivals, and the cycles.
	sumX, sumY, sumSquares, sumN, weight float64

	cycles uint8 // how many; up to pulseCycles
	alarm  bool
	q      float64
}

// A pulseTurn is how a period is cut into bins.
type pulseTurn struct {
	bins           int
	cos, sin       float64 // the angle of one bin
	midCos, midSin float64 // the angle of the middle of the first
}

var pulseTurns = func() (turns [len(HerdPeriods)]pulseTurn) {
	for i, period := range HerdPeriods {
		t := &turns[i]
		t.bins = int(period / herdTick)
		t.sin, t.cos = math.Sincos(2 * math.Pi / float64(t.bins))
		t.midSin, t.midCos = math.Sincos(math.Pi / float64(t.bins))
	}
	return turns
}()

// add takes one bin.
func (p *pulse) add(arrivals float64, t *pulseTurn) {
	if p.bins == 0 { // anew, so that rounding errors cannot add up
		p.cos, p.sin = t.midCos, t.midSin
	}
	p.x += arrivals * p.cos
	p.y += arrivals * p.sin
	p.n += arrivals
	p.cos, p.sin = p.cos*t.cos-p.sin*t.sin, p.sin*t.cos+p.cos*t.sin
	if p.bins++; p.bins == t.bins {
		p.endCycle()
	}
}

func (p *pulse) endCycle() {
	x, y := p.x, p.y
	if p.cycles > 0 {
		// Where the rate grows evenly by d from cycle to cycle, y is lower by
		// d/2π. Uncorrected, a day of 2000/s ± 50 % has a Q of 12 at 5 minutes.
		y += (p.n - p.before) / (2 * math.Pi)
	}
	p.sumX = p.sumX*pulseKeep + x
	p.sumY = p.sumY*pulseKeep + y
	p.sumSquares = p.sumSquares*pulseKeep + x*x + y*y
	p.sumN = p.sumN*pulseKeep + p.n
	p.weight = p.weight*pulseKeep + 1
	p.before, p.x, p.y, p.n, p.bins = p.n, 0, 0, 0, 0
	if p.cycles < pulseCycles {
		p.cycles++
	}

	p.q = 0
	length := p.sumX*p.sumX + p.sumY*p.sumY
	if p.sumSquares > 0 {
		p.q = length / p.sumSquares
	}
	if p.alarm {
		p.alarm = p.q >= pulseClear*pulseAlarm
	} else {
		p.alarm = p.cycles == pulseCycles && p.q > pulseAlarm && length > pulseShare*pulseShare*p.sumN*p.sumN && p.size() >= HerdClients
	}
}

// size returns how many requests come in step, per period.
func (p *pulse) size() float64 {
	if p.weight == 0 {
		return 0
	}
	return math.Hypot(p.sumX, p.sumY) / p.weight
}

// spread returns the share of the period, to either side of the phase, that the pulse is
// expected in: two standard errors of the phase, which follow from how much the cycles
// differ. It is never below 1/60 or one bin, as the width of the pulse is not known. (A
// second of a minute. Ours.)
func (p *pulse) spread(bins int) float64 {
	agreement := p.q / p.weight // 1 if all cycles have the same vector
	phaseError := math.Sqrt(max(0, 1/agreement-1)/(2*p.weight)) / (2 * math.Pi)
	return min(0.5, max(2*phaseError, 1.0/60, 1/float64(bins)))
}

// strongest returns the period with an alarm and the highest Q, or -1. A pulse also
// shows at whole fractions of its period, but is weaker there, as only some of the
// cycles have it.
func (h *Herd) strongest() int {
	best := -1
	for i := range h.pulses {
		if h.pulses[i].alarm && (best < 0 || h.pulses[i].q > h.pulses[best].q) {
			best = i
		}
	}
	return best
}

// phase returns when in HerdPeriods[i] the middle of the pulse comes.
func (h *Herd) phase(i int) time.Duration {
	p, period := &h.pulses[i], HerdPeriods[i]
	begun := h.at - time.Duration(p.bins)*herdTick
	turn := math.Atan2(p.sumY, p.sumX) / (2 * math.Pi)
	return mod(begun+time.Duration(turn*float64(period)), period)
}

// Pulse returns how many requests of a periodic herd are expected in [from, to), in
// addition to all others. It is 0 without a known period, and takes the strongest only.
func (h *Herd) Pulse(from, to time.Duration) float64 {
	i := h.strongest()
	if i < 0 || from >= to {
		return 0
	}
	p, period := &h.pulses[i], HerdPeriods[i]
	spread := p.spread(pulseTurns[i].bins)
	opens := h.phase(i) - time.Duration(spread*float64(period))
	// begun is the part of a pulse that has come t after opens. Pulses are counted from the
	// one before from: since the epoch there are so many that the fraction would be lost.
	begun := func(t time.Duration) float64 {
		return min(1, float64(mod(t, period))/(2*spread*float64(period)))
	}
	whole := floorDiv(to-opens, period) - floorDiv(from-opens, period)
	return p.size() * (float64(whole) + begun(to-opens) - begun(from-opens))
}

// floorDiv and mod are / and % that round down, also below 0.
func floorDiv(a, b time.Duration) time.Duration { return (a - mod(a, b)) / b }

func mod(a, b time.Duration) time.Duration { return (a%b + b) % b }
