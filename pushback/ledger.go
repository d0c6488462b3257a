package pushback

import (
	"cmp"
	"slices"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"
)

// Bounds and default of a Ledger's size.
const (
	DefaultMaxClients = 1 << 19 // 8 MiB
	MinMaxClients     = 1 << 10
	MaxMaxClients     = 1 << 22 // 64 MiB
)

// MaxPromises is how many promises to one client are counted. A client with more than
// CrowdThreshold is a crowd behind one key, whose members wait for each other.
const (
	MaxPromises    = 1<<10 - 1
	CrowdThreshold = 8
)

const (
	ways          = 8        // records per set: two cache lines
	protectedWays = ways / 2 // of them for clients that have kept a promise
	stripes       = 128      // locks

	// Every strikesPerPenalty early returns of one client cost it a penalty, at most
	// maxPenalties times: enough that hammering never pays, too little to starve a
	// client.
	strikesPerPenalty = 8
	maxPenalties      = 3
	penalty           = 5 * time.Second

	// slowPollInterval is how long after it was told a client may come early without a
	// strike. A client with a long backoff does no harm, and if it were refused it might
	// come back a minute after its time.
	slowPollInterval = 10 * time.Second

	// minAnswerTransit is how long the first refusal is assumed to be on its way, at
	// least: a request from the same client meanwhile is another one. Ours: a crowd
	// behind one address is spread that much. Later refusals do not extend it, or a
	// client that repeats at once would never count as told.
	minAnswerTransit = 100 * time.Millisecond

	// abandonAfter is how late a client is when its record may be given to another.
	abandonAfter = 5 * time.Second
)

// A Ledger remembers each client's promises, in 16 bytes per client, and how the client
// keeps them.
//
// It is bounded: a client whose record finds no room is a stranger when it comes back. A
// record belongs to one set of eight, half of them for clients that have kept a promise. A
// newcomer replaces a client that is no longer expected, or if it has a slot, one that has
// none; never one that has kept a promise. So a flood of new clients costs only the flood.
//
// The zero Ledger holds DefaultMaxClients; Resize changes that. It takes memory when it
// is first written to. It is safe for concurrent use.
type Ledger struct {
	locks [stripes]struct {
		sync.Mutex
		_ [64 - unsafe.Sizeof(sync.Mutex{})]byte // a cache line each
	}
	size  atomic.Int64 // sets
	table atomic.Pointer[[]set]
}

type set [ways]record

// Resize sets how many clients are remembered, MinMaxClients to MaxMaxClients. Records
// are kept as far as there is room.
func (l *Ledger) Resize(maxClients int) {
	sets := int64(maxClients+ways-1) / ways
	if l.size.Load() == sets {
		return
	}
	for i := range l.locks {
		l.locks[i].Lock()
		defer l.locks[i].Unlock()
	}
	l.size.Store(sets)
	old := l.table.Load()
	if old == nil {
		return
	}
	table := make([]set, sets)
	for i := range *old {
		for _, r := range (*old)[i] {
			if r == (record{}) {
				continue
			}
			to := &table[index(r.who>>tagShift, sets)]
			if r.get(fProtected) == 1 && to.count(fProtected) == protectedWays {
				r.set(fProtected, 0)
			}
			if w := slices.Index(to[:], record{}); w >= 0 {
				to[w] = r
			}
		}
	}
	l.table.Store(&table)
}

// tagOf returns the part of a key that a record keeps: 40 bits, well mixed, never 0. With
// 65,536 sets, a stranger is mistaken for a client of its set once in two million visits.
func tagOf(key uint64) uint64 {
	key = (key ^ key>>32) * 0xd6e8feb86659fd93
	key = (key ^ key>>32) * 0xd6e8feb86659fd93
	return max(1, (key^key>>32)>>tagShift)
}

// index spreads tags over sets.
func index(tag uint64, sets int64) uint64 { return (tag & (1<<32 - 1)) * uint64(sets) >> 32 }

// open locks the set of a tag. Without a table it returns nil and holds no lock.
func (l *Ledger) open(tag uint64) (s *set, unlock *sync.Mutex) {
	for table := l.table.Load(); table != nil; table = l.table.Load() {
		i := index(tag, int64(len(*table)))
		m := &l.locks[i%stripes].Mutex
		m.Lock()
		if l.table.Load() == table {
			return &(*table)[i], m
		}
		m.Unlock() // resized meanwhile
	}
	return nil, nil
}

// create makes the table, if there is none.
func (l *Ledger) create() {
	l.locks[0].Lock()
	defer l.locks[0].Unlock()
	if l.table.Load() == nil {
		table := make([]set, l.sets())
		l.table.Store(&table)
	}
}

func (s *set) find(tag uint64) *record {
	for i := range s {
		if s[i].who>>tagShift == tag {
			return &s[i]
		}
	}
	return nil
}

// known locks the set of a client and returns its record, or nil and no lock.
func (l *Ledger) known(key uint64) (s *set, r *record, unlock *sync.Mutex) {
	tag := tagOf(key)
	if s, unlock = l.open(tag); s == nil {
		return nil, nil, nil
	}
	if r = s.find(tag); r == nil {
		unlock.Unlock()
	}
	return s, r, unlock
}

// Visit looks up a client that comes at now. waiting is how many promises there are, the
// client's own included.
//
// With a horizon above 0, a return that is too early counts as a strike, and some of these
// move the promise, but not beyond the horizon: see strikesPerPenalty. There are no
// strikes if all waiting promises are the client's own. Only a repetition is too early:
// of the only request that this client was promised a time for, after it was told, with
// the same fingerprint (as far as five bits can tell). A fingerprint of 0 matches any:
// the request says that it is a retry.
func (l *Ledger) Visit(now time.Duration, key, fingerprint uint64, horizon time.Duration, waiting int) (v Visit) {
	_, r, m := l.known(key)
	if r == nil {
		return v
	}
	defer m.Unlock()
	v.Hammers = r.get(fStrikes) > 0 || Class(r.get(fClass)) == Hammer
	v.Trust = r.trust()
	v.Promises = r.outstanding(now)
	if v.Promises == 0 {
		served := r.due(now)
		from, ok := r.pass(now)
		v.Pass = ok && from <= now
		v.Served = r.get(fCount) == 0 && served <= now && served > now-maxLate
		return v
	}
	v.Deferred, v.Number = r.get(fDeferred) == 1, uint32(r.get(fNumber))
	aside, _ := r.aside(now)
	v.Uncontended = waiting <= min(v.Promises+aside, CrowdThreshold) && !v.Deferred // others have the slots
	strict := horizon > 0 && !v.Uncontended
	due, told := r.due(now), r.told(now)
	same := fingerprint == 0 || r.get(fFingerprint) == fingerprint&(1<<fFingerprint.bits-1)
	answered := now >= told
	if same && answered {
		r.observe(now)
	}
	v.At = due
	switch {
	case now >= due-tolerance(due-told):
		v.Standing = OnTime
		v.Late = now > due+(due-told)/4+1100*time.Millisecond
	case !same || !answered:
		v.Standing, v.BeforeAnswer = OtherRequest, !answered
		if strict && answered && v.Promises == 1 && now-told < slowPollInterval {
			v.At = r.strike(now, due, horizon) // it was told, and asks for something else instead
		}
	case v.Promises > 1:
		v.Standing = Ambiguous
		v.Rejected = strict
	default:
		v.Standing = TooEarly
		v.NearlyDue = now-told >= max(slowPollInterval, 3*(due-told)/4) && !v.Deferred
		if strict && now-told < slowPollInterval {
			v.At = r.strike(now, due, horizon)
			v.Rejected = true
		}
	}
	return v
}

// strike counts an early return, and returns the promise to tell again.
func (r *record) strike(now, due, horizon time.Duration) time.Duration {
	r.add(fStrikes, 1)
	if n := r.get(fStrikes); n%strikesPerPenalty == 0 && n <= strikesPerPenalty*maxPenalties {
		if n == strikesPerPenalty*maxPenalties {
			r.add(fStrikes, 1) // further ones cost nothing more
		}
		due = max(due, min(due+penalty, now+horizon))
		r.setDue(due)
	}
	r.setTold(now)
	return due
}

// Keep tells that a client has been admitted: one of its promises is done with. It
// returns that promise as it was before.
func (l *Ledger) Keep(now time.Duration, key uint64) (v Visit) {
	s, r, m := l.known(key)
	if r == nil {
		return v
	}
	defer m.Unlock()
	v.Trust = r.trust()
	v.Promises = r.outstanding(now)
	if v.Promises == 0 {
		return v
	}
	due, told := r.due(now), r.told(now)
	v.Deferred, v.At = r.get(fDeferred) == 1, due
	v.Standing = OtherRequest
	if now >= due-tolerance(due-told) {
		v.Standing = OnTime
		r.set(fStrikes, 0) // forgiven
		r.add(fScore, 1)
		s.protect(r, now)
		r.setDue(max(due, now)) // the next one of several, if there are more
	}
	r.set(fCount, uint64(v.Promises-1))
	if v.Promises == 1 && !r.recall(now) {
		r.setPass(max(due, now))
	}
	return v
}

// UsePass tells that a client has been admitted for its pass.
func (l *Ledger) UsePass(now time.Duration, key uint64) {
	_, r, m := l.known(key)
	if r == nil {
		return
	}
	defer m.Unlock()
	if from, ok := r.pass(now); ok {
		r.setPass(max(from, now-(passBurst-1)*passInterval))
	}
}

// Drop forgets a client's promises, and those that it kept.
func (l *Ledger) Drop(key uint64) {
	if _, r, m := l.known(key); r != nil {
		r.set(fCount, 0)
		r.set(fNumber, 0)
		r.set(fProtected, 0)
		m.Unlock()
	}
}

// Replace is what becomes of the promises that a client had when it gets another.
type Replace uint8

const (
	ReplaceNone Replace = iota
	ReplaceOne
	ReplaceAll
)

// Write records that a client has been told to come back at a.At, in an answer that is
// sent at told. It reports whether there was room. After the replacement the client has
// n earlier promises left, and its record gets:
//
//	                      n == 0                 n > 0
//	ReplaceNone           the new one            one more; due is the nearest
//	ReplaceOne, a slot    the new one, and any   the new one put aside, until the n are
//	                      that were put aside    done with: they may be due now
//	ReplaceOne, deferred  the new one, or those  the n
//	                      that were put aside
//	ReplaceAll            the new one            -
//
// A record cannot mix slots and deferred promises.
func (l *Ledger) Write(now time.Duration, key, fingerprint uint64, a Appointment, told time.Duration, p Replace) bool {
	tag := tagOf(key)
	if l.table.Load() == nil {
		l.create()
	}
	s, m := l.open(tag)
	defer m.Unlock()
	r := s.find(tag)
	if r == nil {
		if r = s.candidate(now, a.Deferred); r == nil {
			return false
		}
		*r = record{who: tag << tagShift}
	}
	if a.Trust == Proven {
		s.protect(r, now)
	}
	n := r.outstanding(now)
	switch {
	case p == ReplaceAll:
		n = 0
	case p == ReplaceOne:
		n = max(0, n-1)
	case n == MaxPromises:
		return false
	}
	switch {
	case p == ReplaceOne && n > 0:
		r.set(fCount, uint64(n))
		return a.Deferred || r.putAside(now, a.At)
	case p == ReplaceOne && r.get(fCount) > 0 && r.recall(now):
		n = int(r.get(fCount))
		if a.Deferred {
			return true
		}
		r.setDue(min(r.due(now), a.At))
	case n == 0:
		r.setDue(a.At)
		r.set(fDeferred, 0)
		r.set(fNumber, 0)
		if a.Deferred {
			r.set(fDeferred, 1)
			r.set(fNumber, uint64(a.Number)/numberUnit)
		}
	case a.Deferred != (r.get(fDeferred) == 1):
		return false
	case a.At < r.due(now):
		r.setDue(a.At)
	}
	if n > 0 {
		told = max(told, r.told(now)) // the last of several answers
	} else {
		told = max(told, now+minAnswerTransit)
	}
	r.set(fCount, uint64(n+1))
	r.set(fFingerprint, fingerprint)
	r.setTold(told)
	return true
}

// candidate returns the record that a newcomer may take, or nil.
func (s *set) candidate(now time.Duration, deferred bool) (best *record) {
	rank := 4
	if deferred {
		rank = 3
	}
	for i := range s {
		r := &s[i]
		is := 4
		switch {
		case *r == (record{}):
			return r
		case r.get(fProtected) == 1:
		case r.outstanding(now) == 0:
			is = 1
		case r.due(now) < now-abandonAfter:
			is = 2
		case r.get(fDeferred) == 1:
			is = 3
		}
		if is < rank {
			best, rank = r, is
		}
	}
	return best
}

// count returns how many records have a field of one bit set.
func (s *set) count(f field) (n int) {
	for i := range s {
		n += int(s[i].get(f))
	}
	return n
}

// protect keeps newcomers from a record that has kept a promise. If half of the set is
// protected already, it replaces one that expects nothing and has not kept more.
func (s *set) protect(r *record, now time.Duration) {
	if r.get(fProtected) == 1 {
		return
	}
	n := 0
	var weakest *record
	for i := range s {
		p := &s[i]
		if p.get(fProtected) == 0 {
			continue
		}
		n++
		if p.outstanding(now) == 0 && p.get(fScore) <= r.get(fScore) && (weakest == nil || p.get(fScore) < weakest.get(fScore)) {
			weakest = p
		}
	}
	if n == protectedWays {
		if weakest == nil {
			return
		}
		weakest.set(fProtected, 0)
	}
	r.set(fProtected, 1)
}

// Clients returns how many records there are, by class. It visits every record: it is for
// scrapes.
func (l *Ledger) Clients() (n [Classes]int) {
	for i := range l.locks {
		m := &l.locks[i].Mutex
		m.Lock()
		if table := l.table.Load(); table != nil {
			for j := i; j < len(*table); j += stripes {
				for k := range (*table)[j] {
					if r := &(*table)[j][k]; *r != (record{}) {
						n[r.get(fClass)]++
					}
				}
			}
		}
		m.Unlock()
	}
	return n
}

// MaxClients returns how many clients can be remembered.
func (l *Ledger) MaxClients() int { return int(l.sets()) * ways }

func (l *Ledger) sets() int64 { return cmp.Or(l.size.Load(), DefaultMaxClients/ways) }
