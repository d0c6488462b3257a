package pushback

import (
	"sync"
	"sync/atomic"
	"time"
)

// maxNews bounds the notes that wait to be told to other replicas. The oldest are not told
// then: these clients are strangers to the others.
const maxNews = 4096

// A Note is what one replica tells the others of one client: that it was promised a time,
// or that it has come for it.
type Note struct {
	Key         uint64
	At          time.Duration // that was promised
	Told        time.Duration // when its answer is sent
	Number      uint32        // if Deferred: its position in the queue
	Fingerprint uint8         // the lowest bits of that of its request
	Trust       Trust
	Replace     Replace // of the promises that it had
	Promise     uint8   // to one of a crowd: what it was told to come for
	Deferred    bool    // no slot is reserved
	Kept        bool    // it has come at that time, or before
	OnTime      bool    // if Kept: not before
	Crowd       bool    // it is one of a crowd, whose members are not told apart
}

// promised returns the appointment that a note tells of.
func (n *Note) promised() Appointment {
	return Appointment{At: n.At, Trust: n.Trust, Deferred: n.Deferred, Number: float64(n.Number)}
}

// news are the notes to be told: a ring, of which the oldest is overwritten when it is full.
type news struct {
	on         atomic.Bool
	mu         sync.Mutex
	ring       *[maxNews]Note // guarded by mu; nil: there was no other replica yet
	first, end int            // guarded by mu; of the notes that wait, counted from the beginning
}

// add adds a note, if there are other replicas.
func (n *news) add(note Note) {
	if !n.on.Load() {
		return
	}
	n.mu.Lock()
	n.ring[n.end%maxNews] = note
	n.end++
	n.first = max(n.first, n.end-maxNews)
	n.mu.Unlock()
}

// begin has notes be kept from now on.
func (n *news) begin() {
	if n.on.Load() {
		return
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.ring == nil {
		n.ring = new([maxNews]Note)
	}
	n.on.Store(true)
}

// HasNews reports whether there are notes for other replicas.
func (a *Appointments) HasNews() bool {
	a.news.mu.Lock()
	defer a.news.mu.Unlock()
	return a.news.first < a.news.end
}

// News appends to to at most n notes that the other replicas have to be told, and forgets them.
func (a *Appointments) News(to []Note, n int) []Note {
	w := &a.news
	w.mu.Lock()
	defer w.mu.Unlock()
	for ; n > 0 && w.first < w.end; n-- {
		to = append(to, w.ring[w.first%maxNews])
		w.first++
	}
	return to
}

// Hear takes a note of another replica.
func (a *Appointments) Hear(now time.Duration, n *Note) {
	switch {
	case n.At-now > maxAhead || !n.Kept && now-n.At > maxLate:
		return // no replica promises that, or it is over
	case n.Crowd:
		a.hearOfCrowd(now, n)
		return
	case !n.Kept:
		a.ledger.Write(now, n.Key, uint64(n.Fingerprint), n.promised(), n.Told, n.Replace)
		a.calendar.Hear(n.promised())
		return
	}
	a.ledger.Keep(now, n.Key)
	if !n.Deferred && n.OnTime {
		a.calendar.HearKept(n.At, n.Trust)
	}
}

// hearOfCrowd takes a note on one of a crowd, which is a crowd here, too, from now on.
func (a *Appointments) hearOfCrowd(now time.Duration, n *Note) {
	what := promise(n.Promise)
	if what >= promises {
		return
	}
	w, m := a.crowds.of(now, n.Key)
	if w == nil {
		v := a.ledger.Visit(now, n.Key, 0, 0, 0)
		a.crowds.begin(now, n.Key, &v)
		a.ledger.Drop(n.Key)
		if w, m = a.crowds.of(now, n.Key); w == nil {
			return
		}
	}
	defer m.Unlock()
	switch {
	case !n.Kept:
		w.put(n.At, what, n.Number)
		if a.calendar.Hear(n.promised()); what == ask {
			w.until = max(w.until, n.At)
		}
	case w.use(n.At, what) && n.OnTime && !n.Deferred:
		a.calendar.HearKept(n.At, n.Trust)
	}
}

// Join has the appointments shared with other replicas: see [Calendar.Join].
func (a *Appointments) Join(now, zero time.Duration, replicas, rank int) {
	a.news.begin()
	a.calendar.Join(now, zero, replicas, rank)
}

// Part has the appointments do without the other replicas, whose promises are still known.
func (a *Appointments) Part() {
	a.calendar.Part()
}

// Leave has the appointments shared no more.
func (a *Appointments) Leave() {
	a.Part()
	a.news.on.Store(false)
}

// Calendar returns the calendar, for what it shares.
func (a *Appointments) Calendar() *Calendar { return &a.calendar }
