package pushback

import (
	"slices"
	"time"
)

// Replicas that share a backend have one line. A rejection that takes a slot waits for the
// store to give it one: it is held back for a fraction of a second anyway. While the store
// is silent, a replica takes its even part of each second instead, and tells the store later.

// SlotsAsk is what a replica tells the store of its line, and asks it for.
type SlotsAsk struct {
	Rate   float64 `json:"rate"`   // what this replica adds to the backend's rate, per second
	Limit  float64 `json:"limit"`  // the rate is no more than this, of all replicas; 0: no limit
	Base   float64 `json:"base"`   // requests that come here anyway, per second
	Max    int64   `json:"max"`    // the longest wait, in ms
	Want   int     `json:"want"`   // slots
	Proven int     `json:"proven"` // of them, for clients that have come back before
	Last   int64   `json:"last"`   // the last slot that is known here, in ms since the store's epoch

	Numbers float64 `json:"numbers"` // issued in the tail since the last ask
	Served  float64 `json:"served"`  // numbers that were served out of turn since then
	Kept    float64 `json:"kept"`    // share of promises to new clients that is kept, 0 to 1
}

// SlotsAnswer has the slots that a replica gets.
type SlotsAnswer struct {
	Rate   float64 `json:"rate"`            // what the other replicas add to the backend's rate
	Base   float64 `json:"base"`            // what comes to the others anyway
	Times  []int64 `json:"times,omitempty"` // of the slots, in ms since the store's epoch
	Ends   int64   `json:"ends"`            // where the line ends: so far its seconds are full
	Issued float64 `json:"issued"`          // numbers, by all replicas
	Served float64 `json:"served"`
}

// sharedLine is what a Line has of other replicas, guarded by its mutex.
type sharedLine struct {
	replicas int           // that share the line; 0: it is this replica's alone
	zero     time.Duration // the store's time at 0
	wanted   [trusts]int   // rejected clients that wait for slots, since the last AskSlots
	times    []time.Duration
	ends     time.Duration // of the store's line
	others   struct{ rate, base float64 }

	issuedTold float64 // numbers issued, as the store knows
	left       float64 // clients that have left the tail since the last AskSlots
}

// Awaits reports whether a client that the backend has no capacity for is to wait for a slot
// of the store that replicas share.
func (a *Appointments) Awaits(v *Visit) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	c := v.claims()
	if v.Standing == TooEarly || a.replicas < 2 ||
		c.had == nil && a.issued > a.served || c.had != nil && (c.had.Slot || c.had.Number > a.served) {
		return false
	}
	a.wanted[c.trust]++
	return true
}

// granted returns the first slot from an instant on that the store has given.
func (l *Line) granted(from, limit time.Duration) (at time.Duration, ok bool) {
	for i, at := range l.times {
		if at >= from-tolerance && at <= limit {
			l.times = append(l.times[:i], l.times[i+1:]...)
			return at, true
		}
	}
	return 0, false
}

// WantsSlots reports whether the store is to be asked for slots.
func (l *Line) WantsSlots() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.wanted != [trusts]int{}
}

// AskSlots returns what to tell the store of the line, and to ask it for. rate is what is
// known of the backend's. What does not arrive is not told again: that is one exchange's, as a
// replica that works alone does not ask.
func (l *Line) AskSlots(now time.Duration, rate float64, longest time.Duration) (a SlotsAsk) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.advance(now, rate)
	a = SlotsAsk{Base: l.ordinary(), Max: longest.Milliseconds(), Kept: l.keep(untried)}
	a.Numbers, a.Served = l.issued-l.issuedTold, l.left
	l.issuedTold, l.left = l.issued, 0
	if l.replicas == 0 {
		return a
	}
	a.Last = max(0, (time.Duration(l.until.Load()) + l.zero).Milliseconds())
	a.Want, a.Proven = l.wanted[untried]+l.wanted[Proven], l.wanted[Proven]
	l.wanted = [trusts]int{}
	return a
}

// HearSlots takes what the store, whose clock shows zero at 0, has answered to the last AskSlots of so many replicas. From
// the first time on, the appointments are shared.
func (l *Line) HearSlots(now, zero time.Duration, replicas int, a *SlotsAnswer) {
	if l.news.Load() == nil {
		news := make(chan Note, maxNews)
		l.news.Store(&news)
	}
	l.mu.Lock()
	defer l.unlock()
	l.zero, l.replicas = zero, replicas
	l.others.rate, l.others.base, l.ends = a.Rate, a.Base, time.Duration(a.Ends)*time.Millisecond-l.zero
	l.times = slices.DeleteFunc(l.times, func(at time.Duration) bool { return at < now })
	for _, ms := range a.Times {
		l.times = append(l.times, time.Duration(ms)*time.Millisecond-l.zero)
	}
	l.issued = a.Issued + l.issued - l.issuedTold
	l.served = min(l.issued, a.Served+l.left)
	l.issuedTold = a.Issued
}

// Part has the line do without the other replicas: its part of the backend is for its own
// clients.
func (l *Line) Part() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.sharedLine = sharedLine{zero: l.zero, issuedTold: l.issuedTold}
}

// maxNews bounds the notes that wait to be told to other replicas. Further ones are not told:
// these clients are new to the others.
const maxNews = 4096

// A Note is what one replica tells the others of one client: that it was promised a time, or
// that it has come for it.
type Note struct {
	Key    uint64
	Turn                 // that was promised
	Told   time.Duration // when its response is sent
	Kept   bool          // it has come at that time, or before
	OnTime bool          // if Kept: not before
	Shared bool          // it is one of several clients behind one key
}

// note tells the other replicas something, if there are any.
func (l *Line) note(n Note) {
	if news := l.news.Load(); news != nil {
		select {
		case *news <- n:
		default:
		}
	}
}

// News appends to to at most n notes that the other replicas have to be told, and forgets them.
func (l *Line) News(to []Note, n int) []Note {
	for news := l.news.Load(); news != nil && n > 0; n-- {
		select {
		case note := <-*news:
			to = append(to, note)
		default:
			return to
		}
	}
	return to
}

// Hear takes a note of another replica.
func (a *Appointments) Hear(now time.Duration, n *Note) {
	if n.At-now > mostAhead || now-n.At > maxLate {
		return // no replica promises that, or it is over
	}
	w := a.groups.find(n.Key)
	if n.Shared && w == nil {
		a.gather(now, n.Key)
		w = a.groups.find(n.Key)
	}
	switch {
	case w != nil && n.Kept:
		a.groups.use(w, &n.Turn)
	case w != nil:
		a.groups.put(w, &n.Turn)
	case n.Kept:
		a.promises.use(now, n.Key, n.At)
	default:
		a.promises.put(now, n.Key, &n.Turn, n.Told, 0, unknown)
	}
	if w != nil {
		a.groups.mu.Unlock()
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	s := a.secondOf(n.At)
	switch {
	case !n.Kept:
		a.Line.tell(n.Turn)
		if n.Slot {
			a.awaits(s, n.At)
		}
	case n.OnTime:
		s.came[n.Trust]++
		a.stopsWaiting(s, &n.Turn)
	default:
		s.told[n.Trust] = max(0, s.told[n.Trust]-1)
		a.stopsWaiting(s, &n.Turn)
	}
}

// Leave has the appointments shared no more.
func (l *Line) Leave() {
	l.Part()
	l.news.Store(nil)
}
