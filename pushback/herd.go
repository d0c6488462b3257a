package pushback

import (
	"sync"
	"time"
)

const (
	// herdTick is the bin in which a Herd counts. It resolves pulses of clients on one
	// timer, whose requests are spread by round trips and scheduling.
	herdTick = 100 * time.Millisecond

	// herdGap is the longest silence that counts as empty bins: two of the second longest
	// period. It bounds the work of one Tick.
	herdGap = 10 * time.Minute

	// A backlog of herdBacklog is a herd, until it is down to herdBacklogOver.
	// With 5 s of the spare rate promised, no ordinary burst is waiting; the
	// lower bound keeps one herd from being told as many.
	herdBacklog     = 5 * time.Second
	herdBacklogOver = 3 * time.Second
)

// HerdClients is how many different clients a herd has at least: without as many refused ones in the
// last minute there is neither a backlog nor an echo, and a smaller pulse is none. Ours: fewer are
// single clients, which a list names one by one.
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
	// together.
	PeriodicHerd

	// EchoHerd is a retry storm: refused clients that come again after a fixed interval,
	// whatever they are told.
	EchoHerd
)

// String returns the name of k in events and metrics.
func (k HerdKind) String() string {
	return nameOf("HerdKind", k, "none", "backlog", "periodic", "echo")
}

// A Herd detects thundering herds: clients that come together. It counts in bins of
// 100 ms and stores no client. For any traffic it takes the same time and memory: below
// 8 kB, including all that it points to.
//
// The measures that raise an alarm are silent in a week of each of six models of traffic
// without a herd: see TestHerdIsSilent. Allan factors and the CUSUM are not silent: they
// are reported, and raise no alarm.
//
// The zero Herd is ready. It is not safe for concurrent use.
type Herd struct {
	running    bool
	backlogged bool
	at         time.Duration // the end of the last bin
	bins       uint8         // of the second that has begun
	second     float64       // arrivals in them

	arrivals, back, refused int // of calls that came too soon, for the next bin

	pulses  [len(HerdPeriods)]pulse
	echoes  echoes
	allan   [len(HerdAllanScales)]allan
	cusum   cusum
	clients clientCount
}

// Tick takes the counts of the 100 ms that end at now: arrivals, those of them that are
// back after a refusal, and refusals sent; and how far the outstanding promises reach.
// Neither kind of arrivals includes clients that come when they were told to: what the
// calendar arranges is no herd. Only returning clients can be an echo.
//
// Call it in order, every 100 ms. Calls may be late or early by less than 50 ms. The
// counts of an earlier call are added to the next one's. Omitted calls count as empty
// bins, up to herdGap; after more, a Herd forgets all that it has learned.
func (h *Herd) Tick(now time.Duration, arrivals, back, refused int, backlog time.Duration) {
	h.backlogged = (backlog > herdBacklog || (h.backlogged && backlog > herdBacklogOver)) && h.clients.several()

	passed := 1
	switch silence := now - h.at - herdTick; {
	case !h.running:
		h.running, h.at = true, now-herdTick
	case silence > herdGap:
		passed = clientTurn
		*h = Herd{running: true, backlogged: h.backlogged, at: now - herdTick, clients: h.clients}
	case silence < -herdTick/2:
		h.arrivals += arrivals
		h.back += back
		h.refused += refused
		return
	default:
		for ; silence >= herdTick/2; silence -= herdTick {
			h.bin(0, 0, 0)
			passed++
		}
	}
	arrivals += h.arrivals
	back += h.back
	refused += h.refused
	h.arrivals, h.back, h.refused = 0, 0, 0
	h.clients.pass(passed)
	h.bin(float64(arrivals), back, refused)
}

// bin takes one bin of 100 ms.
func (h *Herd) bin(arrivals float64, back, refused int) {
	h.at += herdTick
	for i := range h.pulses {
		h.pulses[i].add(arrivals, &pulseTurns[i])
	}
	h.echoes.add(float64(back), refused)
	for i, scale := range HerdAllanScales {
		h.allan[i].add(arrivals, scale)
	}
	h.second += arrivals
	if h.bins++; h.bins < uint8(time.Second/herdTick) {
		return
	}
	h.echoes.endSecond()
	h.cusum.add(h.second, h.allan[allanSecond].factor())
	h.bins, h.second = 0, 0
}

// Saw tells that a client was refused, by a 64-bit hash that clients cannot choose.
func (h *Herd) Saw(client uint64) { h.clients.saw(client) }

// A HerdReport is what a Herd knows.
type HerdReport struct {
	Kind HerdKind
	Size float64 // of a backlog: Distinct; of a pulse or an echo: its requests per period

	// Period is 0 if none is known. Phase is when in it the middle of the pulse comes: 0
	// up to Period, counted from the epoch of now, so at t with t % Period == Phase. It
	// is 0 for an echo whose clients are not in step. Both are also reported of a pulse
	// or an echo under a backlog.
	Period, Phase time.Duration

	// Q is how well the pulses of each of HerdPeriods coincide: about 0.5 for traffic
	// without a period, at most 16.5. Above pulseAlarm there is a herd.
	Q [len(HerdPeriods)]float64

	// AllanRatio is how uneven arrivals are at each of HerdAllanScales, by the Allan factor,
	// divided by its mean of about one hour: above 2 something has changed.
	AllanRatio [len(HerdAllanScales)]float64

	// CUSUM is how much more has come lately than usual: 0 to 28; above 14 the rate has
	// stepped up.
	CUSUM float64

	// Distinct is how many different clients were refused in the last one to two
	// minutes, to about 2.3 %; Requests is how often. Their ratio is near 1 for a herd
	// and near 0 for a few clients that hammer.
	Distinct, Requests uint64
}

// Kind returns Report's Kind.
func (h *Herd) Kind() HerdKind {
	switch {
	case h.backlogged:
		return BacklogHerd
	case h.echoes.loudest() >= 0 && h.clients.several():
		return EchoHerd
	case h.strongest() >= 0:
		return PeriodicHerd
	}
	return NoHerd
}

// Report returns what is known. It allocates nothing.
func (h *Herd) Report() HerdReport {
	r := HerdReport{Kind: h.Kind(), CUSUM: h.cusum.sum}
	for i := range h.pulses {
		r.Q[i] = h.pulses[i].q
	}
	for i := range h.allan {
		r.AllanRatio[i] = h.allan[i].ratio()
	}
	r.Distinct, r.Requests = h.clients.count()

	// An echo whose period also pulses has that pulse's size and phase.
	if i := h.strongest(); i >= 0 {
		r.Period = HerdPeriods[i]
		r.Phase, r.Size = h.phase(i), h.pulses[i].size()
	}
	if i := h.echoes.loudest(); i >= 0 && r.Period != HerdLags[i] {
		r.Period, r.Phase = HerdLags[i], 0
		r.Size = h.echoes.size(i)
	}
	if r.Kind == BacklogHerd {
		r.Size = float64(r.Distinct)
	}
	return r
}

// herds is the [Herd] of one backend, and the counts that its ticks are differences of.
type herds struct {
	mu      sync.Mutex // guards what follows
	herd    Herd
	came    uint64 // arrivals that kept no promise, up to the last tick
	back    uint64 // of them, known clients
	refused uint64
}

// Saw notes whose request was refused, for the herd detector. One that comes at the same
// moment as another may be left out: it is an estimate anyway. Client 0 is none.
func (a *Appointments) Saw(client uint64) {
	if h := &a.herds; client != 0 && h.mu.TryLock() {
		h.herd.Saw(client)
		h.mu.Unlock()
	}
}

// tick takes how many requests have come and how many of them were refused, in all.
func (h *herds) tick(now time.Duration, arrivals, refusals uint64, a *Appointments) {
	h.mu.Lock()
	defer h.mu.Unlock()
	// Refusals count when they are sent: that is what clients react to.
	onTime := a.onTime.Load()
	came, back, refused := arrivals-onTime, a.returned.Load()-onTime, refusals-uint64(a.held.Load())
	h.herd.Tick(now, max(0, int(came-h.came)), max(0, int(back-h.back)), max(0, int(refused-h.refused)), a.line.Ahead(now))
	h.came, h.back, h.refused = came, back, refused
}

// Herd returns what is known of herds.
func (a *Appointments) Herd() HerdReport {
	a.herds.mu.Lock()
	defer a.herds.mu.Unlock()
	return a.herds.herd.Report()
}
