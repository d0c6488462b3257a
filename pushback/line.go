package pushback

import (
	"math"
	"sync"
	"sync/atomic"
	"time"
)

// A Line is the order in which refused clients are served.
type Line struct {
	until atomic.Int64 // the last slot that was promised
	last  atomic.Int64 // the last time that any client was told
	fresh atomic.Int64 // first tries admitted since the last Tick

	mu             sync.Mutex
	at             time.Duration // as of when all this is
	still          time.Duration // the line stands still until then: the backend is paused
	issued, served float64       // numbers of the tail
	base           float64       // first tries admitted per second while no client waits
	baseSeen       float64       // seconds of that, up to memoryBase

	made, came [2]float64
	second     int64        // all before it are in made
	full       int64        // no second before it has room
	ring       [128]expects // promises by the second that they are for
	kept       [2]float64   // the share of promises that are kept; 0: nothing is known, which means 1

	random uint64
	counts LineCounts
}

// what is expected in a second, of clients that have not come back before and that have
type expects struct {
	told, came, booked [2]float32
	lost               float32
}

func (e *expects) load(keep [2]float64) float64 {
	return float64(e.booked[0])*keep[0] + float64(e.booked[1])*keep[1] + float64(e.lost)
}

func trust(tried bool) int {
	if tried {
		return 1
	}
	return 0
}

// LineCounts are what has become of promises.
type LineCounts struct{ Made, Deferred, Kept, Late, Broken uint64 }

const (
	planned     = 0.98 // of the rate is promised: others come by chance
	leastSpare  = 0.1  // of the rate is for those that wait, in any case
	memoryBase  = 30   // seconds
	memoryKept  = 100  // promises
	priorKept   = 3    // promises that were kept before any was made
	lateAfter   = time.Second
	trustedFrom = 0.65 // kept share from which first tries are trusted
	doubtedAt   = 0.5  // and at which they only get what is left
)

// Supply2 is what a backend can do: requests per second, and how many at once.
type Supply2 struct{ Rate, Burst float64 }

func (l *Line) keep() [2]float64 {
	k := l.kept
	for i := range k {
		if k[i] == 0 {
			k[i] = 1
		}
	}
	return k
}

func (l *Line) doubt() float64 {
	return min(1, max(0, (trustedFrom-l.keep()[0])/(trustedFrom-doubtedAt)))
}

// spare is how many clients per second can be served that wait.
func (l *Line) spare(s Supply2, share float64) float64 {
	rate := min(s.Rate, 1e9)
	return max(leastSpare*rate, share*rate-l.base*(1-l.doubt()))
}

func (l *Line) pace(s Supply2) float64 { return l.spare(s, planned) / l.keep()[0] }

// Standing reports whether clients wait.
func (l *Line) Standing(now time.Duration) bool { return l.until.Load() > int64(now) }

// Long reports whether more of them do than the first seconds yield.
func (l *Line) Long(now, shortest time.Duration) bool {
	return l.until.Load() > int64(now+shortest+time.Second)
}

func (l *Line) advance(now time.Duration, s Supply2) {
	if now <= l.at {
		return
	}
	d := (now - max(l.at, min(l.still, now))).Seconds()
	l.at = now
	if l.issued > l.served {
		l.served = min(l.issued, l.served+d*l.pace(s))
	}
	if n := int64(now / time.Second); n > l.second {
		l.mature(n)
		l.full = 0
		if l.issued > l.served && l.dry(now, s) {
			l.served = l.issued
		}
	}
}

// mature counts the promises for seconds that are over.
func (l *Line) mature(n int64) {
	for m := max(l.second, n-int64(len(l.ring))); m < n; m++ {
		e := &l.ring[(m-1)&127]
		for i := range l.kept {
			made, came, keep := float64(e.told[i]), float64(e.came[i]), l.keep()[i]
			if d := came - made*keep; d*d > 9*(made*keep+1) { // no chance: all is different now
				l.made[i], l.came[i] = 0, 0
			}
			fade := math.Exp(-max(came, made*keep) / memoryKept)
			l.made[i], l.came[i] = l.made[i]*fade+made, l.came[i]*fade+came
		}
		*e = expects{}
	}
	idle := 1.0
	if l.until.Load() < int64(time.Duration(n)*time.Second) {
		idle = math.Pow(0.92, float64(min(n-l.second, 100)))
	}
	l.second = n
	for i := range l.kept {
		l.made[i], l.came[i] = l.made[i]*idle, l.came[i]*idle
		prior := priorKept * math.Exp(-l.made[i]/25)
		l.kept[i] = min(1, max(leastKept[i], (l.came[i]+prior)/(l.made[i]+prior+1e-9)))
	}
}

var leastKept = [2]float64{0.005, 0.25}

// dry reports whether fewer clients are expected than two seconds can serve.
func (l *Line) dry(now time.Duration, s Supply2) bool {
	load := 0.0
	for i := range l.ring {
		load += l.ring[i].load(l.keep())
	}
	return load < 2*l.spare(s, planned)
}

// Tick learns the base load. It is called once per second or so.
func (l *Line) Tick(d time.Duration, s Supply2) {
	n := float64(l.fresh.Swap(0))
	l.mu.Lock()
	defer l.mu.Unlock()
	gain := 1 - math.Exp(-d.Seconds()/memoryBase)
	if l.Standing(l.at) {
		gain /= 20
	} else {
		if l.baseSeen < memoryBase {
			gain = max(gain, d.Seconds()/(l.baseSeen+d.Seconds()))
		}
		l.baseSeen = min(l.baseSeen+d.Seconds(), memoryBase)
	}
	l.base += min(1, gain) * (n/d.Seconds() - l.base)
}

// Admitted takes note of an admission of a first try, or of a client before its turn.
func (l *Line) Admitted(now time.Duration, first bool, before *Turn) {
	if first {
		l.fresh.Add(1)
	}
	if before != nil {
		l.mu.Lock()
		l.back(now, before)
		l.mu.Unlock()
	}
}

// back takes a promise back.
func (l *Line) back(now time.Duration, t *Turn) {
	n := int64(t.At / time.Second)
	switch {
	case !t.Slot:
		l.served = min(l.issued, l.served+1)
	case n <= int64(now/time.Second):
	default:
		e := &l.ring[n&127]
		i := trust(t.Tried)
		e.booked[i], e.told[i] = max(0, e.booked[i]-1), max(0, e.told[i]-1)
		l.full = min(l.full, n)
	}
}

// A Turn is a promise: when to come back, and for which number.
type Turn struct {
	At     time.Duration
	Number float64
	Slot   bool // At is its turn; else it is when to ask again
	Tried  bool // its client has come back before
}

// Next gives a client that is refused its turn: a slot if there is one within longest, else a
// number, and equal hops.
func (l *Line) Next(now time.Duration, s Supply2, has *Turn, due, tried bool, shortest, longest, token time.Duration) (t Turn, whole time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.advance(now, s)
	share := planned
	if due {
		l.counts.Broken++
		share = 1
	}
	t.Tried = tried
	from := now + max(shortest, token, l.still-now)
	if l.issued <= l.served || due || has != nil && has.Number <= l.served {
		var at time.Duration
		if at, t.Slot = l.room(from, now+longest, l.spare(s, share)); t.Slot {
			l.counts.Made++
			e := &l.ring[int64(at/time.Second)&127]
			e.booked[trust(tried)]++
			e.told[trust(tried)]++
			t.At = at
			l.until.Store(max(l.until.Load(), int64(at)))
			l.last.Store(max(l.last.Load(), int64(at)))
			return t, at - now
		}
	}
	if has != nil && !has.Slot {
		t.Number = max(l.served, has.Number)
	} else if due {
		t.Number = l.served
	} else {
		l.issued = max(l.issued, l.served) + 1
		t.Number = l.issued
	}
	l.counts.Deferred++
	whole = longest + time.Duration((t.Number-l.served)/l.pace(s)*float64(time.Second))
	whole = max(whole, token)
	wait := max(shortest, whole/time.Duration(math.Ceil(float64(whole)/float64(longest))))
	t.At = now + wait
	l.ring[int64(t.At/time.Second)&127].told[trust(tried)]++
	l.last.Store(max(l.last.Load(), int64(t.At)))
	return t, whole
}

// room returns the first instant from one on whose second is not full.
func (l *Line) room(at, limit time.Duration, spare float64) (time.Duration, bool) {
	for n := max(int64(at/time.Second), l.full); ; n++ {
		begin := time.Duration(n) * time.Second
		if begin > limit {
			return limit, false
		}
		e := &l.ring[n&127]
		load := e.load(l.keep())
		if load < spare {
			slot := begin + time.Duration(load/spare*float64(time.Second))
			if at = max(at, slot); at > limit {
				return limit, false
			}
			e.lost += float32((at - slot).Seconds() * spare)
			return at, true
		}
	}
}

// Came takes note that a client has come for its turn, and reports whether it is due.
func (l *Line) Came(now time.Duration, s Supply2, t *Turn) (due bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.advance(now, s)
	if now < t.At+lateAfter {
		l.ring[int64(t.At/time.Second)&127].came[trust(t.Tried)]++
		l.counts.Kept++
	} else {
		l.counts.Late++
	}
	return t.Slot
}

// Still keeps the line from moving until then: nothing is served.
func (l *Line) Still(until time.Duration) {
	l.mu.Lock()
	l.still = max(l.still, until)
	l.mu.Unlock()
}

// draw returns a number in [0, 1): SplitMix64.
func (l *Line) draw() float64 {
	l.random += 0x9e3779b97f4a7c15
	z := l.random
	z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
	z = (z ^ z>>27) * 0x94d049bb133111eb
	return float64((z^z>>31)>>11) / (1 << 53)
}
