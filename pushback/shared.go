package pushback

import "time"

// Replicas that share a backend have one line. A rejection that takes a slot waits for the
// store to give it one: it is held back for a fraction of a second anyway. While the store
// is silent, a replica takes its even part of each second instead, and tells the store later.

// A Slot is how many clients are expected in one second of a line that replicas share.
type Slot struct {
	Second int64   `json:"n"` // since the store's epoch
	Size   float64 `json:"x"`
}

// SlotsAsk is what a replica tells the store of its line, and asks it for.
type SlotsAsk struct {
	Rate    float64 `json:"rate"`              // what this replica adds to the backend's rate, per second
	Limit   float64 `json:"limit"`             // the rate is no more than this, of all replicas; 0: no limit
	Base    float64 `json:"base"`              // requests that come here anyway, per second
	Max     int64   `json:"max"`               // the longest wait, in ms
	Want    int     `json:"want"`              // slots
	Proven  int     `json:"proven"`            // of them, for clients that have come back before
	Guessed []Slot  `json:"guessed,omitempty"` // promised without a grant
	Back    []Slot  `json:"back,omitempty"`    // granted and not needed
	Anew    []Slot  `json:"anew,omitempty"`    // all that it has promised, after the store has forgotten it

	Numbers float64 `json:"numbers"` // issued in the tail since the last ask
	Served  float64 `json:"served"`  // numbers that were served out of turn since then
	Dry     bool    `json:"dry"`     // the tail has run dry: all numbers are served
	Kept    float64 `json:"kept"`    // share of promises to new clients that is kept, 0 to 1
}

// SlotsAnswer has the slots that a replica gets.
type SlotsAnswer struct {
	Rate   float64 `json:"rate"`            // what the other replicas add to the backend's rate
	Base   float64 `json:"base"`            // what comes to the others anyway
	Times  []int64 `json:"times,omitempty"` // of the slots, in ms since the store's epoch
	Full   bool    `json:"full"`            // there were no more within the longest wait
	Issued float64 `json:"issued"`          // numbers, by all replicas
	Served float64 `json:"served"`
}

// sharedLine is what a Line has of other replicas, guarded by its mutex.
type sharedLine struct {
	replicas int // that share the line; 0: it is this replica's alone
	rank     int
	alone    bool          // the store is silent: see Late
	zero     time.Duration // the store's time at 0
	wanted   [trusts]int   // rejected clients that wait for slots, since the last AskSlots
	times    []time.Duration
	noMore   bool // the store has no more slots
	anew     bool // the store has forgotten what was promised
	others   struct{ rate, base float64 }

	issuedTold float64 // numbers issued, as the store knows
	left       float64 // clients that have left the tail since the last AskSlots
	dried      bool    // the tail has run dry since then
}

// Awaits reports whether a rejected client is to wait for the store to give it a slot.
func (l *Line) Awaits(had *Turn, t Trust) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.replicas < 2 || l.alone || had == nil && l.issued > l.served || had != nil && had.Number > l.served {
		return false
	}
	l.wanted[t]++
	l.wants.Store(true)
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

// Late tells that the store does not answer at the moment.
func (l *Line) Late() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.alone, l.times = true, nil
}

// WantsSlots reports whether the store is to be asked for slots. It costs one atomic load.
func (l *Line) WantsSlots() bool { return l.wants.Load() }

// Forgot tells that the store has forgotten what was promised.
func (l *Line) Forgot() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.anew = true
}

// AskSlots returns what to tell the store of the line, and to ask it for. rate is what is
// known of the backend's.
func (l *Line) AskSlots(now time.Duration, rate float64, longest time.Duration) (a SlotsAsk) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.advance(now, min(rate, maxRate))
	a = SlotsAsk{Base: l.base * (1 - l.doubt()), Max: longest.Milliseconds(), Kept: l.keep(Untried)}
	a.Numbers, a.Served, a.Dry = l.issued-l.issuedTold, l.left, l.dried
	l.issuedTold, l.left, l.dried = l.issued, 0, false
	l.wants.Store(false)
	if l.replicas == 0 {
		return a
	}
	l.survey(now, &a)
	if a.Want, a.Proven = l.wanted[Untried]+l.wanted[Proven], l.wanted[Proven]; a.Want == 0 {
		l.giveBackTimes(&a)
	}
	l.wanted = [trusts]int{}
	return a
}

// survey fills in what was promised without a grant, or all of it if the store has forgotten.
func (l *Line) survey(now time.Duration, a *SlotsAsk) {
	list := &a.Guessed
	if l.anew {
		list = &a.Anew
	}
	for n := int64(now / time.Second); n < int64(now/time.Second)+ringSize/2; n++ {
		s := &l.ring[n&(ringSize-1)]
		size := s.untold
		if l.anew {
			size = s.own
		}
		if s.untold = 0; size > 0 {
			*list = append(*list, Slot{l.storeSecond(time.Duration(n)*time.Second + time.Second/2), float64(size)})
		}
	}
	l.anew = false
}

func (l *Line) storeSecond(at time.Duration) int64 { return int64((at + l.zero) / time.Second) }

func (l *Line) giveBackTimes(a *SlotsAsk) {
	for _, at := range l.times {
		a.Back = append(a.Back, Slot{l.storeSecond(at), l.keep(Untried)})
	}
	l.times = nil
}

// ReturnSlots returns all that is granted and not used, as its replica ends.
func (l *Line) ReturnSlots() (a SlotsAsk) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if a.Kept = l.keep(Untried); l.replicas > 0 {
		l.giveBackTimes(&a)
	}
	return a
}

// Untell takes back what AskSlots has said to the store: it was told in vain, as far as is
// known. If that is certain, the numbers count, too; else the store may count them twice.
func (l *Line) Untell(a *SlotsAsk, certain bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, g := range a.Guessed {
		at := time.Duration(g.Second)*time.Second + time.Second/2 - l.zero
		l.secondOf(max(0, at)).untold += float32(g.Size)
	}
	l.anew = l.anew || len(a.Anew) > 0 // counted twice, if it was heard
	if certain {
		l.issuedTold -= a.Numbers
		l.left += a.Served
		l.dried = l.dried || a.Dry
	}
}

// HearSlots takes what the store has answered to the last AskSlots.
func (l *Line) HearSlots(now time.Duration, a *SlotsAnswer) {
	l.mu.Lock()
	defer l.unlock()
	l.others.rate, l.others.base, l.noMore = a.Rate, a.Base, a.Full
	for _, ms := range a.Times {
		l.times = append(l.times, time.Duration(ms)*time.Millisecond-l.zero)
	}
	l.issued = a.Issued + l.issued - l.issuedTold
	l.served = min(l.issued, a.Served+l.left)
	l.issuedTold = a.Issued
}

// Join has the line shared with other replicas, whose clock shows zero at 0.
func (l *Line) Join(zero time.Duration, replicas, rank int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.replicas, l.rank, l.alone, l.zero = replicas, rank, false, zero
}

// Part has the line do without the other replicas: its part of the backend is for its own
// clients.
func (l *Line) Part() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.sharedLine = sharedLine{zero: l.zero}
	l.wants.Store(false)
}

// hear notes a promise of another replica.
func (l *Line) hear(t *Turn) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.tell(*t)
	if t.Slot {
		s := l.secondOf(t.At)
		s.heard[t.Trust]++
		s.heardWorth += float32(l.keep(t.Trust))
		s.waiting++
		l.waiting.Add(1)
		l.until.Store(max(l.until.Load(), int64(t.At)))
	}
}

// hearKept notes that a client has come to another replica for its promise.
func (l *Line) hearKept(t *Turn, onTime bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	s := l.secondOf(t.At)
	l.stopsWaiting(s, t)
	if onTime {
		s.came[t.Trust]++
	} else {
		s.told[t.Trust] = max(0, s.told[t.Trust]-1)
	}
}

// ownRoom is room for a replica that shares the line and has no grant: an even part of each
// second, of which nothing is taken that others are known to have. Its part of a second begins
// at another instant than those of the others.
func (l *Line) ownRoom(from, limit time.Duration, spare float64) (at time.Duration, ok bool) {
	part := spare / float64(l.replicas)
	for n := int64(from / time.Second); ; n++ {
		begin := time.Duration(n) * time.Second
		if begin > limit {
			return 0, false
		}
		s := &l.ring[n&(ringSize-1)]
		own := float64(s.own)
		if own > part*(1-1e-5) || l.load(s) >= spare*(1-1e-5) {
			continue
		}
		slot := begin + time.Duration((own+float64(l.rank)/float64(l.replicas))/part*float64(time.Second))
		if at = max(from, slot); at > limit {
			return 0, false
		}
		if at > slot {
			s.own += float32((at - slot).Seconds() * part)
		}
		return min(at, begin+time.Second-time.Nanosecond), true
	}
}

// takes notes what this replica has promised of a second, and whether the store knows it.
func (s *second) takes(weight float64, told bool) {
	s.own += float32(weight)
	if !told {
		s.untold += float32(weight)
	}
}
