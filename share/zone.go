package share

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/herdshield/shield/limiter"
)

const (
	// silence is how much later than a beat is due the replica works alone.
	silence = answerTime - Beat

	// trust is for how long a replica that was cut off knows that it is the store which
	// has forgotten, and not the store that has forgotten it.
	trust = 5 * time.Minute
)

// A Zone is one replica's share in one zone: it exchanges the tokens of hot keys in an
// Escrow with a store. It has one ZoneLink for each slot of the store. It is safe for
// concurrent use.
type Zone struct {
	name   string
	escrow *limiter.Escrow
	links  []*ZoneLink

	mu       sync.Mutex
	begun    bool  // the store has answered once; guarded by mu
	replicas []int // by slot, as last answered; guarded by mu
	most     int   // what is shared is divided by; guarded by mu
}

// NewZone returns the share of the replica of that name, which is random and different in
// each process, in a zone whose keys are in e.
func NewZone(name string, e *limiter.Escrow) *Zone {
	z := &Zone{name: name, escrow: e, most: e.Replicas()}
	for slot := range e.Lanes() {
		z.links = append(z.links, &ZoneLink{zone: z, slot: slot, alone: true, life: 1})
	}
	z.replicas = make([]int, len(z.links))
	e.Wake = func(slot int) {
		z.links[slot].wakeUp()
	}
	return z
}

// Links returns the link for each slot.
func (z *Zone) Links() []*ZoneLink { return z.links }

// Escrow returns the keys of the zone.
func (z *Zone) Escrow() *limiter.Escrow { return z.escrow }

// heard is told how many replicas a slot knows of; one that knows of fewer may not have
// heard of all. A replica that is not there from the beginning does not know what clients
// have used before. A store that knows its replicas for long enough is sure of how many
// there are.
func (z *Zone) heard(now time.Duration, slot int, t *TakeAnswer, sure bool) {
	if t.Replicas == 0 { // it does not say
		return
	}
	z.mu.Lock()
	defer z.mu.Unlock()
	z.replicas[slot] = t.Replicas
	if n := slices.Max(z.replicas); sure || n > z.most || !z.begun { // the operator may have guessed
		z.most = n
	}
	z.escrow.Divide(now, z.most)
	if !z.begun {
		z.begun = true
		if !t.New {
			z.escrow.Begin(now)
		}
	}
}

// A ZoneLink is the state machine of one replica's exchanges about the keys of one slot.
// It is driven like a Link: what Due returns is sent, then Heard or Missed is called. It
// has one exchange at a time.
//
// It lives as long as the store hears of it often enough that pools earn for it. After
// that, and after it was alone, it takes a new life, so that no time is paid for twice.
type ZoneLink struct {
	zone *Zone
	slot int
	wake atomic.Pointer[func()]

	mu    sync.Mutex // guards what follows
	alone bool
	life  int64
	lives int64 // the last one that was answered
	seq   int64
	last  int64 // of seq, that was answered
	heard int64 // the store's clock then
	after int64 // what it has read
	born  int64

	bornAt time.Duration // when that was told first

	answers trips
	counts  zoneCounts

	lastAt time.Duration // when last was heard of
	beatAt time.Duration // when the next exchange is due
	flying bool
	probe  bool // the last answer was late: the next tells whether the replica is alone
	sent   time.Duration
	asked  TakeAsk        // in flight
	told   []limiter.Held // with it
	lapse  time.Duration  // until the exchange after that
}

// zoneCounts counts what a link has done.
type zoneCounts struct{ exchanges, keys, missed, lives int64 }

// OnWake sets what tells the shell that Due should be called. It must not block.
func (l *ZoneLink) OnWake(wake func()) { l.wake.Store(&wake) }

func (l *ZoneLink) wakeUp() {
	if wake := l.wake.Load(); wake != nil {
		(*wake)()
	}
}

// Ask returns what a request may wait for whose key has no token here: a channel that is
// closed when the store has answered. It returns nil if the store is gone.
func (z *Zone) Ask(now time.Duration, key limiter.Key) <-chan struct{} {
	return z.links[z.escrow.SlotOf(key)].ask(now, key)
}

func (l *ZoneLink) ask(now time.Duration, key limiter.Key) <-chan struct{} {
	l.mu.Lock()
	defer l.mu.Unlock()
	e := l.zone.escrow
	queued, sent := e.State(now, key)
	switch {
	case l.alone || e.IsAlone(l.slot, now):
		return nil
	case queued:
		return l.answers.next()
	case sent && l.answers.flying != nil:
		return l.answers.flying
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
func (l *ZoneLink) Due(now time.Duration) (ask TakeAsk, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	e := l.zone.escrow
	if l.flying && now-l.sent < GiveUp {
		return ask, false
	}
	if l.flying {
		l.miss(now)
	}
	l.alone = l.alone || !l.probe && e.IsAlone(l.slot, now)
	if !l.alone {
		e.Return(now, l.slot)
	}
	if now < l.beatAt && (l.alone || l.probe || e.Queued(l.slot) == 0) {
		return ask, false
	}
	lease, before := Lease, l.lapse
	if l.lapse = Beat; now-e.LastClaim() > IdleTime {
		l.lapse = IdleBeat
	}
	if max(before, l.lapse) == IdleBeat { // it covers the time from the last exchange to the next
		lease = IdleLease
	}
	if l.alone && now-l.lastAt > trust {
		l.last = 0
	}
	limit, cost := e.Limit()
	l.seq++
	l.asked = TakeAsk{
		Name: l.zone.name, Life: l.life, Seq: l.seq, Last: l.last, Heard: l.heard,
		Lease: lease.Milliseconds(), Alone: l.alone, Replicas: e.Replicas(),
		Rate: limit.Rate(), Burst: limit.Burst(), Cost: cost, After: l.after,
	}
	l.told = l.told[:0]
	if !l.alone && !l.probe {
		l.told = e.Collect(now, l.slot, MaxTake, l.told)
		e.AloneFrom(l.slot, now+flightTime)
	}
	for _, h := range l.told {
		l.asked.Keys = append(l.asked.Keys, KeyTake{
			Key: fmt.Sprintf("%016x", uint64(h.Key)), Want: h.Want,
			Held: int64(math.Ceil(h.Held * million)), Gave: int64(h.Gave * million),
		})
	}
	l.flying, l.sent, l.beatAt = true, now, now+l.lapse
	l.answers.send()
	l.counts.exchanges++
	l.counts.keys += int64(len(l.told))
	return l.asked, true
}

// Heard tells the answer to the exchange that was sent then. One that was given up does
// not count.
func (l *ZoneLink) Heard(now, sent time.Duration, t TakeAnswer) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.flying || sent != l.sent {
		return
	}
	t.Bound(&l.asked)
	e := l.zone.escrow
	inTime := now-sent <= MaxTrip
	if t.Stale || len(t.Keys) != len(l.told) && !t.Over {
		l.miss(now)
		l.life++
		return
	}
	l.flying = false
	defer l.answers.end(!inTime)
	l.last, l.heard, l.lastAt = l.seq, t.Now, now
	if t.Over {
		l.missKeys(now)
		l.life++
		l.beatAt = now
	} else {
		l.accept(now, &t)
	}
	probe := l.probe
	l.probe = false
	switch {
	case !inTime && !probe && !l.alone: // it may be for once
		l.probe, l.beatAt = true, now
		e.AloneFrom(l.slot, now)
	case !inTime:
		l.alone = true
		e.AloneFrom(l.slot, now)
	case l.alone:
		l.alone = false
		l.life++
		l.beatAt = now
		fallthrough
	default:
		e.AloneFrom(l.slot, now+l.lapse+silence)
	}
}

// accept takes over what the store has granted, and what it tells.
func (l *ZoneLink) accept(now time.Duration, t *TakeAnswer) {
	e := l.zone.escrow
	if l.born != t.Born || l.bornAt == 0 {
		l.born, l.bornAt, l.lives = t.Born, now, 0
	}
	l.zone.heard(now, l.slot, t, now-l.bornAt > RosterTime)
	if l.asked.Alone {
		return
	}
	if l.lives != l.life {
		l.lives = l.life
		l.counts.lives++
		e.Live(now, l.slot)
	}
	e.Paid(l.slot, now+time.Duration(l.asked.Lease)*time.Millisecond)
	for i, g := range t.Keys {
		e.Grant(now, l.told[i].Key, limiter.Grant{
			Got: g.Got, Wait: time.Duration(g.Wait) * time.Millisecond, Stay: time.Duration(g.Stay) * time.Millisecond,
		})
	}
	for _, n := range t.News {
		if key, err := strconv.ParseUint(n.Key, 16, 64); err == nil && key != 0 && e.SlotOf(limiter.Key(key)) == l.slot {
			e.Learn(now, limiter.Key(key), time.Duration(n.Stay)*time.Millisecond)
		}
	}
	if l.after = t.After; len(t.News) >= MaxTake {
		l.beatAt = now
	}
}

// Missed tells that the exchange has no answer, and will have none.
func (l *ZoneLink) Missed(now time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.flying {
		l.miss(now)
	}
}

func (l *ZoneLink) miss(now time.Duration) {
	l.flying, l.probe, l.alone = false, false, true
	l.zone.escrow.AloneFrom(l.slot, now)
	l.missKeys(now)
	l.answers.end(true)
	l.counts.missed++
}

func (l *ZoneLink) missKeys(now time.Duration) {
	for _, h := range l.told {
		l.zone.escrow.Missed(now, h.Key)
	}
}

// Bye returns the last ask of a replica that ends: the others need not wait until it is not
// heard of any more. It works alone from now on, unless it is served again.
func (l *ZoneLink) Bye(now time.Duration) (ask TakeAsk, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.last == 0 || l.alone {
		return ask, false
	}
	l.miss(now)
	l.seq++
	ask = TakeAsk{Name: l.zone.name, Life: l.life, Seq: l.seq, Alone: true, Leaves: true}
	l.life++
	l.last = 0
	return ask, true
}

// Next returns when Due is to be called again at the latest.
func (l *ZoneLink) Next(now time.Duration) time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.flying {
		return max(now, l.sent+GiveUp)
	}
	at := l.beatAt
	if returns, ok := l.zone.escrow.Returns(l.slot); ok && !l.alone {
		at = min(at, returns)
	}
	return max(now, at)
}
