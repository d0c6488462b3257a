package oncall

import (
	"bytes"
	"cmp"
	"math"
	"slices"
	"strings"
	"sync"
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
// Counts age by the minute: the present one counts, and of the one before the part that is not over a minute
// ago. A Client has the events since it took its place: without the error, so never more than there were in two
// minutes.
type Top struct{ sets [topSets]topSet }

// A topSet is 8 places for clients; all guarded by mu.
type topSet struct {
	mu     sync.Mutex
	keys   [topWays]uint64 // 0: empty; apart, so that they are in one cache line
	places [topWays]place
}

// A place is what a Top knows of a client.
type place struct {
	minute          uint32 // the present one
	present, before tally  // of it, and of the minute before
	named           uint32 // one more than the minute of the last Name; 0: none
	since           uint32 // when the client took the place, in seconds
	reason, class   uint8  // of the last event
	agent           uint8
	length          uint8 // of name, and one more if that is cut
	name            [MaxClientName]byte
	path            [MaxPathClass]byte // zeros after its end
}

// A tally is the events of a client in a minute, and those that it has inherited with its place.
type tally struct{ events, early, inherited uint32 }

func minuteAt(now time.Duration) uint32 { return uint32(now / topWindow) }

// turn begins a later minute. Clocks of several goroutines differ: an earlier minute counts as the present one.
func (p *place) turn(minute uint32) {
	if minute <= p.minute {
		return
	}
	p.before = tally{}
	if minute == p.minute+1 {
		p.before = p.present
	}
	p.minute, p.present = minute, tally{}
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
	Events, Early float64 // estimates, as minutes are cut
	PerSecond     float64 // of Events, since the client was found, if that is less than a minute ago

	Reason, Class uint8  // of the last event
	Agent         uint8  // as it was when the name was told
	Path          string // likewise: the method, and the first element of the path
}

// Count counts an event at now, the time since any epoch. It reports whether the client has
// not been named in this minute: Name is to be called, now or after a later event.
func (t *Top) Count(now time.Duration, e Event) (unnamed bool) {
	s, minute := &t.sets[e.Client>>58], minuteAt(now)
	s.mu.Lock()
	defer s.mu.Unlock()
	i := slices.Index(s.keys[:], e.Client)
	if i < 0 {
		i = s.take(now, e.Client)
	}
	p := &s.places[i]
	p.turn(minute)
	p.present.events++
	if e.Early {
		p.present.early++
	}
	p.reason, p.class = e.Reason, e.Class
	return p.named != minute+1
}

// take gives a client the place with the smallest count, and returns its index.
func (s *topSet) take(now time.Duration, client uint64) (least int) {
	smallest := uint64(math.MaxUint64)
	for i := range s.places {
		p := &s.places[i]
		p.turn(minuteAt(now))
		if sum := uint64(p.present.inherits().inherited) + uint64(p.before.inherits().inherited); sum < smallest {
			least, smallest = i, sum
		}
	}
	p := &s.places[least]
	p.present, p.before, p.named, p.since = p.present.inherits(), p.before.inherits(), 0, uint32(now/time.Second)
	s.keys[least] = client
	return least
}

// inherits returns the tally of the next client in the same place.
func (t tally) inherits() tally { return tally{inherited: t.inherited + t.events} }

// Name sets the name of a client that is in the Top, its first MaxClientName bytes, what kind
// of software it is, which means nothing here, and the class of what it asks for.
func (t *Top) Name(now time.Duration, client uint64, name []byte, agent uint8, method, path string) {
	s := &t.sets[client>>58]
	s.mu.Lock()
	defer s.mu.Unlock()
	if i := slices.Index(s.keys[:], client); i >= 0 {
		p := &s.places[i]
		copy(p.name[:], name)
		p.length, p.agent, p.named = uint8(min(len(name), MaxClientName+1)), agent, minuteAt(now)+1
		setPathClass(&p.path, method, path)
	}
}

// Clients returns the named clients with events in the last minute, in no order. It is
// for people who look: it visits all places.
func (t *Top) Clients(now time.Duration) (list []Client) {
	if t == nil {
		return nil
	}
	left := 1 - float64(now%topWindow)/float64(topWindow) // of the present minute
	for i := range t.sets {
		s := &t.sets[i]
		s.mu.Lock()
		for i, p := range s.places {
			p.turn(minuteAt(now))
			events := float64(p.present.events) + left*float64(p.before.events)
			if p.named == 0 || events < 0.5 {
				continue
			}
			found := (now - time.Duration(p.since)*time.Second).Seconds()
			list = append(list, Client{
				Key: s.keys[i], Name: string(p.name[:min(p.length, MaxClientName)]), Cut: p.length > MaxClientName,
				Events: events, Early: float64(p.present.early) + left*float64(p.before.early),
				PerSecond: events / min(topWindow.Seconds(), max(1, found)),
				Reason:    p.reason, Class: p.class, Agent: p.agent, Path: string(bytes.TrimRight(p.path[:], "\x00")),
			})
		}
		s.mu.Unlock()
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
