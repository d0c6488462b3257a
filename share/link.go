package share

import (
	"encoding/base64"
	"encoding/binary"
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

// Limits is what you configured. It is the same on all replicas.
type Limits struct {
	Capacity limiter.Limit // the zero Limit: there is none
	InFlight int           // requests in flight, 0: there is no fixed limit
	Adaptive int           // the most that an adaptive limit may be, 0: there is none
	Max      time.Duration // the longest wait
	Replicas int           // how many to assume until the store has told: at least 1
}

// A Link is one replica's share of a backend: tokens of its capacity, permits in flight, and appointments. A
// fixed in-flight limit is divided by demand. Of an adaptive limit, each replica has its part of the maximum
// and finds its own limit below that. It is safe for concurrent use.
type Link struct {
	Holder // its lock guards what is not atomic
	Shared
	limits  Limits
	permits permits

	zero     time.Duration   // the store's clock at 0 of the replica's, which is monotonic: wall clocks do not matter
	measured float64         // what the replica adds to the backend's rate
	sender   uint32          // the hash of the replica's name
	notes    []pushback.Note // that were told last, if they may not have arrived

	view  atomic.Pointer[view]
	urged atomic.Bool // the shell was woken for a permit since the last exchange
}

// NewLink returns the Link of a replica with a name that no other replica has.
func NewLink(name string, of Shared, l Limits, now time.Duration) *Link {
	s := &Link{Shared: of, limits: l, sender: uint32(limiter.KeyOf(name))}
	s.init(name, s, l.Replicas)
	s.view.Store(&view{alone: true})
	s.follow(now)
	return s
}

// A view is what decisions have to know of the other replicas.
type view struct {
	limiter.Term
	alone bool    // the replica has its part of every limit, and of the line
	rate  float64 // what the others add to the backend's rate
}

// Indices in LeaseAsk.Of.
const (
	capacityPool = 1 + iota
	permitsPool
)

// Look makes the replica work alone if the store has been silent for too long. Call it for each request; it
// costs two atomic loads.
func (s *Link) Look(now time.Duration) {
	s.Use(now)
	if v := s.view.Load(); !v.alone && now >= v.Alone {
		s.mu.Lock()
		s.see(now)
		s.mu.Unlock()
	}
}

// Rate returns how many requests per second this replica should assume the backend can serve, given the rate it
// measured itself and the most that all replicas together may use.
func (s *Link) Rate(measured, most float64) float64 {
	if s != nil {
		if v := s.view.Load(); !v.alone {
			return min(measured+v.rate, most)
		}
	}
	return s.Part(measured, most)
}

// Part returns how many of those are for this replica, if all replicas get the same number of requests.
func (s *Link) Part(measured, most float64) float64 {
	if s == nil {
		return min(measured, most)
	}
	return min(measured, most/float64(s.view.Load().Replicas))
}

// Measure reports what this replica contributes to the measured rate of the backend.
func (s *Link) Measure(rate float64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.measured = rate
}

// Lacks reports that a request found no permit, because other replicas may have some to spare.
func (s *Link) Lacks() {
	if !s.view.Load().alone && !s.urged.Load() && !s.urged.Swap(true) {
		s.Wake()
	}
}

// Ask returns a channel that is closed when the store has responded, for a request that misses a token (see
// limiter.Claim.Misses). It returns nil if the store is gone. The caller must not hold a lock of anything in
// Shared.
func (s *Link) Ask(now time.Duration) <-chan struct{} {
	if s.view.Load().alone {
		return nil
	}
	c := s.await(now, func() bool { return false })
	s.Wake()
	return c
}

// Set changes the limits.
func (s *Link) Set(now time.Duration, l Limits) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.limits = l
	s.obey(now)
}

// Unlink ends the sharing. The replica then has the whole limits.
func (s *Link) Unlink(now time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.end()
	s.view.Store(&view{Term: s.term, alone: true})
	s.Capacity.Undraw(s.limits.Capacity, now)
	s.Clients.Leave()
	s.InFlight.Ungrant(now)
}

// see has the view follow the term. A replica that is alone is so until an answer. One that was frozen for so long that the
// others have counted it out has no tokens.
func (s *Link) see(now time.Duration) {
	v := *s.view.Load()
	if v.Term = s.term; !v.alone && now >= v.Alone {
		if now >= s.lastAt+RosterTime {
			s.Capacity.Lose()
		}
		s.Clients.Part()
		v.alone = true
	}
	s.view.Store(&v)
}

// obey bounds what is in flight.
func (s *Link) obey(now time.Duration) {
	switch l, replicas := s.limits, s.term.Replicas; {
	case l.InFlight > 0:
		s.permits.follow(now, l.InFlight, replicas)
		s.InFlight.Grant(now, s.permits.limit, s.permits.until)
	case l.Adaptive > 0:
		s.InFlight.Grant(now, max(1, l.Adaptive/replicas), math.MaxInt64)
	default:
		s.InFlight.Ungrant(now)
	}
}

// follow implements sharer.
func (s *Link) follow(now time.Duration) {
	s.see(now)
	s.Capacity.Follow(s.limits.Capacity, now, s.term, s.Wake)
	s.obey(now)
}

// tell implements sharer.
func (s *Link) tell(now time.Duration, a *LeaseAsk) {
	s.urged.Store(false)
	l := &s.limits
	if a.Leaves {
		s.Capacity.Lose()
		s.permits = permits{alone: Lease} // alone it has its part, and another unit grants it others
	} else {
		s.tellPools(now, a)
	}
	if a.Alone && !a.Leaves { // what it tells of the line may not arrive: it is told when the store is back
		return
	}
	most := l.Capacity.Rate()
	if most == 0 {
		most = math.Inf(1)
	}
	slots := s.Clients.AskSlots(now, s.Rate(s.measured, most), l.Max)
	if slots.Limit, slots.Rate = l.Capacity.Rate(), s.measured; math.IsInf(s.measured, 1) {
		slots.Rate = 0
	}
	a.Slots = &slots
	notes := maxNotes
	if a.Leaves {
		slots.Want, notes = 0, math.MaxInt
	}
	if a.Leaves || !s.view.Load().alone {
		s.notes = s.Clients.News(s.notes, notes-len(s.notes)) // what may not have arrived, and more until there are so many
		a.Notes = encode(s.sender, s.notes, s.zero)
	}
}

// tellPools adds to an ask what is held of tokens and permits.
func (s *Link) tellPools(now time.Duration, a *LeaseAsk) {
	l, stay := &s.limits, 40*RosterTime.Milliseconds()
	burst, rate := float64(l.Capacity.Burst()), l.Capacity.Rate()/1000
	// What all can owe at a time: what is earned while clients that are due wait, at most a second, and two tokens of each.
	debt := burst + 1000*rate + 2*float64(s.term.Replicas)
	a.Of = []PoolKind{{Rate: rate, Cap: burst, Parts: 1, Debt: debt, Stay: stay}, {Cap: float64(l.InFlight), Stay: stay}}
	add := func(pool int, name string, held, gave, want float64) {
		a.Keys = append(a.Keys, name)
		a.Pools = append(a.Pools, [5]float64{float64(pool), held, gave, want})
	}
	if burst > 0 {
		held, gave, want := s.Capacity.Refill(l.Capacity, now)
		add(capacityPool, "tokens", held, gave, float64(want))
	}
	if l.InFlight > 0 {
		held, want := s.permits.ask(now, l.InFlight, s.InFlight.Usage())
		has := s.permits.limit
		if s.permits.heard == 0 && s.heard > 0 { // the limit is new, and the store may have to learn what all have of it
			has = l.InFlight / s.term.Replicas
		}
		add(permitsPool, "places", float64(held), float64(has), float64(want))
	}
}

// hear implements sharer.
func (s *Link) hear(now time.Duration, ask *LeaseAsk, a *LeaseAnswer) {
	s.zero = time.Duration(a.Now)*time.Millisecond - (s.sent+now)/2 // it was told in the middle of the trip
	if ask.Notes != "" {
		s.notes = s.notes[:0]
	}
	if v := *s.view.Load(); a.Slots != nil && now < v.Alone {
		v.alone, v.rate = false, a.Slots.Rate
		s.view.Store(&v)
		s.Clients.HearSlots(now, s.zero, v.Replicas, a.Slots)
		for _, text := range a.News {
			if sender, notes := decode(text, s.zero); sender != s.sender {
				for i := range notes {
					s.Clients.Hear(now, &notes[i])
				}
			}
		}
	}
	for i, g := range a.Pools {
		switch {
		case ask.Pools[i][0] == permitsPool:
			s.permits.answered(int(g.Got), int(g.Left))
		case !ask.Alone:
			s.Capacity.Heard(s.limits.Capacity, (s.sent+now)/2, int(g.Got), g.Left)
		}
	}
	s.obey(now)
}

// untell implements sharer.
func (s *Link) untell(now time.Duration) {
	s.Capacity.Unheard()
	if s.limits.InFlight > 0 {
		s.permits.unanswered(now)
	}
}

// hurry implements sharer.
func (s *Link) hurry(now time.Duration) time.Duration {
	if s.Clients.WantsSlots() {
		return now
	}
	at := s.Capacity.AsksAt()
	if s.limits.InFlight > 0 {
		at = min(at, s.permits.hurry(now, s.limits.InFlight, s.term.Replicas, s.InFlight.Usage()))
	}
	return at
}

// encode returns what a replica tells, as text: the hash of its name, and the notes as they are in memory, but for instants,
// which are of the store's clock. zero is its time at 0.
func encode(sender uint32, notes []pushback.Note, zero time.Duration) string {
	if len(notes) == 0 {
		return ""
	}
	b := binary.BigEndian.AppendUint32(nil, sender)
	for _, n := range notes {
		n.At, n.Told = n.At+zero, n.Told+zero
		b, _ = binary.Append(b, binary.BigEndian, n) // it fails for no such type
	}
	return base64.StdEncoding.EncodeToString(b)
}

// decode returns what a text says; no notes if it is none of this version.
func decode(text string, zero time.Duration) (sender uint32, notes []pushback.Note) {
	b, err := base64.StdEncoding.DecodeString(text)
	if err != nil || len(b) < 4 || (len(b)-4)%binary.Size(pushback.Note{}) != 0 {
		return 0, nil
	}
	notes = make([]pushback.Note, (len(b)-4)/binary.Size(pushback.Note{}))
	_, _ = binary.Decode(b[4:], binary.BigEndian, notes) // it has the length
	for i := range notes {
		n := &notes[i]
		if n.Trust > pushback.Proven || !between(0, n.Number, mostNumbers) {
			return 0, nil
		}
		n.At, n.Told = n.At-zero, n.Told-zero
	}
	return binary.BigEndian.Uint32(b), notes
}
