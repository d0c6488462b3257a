package pushback

import (
	"sync"
	"sync/atomic"
	"time"
)

// maxNews bounds the notes that wait to be told to other replicas. The oldest are not told
// then: these clients are new to the others.
const maxNews = 4096

// A Note is what one replica tells the others of one client: that it was promised a time, or
// that it has come for it.
type Note struct {
	Key    uint64
	Turn                 // that was promised
	Told   time.Duration // when its answer is sent
	Kept   bool          // it has come at that time, or before
	OnTime bool          // if Kept: not before
	Shared bool          // it is one of several clients behind one key
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
		a.promises.use(now, n.Key, &n.Turn)
	default:
		a.promises.put(now, n.Key, &n.Turn, n.Told, 0, Unknown)
	}
	if w != nil {
		a.groups.mu.Unlock()
	}
	if n.Kept {
		a.hearKept(&n.Turn, n.OnTime)
	} else {
		a.hear(&n.Turn)
	}
}

// Join has the appointments shared with other replicas: see [Line.Join].
func (a *Appointments) Join(zero time.Duration, replicas int) {
	a.news.begin()
	a.Line.Join(zero, replicas)
}

// Leave has the appointments shared no more.
func (a *Appointments) Leave() {
	a.Part()
	a.news.on.Store(false)
}
