package oncall

import (
	"bytes"
	"cmp"
	"math"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

const (
	topSets = 64 // the six highest bits of a key say which
	topWays = 8

	// topWindow is the time of which a Top says how many events there were.
	topWindow = time.Minute

	// TopClients is how many clients a Top holds. Ours: of 100,000 clients whose
	// requests follow Zipf's law with exponent 1.01 it finds the first 20. With half
	// of them it misses some.
	TopClients = topSets * topWays

	// MaxClientName is how many bytes of a client's name a Top keeps. Ours: an address and
	// a host name fit, as do most tokens.
	MaxClientName = 64

	// MaxPathClass is how many bytes of the class of a client's path a Top keeps. Ours: a method
	// and the first element of most paths fit.
	MaxPathClass = 32
)

// A Top finds the clients with the most events of the last minute among any number of
// clients, in 72 KiB. The zero Top is ready. It is safe for concurrent use, and Count
// makes no allocation.
//
// It is the Space-Saving sketch (Metwally, Agrawal and El Abbadi, "Efficient
// computation of frequent and top-k elements in data streams", ICDT 2005) in 64 sets of 8
// places. A client belongs to one set. A client that is not in its set takes the place of
// the one with the smallest count, and inherits that count as its error. A client with
// more than an eighth of the events of its set is always found. A flood of clients with one event
// each pushes out only those that are rarer than the flood is in one place.
//
// Counts age by windows of a minute, the present one and the one before, of which the part
// counts that is not over a minute ago. A Client has the events since it took its place:
// without the error, so never more than there were in two windows.
type Top struct{ sets [topSets]topSet }

// A topSet has what it knows of its clients by what it is, in a cache line each: to find the rarest client
// takes three of them. All but what is atomic is guarded by mu.
type topSet struct {
	keys      [topWays]atomic.Uint64 // 0: empty. Written under mu
	events    [topWays]atomic.Uint64 // windows: since the client took the place
	early     [topWays]atomic.Uint64 // likewise
	inherited [topWays]window        // the count of the client before
	last      [topWays]atomic.Uint32 // reason and class of the last event
	named     [topWays]atomic.Uint32 // one more than the window of the last Name; 0: none. Written under mu
	since     [topWays]uint32        // when the place was taken, in seconds
	mu        sync.Mutex             // held to take a place, to name a client, and to read all
	names     [topWays]topName
}

type topName struct {
	agent  uint8
	length uint8 // of name, and one more if that is cut
	name   [MaxClientName]byte
	path   [MaxPathClass]byte // zeros after its end
}

// An Event is one that a Top counts.
type Event struct {
	Client uint64 // a hash of its name, not 0: no client may choose its bits
	Early  bool   // it came before it was to come; counted apart, too

	Reason, Class uint8 // shown of a client's last event; they mean nothing here
}

// A Client is one in a Top, with its events of the last minute.
type Client struct {
	Key           uint64
	Name          string  // as much of it as is kept: any bytes
	Cut           bool    // the name is longer
	Events, Early float64 // estimates, as windows are cut
	PerSecond     float64 // of Events, since the client was found, if that is less than a minute ago

	Reason, Class uint8  // of the last event
	Agent         uint8  // as it was when the name was told
	Path          string // likewise: the method, and the first element of the path
}

// Count counts an event at now, the time since any epoch. It reports whether the client has
// not been named in this minute: Name is to be called, now or after a later event.
func (t *Top) Count(now time.Duration, e Event) (unnamed bool) {
	return t.sets[e.Client>>58].hear(now, &e)
}

func (s *topSet) hear(now time.Duration, e *Event) (unnamed bool) {
	index := windowAt(now)
	for i := range s.keys {
		if s.keys[i].Load() == e.Client {
			s.count(i, index, e)
			return s.named[i].Load() != uint32(index)+1
		}
	}
	s.take(now, index, e)
	return true
}

// Name sets the name of a client that is in the Top, its first MaxClientName bytes, what kind
// of software it is, which means nothing here, and the class of what it asks for.
func (t *Top) Name(now time.Duration, client uint64, name []byte, agent uint8, method, path string) {
	t.sets[client>>58].name(now, client, name, agent, method, path)
}

func (s *topSet) name(now time.Duration, client uint64, name []byte, agent uint8, method, path string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range s.keys {
		if s.keys[i].Load() == client {
			at := &s.names[i]
			copy(at.name[:], name)
			at.length, at.agent = uint8(min(len(name), MaxClientName+1)), agent
			setPathClass(&at.path, method, path)
			s.named[i].Store(uint32(windowAt(now)) + 1)
			return
		}
	}
}

// count may count an event for the client that takes the place meanwhile: one too many.
func (s *topSet) count(i int, index uint16, e *Event) {
	add(&s.events[i], index)
	if e.Early {
		add(&s.early[i], index)
	}
	if last := e.last(); s.last[i].Load() != last { // most clients change nothing
		s.last[i].Store(last)
	}
}

func (e *Event) last() uint32 { return uint32(e.Reason) | uint32(e.Class)<<8 }

// take gives the client of an event the place with the smallest count.
func (s *topSet) take(now time.Duration, index uint16, e *Event) {
	s.mu.Lock()
	defer s.mu.Unlock()
	least, smallest := 0, uint64(math.MaxUint64)
	for i := range s.keys {
		if s.keys[i].Load() == e.Client { // another goroutine was faster
			s.count(i, index, e)
			return
		}
		if sum := window(s.events[i].Load()).at(index).total() + s.inherited[i].at(index).total(); sum < smallest {
			least, smallest = i, sum
		}
	}
	s.give(least, now, index, e)
}

// give gives a place to another client, with its first event. Each atomic store costs as much as a lock:
// what is so already is not stored.
func (s *topSet) give(i int, now time.Duration, index uint16, e *Event) {
	s.inherited[i] = window(s.events[i].Load()).at(index).plus(s.inherited[i].at(index))
	s.since[i] = uint32(now / time.Second)
	if s.named[i].Load() != 0 {
		s.named[i].Store(0)
	}
	early := window(0)
	if e.Early {
		early = newWindow(index, 1, 0)
	}
	if window(s.early[i].Load()) != early {
		s.early[i].Store(uint64(early))
	}
	if last := e.last(); s.last[i].Load() != last {
		s.last[i].Store(last)
	}
	s.events[i].Store(uint64(newWindow(index, 1, 0)))
	s.keys[i].Store(e.Client)
}

// Clients returns the named clients with events in the last minute, in no order. It is
// for people who look: it visits all places.
func (t *Top) Clients(now time.Duration) (list []Client) {
	if t == nil {
		return nil
	}
	for i := range t.sets {
		list = t.sets[i].appendClients(list, now)
	}
	return list
}

func (s *topSet) appendClients(list []Client, now time.Duration) []Client {
	s.mu.Lock()
	defer s.mu.Unlock()
	index, left := windowAt(now), 1-float64(now%topWindow)/float64(topWindow)
	for i := range s.keys {
		events := window(s.events[i].Load()).at(index).recent(left)
		if s.named[i].Load() == 0 || events < 0.5 {
			continue
		}
		found := (now - time.Duration(s.since[i])*time.Second).Seconds()
		at, last := &s.names[i], s.last[i].Load()
		list = append(list, Client{
			Key: s.keys[i].Load(), Name: string(at.name[:min(at.length, MaxClientName)]), Cut: at.length > MaxClientName,
			Events: events, Early: window(s.early[i].Load()).at(index).recent(left),
			PerSecond: events / min(topWindow.Seconds(), max(1, found)),
			Reason:    uint8(last), Class: uint8(last >> 8), Agent: at.agent,
			Path: string(bytes.TrimRight(at.path[:], "\x00")),
		})
	}
	return list
}

// setPathClass sets class to the method and the first element of a path, with "/…" for the rest: what
// requests of one client often have in common, in few bytes.
func setPathClass(class *[MaxPathClass]byte, method, path string) {
	*class = [MaxPathClass]byte{}
	n := copy(class[:], method[:min(len(method), len("PROPPATCH"))])
	class[n] = ' '
	n++
	first, rest := path, ""
	if len(path) > 1 {
		if i := strings.IndexByte(path[1:], '/'); i >= 0 {
			first, rest = path[:i+1], path[i+1:]
		}
	}
	if len(rest) <= 1 && len(path) <= len(class)-n {
		copy(class[n:], path)
		return
	}
	const more = "/…"
	n += copy(class[n:len(class)-len(more)], first)
	copy(class[n:], more)
}

// Most returns the n clients of a list with the most events, in that order.
func Most(list []Client, n int) []Client {
	list = slices.Clone(list)
	slices.SortFunc(list, func(a, b Client) int { return cmp.Or(cmp.Compare(b.Events, a.Events), cmp.Compare(a.Key, b.Key)) })
	return list[:min(n, len(list))]
}

// A window counts events in the present minute and in the one before. It is one word, to be
// changed at once: the number of the minute in 16 bits, and 24 bits for each count, which is
// 279,000 events per second of one client.
type window uint64

const mostEvents = 1<<24 - 1

func windowAt(now time.Duration) uint16 { return uint16(now / topWindow) }

func newWindow(index uint16, present, before uint64) window {
	return window(uint64(index)<<48 | min(present, mostEvents)<<24 | min(before, mostEvents))
}

func (w window) present() uint64 { return uint64(w) >> 24 & mostEvents }
func (w window) before() uint64  { return uint64(w) & mostEvents }
func (w window) total() uint64   { return w.present() + w.before() }

// at returns the counts as they are in a later minute. Clocks of several goroutines differ: the
// minute before counts as the same. One that seems to be earlier than that is weeks later, as the
// number of the minute has 16 bits.
func (w window) at(index uint16) window {
	switch ago := int16(index - uint16(w>>48)); {
	case ago == 0, ago == -1:
		return w
	case ago == 1:
		return newWindow(index, 0, w.present())
	}
	return newWindow(index, 0, 0)
}

// plus adds the counts of another window of the same minute.
func (w window) plus(other window) window {
	return newWindow(uint16(w>>48), w.present()+other.present(), w.before()+other.before())
}

// recent returns the count of the last minute. left is the part of the present one that is to come.
func (w window) recent(left float64) float64 {
	return float64(w.present()) + left*float64(w.before())
}

// add counts one event.
func add(to *atomic.Uint64, index uint16) {
	for {
		old := to.Load()
		w := window(old).at(index)
		if w.present() < mostEvents {
			w += 1 << 24
		}
		if to.CompareAndSwap(old, uint64(w)) {
			return
		}
	}
}
