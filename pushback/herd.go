package pushback

import (
	"math"
	"slices"
	"sync"
	"time"
)

const (
	// herdTick is the bin in which arrivals are counted. It resolves pulses of clients on
	// one timer, whose requests are spread by round trips and scheduling.
	herdTick = 100 * time.Millisecond

	// herdGap is the longest silence that counts as empty bins: two of the second longest
	// period. It bounds the work of one tick.
	herdGap = int64(10 * time.Minute / herdTick)

	// A backlog of herdBacklog is a herd, until it is down to herdBacklogOver.
	// With 5 s of the spare rate promised, no ordinary burst is waiting; the
	// lower bound keeps one herd from being told as many.
	herdBacklog     = 5 * time.Second
	herdBacklogOver = 3 * time.Second
)

// HerdClients is how many different clients a herd has at least: without as many rejected ones in
// the last minute there is no backlog, and a smaller pulse is none. Ours: fewer are single clients,
// which a list names one by one.
const HerdClients = 5

// HerdKind is what kind of herd there is.
type HerdKind uint8

const (
	NoHerd HerdKind = iota

	// BacklogHerd is many clients at once: the outstanding promises reach further than
	// 5 s, and they are not of a few clients that hammer. It needs no statistics, and has
	// precedence in a report: it is there now.
	BacklogHerd

	// PeriodicHerd is a pulse in every period: cron jobs, timers, caches that expire
	// together, clients that retry at a fixed interval.
	PeriodicHerd
)

// String returns the name of k in events and metrics.
func (k HerdKind) String() string { return [...]string{"none", "backlog", "periodic"}[k] }

// A HerdReport is what is known of herds.
type HerdReport struct {
	Kind HerdKind
	Size float64 // of a backlog: clients that wait; of a pulse: its requests per period

	// Period is 0 if none is known. Phase is when in it the middle of the pulse comes: 0
	// up to Period, counted from the epoch of now, so at t with t % Period == Phase. Both
	// are also reported of a pulse under a backlog.
	Period, Phase time.Duration

	// Clients is how many different clients were rejected in the last one to two minutes,
	// up to HerdClients.
	Clients int
}

// herds detects thundering herds: clients that come together. It counts in bins of 100 ms, and
// takes the same time and memory for any traffic, less than 1.5 kB. No herd is found in a day
// of each of six models of traffic without one: see TestHerdIsSilent.
type herds struct {
	mu         sync.Mutex // guards what follows
	bin        int64      // that has begun, since the epoch
	came       uint64     // arrivals that kept no promise, before it
	backlogged bool
	pulses     [len(herdPeriods)]pulse
	minute     time.Duration
	rejected   [2]few // since the minute before the last began, and since the last did
}

// few are the first clients of many.
type few struct {
	n       int
	clients [HerdClients]uint64
}

func (f *few) add(client uint64) {
	if f.n < HerdClients && !slices.Contains(f.clients[:f.n], client) {
		f.clients[f.n] = client
		f.n++
	}
}

// Saw notes whose request was rejected, for the herd detector. One that comes at the same
// moment as another may be left out: it is an estimate anyway. Client 0 is none.
func (a *Appointments) Saw(client uint64) {
	if h := &a.herds; client != 0 && h.mu.TryLock() {
		h.rejected[0].add(client)
		h.rejected[1].add(client)
		h.mu.Unlock()
	}
}

// tick takes how many requests have come in all, without those that came when they were told
// to: what the line arranges is no herd. ahead is how far the promises reach.
func (h *herds) tick(now time.Duration, came uint64, ahead time.Duration) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if minute := now.Truncate(time.Minute); minute != h.minute {
		h.minute, h.rejected = minute, [2]few{h.rejected[1], {}}
	}
	h.backlogged = (ahead > herdBacklog || h.backlogged && ahead > herdBacklogOver) && h.rejected[0].n == HerdClients

	bin := int64(now / herdTick)
	if bin == h.bin {
		return
	}
	if bin-h.bin > herdGap {
		h.pulses, h.bin = [len(herdPeriods)]pulse{}, bin
	}
	n := float64(max(0, int(came-h.came))) // all in one bin, as a tick comes in each that has requests
	for ; h.bin < bin; h.bin++ {
		for i := range h.pulses {
			h.pulses[i].add(h.bin, n, int64(herdPeriods[i]/herdTick))
		}
		n = 0
	}
	h.came = came
}

// Herd returns what is known of herds.
func (a *Appointments) Herd() (r HerdReport) {
	h := &a.herds
	h.mu.Lock()
	defer h.mu.Unlock()
	r.Clients = h.rejected[0].n
	best := -1
	for i := range h.pulses {
		// A pulse also shows at whole fractions of its period, but is weaker there, as
		// only some of the cycles have it.
		if h.pulses[i].alarm && (best < 0 || h.pulses[i].q > h.pulses[best].q) {
			best = i
		}
	}
	if best >= 0 {
		r.Kind, r.Period = PeriodicHerd, herdPeriods[best]
		r.Size, r.Phase = h.pulses[best].size(), h.pulses[best].phase(r.Period)
	}
	if h.backlogged {
		s := a.Line.stats(0)
		r.Kind, r.Size = BacklogHerd, float64(s.Waiting+s.Deferred)
	}
	return r
}

// herdPeriods are the periods at which pulses are looked for: those of cron jobs, of timers and
// of clients' fixed intervals.
var herdPeriods = [...]time.Duration{
	time.Second, 2 * time.Second, 5 * time.Second, 10 * time.Second, 15 * time.Second,
	30 * time.Second, time.Minute, 5 * time.Minute, time.Hour,
}

const (
	// pulseKeep is the weight of a cycle after the next: exp(-1/16), so that about 16
	// cycles are remembered.
	pulseKeep = 0.939413062813475786

	// pulseAlarm is the q above which there is a herd. In 200 weeks of 1 s cycles of
	// noise, q exceeded 5 on 237 occasions, 6 on 5, and 7 on none; longer periods have
	// fewer cycles. An alarm ends below the share pulseClear of that.
	pulseAlarm = 7
	pulseClear = 0.6

	// pulseWeight is what 12 cycles weigh: as many must have been seen before an alarm.
	pulseWeight = 8.7

	// pulseShare is the share of the requests that must be in step for an alarm: a
	// smaller herd does not matter, however regular it is.
	pulseShare = 0.03
)

// A pulse measures whether the arrivals of every cycle of a period come at the same
// time in it. The arrivals of a cycle are added up as vectors of length one, in the
// direction of their time on the clock face of the period. Vectors of cycles with a
// common pulse point the same way and add up; others cancel. Their sum is compared with
// their own lengths, not with those of Poisson arrivals, so bursts without a period
// change nothing, however big. (The Rayleigh test with a robust variance. Ours.)
type pulse struct {
	// The cycle that has begun: its vector and how many came; and how many came in the one
	// before.
	x, y, n, before float64

	// All cycles, each worth pulseKeep of the next: their vectors, these
	// vectors' squared lengths, the arrivals, and the cycles.
	sumX, sumY, sumSquares, sumN, weight float64

	alarm bool
	q     float64 // how well they agree: about 0.5 by chance, at most 16.5
}

// add takes the arrivals of one bin, of so many in a period.
func (p *pulse) add(bin int64, arrivals float64, bins int64) {
	if arrivals > 0 {
		sin, cos := math.Sincos(2 * math.Pi * (float64(bin%bins) + 0.5) / float64(bins))
		p.x += arrivals * cos
		p.y += arrivals * sin
		p.n += arrivals
	}
	if (bin+1)%bins == 0 {
		p.endCycle()
	}
}

func (p *pulse) endCycle() {
	x, y := p.x, p.y
	if p.weight > 0 {
		// Where the rate grows evenly by d from cycle to cycle, y is lower by
		// d/2π. Uncorrected, a day of 2000/s ± 50% has a q of 12 at 5 minutes.
		y += (p.n - p.before) / (2 * math.Pi)
	}
	p.sumX = p.sumX*pulseKeep + x
	p.sumY = p.sumY*pulseKeep + y
	p.sumSquares = p.sumSquares*pulseKeep + x*x + y*y
	p.sumN = p.sumN*pulseKeep + p.n
	p.weight = p.weight*pulseKeep + 1
	p.before, p.x, p.y, p.n = p.n, 0, 0, 0

	p.q = 0
	length := p.sumX*p.sumX + p.sumY*p.sumY
	if p.sumSquares > 0 {
		p.q = length / p.sumSquares
	}
	if p.alarm {
		p.alarm = p.q >= pulseClear*pulseAlarm
	} else {
		p.alarm = p.weight > pulseWeight && p.q > pulseAlarm && length > pulseShare*pulseShare*p.sumN*p.sumN && p.size() >= HerdClients
	}
}

// size returns how many requests come in step, per period.
func (p *pulse) size() float64 { return math.Hypot(p.sumX, p.sumY) / p.weight }

// phase returns when in its period the middle of the pulse comes.
func (p *pulse) phase(period time.Duration) time.Duration {
	turn := math.Atan2(p.sumY, p.sumX) / (2 * math.Pi)
	return (time.Duration(turn*float64(period)) + period) % period
}
