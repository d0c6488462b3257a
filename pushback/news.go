package pushback

import (
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

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

// news are the notes to be told.
type news struct {
	on   atomic.Bool
	mu   sync.Mutex
	list []Note // guarded by mu
}

// add adds a note, if there are other replicas.
func (n *news) add(note Note) {
	if !n.on.Load() {
		return
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if len(n.list) < maxNews {
		n.list = append(n.list, note)
	}
}

// News appends to to at most n notes that the other replicas have to be told, and forgets them.
func (a *Appointments) News(to []Note, n int) []Note {
	w := &a.news
	w.mu.Lock()
	defer w.mu.Unlock()
	n = min(n, len(w.list))
	to, w.list = append(to, w.list[:n]...), slices.Delete(w.list, 0, n)
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
	if n := &a.news; !n.on.Load() {
		n.mu.Lock()
		n.list = slices.Grow(n.list, maxNews) // so that add does not allocate
		n.mu.Unlock()
		n.on.Store(true)
	}
	a.Line.Join(zero, replicas)
}

// Leave has the appointments shared no more.
func (a *Appointments) Leave() {
	a.Part()
	a.news.on.Store(false)
}
