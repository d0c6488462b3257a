package pushback

import (
	"cmp"
	"slices"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"
)

// Bounds and default of how many promises are remembered.
const (
	DefaultMaxClients = 1 << 19 // 8 MiB
	MinMaxClients     = 1 << 10
	MaxMaxClients     = 1 << 22 // 64 MiB
)

const (
	ways    = 8   // promises per set: two cache lines
	stripes = 128 // locks

	// tolerance is how early a client may come and still be on time: clocks, timers and the
	// rounding to milliseconds differ a little.
	tolerance = 20 * time.Millisecond

	// minAnswerTransit is how long a response is on its way, at least: a request from the same
	// client meanwhile is another client's behind the same key, or another of its own.
	minAnswerTransit = 100 * time.Millisecond

	// maxLate is how late a client may come and still be on time: some add their own backoff,
	// of up to 30 s or a fifth.
	maxLate = time.Minute

	// abandonAfter is how late a client is when its promise may give way to another's.
	abandonAfter = 5 * time.Second

	// restAfter is how long a known client rests for each request that is admitted while others wait, and restsAhead how much of that
	// it may owe: four requests in quick succession, as the calls of a task, then one each four seconds, as the pages of a visit.
	// It is known for another minute, maxLate.
	restAfter  = 4 * time.Second
	restsAhead = 3 * restAfter

	// soonAfter its last request the next is a call of the same task.
	soonAfter = time.Second
)

// promises remembers what clients were promised, in 16 bytes each. A client may have
// several. It is bounded: a promise belongs to a set of eight. It finds room where there is
// none, or where a client has not come for long; one to a proven client also in place of any
// to a new one. A promise that finds no room is forgotten, and its client is new when it
// comes. So a flood of new clients costs only the flood.
//
// The zero promises hold DefaultMaxClients; resize changes that. They take memory when they
// are first looked up. They are safe for concurrent use.
type promises struct {
	locks [stripes]struct {
		sync.Mutex
		_ [64 - unsafe.Sizeof(sync.Mutex{})]byte // a cache line each
	}
	size    atomic.Int64 // sets
	table   atomic.Pointer[[]promiseSet]
	tickets sync.Mutex // held while one is used
}

type promiseSet [ways]promise

// A promise is, from the highest bits on:
//
//	who:  40 of the key | 16 how many ms before its time it was told | 8 flags and kind
//	due:  32 its time in ms | 32 its number in the tail
//
// Times and numbers wrap around, and are read as the nearest to now, or to the number that
// is being served.
type promise struct{ who, due uint64 }

const (
	kindBits  = 3
	isSlot    = 1 << 3
	isProven  = 1 << 4
	isPast    = 1 << 5 // kept: its client is known, and promised nothing
	isQuota   = 1 << 6 // of a client over its quota, or a used ticket: the line knows nothing of it
	flagBits  = 8
	leadBits  = 16
	mostAhead = (maxSeconds + 2) * time.Second
)

func (p promise) tag() uint64          { return p.who >> (flagBits + leadBits) }
func (p promise) has(flag uint64) bool { return p.who&flag != 0 }
func (p promise) kind() Class          { return Class(p.who & (1<<kindBits - 1)) }
func (p promise) lead() time.Duration {
	return time.Duration(p.who>>flagBits&(1<<leadBits-1)) * time.Millisecond
}
func (p promise) number(of float64) float64 {
	n := int64(of)
	return float64(n + int64(int32(uint32(p.due)-uint32(n))))
}

// in returns in how long a promise is due, and whether it still counts.
func (p promise) in(now time.Duration) (d time.Duration, ok bool) {
	d = time.Duration(int32(uint32(p.due>>32)-uint32(now/time.Millisecond))) * time.Millisecond
	return d, p.who != 0 && d > -maxLate && d < mostAhead
}

// turn returns what was promised. served is the number that is being served.
func (p promise) turn(now time.Duration, served float64) Turn {
	d, _ := p.in(now)
	t := Turn{At: now.Truncate(time.Millisecond) + d, Slot: p.has(isSlot)}
	if p.has(isProven) {
		t.Trust = Proven
	}
	if !t.Slot {
		t.Number = p.number(served)
	}
	return t
}

// rest has a known client that asks rest until an instant.
func (p *promise) rest(now, until time.Duration) {
	lead := uint64((until - now) / time.Millisecond)
	p.who = p.who&^((1<<leadBits-1)<<flagBits) | lead<<flagBits
	p.due = uint64(uint32(until/time.Millisecond)) << 32
}

// tagOf returns the part of a key that a promise keeps: 40 bits, well mixed, never 0. With
// 65,536 sets, a new client is mistaken for a client of its set once in two million visits.
func tagOf(key uint64) uint64 {
	key = (key ^ key>>32) * 0xd6e8feb86659fd93
	key = (key ^ key>>32) * 0xd6e8feb86659fd93
	return max(1, (key^key>>32)>>(flagBits+leadBits))
}

// index spreads tags over sets.
func index(tag uint64, sets int) int { return int((tag & (1<<32 - 1)) * uint64(sets) >> 32) }

func (p *promises) sets() int { return int(cmp.Or(p.size.Load(), DefaultMaxClients/ways)) }

// resize sets how many promises are remembered, MinMaxClients to MaxMaxClients. Those that
// are remembered stay, as far as there is room.
func (p *promises) resize(maxClients int) {
	sets := (maxClients + ways - 1) / ways
	if p.sets() == sets {
		return
	}
	for i := range p.locks {
		p.locks[i].Lock()
		defer p.locks[i].Unlock()
	}
	p.size.Store(int64(sets))
	old := p.table.Load()
	if old == nil {
		return
	}
	var to promises
	to.resize(maxClients)
	for _, set := range *old {
		for _, is := range set {
			if is != (promise{}) && !is.has(isPast) { // promises come first
				to.add(is)
			}
		}
	}
	p.table.Store(to.table.Load())
}

// add remembers a promise, if there is room.
func (p *promises) add(one promise) bool {
	set, m := p.open(one.tag())
	defer m.Unlock()
	i := slices.Index(set[:], promise{})
	if i >= 0 {
		set[i] = one
	}
	return i >= 0
}

// open locks the set of a tag.
func (p *promises) open(tag uint64) (*promiseSet, *sync.Mutex) {
	for {
		table := p.table.Load()
		if table == nil {
			fresh := make([]promiseSet, p.sets()) // the system gives memory to what is written to
			p.table.CompareAndSwap(nil, &fresh)
			continue
		}
		i := index(tag, len(*table))
		m := &p.locks[i%stripes].Mutex
		m.Lock()
		if p.table.Load() == table {
			return &(*table)[i], m
		}
		m.Unlock() // resized meanwhile
	}
}

// found is what is known of a client that has come.
type found struct {
	Turn                  // its earliest promise, if it has any
	n       int           // promises
	early   bool          // the earliest is for later
	unheard bool          // and it cannot have heard of it yet: it is another of its requests, or another client behind its key
	ready   bool          // it is known, is not due, and has not asked for much of late
	served  bool          // it has kept a promise
	rests   time.Duration // until when it rests, if it is known
	soon    bool          // it is ready, and has asked less than a second ago
	kind    Class
	lead    time.Duration // between the response and the promised time
}

// take looks up a client, and uses up its earliest promise if its time has come.
func (p *promises) take(now time.Duration, key uint64, served float64) (f found) {
	tag := tagOf(key)
	set, m := p.open(tag)
	defer m.Unlock()
	var best, past *promise
	var in time.Duration
	for i := range set {
		is := &set[i]
		if is.tag() != tag {
			continue
		}
		d, ok := is.in(now)
		switch {
		case !ok:
			*is = promise{}
		case is.has(isPast):
			past, f.served, f.kind, f.rests = is, is.has(isProven), is.kind(), now+d
		default:
			if f.n++; best == nil || d < in {
				best, in = is, d
			}
		}
	}
	if f.ready = past != nil && f.rests <= now+restsAhead && (best == nil || in > tolerance); f.ready {
		f.soon = past.lead()-(f.rests-now) < soonAfter
		past.rest(now, max(now, f.rests)+restAfter)
	}
	if best == nil {
		return f
	}
	f.Turn, f.kind, f.lead = best.turn(now, served), best.kind(), best.lead()
	f.early = in > tolerance
	if f.unheard = f.early && in > f.lead; !f.unheard {
		f.kind = classOf(f.lead-in, f.lead)
		best.who = best.who&^(1<<kindBits-1) | uint64(f.kind)
	}
	if !f.early {
		*best = promise{}
	}
	return f
}

// put remembers a promise that its client is told of at an instant. It reports whether there
// was room.
func (p *promises) put(now time.Duration, key uint64, t *Turn, told time.Duration, flags uint64, kind Class) bool {
	tag := tagOf(key)
	set, m := p.open(tag)
	defer m.Unlock()
	if t.Slot {
		flags |= isSlot
	}
	if t.Trust == Proven {
		flags |= isProven
	}
	const none = 3
	var best *promise
	rank := none
	for i := range set {
		is := &set[i]
		d, ok := is.in(now)
		r := none
		switch {
		case !ok:
			r = 0
		case flags&is.who&isPast != 0 && is.tag() == tag: // it is known already
			r = -1
		case is.has(isPast), !is.has(isProven) && d < -abandonAfter:
			r = 1
		case !is.has(isProven) && t.Trust == Proven:
			r = 2
		}
		if r < rank {
			best, rank = is, r
		}
	}
	if best == nil {
		return false
	}
	lead := uint64(min(max(0, (t.At-told)/time.Millisecond), 1<<leadBits-1))
	*best = promise{
		tag<<(flagBits+leadBits) | lead<<flagBits | flags | uint64(kind),
		uint64(uint32(t.At/time.Millisecond))<<32 | uint64(uint32(int64(t.Number))),
	}
	return true
}

// each calls do with all promises of a client, and takes away those of which that returns false.
func (p *promises) each(now time.Duration, key uint64, served float64, do func(promise, Turn) (keep bool)) {
	tag := tagOf(key)
	set, m := p.open(tag)
	defer m.Unlock()
	for i := range set {
		is := &set[i]
		if is.tag() != tag {
			continue
		}
		if _, ok := is.in(now); !ok || !do(*is, is.turn(now, served)) {
			*is = promise{}
		}
	}
}

// use uses up a promise before its time, and reports whether there was one.
func (p *promises) use(now time.Duration, key uint64, at time.Duration) (used bool) {
	p.each(now, key, 0, func(p promise, t Turn) bool {
		is := !used && !p.has(isPast) && (t.At-at).Abs() < 2*tolerance
		used = used || is
		return !is
	})
	return used
}

// once notes the ticket of a client that has come, until maxLate after an instant, and reports whether it was not noted and there was
// room: of a table that has nothing else, as it gives way to no promise.
func (p *promises) once(now time.Duration, mark uint64, at time.Duration) (first bool) {
	p.tickets.Lock()
	defer p.tickets.Unlock()
	first = true
	p.each(now, mark, 0, func(promise, Turn) bool { first = false; return true })
	return first && p.put(now, mark, &Turn{At: at, Trust: Proven}, now, isQuota, honors)
}

// all calls do with all promises, under one lock after the other.
func (p *promises) all(do func(promise)) {
	for i := range p.locks {
		m := &p.locks[i].Mutex
		m.Lock()
		if table := p.table.Load(); table != nil {
			for j := i; j < len(*table); j += stripes {
				for _, is := range (*table)[j] {
					if is != (promise{}) {
						do(is)
					}
				}
			}
		}
		m.Unlock()
	}
}
