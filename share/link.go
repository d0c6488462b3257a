package share

import (
	"hash/fnv"
	"math"
	"sync/atomic"
	"time"

	"github.com/herdshield/shield/limiter"
	"github.com/herdshield/shield/loadshed"
	"github.com/herdshield/shield/pushback"
)

const (
	// answerTime is how long after the last answer a replica works alone, and flightTime how
	// long after it has sent something that is not answered.
	answerTime = 300 * time.Millisecond
	flightTime = 50 * time.Millisecond

	// calmTime is how long a replica works alone before it promises its part of the line
	// only. Ours: a herd keeps a replica so busy that an answer comes late. If it
	// halved its promises for that, the last of the herd would wait twice as long.
	calmTime = 300 * time.Millisecond

	// newsTime is how long after the last exchange news are told at the latest. Ours: the
	// others have read them a beat later, long before the first promise is due.
	newsTime = 50 * time.Millisecond

	// stepTime is by how much the store's clock may seem to have moved until it is believed.
	stepTime = 50 * time.Millisecond

	// usedTime is how exactly it is known when the last request came. Ours: to write it for
	// each one would cost more than all else that Look does.
	usedTime = time.Millisecond

	// maxNotes is how many notes one exchange tells.
	maxNotes = 500
)

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
// and what clients were promised. A fixed
// limit in flight is divided by demand; of an adaptive one each replica has its part of the most, and finds its own below
// that. It is safe for concurrent use.
type Link struct {
	*Holder
	of *backend
}

// NewLink returns the Link of a replica with a name that no other replica has.
func NewLink(name string, of Shared, l Limits, now time.Duration) *Link {
	b := &backend{Shared: of, limits: l, n: max(1, l.Replicas), divided: true}
	h := fnv.New32a()
	_, _ = h.Write([]byte(name)) // it never fails
	b.sender = h.Sum32()
	b.view.Store(&view{alone: true, parted: true, replicas: b.n})
	b.look.Store(int64(never))
	b.Holder = NewHolder(name, b, b.n)
	b.low = b.Capacity.Draw(now, b.n)
	b.obey(now)
	return &Link{b.Holder, b}
}

// A backend is what the Holder of a Link tells of. The Holder's lock guards what is not atomic.
type backend struct {
	*Holder
	Shared
	limits  Limits
	places  Places
	until   time.Duration // of what is granted of them
	n, rank int           // replicas, and which of them this is
	divided bool          // the capacity is
	ended   bool
	changed *Limits // that count when it is served anew; nil: the same

	clock
	measured float64       // what the replica adds to the backend's rate
	calm     time.Duration // if alone: until when the line is still shared
	slots    pushback.SlotsAsk
	sender   uint32          // the hash of the replica's name
	notes    []pushback.Note // that were told last, if they may not have arrived

	view atomic.Pointer[view]
	look atomic.Int64 // when the view may change without an answer
	told atomic.Bool  // the shell was woken since the last exchange

	used    atomic.Int64 // the last request
	urged   atomic.Bool  // the shell was woken for what is urgent since the last exchange
	low     *atomic.Bool // tokens run out
	paidTo  time.Duration
	heardAt time.Duration // the last answer
	pools   []int         // what was told: its indices in LeaseAsk.Of
}

const never = time.Duration(1<<63 - 1)

// A view is what decisions have to know of the other replicas.
type view struct {
	alone    bool // the replica has its part of every limit
	parted   bool // and of the line: see calmTime
	replicas int
	rate     float64 // what the others add to the backend's rate
}

// Indices in LeaseAsk.Of, and the names of the pools.
const (
	capacityPool = 1 + iota
	placesPool
)

// TokensPool is the name of the pool of a capacity.
const TokensPool = "tokens"

var backendPools = []string{TokensPool, "places"}

// Look has the replica work alone if the store has been silent for too long. It is to be called for each request, for the
// cost of two atomic loads.
func (s *Link) Look(now time.Duration) {
	b := s.of
	if int64(now)-b.used.Load() >= int64(usedTime) {
		b.used.Store(int64(now))
	}
	if int64(now) >= b.look.Load() {
		b.mu.Lock()
		b.see(now)
		b.mu.Unlock()
	}
}

// Rate returns how many requests per second the backend takes that this replica plans with, if it measures one rate
// itself, and another is the most that all replicas may use.
func (s *Link) Rate(measured, most float64) float64 {
	if s == nil {
		return min(measured, most)
	}
	v := s.of.view.Load()
	if v.parted {
		return min(measured, most/float64(v.replicas))
	}
	return min(measured+v.rate, most)
}

// Measure tells what the replica adds to the rate of a backend whose rate is measured.
func (s *Link) Measure(rate float64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.of.measured = rate
}

// Nudge tells that there may be something to tell the store. It wakes the shell at once if slots or tokens run out, and
// once for news, which wait until newsTime. It costs a few atomic loads.
func (s *Link) Nudge() {
	b := s.of
	urgent := (b.Clients.WantsSlots() || b.low.Load()) && !b.view.Load().alone
	if urgent && !b.urged.Load() && !b.urged.Swap(true) || !b.told.Load() && !b.told.Swap(true) {
		b.Wake()
	}
}

// Ask returns what a request may wait for that misses a token, see [limiter.Claim.Misses]: a channel that is closed when
// the store has answered. It returns nil if the store is gone.
func (s *Link) Ask() <-chan struct{} {
	if s == nil || s.of.view.Load().alone {
		return nil
	}
	c := s.Await(func() (queued, sent bool) { return true, false })
	s.Wake()
	return c
}

// AskPlace returns what a request may wait for that finds no place: see Ask.
func (s *Link) AskPlace() <-chan struct{} {
	if s == nil || !s.of.InFlight.MayGrow() {
		return nil
	}
	return s.Ask()
}

// Set changes the limits. While a shell serves the Link, those of other limits are other replicas to the store: so what
// the store is told changes when the Link is served anew.
func (s *Link) Set(now time.Duration, l Limits) {
	b := s.of
	b.mu.Lock()
	defer b.mu.Unlock()
	was := b.limits
	if was.Replicas = l.Replicas; l != was && b.wake.Load() != nil {
		b.changed = &l
		return
	}
	b.limits, b.changed = l, nil
	b.obey(now)
}

// OnWake sets what tells the shell that Due should be called, as it begins to serve the Link. It must not block.
func (s *Link) OnWake(wake func()) {
	b := s.of
	b.mu.Lock()
	if b.changed != nil {
		b.limits, b.changed = *b.changed, nil
	}
	b.mu.Unlock()
	b.Holder.OnWake(wake)
}

// Unlink ends the sharing: the replica is the only one.
func (s *Link) Unlink(now time.Duration) {
	b := s.of
	b.mu.Lock()
	defer b.mu.Unlock()
	b.ended = true
	b.view.Store(&view{alone: true, parted: true, replicas: b.n})
	b.look.Store(int64(never))
	b.answers.end(true)
	b.Capacity.Undraw(b.limits.Capacity, now)
	b.Clients.Leave()
	b.InFlight.Ungrant()
}

// see has the replica work alone if it is at now, and a moment later promise its part of the line only. Until paidTo the
// pool of the capacity may earn for it. One that was frozen for so long that the others have counted it out has no tokens.
func (b *backend) see(now time.Duration) {
	v := b.view.Load()
	switch {
	case b.ended || v.parted:
		b.look.Store(int64(never))
	case !b.isAlone(now):
		b.look.Store(b.solo.Load())
	case !v.alone:
		if b.divided = true; b.heardAt != 0 && now >= b.heardAt+RosterTime {
			b.Capacity.Lose()
		}
		b.Capacity.Part(b.limits.Capacity, now, b.paidTo, b.n)
		b.view.Store(&view{alone: true, replicas: b.n, rate: v.rate})
		b.calm = now + calmTime
		b.look.Store(int64(b.calm))
		b.Clients.Late()
		b.answers.end(true)
	case now >= b.calm:
		b.view.Store(&view{alone: true, parted: true, replicas: b.n})
		b.look.Store(int64(never))
		b.Clients.Part()
	default:
		b.look.Store(int64(b.calm))
	}
}

// obey bounds what is in flight.
func (b *backend) obey(now time.Duration) {
	switch l := b.limits; {
	case b.ended:
	case l.InFlight > 0:
		n, until := b.places.Limit(now, l.InFlight, b.n, b.rank)
		b.until = until
		b.InFlight.Grant(now, n, b.places.Free(b.n), until)
	case l.Adaptive > 0:
		b.InFlight.Grant(now, max(1, l.Adaptive/b.n), 0, math.MaxInt64)
	default:
		b.InFlight.Ungrant()
	}
}

// Tell implements Sharer.
func (b *backend) Tell(now time.Duration, a *LeaseAsk, _ bool) {
	b.see(now)
	b.obey(now)
	b.urged.Store(false) // what changes from now on is urgent anew
	b.told.Store(false)
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
	if b.ended {
		return
	}
	v := b.view.Load()
	b.slots = b.Clients.AskSlots(now, b.rate(v), l.Max)
	b.tellLine(a)
	if !v.parted {
		a.Notes = b.tellNews(maxNotes)
	}
}

// rate returns what is known of the backend's.
func (b *backend) rate(v *view) float64 {
	most := b.limits.Capacity.Rate()
	if most == 0 {
		most = math.Inf(1)
	}
	return min(b.measured+v.rate, most)
}

// tellLine adds what is told of the line.
func (b *backend) tellLine(a *LeaseAsk) {
	if b.slots.Limit, b.slots.Rate = b.limits.Capacity.Rate(), b.measured; math.IsInf(b.measured, 1) {
		b.slots.Rate = 0
	}
	slots := b.slots
	a.Slots, a.X = &slots, &[2]float64{slots.Rate, slots.Base}
}

// tellNews returns the news to be told: those that may not have arrived, or the next.
func (b *backend) tellNews(most int) string {
	if len(b.notes) == 0 {
		b.notes = b.Clients.News(b.notes, most)
	}
	return encode(b.sender, b.notes, b.zero)
}

// Leave implements Sharer.
func (b *backend) Leave(now time.Duration, a *LeaseAsk) {
	if b.ended {
		return
	}
	if b.Tell(now, a, false); len(a.Pools) > 0 && b.pools[0] == capacityPool {
		p := &a.Pools[0]
		if p[1], p[2], p[3] = 0, max(0, p[1])+p[2], 0; a.Alone { // it has earned them itself
			p[2] = 0
		}
		b.Capacity.Lose()
	}
	a.Slots.Want = 0
	b.notes = b.Clients.News(b.notes, math.MaxInt)
	a.Notes = encode(b.sender, b.notes, b.zero)
}

// Hear implements Sharer.
func (b *backend) Hear(now time.Duration, ask *LeaseAsk, a *LeaseAnswer) {
	b.heardAt = now
	if b.ended {
		return
	}
	b.hearLine(now, ask, a)
	for i, g := range a.Pools {
		switch b.pools[i] {
		case capacityPool:
			if ask.Alone {
				continue
			}
			b.divided = false
			b.Capacity.Heard(now, int(g.Got), g.Left, time.Duration(max(0, 1-g.Left)/ask.Of[0].Rate*float64(time.Millisecond)))
			if b.view.Load().alone { // the answer is late: the replica earns itself
				b.divided = true
				b.Capacity.Part(b.limits.Capacity, now, b.paidTo, b.n)
			}
		case placesPool:
			b.places.Heard(PlacesAnswer{Limit: int(g.Got), Free: int(g.Left)})
		}
	}
	b.obey(now)
}

// hearLine takes what the store has said of the line, and the others of their clients.
func (b *backend) hearLine(now time.Duration, ask *LeaseAsk, a *LeaseAnswer) {
	b.set(now, b.sent, a.Now)
	if ask.Notes != "" {
		b.notes = b.notes[:0]
	}
	v := *b.view.Load()
	if now-b.sent <= MaxTrip {
		v = view{replicas: b.n, rate: v.rate}
	}
	if v.replicas = b.n; a.Slots != nil && !v.parted {
		v.rate = a.Slots.Rate
		b.Clients.Join(b.zero, b.n)
		b.Clients.HearSlots(now, a.Slots)
		b.hearNews(now, a.News)
	}
	b.slots = pushback.SlotsAsk{}
	b.view.Store(&v)
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

// Miss implements Sharer.
func (b *backend) Miss(now time.Duration, sure bool) {
	b.see(now)
	if b.ended {
		return
	}
	b.Clients.Untell(&b.slots, sure)
	b.slots = pushback.SlotsAsk{}
	if b.limits.InFlight > 0 {
		b.places.Missed(now)
	}
	b.obey(now)
}

// Hurry implements Sharer.
func (b *backend) Hurry(now time.Duration) time.Duration {
	b.see(now)
	at := never
	if !b.ended && (len(b.notes) > 0 || b.Clients.HasNews()) && !b.view.Load().parted {
		at = b.sent + newsTime
	}
	if b.ended || b.isAlone(now) {
		return at
	}
	if b.Clients.WantsSlots() {
		return now
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

// Idles implements Sharer.
func (b *backend) Idles(now time.Duration) bool {
	return now-time.Duration(b.used.Load()) > IdleTime && !b.Clients.Expects(now)
}

// Lives implements Sharer.
func (b *backend) Lives(time.Duration) {}

// Paid implements Sharer.
func (b *backend) Paid(now, until time.Duration) {
	b.paidTo = max(b.paidTo, until)
	if b.divided && !b.ended {
		b.Capacity.Part(b.limits.Capacity, now, b.paidTo, b.n)
	}
}

// AloneFrom implements Sharer.
func (b *backend) AloneFrom(at time.Duration) {
	if !b.ended {
		b.look.Store(int64(at))
	}
}

// Count implements Sharer.
func (b *backend) Count(now time.Duration, n, rank int, _ bool) {
	b.n, b.rank = n, rank
	b.obey(now)
}
