package share

import (
	"math"
	"sync/atomic"
	"time"

	"github.com/herdshield/shield/limiter"
	"github.com/herdshield/shield/loadshed"
	"github.com/herdshield/shield/pushback"
)

// maxNotes is how many notes one exchange tells.
const maxNotes = 500

// Shared is what replicas share of one backend. They are the replica's own, and know of no
// store.
type Shared struct {
	Capacity *limiter.Bucket
	InFlight *loadshed.Concurrency
	Clients  *pushback.Appointments
}

// Limits is what the operator set. It is the same in all replicas.
type Limits struct {
	Capacity limiter.Limit // the zero Limit: there is none
	InFlight int           // requests in flight, 0: there is no fixed limit
	Adaptive int           // the most that an adaptive limit may be, 0: there is none
	Max      time.Duration // the longest wait
	Replicas int           // how many to assume until the store has told: at least 1
}

// A Link is one replica's share in what one backend takes: the tokens of its capacity, places in flight, slots of the line,
// and what clients were promised. A fixed limit in flight is divided by demand; of an adaptive one each replica has its
// part of the most, and finds its own below that. It is safe for concurrent use.
type Link struct {
	Holder // its lock guards what is not atomic
	Shared
	limits Limits
	places places
	until  time.Duration // of what is granted of them

	clock
	measured float64         // what the replica adds to the backend's rate
	sender   uint32          // the hash of the replica's name
	notes    []pushback.Note // that were told last, if they may not have arrived

	view  atomic.Pointer[view]
	look  atomic.Int64 // when the view may change without an answer
	urged atomic.Bool  // the shell was woken since the last exchange
	low   *atomic.Bool // tokens run out
}

// NewLink returns the Link of a replica with a name that no other replica has.
func NewLink(name string, of Shared, l Limits, now time.Duration) *Link {
	s := &Link{Shared: of, limits: l, sender: uint32(limiter.KeyOf(name))}
	b := (*backend)(s)
	b.init(name, b, l.Replicas)
	b.view.Store(&view{alone: true, replicas: b.term.Replicas})
	b.low = b.Capacity.Draw(now, b.term.Replicas)
	b.follow(now)
	return s
}

// A backend is a Link as its Holder sees it.
type backend Link

// A view is what decisions have to know of the other replicas.
type view struct {
	alone    bool // the replica has its part of every limit, and of the line
	replicas int
	rate     float64 // what the others add to the backend's rate
}

// Indices in LeaseAsk.Of.
const (
	capacityPool = 1 + iota
	placesPool
)

// Look has the replica work alone if the store has been silent for too long. It is to be called for each request, for the
// cost of two atomic loads.
func (s *Link) Look(now time.Duration) {
	s.Use(now)
	if int64(now) >= s.look.Load() {
		s.mu.Lock()
		(*backend)(s).see(now)
		s.mu.Unlock()
	}
}

// Rate returns how many requests per second the backend takes that this replica plans with, if it measures one rate
// itself, and another is the most that all replicas may use.
func (s *Link) Rate(measured, most float64) float64 {
	if s == nil {
		return min(measured, most)
	}
	v := s.view.Load()
	if v.alone {
		return min(measured, most/float64(v.replicas))
	}
	return min(measured+v.rate, most)
}

// Measure tells what the replica adds to the rate of a backend whose rate is measured.
func (s *Link) Measure(rate float64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.measured = rate
}

// Nudge wakes the shell if slots or tokens run out. It costs a few atomic loads.
func (s *Link) Nudge() {
	if (s.Clients.WantsSlots() || s.low.Load()) && !s.view.Load().alone && !s.urged.Load() && !s.urged.Swap(true) {
		s.Wake()
	}
}

// Ask returns what a request may wait for that misses a token, see [limiter.Claim.Misses]: a channel that is closed when
// the store has answered. It returns nil if the store is gone. No lock may be held of what is Shared.
func (s *Link) Ask() <-chan struct{} {
	if s == nil || s.view.Load().alone {
		return nil
	}
	c := s.await(func() bool { return false })
	s.Wake()
	return c
}

// Set changes the limits.
func (s *Link) Set(now time.Duration, l Limits) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.limits = l
	(*backend)(s).obey(now)
}

// Unlink ends the sharing: the replica is the only one.
func (s *Link) Unlink(now time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.end()
	s.view.Store(&view{alone: true, replicas: s.term.Replicas})
	s.look.Store(int64(never))
	s.Capacity.Undraw(s.limits.Capacity, now)
	s.Clients.Leave()
	s.InFlight.Ungrant()
}

// see has the replica work alone if it is at now. One that was frozen for so long that the others have counted it out has
// no tokens.
func (b *backend) see(now time.Duration) {
	switch v := b.view.Load(); {
	case v.alone:
		b.look.Store(int64(never))
	case now < b.term.Alone:
		b.look.Store(int64(b.term.Alone))
	default:
		if now >= b.lastAt+RosterTime {
			b.Capacity.Lose()
		}
		b.view.Store(&view{alone: true, replicas: b.term.Replicas})
		b.look.Store(int64(never))
		b.Clients.Part()
		end(&b.thisEnds)
		end(&b.nextEnds)
	}
}

// obey bounds what is in flight.
func (b *backend) obey(now time.Duration) {
	switch l, replicas := b.limits, b.term.Replicas; {
	case l.InFlight > 0:
		n, until := b.places.use(now, l.InFlight, replicas, b.rank)
		b.until = until
		b.InFlight.Grant(now, n, b.places.spare(replicas), until)
	case l.Adaptive > 0:
		b.InFlight.Grant(now, max(1, l.Adaptive/replicas), 0, math.MaxInt64)
	default:
		b.InFlight.Ungrant()
	}
}

// follow implements sharer.
func (b *backend) follow(now time.Duration) {
	b.see(now)
	b.Capacity.Follow(b.limits.Capacity, now, b.term)
	b.obey(now)
}

// tell implements sharer.
func (b *backend) tell(now time.Duration, a *LeaseAsk) {
	b.urged.Store(false) // what changes from now on is urgent anew
	l := &b.limits
	burst, rate := float64(l.Capacity.Burst()), l.Capacity.Rate()/1000
	stay := RosterTime.Milliseconds()
	a.Of = []PoolKind{{Rate: rate, Cap: burst, Parts: 1, Stay: 40 * stay}, {Cap: float64(l.InFlight), Stay: 40 * stay}}
	add := func(pool int, name string, held, gave, want float64) {
		a.Keys = append(a.Keys, name)
		a.Pools = append(a.Pools, [4]float64{float64(pool), held, gave, want})
	}
	if burst > 0 {
		held, gave, want := b.Capacity.Refill(l.Capacity, now, b.Clients.Backlogged(now))
		add(capacityPool, "tokens", held, gave, float64(want))
	}
	if l.InFlight > 0 {
		has, held, want := b.places.ask(now, l.InFlight, b.InFlight.Usage())
		add(placesPool, "places", float64(held), float64(has), float64(want))
	}
	most := l.Capacity.Rate()
	if most == 0 {
		most = math.Inf(1)
	}
	slots := b.Clients.AskSlots(now, (*Link)(b).Rate(b.measured, most), l.Max)
	if slots.Limit, slots.Rate = l.Capacity.Rate(), b.measured; math.IsInf(b.measured, 1) {
		slots.Rate = 0
	}
	a.Slots = &slots
	if !b.view.Load().alone {
		a.Notes = b.news(maxNotes)
	}
}

// news returns what is to be told the others: what may not have arrived, and more until there are so many.
func (b *backend) news(most int) string {
	b.notes = b.Clients.News(b.notes, most-len(b.notes))
	return encode(b.sender, b.notes, b.zero)
}

// leave implements sharer.
func (b *backend) leave(now time.Duration, a *LeaseAsk) {
	if b.tell(now, a); len(a.Pools) > 0 && a.Pools[0][0] == capacityPool {
		p := &a.Pools[0]
		if p[1], p[2], p[3] = 0, max(0, p[1])+p[2], 0; a.Alone { // it has earned them itself
			p[2] = 0
		}
		b.Capacity.Lose()
	}
	a.Slots.Want = 0
	a.Notes = b.news(math.MaxInt)
}

// hear implements sharer.
func (b *backend) hear(now time.Duration, ask *LeaseAsk, a *LeaseAnswer) {
	b.set(now, b.sent, a.Now)
	if ask.Notes != "" {
		b.notes = b.notes[:0]
	}
	v := *b.view.Load()
	if v.replicas = b.term.Replicas; now < b.term.Alone {
		v.alone = false
	}
	if a.Slots != nil && !v.alone {
		v.rate = a.Slots.Rate
		b.Clients.Join(b.zero, v.replicas)
		b.Clients.HearSlots(now, a.Slots)
		b.hearNews(now, a.News)
	}
	b.view.Store(&v)
	for i, g := range a.Pools {
		switch {
		case ask.Pools[i][0] == placesPool:
			b.places.answered(int(g.Got), int(g.Left))
		case !ask.Alone:
			b.Capacity.Heard(now, int(g.Got), g.Left, time.Duration(max(0, 1-g.Left)/ask.Of[0].Rate*float64(time.Millisecond)))
		}
	}
	b.see(now)
	b.obey(now)
}

func (b *backend) hearNews(now time.Duration, news []string) {
	for _, text := range news {
		if sender, notes := decode(text, b.zero); sender != b.sender {
			for i := range notes {
				b.Clients.Hear(now, &notes[i])
			}
		}
	}
}

// miss implements sharer.
func (b *backend) miss(now time.Duration, ask *LeaseAsk, sure bool) {
	if ask.Slots != nil {
		b.Clients.Untell(ask.Slots, sure)
	}
	if b.limits.InFlight > 0 {
		b.places.unanswered(now)
	}
	b.obey(now)
}

// hurry implements sharer.
func (b *backend) hurry(now time.Duration) time.Duration {
	if b.Clients.WantsSlots() {
		return now
	}
	at := b.Capacity.AsksAt()
	if b.limits.InFlight > 0 {
		at = min(at, b.places.hurry(now, b.limits.InFlight, b.term.Replicas, b.InFlight.Usage()))
	}
	return at
}
