package share

import (
	_ "embed"
	"sync"
	"sync/atomic"
	"time"

	"github.com/herdshield/shield/pushback"
)

// Script is what a store runs for each exchange. It is the only definition of what a store does: tests
// and simulations run it, too, with an instant of their own as the first argument.
//
//go:embed lease.lua
var Script string

const (
	// keepTime is how long a pool without use is kept after its lease, and how long pools may
	// earn for no replica before the store takes those that it does not know for empty, not full.
	keepTime = time.Minute

	// quietTime is the silence of all replicas after which the store learns again what they hold. It is
	// far below RosterTime, as a replica may have worked alone meanwhile, and above IdleBeat. A store
	// that began less than that ago, and has lost nothing, is new: no client has used any token before.
	quietTime = 5 * time.Second

	// turnTime is for how long a place that cannot be divided stays with one replica. Passing it on takes
	// about 100 ms, so 0.98 of it is used.
	turnTime = 5 * time.Second

	// silence is how much later than a beat is due the replica works alone: 300 ms after the last answer.
	silence = answerTime - Beat

	// trust is for how long a replica that was cut off assumes that the store has forgotten it if the store
	// does not know its last ask. After that the store may have forgotten on purpose.
	trust = 5 * time.Minute
)

// A LeaseAsk is what one replica tells the store about one unit, and asks it for. It is the second argument of
// Script, as JSON. Times are milliseconds; instants are of the store's clock.
type LeaseAsk struct {
	Me     string `json:"me"`     // the name of the replica: random, one for each process
	Seq    int64  `json:"seq"`    // higher in each ask
	Life   int64  `json:"life"`   // higher after each time in which the replica worked alone
	Last   int64  `json:"last"`   // the Seq of the last ask that was answered; 0: none was
	Till   int64  `json:"till"`   // pools earn for the replica until then, and a later ask is too late
	Alone  bool   `json:"alone"`  // it works with its part of all limits, and only looks for the store
	Leaves bool   `json:"leaves"` // it is its last ask: what it holds goes back
	N      int    `json:"n"`      // by how many replicas it divides what it has: at least 1
	Known  int    `json:"known"`  // how many there are, as the store has said; 0: it was not heard of

	Lease  int64 `json:"lease"`  // Lease
	Forget int64 `json:"forget"` // RosterTime
	Keep   int64 `json:"keep"`   // keepTime
	Quiet  int64 `json:"quiet"`  // quietTime
	Turn   int64 `json:"turn"`   // turnTime

	Of    []PoolKind   `json:"of,omitempty"`
	Pools [][4]float64 `json:"pools,omitempty"` // index in Of, held, given back (of places: in use), wanted
	Keys  []string     `json:"-"`               // of Pools

	X     *[2]float64        `json:"x,omitempty"`     // what this replica adds to the backend's rate, and to its base load
	Slots *pushback.SlotsAsk `json:"slots,omitempty"` // of the line

	After int64  `json:"after"` // LeaseAnswer.After of the last answer
	Notes string `json:"-"`     // for the other replicas; the third argument

	What string `json:"what,omitempty"` // how the unit is defined, if the answer is to have Others
}

// A Unit is what some replicas share under a name: those of another Unit have keys of their own.
type Unit struct {
	What     string `json:"what"`     // all that is defined alike
	Replicas int    `json:"replicas"` // that have it
}

// A PoolKind says what some pools have in common.
type PoolKind struct {
	Rate  float64 `json:"rate"`  // tokens per millisecond; 0: places
	Cap   float64 `json:"cap"`   // the burst, or the limit in flight
	Parts float64 `json:"parts"` // a replica without the pool has cap ÷ parts ÷ replicas: 1, or 2 of the keys of zones
	Cost  float64 `json:"cost"`  // of a request: fewer tokens are of no use
	Stay  int64   `json:"stay"`  // for how long the pool earns for a replica that tells nothing more about it
}

// A LeaseAnswer is the store's answer to a LeaseAsk.
type LeaseAnswer struct {
	Now   int64 `json:"now"`             // the store's clock
	Stale bool  `json:"stale,omitempty"` // a later ask was answered already, and nothing was done
	Over  bool  `json:"over,omitempty"`  // the ask is too late: the replica works alone
	New   bool  `json:"new,omitempty"`   // the store has just begun, and lost nothing
	Born  int64 `json:"born"`            // when it has lost something last; 0: never
	N     int   `json:"n"`               // how many replicas there are
	Rank  int   `json:"rank"`            // of this one among them, by name: 0 to N-1

	Pools []PoolAnswer          `json:"pools,omitempty"` // in the order of the ask
	Slots *pushback.SlotsAnswer `json:"slots,omitempty"`

	News  []string `json:"news,omitempty"` // notes, those of this replica included
	After int64    `json:"after"`
	More  bool     `json:"more,omitempty"` // there is more news

	Others []Unit `json:"others,omitempty"` // of the same name
}

// A PoolAnswer is about one pool.
type PoolAnswer struct {
	Got  float64 `json:"g"` // tokens; or how many places the replica may have
	Left float64 `json:"p"` // in the pool
	Lost float64 `json:"l"` // tokens that found the pool full, in all
}

// A Sharer is what a replica shares of a unit. A Holder calls its methods under its lock, one at a time.
type Sharer interface {
	// Tell adds to an ask what is shared. If the ask is alone, it gets no tokens. probe is true if it is to show
	// whether the store answers in time.
	Tell(now time.Duration, a *LeaseAsk, probe bool)

	// Hear takes the answer to what Tell has told.
	Hear(now time.Duration, ask *LeaseAsk, a *LeaseAnswer)

	// Miss tells that what Tell has told may not have arrived: it is not answered. sure is true if it came too
	// late, and the store has not taken it.
	Miss(now time.Duration, sure bool)

	// Leave adds to the last ask what is given back.
	Leave(now time.Duration, a *LeaseAsk)

	// Hurry returns when an exchange is of use before the beat is due; never if it is not.
	Hurry(now time.Duration) time.Duration

	// Idles reports whether no request has come for IdleTime.
	Idles(now time.Duration) bool

	// Lives tells that a life begins: pools earn for nothing of which it was not told since.
	Lives(now time.Duration)

	// Paid tells that pools may earn for the replica until then.
	Paid(now, until time.Duration)

	// AloneFrom tells from when on the replica works alone, if nothing more is heard.
	AloneFrom(at time.Duration)

	// Count tells how many replicas there are, and the rank of this one. begins is true if this one is new to
	// others that are not.
	Count(now time.Duration, n, rank int, begins bool)
}

// A Holder is the state of one replica's exchanges about one unit with a store. A shell carries them: what Due
// returns is sent, then Heard or Missed is called. There is one exchange at a time, and whatever becomes of it,
// no call waits. It is safe for concurrent use.
//
// A replica lives as long as the store hears of it so often that pools earn for it. It is alone from 300 ms
// after the last answer on, and before pools have ended to earn for it, it earns nothing itself. After that
// it takes a new life, so that no time is paid for twice.
type Holder struct {
	name string
	of   Sharer
	wake atomic.Pointer[func()]
	solo atomic.Int64 // from when on the replica works alone, if nothing more is heard; 0: it always has

	mu     sync.Mutex // guards what follows, and what the Sharer has
	alone  bool
	probe  bool  // the last answer was late: the next one says whether the replica is alone
	life   int64 // as in a LeaseAsk
	lives  int64 // the last life that was answered
	seq    int64
	last   int64
	heard  int64 // the store's clock at the last answer
	after  int64
	born   int64
	bornAt time.Duration // when born was heard of first
	most   int           // replicas
	begun  bool          // the store has answered
	again  bool          // there is more to be read

	flying bool
	sent   time.Duration
	lastAt time.Duration // when the last answer arrived
	beatAt time.Duration // when the next exchange is due
	lapse  time.Duration // until the exchange after that
	asked  LeaseAsk      // in flight

	answers trips
}

// NewHolder returns the Holder of the replica of that name, which is random and different in each process. It
// assumes n replicas until the store has told.
func NewHolder(name string, of Sharer, n int) *Holder {
	return &Holder{name: name, of: of, alone: true, life: 1, most: max(1, n), beatAt: -never}
}

// OnWake sets what tells the shell that Due should be called. It must not block.
func (h *Holder) OnWake(wake func()) { h.wake.Store(&wake) }

// Wake has the shell call Due.
func (h *Holder) Wake() {
	if wake := h.wake.Load(); wake != nil {
		(*wake)()
	}
}

// Await returns what a request may wait for: a channel that is closed when what it wants is answered; nil if the
// store is gone. state says whether that is to be told, and whether it was told and is not answered yet.
func (h *Holder) Await(state func() (queued, sent bool)) <-chan struct{} {
	h.mu.Lock()
	defer h.mu.Unlock()
	queued, sent := state()
	switch {
	case h.alone:
		return nil
	case queued:
		return h.answers.next()
	case sent && h.answers.flying != nil:
		return h.answers.flying
	}
	return answered
}

// answered is the channel of an exchange that has just been answered.
var answered = func() <-chan struct{} {
	c := make(chan struct{})
	close(c)
	return c
}()

// Due returns the exchange that is to be sent at now, if there is one.
func (h *Holder) Due(now time.Duration) (ask LeaseAsk, ok bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.flying && now-h.sent < GiveUp {
		return ask, false
	}
	if h.flying {
		h.miss(now)
	}
	h.alone = h.alone || !h.probe && h.begun && now >= h.aloneAt()
	if now < h.beatAt && (h.alone || h.probe || now < h.of.Hurry(now)) {
		return ask, false
	}
	lease, before := Lease, h.lapse
	if h.lapse = Beat; h.of.Idles(now) {
		h.lapse = IdleBeat
	}
	if max(before, h.lapse) == IdleBeat { // it covers the time from the last exchange to the next
		lease = IdleLease
	}
	if h.alone && now-h.lastAt > trust {
		h.last = 0
	}
	h.seq++
	h.again = false
	h.asked = h.ask()
	h.asked.Alone = h.alone
	if h.begun {
		h.asked.Till = h.heard + lease.Milliseconds()
	}
	if !h.alone {
		h.of.Paid(now, h.lastAt+lease)
	}
	h.of.Tell(now, &h.asked, h.probe)
	if !h.alone && !h.probe {
		h.aloneFrom(now + flightTime)
	}
	h.flying, h.sent, h.beatAt = true, now, now+h.lapse
	h.answers.send()
	return h.asked, true
}

func (h *Holder) ask() LeaseAsk {
	a := LeaseAsk{Me: h.name, Seq: h.seq, Life: h.life, Last: h.last, N: h.most, After: h.after,
		Lease: Lease.Milliseconds(), Forget: RosterTime.Milliseconds(), Keep: keepTime.Milliseconds(),
		Quiet: quietTime.Milliseconds(), Turn: turnTime.Milliseconds()}
	if h.begun {
		a.Known = h.most
	}
	return a
}

// aloneAt returns when the store has been silent for too long, if nothing more is heard.
func (h *Holder) aloneAt() time.Duration { return h.lastAt + h.lapse + silence }

func (h *Holder) aloneFrom(at time.Duration) {
	h.solo.Store(int64(at))
	h.of.AloneFrom(at)
}

func (h *Holder) isAlone(now time.Duration) bool { return int64(now) >= h.solo.Load() }

// Alone reports whether the replica does without the store, and how many replicas there are.
func (h *Holder) Alone(now time.Duration) (alone bool, replicas int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.isAlone(now), h.most
}

// Heard tells the answer to the exchange that was sent then. One that was given up does not count.
func (h *Holder) Heard(now, sent time.Duration, a LeaseAnswer) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if !h.flying || sent != h.sent {
		return
	}
	a.Bound(&h.asked)
	inTime := now-sent <= MaxTrip
	if a.Stale || len(a.Pools) != len(h.asked.Pools) && !a.Over {
		h.miss(now)
		h.life++
		return
	}
	h.flying = false
	defer h.answers.end(!inTime)
	h.last, h.heard, h.lastAt = h.seq, a.Now, now
	if a.Over {
		h.of.Miss(now, true)
		h.life++
		h.beatAt = now
	} else {
		h.accept(now, &a)
	}
	probe := h.probe
	h.probe = false
	switch {
	case !inTime && !probe && !h.alone: // it may be for once
		h.probe, h.beatAt = true, now
		h.aloneFrom(now)
	case !inTime:
		h.alone = true
		h.aloneFrom(now)
	case h.alone:
		h.alone = false
		h.life++
		h.beatAt = now
		fallthrough
	default:
		h.aloneFrom(h.aloneAt())
	}
}

// accept takes what the store has answered.
func (h *Holder) accept(now time.Duration, a *LeaseAnswer) {
	if h.born != a.Born || h.bornAt == 0 {
		h.born, h.bornAt, h.lives = a.Born, now, 0
	}
	h.count(now, a)
	if !h.asked.Alone && h.lives != h.life {
		h.lives = h.life
		h.of.Lives(now)
	}
	h.of.Hear(now, &h.asked, a)
	if h.after = a.After; a.More {
		h.again, h.beatAt = true, now
	}
}

// count takes how many replicas there are. A store that knows its replicas for RosterTime is sure of that; before,
// the number only grows: a part of a limit that is too small loses a little, one that is too large is one too many.
func (h *Holder) count(now time.Duration, a *LeaseAnswer) {
	if a.N == 0 { // it does not say
		return
	}
	if now-h.bornAt > RosterTime || a.N > h.most || !h.begun { // the operator may have guessed
		h.most = a.N
	}
	begins := !h.begun && !a.New
	h.begun = true
	h.of.Count(now, h.most, a.Rank, begins)
}

// Missed tells that the exchange has no answer, and will have none.
func (h *Holder) Missed(now time.Duration) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.flying {
		h.miss(now)
	}
}

func (h *Holder) miss(now time.Duration) {
	h.flying, h.probe, h.alone = false, false, true
	h.aloneFrom(now)
	h.of.Miss(now, false)
	h.answers.end(true)
}

// Bye returns the last ask of a replica that ends: the others need not wait until it is not heard of any more. It
// works alone from now on, unless it is served again.
func (h *Holder) Bye(now time.Duration) (ask LeaseAsk, ok bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.last == 0 {
		return ask, false
	}
	alone := h.alone
	h.miss(now)
	h.seq++
	ask = h.ask()
	ask.Alone, ask.Leaves = alone, true
	h.of.Leave(now, &ask)
	ask.Alone = true
	h.life++
	h.last = 0
	return ask, true
}

// Next returns when Due is to be called again at the latest.
func (h *Holder) Next(now time.Duration) time.Duration {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.flying {
		return max(now, h.sent+GiveUp)
	}
	at := h.beatAt
	if !h.alone && !h.probe {
		at = min(at, h.of.Hurry(now))
	}
	return max(now, at)
}
