package share

import (
	"math"
	"sync/atomic"
	"time"
)

// A Backend is one replica's share in what one backend takes: the tokens of its capacity, and places in flight. A fixed
// limit in flight is divided by demand; of an adaptive one each replica has its part of the most, and finds its own below
// that. It is safe for concurrent use.
type Backend struct {
	*Holder
	of *backend
}

// NewBackend returns the Backend of a replica with a name that no other replica has.
func NewBackend(name string, of Shared, l Limits, now time.Duration) *Backend {
	b := &backend{Shared: of, limits: l, n: max(1, l.Replicas), parted: true}
	b.Holder = NewHolder(name, b, b.n)
	b.low = b.Capacity.Draw(now, b.n)
	b.obey(now)
	return &Backend{b.Holder, b}
}

// A backend is what the Holder of a Backend tells of. The Holder's lock guards what is not atomic.
type backend struct {
	*Holder
	Shared
	limits  Limits
	places  Places
	until   time.Duration // of what is granted of them
	n, rank int           // replicas, and which of them this is
	parted  bool          // the capacity is divided
	ended   bool

	used    atomic.Int64 // the last request
	aloneAt atomic.Int64 // from when on the replica works alone; 0: it always has
	binds   atomic.Int64 // from when on Binds wakes the shell
	urged   atomic.Bool  // the shell was woken for tokens since the last exchange
	low     *atomic.Bool // tokens run out
	paidTo  time.Duration
	heardAt time.Duration // the last answer
	pools   []int         // what was told: its indices in LeaseAsk.Of
}

// Indices in LeaseAsk.Of, and the names of the pools.
const (
	capacityPool = 1 + iota
	placesPool
)

// TokensPool is the name of the pool of a capacity.
const TokensPool = "tokens"

var backendPools = []string{TokensPool, "places"}

// isAlone reports whether the replica works alone at now.
func (b *backend) isAlone(now time.Duration) bool { return int64(now) >= b.aloneAt.Load() }

// Look has the replica work alone if the store has been silent for too long. It is to be called for each request, for the
// cost of two atomic loads.
func (s *Backend) Look(now time.Duration) {
	b := s.of
	if int64(now)-b.used.Load() >= int64(usedTime) {
		b.used.Store(int64(now))
	}
	if b.isAlone(now) {
		b.mu.Lock()
		b.see(now)
		b.mu.Unlock()
	}
}

// Alone reports whether the replica does without the store, as far as it has looked.
func (s *Backend) Alone() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.alone
}

// Nudge wakes the shell if tokens run out.
func (s *Backend) Nudge(now time.Duration) {
	if b := s.of; b.low.Load() && !b.urged.Load() && !b.isAlone(now) && !b.urged.Swap(true) {
		b.Wake()
	}
}

// Ask returns what a request may wait for that misses a token, see [limiter.Claim.Misses]: a channel that is closed when
// the store has answered. It returns nil if the store is gone.
func (s *Backend) Ask(now time.Duration) <-chan struct{} {
	if s.of.isAlone(now) {
		return nil
	}
	c := s.Await(func() (queued, sent bool) { return true, false })
	s.Wake()
	return c
}

// AskPlace returns what a request may wait for that finds no place: see Ask.
func (s *Backend) AskPlace(now time.Duration) <-chan struct{} {
	if !s.of.InFlight.MayGrow() {
		return nil
	}
	return s.Ask(now)
}

// Binds tells that a request has found no place, or has taken the last. It costs one atomic load unless the store may
// have more.
func (s *Backend) Binds(now time.Duration) {
	if int64(now) >= s.of.binds.Load() {
		s.Wake()
	}
}

// Set changes the limits.
func (s *Backend) Set(now time.Duration, l Limits) {
	b := s.of
	b.mu.Lock()
	defer b.mu.Unlock()
	b.limits = l
	b.obey(now)
}

// change has other limits count from the next exchange on.
func (b *backend) change(l Limits) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.limits = l
}

// Unlink ends the sharing: the replica is the only one.
func (s *Backend) Unlink(now time.Duration) {
	b := s.of
	b.mu.Lock()
	defer b.mu.Unlock()
	b.ended = true
	b.binds.Store(int64(never))
	b.answers.end(true)
	b.Capacity.Undraw(b.limits.Capacity, now)
	b.InFlight.Ungrant()
}

// see divides the capacity if the replica is alone at now. Until paidTo the pool may earn for it. One that was frozen for
// so long that the others have counted it out has no tokens any more.
func (b *backend) see(now time.Duration) {
	if b.parted || b.ended || !b.isAlone(now) {
		return
	}
	if b.parted = true; b.heardAt != 0 && now >= b.heardAt+RosterTime {
		b.Capacity.Lose()
	}
	b.Capacity.Part(b.limits.Capacity, now, b.paidTo, b.n)
	b.binds.Store(int64(never))
	b.answers.end(true)
}

// obey bounds what is in flight.
func (b *backend) obey(now time.Duration) {
	binds, l := never, b.limits
	switch {
	case b.ended:
	case l.InFlight > 0:
		n, until := b.places.Limit(now, l.InFlight, b.n, b.rank)
		b.until = until
		b.InFlight.Grant(now, n, b.places.Free(b.n), until)
		if at, ok := b.places.Asks(l.InFlight, b.n); ok && !b.flying && !b.isAlone(now) {
			binds = at
		}
	case l.Adaptive > 0:
		b.InFlight.Grant(now, max(1, l.Adaptive/b.n), 0, math.MaxInt64)
	default:
		b.InFlight.Ungrant()
	}
	b.binds.Store(int64(binds))
}

// Tell implements Sharer.
func (b *backend) Tell(now time.Duration, a *LeaseAsk, _ bool) {
	b.see(now)
	b.obey(now)
	b.urged.Store(false) // what changes from now on is urgent anew
	l := &b.limits
	burst, rate := float64(l.Capacity.Burst()), l.Capacity.Rate()/1000
	stay := RosterTime.Milliseconds()
	a.Of = []PoolKind{{Rate: rate, Cap: burst, Parts: 1, Stay: 40 * stay}, {Cap: float64(l.InFlight), Stay: 40 * stay}}
	b.pools = b.pools[:0]
	add := func(pool int, held, gave, want float64) {
		b.pools = append(b.pools, pool)
		a.Keys = append(a.Keys, backendPools[pool-1])
		a.Pools = append(a.Pools, [4]float64{float64(pool), held, gave, want})
	}
	if burst > 0 && !b.ended {
		r := b.Capacity.Refill(l.Capacity, now, b.n, b.Clients.Backlogged(now))
		add(capacityPool, r.Held, r.Gave, float64(r.Want))
	}
	if l.InFlight > 0 && !b.ended {
		p := b.places.Ask(now, l.InFlight, b.InFlight.Usage())
		add(placesPool, float64(p.Held), float64(p.Has), float64(p.Want))
	}
	b.binds.Store(int64(never))
}

// Leave implements Sharer.
func (b *backend) Leave(now time.Duration, a *LeaseAsk) {
	if b.Tell(now, a, false); len(a.Pools) > 0 && b.pools[0] == capacityPool {
		p := &a.Pools[0]
		p[1], p[2], p[3] = 0, max(0, p[1])+p[2], 0
		b.Capacity.Lose()
	}
}

// Hear implements Sharer.
func (b *backend) Hear(now time.Duration, ask *LeaseAsk, a *LeaseAnswer) {
	b.heardAt = now
	if b.ended {
		return
	}
	for i, g := range a.Pools {
		switch b.pools[i] {
		case capacityPool:
			if ask.Alone {
				continue
			}
			b.parted = false
			b.Capacity.Heard(now, int(g.Got), g.Left, time.Duration(max(0, 1-g.Left)/ask.Of[0].Rate*float64(time.Millisecond)))
		case placesPool:
			b.places.Heard(PlacesAnswer{Limit: int(g.Got), Free: int(g.Left)})
		}
	}
	b.obey(now)
}

// Miss implements Sharer.
func (b *backend) Miss(now time.Duration) {
	b.see(now)
	if b.limits.InFlight > 0 {
		b.places.Missed(now)
	}
	b.obey(now)
}

// Hurry implements Sharer.
func (b *backend) Hurry(now time.Duration) time.Duration {
	b.see(now)
	at := never
	if b.ended || b.isAlone(now) {
		return at
	}
	if b.Capacity.Low(b.limits.Capacity, now, b.n, b.Clients.Backlogged(now)) {
		at = now
	}
	if asks, waits := b.Capacity.AsksAt(); waits {
		at = min(at, asks)
	}
	if b.limits.InFlight > 0 {
		if places, ok := b.places.Hurry(now, b.limits.InFlight, b.n, b.InFlight.Usage()); ok {
			at = min(at, places)
		}
	}
	return at
}

// Looks implements Sharer: while no place is free, others may wait for what this replica gives back.
func (b *backend) Looks(now time.Duration) time.Duration {
	if b.limits.InFlight > 0 && !b.ended && !b.isAlone(now) && b.places.Contended() {
		return now + placesRetry
	}
	return never
}

// Idles implements Sharer.
func (b *backend) Idles(now time.Duration) bool {
	return now-time.Duration(b.used.Load()) > IdleTime && !b.Clients.Expects(now)
}

// Lives implements Sharer.
func (b *backend) Lives(time.Duration) {}

// Paid implements Sharer.
func (b *backend) Paid(now, until time.Duration) {
	b.paidTo = max(b.paidTo, until)
	if b.parted && !b.ended {
		b.Capacity.Part(b.limits.Capacity, now, b.paidTo, b.n)
	}
}

// AloneFrom implements Sharer.
func (b *backend) AloneFrom(at time.Duration) { b.aloneAt.Store(int64(at)) }

// Count implements Sharer.
func (b *backend) Count(now time.Duration, n, rank int, _ bool) {
	b.n, b.rank = n, rank
	b.obey(now)
}
