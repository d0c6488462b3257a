package share

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/herdshield/shield/limiter"
)

const (
	// answerTime is how long after the last answer that took no longer than MaxTrip a replica works alone. One that takes
	// longer is of use, and says little: the machine may have been busy for a moment.
	answerTime = 300 * time.Millisecond

	never = limiter.Never
)

// A sharer is what a replica shares of a unit: its Holder calls the methods under its lock, one at a time.
type sharer interface {
	// follow tells that the Holder's term has changed.
	follow(now time.Duration)

	// tell adds to an ask what is shared. If the ask is alone, it gets no tokens; if it is the last, the store forgets what
	// is held.
	tell(now time.Duration, a *LeaseAsk)

	// hear takes the answer to what tell has told.
	hear(now time.Duration, ask *LeaseAsk, a *LeaseAnswer)

	// untell tells that what tell has told may not have arrived: it is not answered. follow is called next.
	untell(now time.Duration)

	// hurry returns when an exchange is of use before the beat is due; never if it is not.
	hurry(now time.Duration) time.Duration
}

// A Holder is one replica's side of the exchanges with a store about one unit. Its user carries them: it sends
// what Due returns, and then calls Heard or Missed, GiveUp later at the latest. There is one exchange at a
// time, and no call waits for it. It is safe for concurrent use.
//
// A replica is alive while the store hears from it often enough for pools to earn for it. It works alone from
// 300 ms after the last response, and earns nothing itself until pools have stopped earning for it. Then it
// starts a new life, so that no period is paid for twice.
type Holder struct {
	name string
	of   sharer
	wake atomic.Pointer[func()]
	used atomic.Int64 // the last request

	mu    sync.Mutex // guards what follows, and what the sharer has
	term  limiter.Term
	ended bool  // it is no part of it any more
	life  int64 // as in a LeaseAsk, like the next three
	seq   int64
	last  int64
	after int64
	heard int64 // the store's clock at the last answer that counted; 0: there was none
	born  int64 // as it was told then

	clock   int64 // the store's, at the last answer of all; 0: there was none
	clockAt time.Duration
	back    bool // it was set back since the last answer that counted

	flying bool
	sent   time.Duration
	lastAt time.Duration // when the last answer arrived
	inTime time.Duration // when the last one did that took no longer than MaxTrip
	beatAt time.Duration // when the next exchange is due
	lapse  time.Duration // until the exchange after that
	asked  LeaseAsk      // the last one

	// Each is closed when an exchange has ended: the one in flight, and the next. nil: nobody waits for it.
	thisEnds, nextEnds chan struct{}
}

// init sets the name of the replica, which is random and different in each process. It assumes n replicas until the
// store has told.
func (h *Holder) init(name string, of sharer, n int) {
	h.name, h.of, h.life, h.beatAt, h.inTime = name, of, 1, -never, -never
	h.term.Replicas, h.term.Alone = max(1, n), -never
}

// OnWake sets a function that tells the user to call Due. It must not block.
func (h *Holder) OnWake(wake func()) { h.wake.Store(&wake) }

// Wake asks the user to call Due.
func (h *Holder) Wake() {
	if wake := h.wake.Load(); wake != nil {
		(*wake)()
	}
}

// Use notes that there was a request. It writes only now and then, because writing for each request would cost
// more than everything else it does for other replicas.
func (h *Holder) Use(now time.Duration) {
	if int64(now)-h.used.Load() >= int64(Beat) {
		h.used.Store(int64(now))
	}
}

// await returns what a request may wait for: a channel that is closed when the exchange in flight has ended, if that
// has told what it wants, or the next one; nil if the store is gone.
func (h *Holder) await(now time.Duration, told func() bool) <-chan struct{} {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.alone(now) || h.ended {
		return nil
	}
	ends := &h.nextEnds
	if h.flying && told() {
		ends = &h.thisEnds
	}
	if *ends == nil {
		*ends = make(chan struct{})
	}
	return *ends
}

// end closes a channel, if somebody waits for it.
func end(c *chan struct{}) {
	if *c != nil {
		close(*c)
		*c = nil
	}
}

// Due returns the exchange to send now, if there is one.
func (h *Holder) Due(now time.Duration) (ask LeaseAsk, ok bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.flying || h.ended || now < h.dueAt(now) {
		return ask, false
	}
	before := h.lapse
	if h.lapse = Beat; now-time.Duration(h.used.Load()) > IdleTime {
		h.lapse = IdleBeat
	}
	lease := 2*max(before, h.lapse) + Lease - 2*Beat // it covers the time from the last exchange to the next
	h.asked = h.ask()
	h.asked.Alone, h.asked.Till = h.alone(now), h.heard+lease.Milliseconds()
	if !h.asked.Alone {
		h.term.Paid = max(h.term.Paid, h.lastAt+lease)
	}
	h.of.follow(now)
	h.of.tell(now, &h.asked)
	h.flying, h.sent, h.beatAt = true, now, now+h.lapse
	end(&h.thisEnds)
	h.thisEnds, h.nextEnds = h.nextEnds, nil
	return h.asked, true
}

// dueAt returns when the next exchange is, if none is in flight.
func (h *Holder) dueAt(now time.Duration) time.Duration {
	if h.alone(now) {
		return h.beatAt
	}
	return min(h.beatAt, h.of.hurry(now))
}

// ask returns the next ask, without what is shared.
func (h *Holder) ask() LeaseAsk {
	h.seq++
	return LeaseAsk{Me: h.name, Seq: h.seq, Life: h.life, Last: h.last, Heard: h.heard, N: h.term.Replicas, After: h.after, Back: h.back}
}

// alone reports whether no answer has come in time for so long that the replica works without the store.
func (h *Holder) alone(now time.Duration) bool { return now >= h.term.Alone }

// Alone reports whether the replica works without the store, and how many replicas there are.
func (h *Holder) Alone(now time.Duration) (alone bool, replicas int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.alone(now), h.term.Replicas
}

// Heard takes the response to the exchange sent then. It doesn't count if the exchange was given up. If it took
// too long, the store is asked again immediately.
func (h *Holder) Heard(now, sent time.Duration, a LeaseAnswer) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if !h.flying || sent != h.sent {
		return
	}
	if moved := h.moved(now, a.Now); moved || a.Stale || !a.Fits(&h.asked) {
		h.miss(now)
		h.life++
		return
	}
	h.count(&a)
	h.back = false
	was, late := h.asked.Alone, now-sent > MaxTrip
	h.flying, h.last, h.heard, h.lastAt, h.after = false, h.seq, a.Now, now, a.After
	if !late {
		h.inTime = now
	}
	h.term.Alone = h.inTime + h.lapse + answerTime - Beat // a beat and 200 ms after the last answer in time
	alone := h.alone(now)
	if a.More || !alone && (was || late) {
		h.beatAt = now
	}
	if !was && h.term.Life != h.life {
		h.term.Life, h.term.Began = h.life, now
	}
	h.of.follow(now)
	h.of.hear(now, &h.asked, &a)
	if was && !alone || h.born != a.Born { // the store has forgotten what this life has told
		h.life++
	}
	h.born = a.Born
	end(&h.thisEnds)
	if alone {
		end(&h.nextEnds)
	}
}

// moved takes the store's clock as it was answered at now, and reports whether it was set since the answer before. Then no
// instant of before is right, and the replica works alone until the next answer: with a clock that is another one in each
// answer, it would else believe each time that the pools earn for it, and the store that the ask is too late.
func (h *Holder) moved(now time.Duration, clock int64) bool {
	ran := clock - h.clock - (now - h.clockAt).Milliseconds()
	was, most := h.clock != 0, 2*GiveUp.Milliseconds() // both answers may have been on their way for so long
	h.clock, h.clockAt = clock, now
	h.back = h.back || was && ran < -most
	return was && max(ran, -ran) > most
}

// count takes how many replicas there are. A store that knows its replicas for RosterTime is sure of that; before,
// the number only grows: a part of a limit that is too small loses a little, one that is too large is one too many. At
// first it is what the operator has guessed.
func (h *Holder) count(a *LeaseAnswer) {
	if sure := a.Now-a.Born > RosterTime.Milliseconds(); sure || a.N > h.term.Replicas || h.heard == 0 {
		h.term.Replicas = a.N
	}
}

// Missed reports that the exchange has no response and won't get one.
func (h *Holder) Missed(now time.Duration) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.flying {
		h.miss(now)
	}
}

func (h *Holder) miss(now time.Duration) {
	h.flying, h.term.Alone = false, now
	h.of.untell(now)
	h.of.follow(now)
	end(&h.thisEnds)
	end(&h.nextEnds)
}

// Bye returns the last ask of a replica that shuts down, so that the others don't have to wait until it counts
// as dead. From then on it works alone, unless it is served again.
func (h *Holder) Bye(now time.Duration) (ask LeaseAsk, ok bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.last == 0 {
		return ask, false
	}
	if !h.ended {
		h.miss(now)
	}
	ask = h.ask()
	ask.Alone, ask.Leaves = true, true
	if !h.ended {
		h.of.tell(now, &ask)
	}
	h.life++
	h.last = 0
	return ask, true
}

// end has the replica share nothing any more: a shell that still serves it only tells the others so, by Bye.
func (h *Holder) end() {
	h.ended, h.flying = true, false
	end(&h.thisEnds)
	end(&h.nextEnds)
}

// Next returns when to call Due again at the latest.
func (h *Holder) Next(now time.Duration) time.Duration {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.flying || h.ended {
		return never
	}
	return max(now, h.dueAt(now))
}
