package pushback

import (
	"sync"
	"sync/atomic"
	"time"
	"unsafe"
)

// Turns remembers what clients were promised: 16 bytes for each promise, in sets of eight. A
// client may have several. A promise that finds no room is forgotten, and its client is new
// when it comes. One of a client that has come back before gives way to none that has not.
type Turns struct {
	locks [stripes]struct {
		sync.Mutex
		_ [64 - unsafe.Sizeof(sync.Mutex{})]byte
	}
	sets  atomic.Int64
	table atomic.Pointer[[]turnSet]
}

type turnSet [ways]turn

// A turn is one promise. who has 40 bits of the key, 16 of how many ms before its time it was
// told, and flags. due has the time in ms and the number, both of which wrap around.
type turn struct{ who, due uint64 }

const (
	isSlot   = 1 << iota
	isTried  // its client has come back before
	isPast   // kept: its client is known until then, and promised nothing
	flagBits = 8
	gapBits  = 16

	lateMax  = 60_000 // ms after which nothing is known
	aheadMax = 64_000
	lateFree = 5_000 // ms after which a promise gives way to a new one
)

func (t turn) tag() uint64        { return t.who >> (flagBits + gapBits) }
func (t turn) flag(f uint64) bool { return t.who&f != 0 }
func (t turn) toldBefore() int64  { return int64(t.who >> flagBits & (1<<gapBits - 1)) }

// in returns in how many ms it is due, and whether it still counts.
func (t turn) in(ms int64) (d int64, ok bool) {
	d = int64(int32(uint32(t.due>>32) - uint32(ms)))
	return d, t.who != 0 && d > -lateMax && d < aheadMax
}

func (t turn) number(served float64) float64 {
	n := int64(served)
	return float64(n + int64(int32(uint32(t.due)-uint32(n))))
}

func (t *Turns) open(key uint64, create bool) (*turnSet, *sync.Mutex) {
	table := t.table.Load()
	if table == nil {
		if !create {
			return nil, nil
		}
		n := t.sets.Load()
		if n == 0 {
			n = DefaultMaxClients / ways
		}
		fresh := make([]turnSet, n)
		if !t.table.CompareAndSwap(nil, &fresh) {
			return t.open(key, create)
		}
		table = &fresh
	}
	i := (tagOf(key) & (1<<32 - 1)) * uint64(len(*table)) >> 32
	m := &t.locks[i%stripes].Mutex
	m.Lock()
	return &(*table)[i], m
}

// What Take finds.
type found struct {
	turn    Turn
	ok      bool // there is a promise, which has been taken out unless early
	early   bool // it is for later
	unheard bool // early, and sent before the answer can have been heard
	tried   bool // the client has come back before
	known   bool // it has kept a promise lately
	n       int  // promises that it had
}

// Take takes the earliest promise of a client. One for later is left.
func (t *Turns) Take(now time.Duration, key uint64, served float64, hold bool) (f found) {
	s, m := t.open(key, false)
	if s == nil {
		return f
	}
	defer m.Unlock()
	tag, ms := tagOf(key), int64(now/time.Millisecond)
	best, in := -1, int64(0)
	for i := range s {
		r := &s[i]
		if r.tag() != tag {
			continue
		}
		d, ok := r.in(ms)
		if !ok {
			*r = turn{}
			continue
		}
		if r.flag(isPast) {
			if f.known = d <= 0; f.known {
				*r = turn{}
			}
			continue
		}
		f.n++
		if best < 0 || d < in {
			best, in = i, d
		}
	}
	if best < 0 {
		return f
	}
	r := &s[best]
	f.ok, f.early, f.tried = true, in > tolerant, r.flag(isTried)
	f.unheard = f.early && in > r.toldBefore()
	f.turn = Turn{At: now + time.Duration(in)*time.Millisecond, Number: r.number(served), Slot: r.flag(isSlot), Tried: f.tried}
	if !f.early || !hold && !f.unheard {
		*r = turn{}
	}
	return f
}

const tolerant = 20 // ms

// Put remembers a promise, that is told at an instant. It reports whether there was room.
func (t *Turns) Put(now time.Duration, key uint64, p *Turn, told time.Duration, flags uint64) bool {
	s, m := t.open(key, true)
	defer m.Unlock()
	ms := int64(now / time.Millisecond)
	best, rank := -1, 3
	for i := range s {
		r := &s[i]
		d, ok := r.in(ms)
		is := 3
		switch {
		case !ok:
			is = 0
		case r.flag(isPast):
			is = 1
		case r.flag(isTried): // gives way to none
		case d < -lateFree:
			is = 1
		case flags&isTried != 0:
			is = 2
		}
		if is < rank {
			best, rank = i, is
		}
	}
	if best < 0 {
		return false
	}
	if p.Slot {
		flags |= isSlot
	}
	at := int64(p.At / time.Millisecond)
	gap := uint64(min(max(0, at-int64(told/time.Millisecond)), 1<<gapBits-1))
	s[best] = turn{tagOf(key)<<(flagBits+gapBits) | gap<<flagBits | flags, uint64(uint32(at))<<32 | uint64(uint32(int64(p.Number)))}
	return true
}

// Each takes out all promises of a key.
func (t *Turns) Each(now time.Duration, key uint64, served float64, do func(Turn)) {
	s, m := t.open(key, false)
	if s == nil {
		return
	}
	defer m.Unlock()
	tag, ms := tagOf(key), int64(now/time.Millisecond)
	for i := range s {
		r := &s[i]
		if r.tag() != tag {
			continue
		}
		if d, ok := r.in(ms); ok && !r.flag(isPast) {
			do(Turn{At: now + time.Duration(d)*time.Millisecond, Number: r.number(served), Slot: r.flag(isSlot), Tried: r.flag(isTried)})
		}
		*r = turn{}
	}
}
