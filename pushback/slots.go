package pushback

import (
	"math"
	"sync/atomic"
	"time"
)

const (
	// dividedTime is how far beyond the shortest wait replicas divide the calendar evenly, each
	// without asking: until the first slots are granted. With half a second there are fewer
	// guesses, but more of the calendar is lost where most clients come to one replica.
	dividedTime = 250 * time.Millisecond

	// leaseAhead is for how long the granted slots should last, beside a trip to the store.
	leaseAhead = 3 * time.Millisecond

	// leastSlots is how many returns are asked for at a time, at least: one exchange for each
	// promise would keep the store busy.
	leastSlots = 3

	// maxGuesses is how many slots are guessed as if no other replica did so, while one trip to
	// the store takes. Within a data centre a herd of 10,000 per second guesses fewer.
	maxGuesses = 16

	// bookingFade is the time constant with which it is forgotten how fast slots are booked.
	bookingFade = 50 * time.Millisecond
)

// A Slot is room for promises in one bucket of a calendar that several replicas share.
type Slot struct {
	Bucket int64   `json:"n"` // its number since the store's epoch, in quarters of a second
	Size   float64 `json:"x"` // returns that may be expected there
}

// SlotsAsk is what a replica tells the store of its calendar, and asks it for.
type SlotsAsk struct {
	Rate    float64 `json:"rate"`              // what this replica adds to the backend's rate, per second
	Limit   float64 `json:"limit"`             // the rate is no more than this, of all replicas; 0: no limit
	Base    float64 `json:"base"`              // requests that come here anyway, per second
	Max     int64   `json:"max"`               // the longest wait, in ms
	Want    float64 `json:"want"`              // expected returns
	Guessed []Slot  `json:"guessed,omitempty"` // promised without a grant
	Back    []Slot  `json:"back,omitempty"`    // granted and not needed
	First   int64   `json:"first,omitempty"`   // with Anew: Answer.First
	Anew    []Slot  `json:"anew,omitempty"`    // all that it holds, after the store has forgotten it

	Numbers float64 `json:"numbers"` // issued in the queue of deferred clients since the last ask; may be below 0
	Served  float64 `json:"served"`  // numbers that were served out of turn since then
	Dry     bool    `json:"dry"`     // the queue has run dry: all numbers are served
	Kept    float64 `json:"kept"`    // share of promises that is kept, 0 to 1
}

// SlotsAnswer has the slots that a replica gets.
type SlotsAnswer struct {
	Rate   float64 `json:"rate"`   // what the other replicas add to the backend's rate
	Base   float64 `json:"base"`   // what comes to the others anyway
	First  int64   `json:"first"`  // buckets from this one on are granted, those before divided; 0: none is granted
	Cursor int64   `json:"cursor"` // all buckets before this one are granted already
	Grants []Slot  `json:"grants,omitempty"`
	Issued float64 `json:"issued"` // numbers, by all replicas
	Served float64 `json:"served"`
}

// granted is what a replica may book in a bucket.
type granted struct {
	own    float32         // returns that it was granted, or has guessed
	guess  float32         // of them, guessed
	untold float32         // of these, not told yet
	heard  [trusts]float32 // promises of other replicas, among those made
}

// here returns the share of a bucket's promises that this replica made.
func (b *bucket) here(t int) float64 {
	if b.heard[t] == 0 || b.made[t] == 0 {
		return 1
	}
	return 1 - float64(b.heard[t]/b.made[t])
}

// slots says which slots of a calendar a replica may promise that shares it with others. The
// zero slots are of one that shares none. It is guarded by the Calendar's lock.
type slots struct {
	slotState
	wants atomic.Bool // more slots, before they are used up
}

// slotState is what a Copy takes of them.
type slotState struct {
	zero     time.Duration // the store's time at 0
	replicas int           // that divide the calendar; 0: it is not shared, or the store is gone
	rank     int           // of this one
	late     bool          // the store's answer is: see Late
	guesses  int           // since the last AskSlots
	others   struct{ rate, base float64 }
	first    int64 // of the granted buckets; 0: none
	cursor   int64 // all before it are granted
	divided  int64 // buckets before it are divided evenly
	spent    spent // granted ones, in which there is no room

	free     float64       // granted returns that are not booked
	count    int           // bookings since counted
	counted  time.Duration // when the rate was measured
	rate     float64       // bookings per second
	fresh    int           // bookings since the last AskSlots
	trip     time.Duration // that the last exchange took
	ahead    float64       // bookings until slots that are asked for now are there
	bookedAt time.Duration // the last one
	issuedAt float64       // numbers issued, as the store knows
	left     float64       // clients that have left the queue since the last AskSlots
	dried    bool          // since then
	anew     bool          // the store has forgotten everything
}

// number returns the number of the bucket of an instant.
func (s *slots) number(at time.Duration) int64 { return int64((at + s.zero) / SlotWidth) }

// begin returns when a bucket begins.
func (s *slots) begin(n int64) time.Duration { return time.Duration(n)*SlotWidth - s.zero }

// divide notes which buckets are divided evenly at now.
func (s *slots) divide(now time.Duration) {
	if s.replicas == 0 {
		return
	}
	if s.divided = s.first; s.first == 0 {
		s.divided = s.number(now+time.Second+dividedTime) + 1
	}
}

// part returns how much of a bucket's size this replica may book.
func (s *slots) part(b *bucket, size float64) float64 {
	switch {
	case s.replicas == 0:
		return max(size, float64(b.own))
	case b.own > 0:
		return float64(b.own)
	case b.number < s.divided:
		return size / float64(s.replicas)
	}
	return 0
}

// ends reports whether what does not fit into a bucket must not go to the next one, which
// may be another replica's.
func (s *slots) ends(b *bucket) bool {
	return s.replicas > 0 && (b.own > 0 || b.number+1 >= s.divided)
}

// phase returns the place in a bucket of the next slot: that of the replicas' slots differs.
func (s *slots) phase(load, size float64) time.Duration {
	at := load / size
	if s.replicas > 1 {
		at += float64(s.rank) / float64(s.replicas) * min(1/size, max(0, 1-at))
	}
	return time.Duration(at * float64(SlotWidth))
}

// booked counts a promise.
func (s *slots) booked(now time.Duration, b *bucket, share float64) {
	if s.replicas == 0 {
		return
	}
	if b.own > 0 {
		s.free -= share
	}
	s.count++
	s.fresh++
	s.bookedAt = now
	s.measure(now)
	s.watch()
}

// watch brings wants up to date.
func (s *slots) watch() {
	wants := s.replicas > 0 && (s.anew || s.fresh > 0 && s.free < s.ahead+1)
	if wants != s.wants.Load() {
		s.wants.Store(wants)
	}
}

// measure brings the rate of bookings to now.
func (s *slots) measure(now time.Duration) {
	if d := now - s.counted; d >= 5*time.Millisecond {
		s.rate = max(float64(s.count)/d.Seconds(), s.rate*math.Exp(-d.Seconds()/bookingFade.Seconds()))
		s.count, s.counted = 0, now
		s.ahead = s.rate * (leaseAhead + s.trip).Seconds()
	}
}

// spent is a run of buckets, none of them divided, that have no room for a promise of that
// trust, as long as promises are worth the same: not all of them need be looked at each time.
type spent struct {
	from, to int64
	trust    Trust
	worth    [trusts]float64
}

// worth returns what promises are worth, by trust.
func (c *Calendar) worth() [trusts]float64 {
	return [...]float64{Untried: c.share(Untried), Proven: c.share(Proven)}
}

// next returns the first bucket from n on that may have room for a promise.
func (c *Calendar) next(n int64, t Trust) int64 {
	if s := &c.spent; n < s.to && n >= max(s.from, c.divided) && t == s.trust && c.worth() == s.worth {
		return s.to
	}
	return n
}

// spend notes that a promise has found no room from one bucket to before another.
func (c *Calendar) spend(from, to int64, t Trust) {
	if c.replicas == 0 {
		return
	}
	worth := c.worth()
	if from <= c.spent.to && t == c.spent.trust && worth == c.spent.worth {
		from = min(from, c.spent.from)
	}
	c.spent = spent{from, to, t, worth}
}

// guess promises a slot that is not granted, as the store has not answered yet: as if all
// that is left were this replica's. It is told with the next AskSlots. At its even part, a
// replica to which most clients come would promise times far too late.
func (c *Calendar) guess(now, from, limit time.Duration, r Rates, t Trust) (a Appointment, ok bool) {
	if c.replicas == 0 {
		return a, false
	}
	size := c.spare(r.Rate) * SlotWidth.Seconds()
	if c.guesses++; c.late || c.guesses > maxGuesses { // the others guess, too
		size *= max(1/float64(c.replicas), c.base.rate/max(1e-9, c.base.rate+c.others.base))
	}
	for n, last := max(c.number(from), c.cursor, c.divided), c.number(limit); n <= last; n++ {
		if b := c.bucket(n); b != nil && float64(b.guess) > size*(1-1e-6) {
			continue
		}
		b, _ := c.open(n, r, size)
		at := max(from, c.begin(n)+time.Duration(float64(b.guess)/size*float64(SlotWidth)))
		if at > limit {
			break
		}
		share := float32(c.share(t))
		b.own, b.guess, b.untold = b.own+share, b.guess+share, b.untold+share
		c.free += float64(share)
		b.booked[t]++
		b.worth += share
		return c.promise(now, at, b, t), true
	}
	return a, false
}

// Join has the calendar share its slots with other replicas, which number them by the
// store's clock: zero is its time at 0. This one has a rank among so many.
func (c *Calendar) Join(now, zero time.Duration, replicas, rank int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	zero -= zero % dueUnit
	if replicas != c.replicas {
		c.reopen()
	}
	if d := zero - c.zero; d > SlotWidth || d < -SlotWidth { // the buckets have other numbers
		c.ring, c.zero = nil, zero
		c.reopen()
		c.matured = c.number(now - maturity)
		c.waiting.Store(0)
	}
	c.zero, c.replicas, c.rank, c.late = zero, replicas, rank, false
	c.watch()
}

// Late tells that the store does not answer at the moment. Until the next Join, guesses are as
// dense as this replica's share of the requests that came before: a herd that keeps all
// replicas busy would else be promised each slot by each of them.
func (c *Calendar) Late() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.late = true
}

// Part has the calendar do without the other replicas: all of its slots are for clients of
// this one, at a rate that is its own.
func (c *Calendar) Part() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.replicas, c.others.rate, c.others.base = 0, 0, 0
	c.reopen()
	c.watch()
}

// WantsSlots reports whether more slots are to be asked for, before they are used up. It
// costs one atomic load.
func (c *Calendar) WantsSlots() bool { return c.wants.Load() }

// Forgot tells that the store has forgotten which slots it has granted.
func (c *Calendar) Forgot() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.anew = c.free > 0 || c.first > 0
	c.watch()
}

// AskSlots returns what to tell the store of the calendar, and to ask it for. A trip to the
// store takes so long, and rate is what is known of the backend's.
func (c *Calendar) AskSlots(now, trip time.Duration, r Rates) (a SlotsAsk) {
	c.mu.Lock()
	defer c.mu.Unlock()
	defer c.watch()
	c.advance(now, r)
	c.trip, c.ahead = trip, c.rate*(leaseAhead+trip).Seconds()
	a = SlotsAsk{Base: c.anyway(), Max: int64(r.Max / time.Millisecond), Kept: c.share(Untried)}
	a.Numbers, a.Served, a.Dry = c.issued-c.issuedAt, c.left, c.dried
	c.issuedAt, c.left, c.dried = c.issued, 0, false
	if c.replicas == 0 {
		return a
	}
	c.measure(now)
	quiet := now-c.bookedAt > bookingFade
	c.survey(now, quiet, &a)
	need := 0.0
	if !quiet {
		need = max(leastSlots, math.Ceil(c.ahead))
	}
	if c.fresh > 0 && !quiet { // as many as since the last time, once more
		need = max(need, min(float64(c.fresh), r.Rate/4))
	}
	c.fresh, c.guesses = 0, 0
	a.Want = max(0, math.Ceil(need-max(0, c.free)))
	if c.anew {
		a.First = max(1, c.first)
		c.anew = false
	}
	return a
}

// ReturnSlots returns all that is granted and not booked, as its replica ends.
func (c *Calendar) ReturnSlots(now time.Duration) (a SlotsAsk) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if a.Kept = c.share(Untried); c.replicas > 0 {
		c.survey(now, true, &a)
	}
	return a
}

// survey looks at what is granted: it fills in what was guessed, what goes back because it
// is not needed, and all of it if the store has forgotten it.
func (c *Calendar) survey(now time.Duration, quiet bool, a *SlotsAsk) {
	c.free = 0
	if c.ring == nil {
		return
	}
	for n, last := c.number(now)+1, c.number(now)+buckets-8; n < last; n++ {
		b := c.bucket(n)
		if b == nil || b.own == 0 {
			continue
		}
		if rest := float64(b.own) - c.load(b); quiet && rest > 0.5 && !c.anew {
			rest = math.Floor(rest + 0.5)
			a.Back = append(a.Back, Slot{n, rest})
			b.own -= float32(rest)
		}
		if c.anew {
			a.Anew = append(a.Anew, Slot{n, float64(b.own)})
		} else if b.untold > 0 {
			a.Guessed = append(a.Guessed, Slot{n, float64(b.untold)})
		}
		b.untold = 0
		c.free += max(0, float64(b.own)-c.load(b))
	}
}

// Untell takes back what AskSlots has said to the store: it was told in vain, as far as is
// known. If that is certain, the numbers count, too; else the store may count them twice.
func (c *Calendar) Untell(a *SlotsAsk, certain bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, g := range a.Guessed {
		if b := c.bucket(g.Bucket); b != nil {
			b.untold += float32(g.Size)
		}
	}
	if a.First > 0 { // counted twice, if it was heard
		c.anew = true
		c.watch()
	}
	if certain {
		c.issuedAt -= a.Numbers
		c.left += a.Served
		c.dried = c.dried || a.Dry
	}
}

// HearSlots takes what the store has answered to the last AskSlots.
func (c *Calendar) HearSlots(now time.Duration, a *SlotsAnswer, r Rates) {
	c.mu.Lock()
	defer c.mu.Unlock()
	defer c.watch()
	c.advance(now, r)
	c.others.rate, c.others.base = a.Rate, a.Base
	c.first, c.cursor = a.First, a.Cursor
	for _, g := range a.Grants {
		b, _ := c.open(g.Bucket, r, 0)
		b.own += float32(g.Size)
		c.free += g.Size
		c.frees(g.Bucket)
	}
	c.issued = a.Issued + c.issued - c.issuedAt
	c.served = min(c.issued, a.Served+c.left)
	c.issuedAt = a.Issued
	c.servedAt = max(c.servedAt, now)
}

// Hear notes a promise that another replica has made, with a slot unless it is Deferred.
func (c *Calendar) Hear(p Appointment) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.last.Store(max(c.last.Load(), int64(p.At)))
	if p.Deferred {
		return
	}
	c.until.Store(max(c.until.Load(), int64(p.At)))
	if b, _ := c.open(c.number(p.At), Rates{}, 0); c.number(p.At) >= c.matured {
		b.made[p.Trust]++
		b.heard[p.Trust]++
		b.waiting++
		c.waiting.Add(1)
	}
}

// HearKept notes that a client has come to another replica on time.
func (c *Calendar) HearKept(at time.Duration, t Trust) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if b := c.bucket(c.number(at)); b != nil && b.number >= c.matured {
		b.kept[t]++
		c.came(at)
	} else {
		c.kept[t].addLate()
	}
}
