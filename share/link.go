package share

import (
	"hash/fnv"
	"sync"
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

	// calmTime is how long a replica works alone before it promises its part of the calendar
	// only. Ours: a herd keeps a replica so busy that an answer comes late. If it
	// halved its promises for that, the last of the herd would wait twice as long.
	calmTime = 300 * time.Millisecond

	// newsTime is how long after the last exchange news are told at the latest. Ours: the
	// others have read them a beat later, long before the first promise is due.
	newsTime = 50 * time.Millisecond

	// stepTime is by how much the store's clock may seem to have moved until it is believed.
	stepTime = 50 * time.Millisecond

	// maxBatches bounds the replicas whose last batch is known.
	maxBatches = 1024

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

// A Link joins the share that one replica has in a backend to those of the others, through
// a store. It decides when to tell the store what; a shell carries it. Whatever becomes of
// the store, no call of it waits.
//
// It is safe for concurrent use.
type Link struct {
	Shared
	name  string
	wake  atomic.Pointer[func()]
	view  atomic.Pointer[view]
	look  atomic.Int64 // when the view may change without an answer
	used  atomic.Int64 // the last request
	told  atomic.Bool  // the shell was woken since the last exchange
	urged atomic.Bool  // it was woken for what is urgent

	mu       sync.Mutex // guards the fields below
	ended    bool       // what is shared is the replica's alone: see Unlink
	limits   Limits
	changed  *Limits // that count when it is served anew; nil: the same
	measured float64 // what the replica adds to the backend's rate
	exchange
	clock
	answers trips
	roster
	pools *Backend
}

// A view is what decisions have to know of the other replicas.
type view struct {
	alone    bool // the replica has its part of every limit
	parted   bool // and of the calendar: see calmTime
	replicas int
	rate     float64 // what the others add to the backend's rate
}

// exchange is the one that is in flight, or the last one.
type exchange struct {
	flying bool
	said   Ask           // what is in flight
	sent   time.Duration // the last ask
	heard  time.Duration // the last answer
	calm   time.Duration // if alone: until when the calendar is still shared
	lease  time.Duration // that was told with it
	asked  time.Duration // the lease that was told with the last ask
	trip   time.Duration // how long that took
	seq    int64
	after  int64 // the last news that it has read
	born   int64 // of the store
	again  bool  // there is more to be said at once

	slots   pushback.SlotsAsk // in flight
	telling bool              // news are in flight
	news    batch             // that were told last, if they may not have arrived
	batches map[uint32]uint32 // the last batch of each replica
}

// roster is how many replicas there are. It grows at once, and shrinks when it was smaller
// for RosterTime: a part of a limit that is too small loses a little, one that is too
// large is one too many.
type roster struct {
	most    int
	heardOf int           // the same, if it was heard of the store
	since   time.Duration // when most was heard last
	rank    int
}

// NewLink returns the Link of a replica with a name that no other replica has.
func NewLink(name string, of Shared, l Limits, now time.Duration) *Link {
	k := &Link{Shared: of, name: name, limits: l}
	k.roster = roster{most: max(1, l.Replicas), since: now}
	k.exchange.sent = now - Beat
	h := fnv.New32a()
	_, _ = h.Write([]byte(name)) // it never fails
	k.news.sender = h.Sum32()
	k.view.Store(&view{alone: true, parted: true, replicas: k.most})
	k.look.Store(int64(never))
	k.pools = NewBackend(name, of, l, now)
	return k
}

// Pools returns the tokens and places of the backend, which have exchanges of their own.
func (k *Link) Pools() *Backend { return k.pools }

const never = time.Duration(1<<63 - 1)

// Set changes the limits. While a shell serves the Link, those of other limits are other
// replicas to the store: so what the store is told changes when the Link is served anew.
func (k *Link) Set(now time.Duration, l Limits) {
	k.mu.Lock()
	defer k.mu.Unlock()
	was := k.limits
	if was.Replicas = l.Replicas; l != was && k.wake.Load() != nil {
		k.changed = &l
		return
	}
	k.limits, k.changed = l, nil
	k.pools.Set(now, l)
}

// Unlink ends the sharing: the replica is the only one. A shell that still serves the Link
// has nothing to tell but Bye, and what it hears changes nothing.
func (k *Link) Unlink(now time.Duration) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.ended = true
	k.view.Store(&view{alone: true, parted: true, replicas: k.most})
	k.look.Store(int64(never))
	k.answers.end(true)
	k.pools.Unlink(now)
	k.Clients.Leave()
}

// OnWake sets what tells the shell that Due should be called, as it begins to serve the Link.
// It must not block.
func (k *Link) OnWake(wake func()) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.changed != nil {
		k.limits, k.changed = *k.changed, nil
		k.pools.of.change(k.limits)
	}
	k.wake.Store(&wake)
}

func (k *Link) wakeUp() {
	if wake := k.wake.Load(); wake != nil {
		(*wake)()
	}
}

// Look has the replica work alone if the store has been silent for too long. It is to be
// called for each request, for the cost of two atomic loads.
func (k *Link) Look(now time.Duration) {
	if int64(now)-k.used.Load() >= int64(usedTime) {
		k.used.Store(int64(now))
	}
	k.pools.Look(now)
	if int64(now) < k.look.Load() {
		return
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.see(now)
}

// Nudge tells that there may be something to tell the store. It wakes the shell at once if
// slots or tokens run out, and once for news, which wait until newsTime. It costs a few
// atomic loads.
func (k *Link) Nudge(now time.Duration) {
	k.pools.Nudge(now)
	urgent := k.Clients.Line().WantsSlots() && !k.view.Load().alone
	if urgent && !k.urged.Load() && !k.urged.Swap(true) || !k.told.Load() && !k.told.Swap(true) {
		k.wakeUp()
	}
}

// Ask returns what a request may wait for that misses a token: see Backend.Ask.
func (k *Link) Ask(now time.Duration) <-chan struct{} {
	if k == nil {
		return nil
	}
	return k.pools.Ask(now)
}

// AskSlot returns what a rejected client may wait for that is to be given a slot: a channel that is closed when the
// store has answered. It returns nil if the store is gone.
func (k *Link) AskSlot() <-chan struct{} {
	if k == nil || k.view.Load().alone {
		return nil
	}
	k.mu.Lock()
	c := k.answers.next()
	k.mu.Unlock()
	k.wakeUp()
	return c
}

// AskPlace returns what a request may wait for that finds no place: see Backend.AskPlace.
func (k *Link) AskPlace(now time.Duration) <-chan struct{} {
	if k == nil {
		return nil
	}
	return k.pools.AskPlace(now)
}

// Binds tells that a request has found no place, or has taken the last: see Backend.Binds.
func (k *Link) Binds(now time.Duration) {
	if k != nil {
		k.pools.Binds(now)
	}
}

// Rate returns how many requests per second the backend takes that this replica plans
// with, if it measures one rate itself, and another is the most that all replicas may use.
func (k *Link) Rate(measured, most float64) float64 {
	if k == nil {
		return min(measured, most)
	}
	v := k.view.Load()
	if v.parted {
		return min(measured, most/float64(v.replicas))
	}
	return min(measured+v.rate, most)
}

// Alone reports whether the replica does without the store, and how many replicas there are.
func (k *Link) Alone() (alone bool, replicas int) {
	v := k.view.Load()
	return v.alone || k.pools.Alone(), v.replicas
}

// Measure tells what the replica adds to the rate of a backend whose rate is measured.
func (k *Link) Measure(rate float64) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.measured = rate
}

// see decides at now whether the replica is alone.
func (k *Link) see(now time.Duration) {
	at := k.silentAt()
	if now >= at || k.trip > MaxTrip {
		k.part(now)
	}
	v := k.view.Load()
	switch {
	case v.parted:
		at = never
	case v.alone && now >= k.calm:
		k.view.Store(&view{alone: true, parted: true, replicas: k.most})
		k.Clients.Part()
		at = never
	case v.alone:
		at = k.calm
	}
	k.look.Store(int64(at))
}

// silentAt returns when the store has been silent for too long.
func (k *Link) silentAt() time.Duration {
	at := k.heard + k.lease - Lease + answerTime
	if k.flying {
		at = min(at, k.sent+flightTime)
	}
	return at
}

// part has the replica work alone, if it does not already.
func (k *Link) part(now time.Duration) {
	v := k.view.Load()
	if v.alone {
		return
	}
	k.view.Store(&view{alone: true, replicas: k.most, rate: v.rate})
	k.calm = now + calmTime
	k.Clients.Line().Late()
	k.look.Store(int64(k.calm))
	k.answers.end(true)
}
