package accesslog

import (
	"math"
	"math/bits"
	"time"
)

const (
	open        = 600       // seconds that still count arrivals; a request that took longer is in no second
	minute      = 60        // seconds over which rates are sustained
	fullSeconds = 30        // full seconds of a minute that are enough to judge by
	silence     = time.Hour // without a line, after which a new piece of log begins

	// A second belongs to a burst if it has at least burstLeast clients and burstTimes the
	// mean of the minute before. It must also be burstSigmas standard deviations of a
	// Poisson process above that mean. Ours. Clients count, not requests: a page with a
	// hundred pictures is no herd.
	burstLeast   = 15
	burstTimes   = 3
	burstSigmas  = 8
	burstHistory = 10 // seconds of history that a burst needs

	// The rate served while rejecting is the capacity of the backend if it is at least
	// fullLeast of the most that was served. More must also have come in the seconds of rejected
	// requests than in those of all, by fullSigmas standard deviations. Ours.
	fullLeast  = 0.95
	fullSigmas = 4
)

type second struct {
	requests, served, overload uint32
	first                      float64       // requests that are no retries; approximate if clients are sampled
	work                       time.Duration // of the requests that came in it
	clients                    crowd
}

// A crowd is a set of clients of which only the size can be estimated: a bitmap.
type crowd [64]uint64

func (c *crowd) add(client uint64) {
	bit := client >> (64 - 12) // xxhash's bits are all as good
	c[bit>>6] |= 1 << (bit & 63)
}

func (c *crowd) merge(other *crowd) {
	for i, word := range other {
		c[i] |= word
	}
}

// distinct is the crowd's size: linear counting (Whang,
// Vander-Zanden, Taylor, "A linear-time probabilistic counting algorithm for
// database applications", 1990). 4,096 bits count up to about 30,000.
func (c *crowd) distinct() float64 {
	const size = 64 * 64
	set := 0
	for _, word := range c {
		set += bits.OnesCount64(word)
	}
	return size * math.Log(size/max(1, float64(size-set)))
}

// full reports whether more than a twentieth of the second's requests were answered 502,
// 503 or 504.
func (s *second) full() bool { return s.overload*20 > s.requests }

// arrivals counts requests by the second in which they came. Seconds count from 1970.
type arrivals struct {
	ring      [open]second
	first     int64         // the oldest second that is open
	from, now time.Duration // since 1970: when the first and the last line of the piece were written

	e    *Estimate // whose maxima and bursts it sets
	last []second  // of this piece that were closed, at most a minute

	fullServed float64 // in seconds that were full, of minutes with enough of them

	// Sums over all seconds: requests, their square and their cube; and of 502, 503 and 504, as such
	// and times the requests.
	requests, squares, cubes, overload, crowding float64

	calm    []load  // of the last minute of seconds outside bursts
	burst   int     // seconds that it has lasted; 0: none
	level   load    // of the calm before it
	members crowd   // its clients
	came    float64 // first attempts in it
	started int64   // its first second
	extra   float64 // first attempts in all bursts, beyond those of the calm
}

type load struct{ clients, first float64 }

func (a *arrivals) begin(at time.Duration) {
	a.first, a.from, a.now = unix(at), at, at
}

// unix is the second of a time since 1970.
func unix(at time.Duration) int64 { return int64(at / time.Second) }

// advance closes the seconds that are too old when a request has ended. One that ended before
// all others of the piece opens earlier seconds, unless one has been closed.
func (a *arrivals) advance(r request) {
	a.now = max(a.now, r.end)
	for ; a.first+open <= unix(a.now); a.first++ {
		a.close()
	}
	if r.end < a.from {
		a.from = r.end
		if came := unix(r.came()); len(a.last) == 0 && unix(a.now)-came < open {
			a.first = min(a.first, came)
		}
	}
}

// add counts a request in the second in which it came, if that is open. retries is how many
// retries it stands for.
func (a *arrivals) add(r request, retries float64) {
	at := unix(r.came())
	if at < a.first || at >= a.first+open {
		return
	}
	s := &a.ring[at%open]
	s.requests++
	s.first += 1 - retries
	s.clients.add(r.client)
	if r.overloaded() {
		s.overload++
	}
	if r.served() {
		s.served++
	}
	if !r.rejected() && !r.stream {
		s.work += r.took
	}
}

func (a *arrivals) end() {
	for ; a.first <= unix(a.now); a.first++ {
		a.close()
	}
	if n := len(a.last); n > 0 && n < minute {
		a.judge()
	}
	a.endBurst()
	a.last, a.calm = nil, nil
}

// close evaluates the first open second.
func (a *arrivals) close() {
	s := &a.ring[a.first%open]
	if a.first < unix(a.from) { // the log has only a part of it
		*s = second{}
		return
	}
	n, overload := float64(s.requests), float64(s.overload)
	a.requests += n
	a.squares += n * n
	a.cubes += n * n * n
	a.overload += overload
	a.crowding += overload * n
	a.last = keep(a.last, *s)
	if len(a.last) == minute {
		a.judge()
	}
	a.look(s)
	*s = second{}
}

// judge compares the last minute with the maxima so far.
func (a *arrivals) judge() {
	var served, full, fullServed uint32
	var work time.Duration
	for i := range a.last {
		s := &a.last[i]
		served += s.served
		work += s.work
		if s.full() {
			full++
			fullServed += s.served
		}
	}
	seconds := float64(len(a.last))
	a.e.PeakInWork = max(a.e.PeakInWork, work.Seconds()/seconds)
	a.e.Peak = max(a.e.Peak, float64(served)/seconds)
	if full >= fullSeconds {
		a.fullServed = max(a.fullServed, float64(fullServed)/float64(full))
	}
}

// full is the rate served while the backend was full, or 0 if it is not known to have been.
// A full backend has never served much more in a minute, and rejects a larger share under
// more load. A broken page fails as often at night.
func (a *arrivals) full() float64 {
	if a.fullServed < fullLeast*a.e.Peak || a.overload == 0 {
		return 0
	}
	usual, rejected := a.squares/a.requests, a.crowding/a.overload // requests in the second of a request, on average, and of a rejected one
	if chance := math.Sqrt(max(0, a.cubes/a.requests-usual*usual) / a.overload); rejected-usual <= fullSigmas*chance {
		return 0
	}
	return max(a.fullServed, a.e.Peak)
}

// keep appends what happened in a second, and keeps a minute.
func keep[T any](seconds []T, s T) []T {
	if len(seconds) == minute {
		seconds = seconds[1:]
	}
	return append(seconds, s)
}

// look decides whether a second is part of a burst.
func (a *arrivals) look(s *second) {
	now := load{s.clients.distinct(), s.first}
	if a.burst == 0 {
		sum, n := load{}, float64(max(1, len(a.calm)))
		for _, c := range a.calm {
			sum.clients += c.clients
			sum.first += c.first
		}
		a.level = load{sum.clients / n, sum.first / n}
	}
	usual := a.level.clients
	if len(a.calm) < burstHistory || now.clients < max(burstLeast, burstTimes*usual, usual+burstSigmas*math.Sqrt(usual)) {
		a.endBurst()
		a.calm = keep(a.calm, now)
		return
	}
	if a.burst == 0 {
		a.started, a.members, a.came = a.first, crowd{}, 0
	}
	a.burst++
	a.members.merge(&s.clients)
	a.came += now.first
	if a.burst > minute { // no burst, but a new level of traffic
		a.burst, a.calm = 0, nil
	}
}

func (a *arrivals) endBurst() {
	if a.burst == 0 {
		return
	}
	size := a.members.distinct() - float64(a.burst)*a.level.clients
	a.extra += max(0, a.came-float64(a.burst)*a.level.first)
	a.burst = 0
	b := &a.e.Bursts
	b.N++
	if n := int(size + 0.5); b.N == 1 || n > b.Largest {
		b.Largest, b.At = max(0, n), time.Unix(a.started, 0).UTC()
	}
}
