package share

import (
	"hash/fnv"
	"math"
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
	told  atomic.Bool  // the shell was woken for what is not urgent
	binds atomic.Int64 // from when on Binds wakes the shell

	mu       sync.Mutex // guards the fields below
	limits   Limits
	changed  *Limits // that count when it is served anew; nil: the same
	measured float64 // what the replica adds to the backend's rate
	exchange
	clock
	answers trips
	roster
	places Places
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
	alone  bool          // what is in flight says that the replica is alone
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
	k.Capacity.Draw(now, k.most)
	k.Capacity.Part(l.Capacity, now, k.most)
	k.view.Store(&view{alone: true, parted: true, replicas: k.most})
	k.look.Store(int64(never))
	k.obey(now)
	return k
}

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
	k.obey(now)
}

// Unlink ends the sharing: the replica is the only one.
func (k *Link) Unlink(now time.Duration) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.Capacity.Undraw(k.limits.Capacity, now)
	k.Clients.Leave()
	k.InFlight.Ungrant()
	k.places = Places{}
}

// OnWake sets what tells the shell that Due should be called, as it begins to serve the Link.
// It must not block.
func (k *Link) OnWake(wake func()) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.changed != nil {
		k.limits, k.changed = *k.changed, nil
	}
	k.wake.Store(&wake)
}

func (k *Link) wakeUp() {
	if wake := k.wake.Load(); wake != nil {
		(*wake)()
	}
}

// Look has the replica work alone if the store has been silent for too long. It is to be
// called for each request, for the cost of two atomic operations.
func (k *Link) Look(now time.Duration) {
	k.used.Store(int64(now))
	if int64(now) < k.look.Load() {
		return
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.see(now)
}

// Nudge tells that there may be something to tell the store soon.
func (k *Link) Nudge() {
	if !k.told.Load() && !k.told.Swap(true) {
		k.wakeUp()
	}
}

// Ask returns what a request may wait for that finds no token: a channel that is closed
// when the store has answered. It returns nil if the store has none, or is gone. A request
// that is due is worth waiting for if the store has one soon. One that has to leave a reserve
// does not wait if there was less at the last answer.
func (k *Link) Ask(now time.Duration, due bool, reserve int) <-chan struct{} {
	if k == nil || k.view.Load().alone || !k.Capacity.Misses(now, due, reserve) {
		return nil
	}
	k.mu.Lock()
	c := k.answers.next()
	k.mu.Unlock()
	k.wakeUp()
	return c
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
	return v.alone, v.replicas
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
	k.Clients.Calendar().Late()
	k.look.Store(int64(k.calm))
	// Until then the pool may have earned for it, whenever what is in flight arrives.
	from := k.heard + k.lease
	if k.flying {
		from += k.asked
	}
	k.Capacity.Part(k.limits.Capacity, max(now, from), k.most)
	k.answers.end(true)
}

// Due returns what is to be told to the store at now, if anything is. It is in flight then,
// until Heard or Missed, or until it is given up.
func (k *Link) Due(now time.Duration) (a Ask, ok bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.flying && now-k.sent < GiveUp {
		k.see(now)
		return a, false
	}
	if k.flying {
		k.untell(false)
		k.places.Missed(now)
	}
	k.flying = false
	k.see(now)
	k.obey(now)
	v := k.view.Load()
	placesAt, _ := k.placesAt(now)
	backlog := k.Clients.Backlogged(now)
	urgent := !v.alone && (k.again || now >= placesAt || k.Capacity.Low(k.limits.Capacity, now, v.replicas, backlog) || k.Clients.Calendar().WantsSlots(k.trip))
	if !urgent && now < k.next() {
		return a, false
	}
	k.told.Store(false)
	k.flying, k.alone, k.sent, k.again = true, v.alone, now, false
	k.asked = Lease
	if k.idles(now) {
		k.asked = IdleLease
	}
	k.answers.send()
	k.seq++
	a = Ask{Name: k.name, Seq: k.seq, Lease: k.asked.Milliseconds(), Alone: v.alone, After: k.after, Replicas: k.heardOf}
	if l := k.limits.Capacity; l.Burst() > 0 {
		r := k.Capacity.Refill(l, now, v.replicas, backlog)
		a.Tokens = &TokensAsk{Rate: l.Rate(), Burst: l.Burst(), Held: r.Held, Gave: r.Gave, Want: r.Want}
	}
	slots := k.Clients.Calendar().AskSlots(now, k.trip, k.rates(v))
	slots.Limit = k.limits.Capacity.Rate()
	if slots.Rate = k.measured; math.IsInf(slots.Rate, 1) {
		slots.Rate = 0
	}
	a.Slots, a.Places, k.slots = &slots, k.askPlaces(now), slots
	k.binds.Store(int64(never))
	if k.telling = !v.parted; k.telling {
		a.News = k.tell(maxNotes)
	}
	k.look.Store(int64(min(time.Duration(k.look.Load()), k.sent+flightTime)))
	return a, true
}

// tell returns the news to be told: those that may not have arrived, or the next.
func (k *Link) tell(most int) string {
	if len(k.news.notes) == 0 {
		k.news.number++
		k.news.notes = k.Clients.News(k.news.notes, most)
	}
	return k.news.encode(k.zero)
}

// untell notes that what is in flight was told in vain.
func (k *Link) untell(heard bool) {
	k.Clients.Calendar().Untell(&k.slots, heard)
	k.slots = pushback.SlotsAsk{}
}

// Bye returns the last ask of a replica that ends: the others need not wait until it is not
// heard of any more. It works alone from now on, unless it is served again.
func (k *Link) Bye(now time.Duration) (a Ask, ok bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	v := k.view.Load()
	if v.alone {
		return a, false
	}
	k.seq++
	a = Ask{Name: k.name, Seq: k.seq, Leaves: true, After: k.after}
	k.news.notes = k.Clients.News(k.news.notes, math.MaxInt)
	k.news.number++
	a.News = k.tell(0)
	if l := k.limits.Capacity; l.Burst() > 0 {
		r := k.Capacity.Refill(l, now, v.replicas, false)
		a.Tokens = &TokensAsk{Rate: l.Rate(), Burst: l.Burst(), Held: r.Held + r.Gave}
		k.Capacity.Lose()
	}
	slots := k.Clients.Calendar().ReturnSlots(now)
	a.Slots = &slots
	k.part(now)
	k.calm = now
	k.see(now)
	return a, true
}

// rates returns what the calendar has to know.
func (k *Link) rates(v *view) pushback.Rates {
	most := k.limits.Capacity.Rate()
	if most == 0 {
		most = math.Inf(1)
	}
	rate := min(k.measured+v.rate, most)
	return pushback.Rates{Rate: rate, Min: time.Second, Max: k.limits.Max}
}

func (k *Link) idles(now time.Duration) bool {
	return now-time.Duration(k.used.Load()) > IdleTime && !k.Clients.Expects(now)
}

// next returns when something is to be told that is not urgent.
func (k *Link) next() time.Duration {
	beat := Beat
	if k.asked == IdleLease {
		beat = IdleBeat
	}
	if (len(k.news.notes) > 0 || k.Clients.HasNews()) && !k.view.Load().parted {
		beat = newsTime
	}
	return k.sent + beat
}

// Next returns when Due is to be called again if the shell is not woken.
func (k *Link) Next(now time.Duration) time.Duration {
	k.mu.Lock()
	defer k.mu.Unlock()
	switch {
	case k.flying:
		return max(now, k.sent+GiveUp)
	case k.again:
		return now
	}
	at := k.next()
	if asks, waits := k.Capacity.AsksAt(); waits {
		at = min(at, asks)
	}
	if _, look := k.placesAt(now); look < at {
		at = look
	}
	return max(now, at)
}

// Heard takes the answer to what was sent at an instant. One that was given up does not
// count. Due, Heard and Missed are for one goroutine at a time.
func (k *Link) Heard(now, sent time.Duration, a Answer) {
	for _, text := range k.answer(now, sent, &a) { // they may be many, so no lock is held
		t := decode(text, k.zero)
		if last, ok := k.batches[t.sender]; ok && t.number == last {
			continue // it was told twice
		}
		if k.batches == nil || len(k.batches) >= maxBatches {
			k.batches = map[uint32]uint32{}
		}
		k.batches[t.sender] = t.number
		for i := range t.notes {
			k.Clients.Hear(now, &t.notes[i])
		}
	}
}

// answer takes an answer but for its news, which it returns.
func (k *Link) answer(now, sent time.Duration, a *Answer) (news []string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if !k.flying || sent != k.sent {
		return nil
	}
	k.flying = false
	defer k.obey(now)
	if a.Stale {
		k.answers.end(false)
		return nil
	}
	k.trip = now - sent
	moved := k.set(now, sent, a.Now)
	if a.Over {
		k.untell(true)
		k.part(now)
		k.again = true
		return nil
	}
	if k.telling {
		k.news.notes = k.news.notes[:0]
	}
	if a.Places != nil {
		k.places.Heard(*a.Places)
	}
	if now-k.heard > IdleLease || a.Born != k.born {
		k.since = now // it has not heard of all of them lately
	}
	k.heard, k.lease = now, k.asked
	k.count(now, a)
	if k.born != 0 && (a.Born != k.born || moved) {
		k.Clients.Calendar().Forgot()
	}
	if k.born != 0 && a.Born != k.born {
		a.After = 0 // all that it has is read
	}
	k.born = a.Born
	if k.trip > MaxTrip {
		k.part(now)
		if a.Tokens != nil {
			k.Capacity.Give(a.Tokens.Got)
		}
	} else {
		k.join(now, a)
	}
	k.take(now, a)
	k.see(now)
	k.answers.end(false)
	return a.News
}

// join works with the store, which has answered in time.
func (k *Link) join(now time.Duration, a *Answer) {
	k.view.Store(&view{replicas: k.most})
	if t := a.Tokens; t != nil {
		k.Capacity.Heard(now, t.Got, t.Pool, time.Duration(t.Wait)*time.Millisecond)
	}
	k.again = k.alone // the store was told so, and it is not any more
}

// take takes what the store has said of the calendar.
func (k *Link) take(now time.Duration, a *Answer) {
	v := *k.view.Load()
	if a.Slots != nil && !v.parted {
		v.rate = a.Slots.Rate
		k.view.Store(&v)
		k.Clients.Join(now, k.zero, k.most, k.rank)
		k.Clients.Calendar().HearSlots(now, a.Slots, k.rates(&v))
	}
	k.after = a.After
	k.again = k.again || !v.alone && len(a.News) >= maxNews/2 // there is more to be read
}

// Missed tells that what was sent last is not answered. It may have arrived.
func (k *Link) Missed(now time.Duration) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.flying {
		k.untell(false)
		k.part(now)
		k.places.Missed(now)
	}
	k.flying = false
	k.obey(now)
}

// count takes note of how many replicas there are.
func (r *roster) count(now time.Duration, a *Answer) {
	n := min(max(1, a.Replicas), limiter.MaxReplicas)
	r.rank = min(max(0, a.Rank), n-1)
	if r.heardOf == 0 || n >= r.most || now-r.since > RosterTime { // at first the operator has guessed
		r.most, r.since = n, now
	}
	r.heardOf = r.most
}
