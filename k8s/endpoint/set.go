package endpoint

import (
	"errors"
	"math"
	"math/bits"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/herdshield/shield/k8s/model"
)

// The errors of Pick.
var (
	ErrNone = errors.New("endpoint: the backend has no endpoint that can serve")
	ErrFull = errors.New("endpoint: every endpoint has as many requests in flight as it may have")
)

// A Set is the live endpoints of a Backend. The zero Set is empty and ready. It is
// safe for concurrent use and must not be copied.
//
// now is the time since an epoch that the caller keeps, from a monotonic clock.
type Set struct {
	members atomic.Pointer[members]

	line line // requests that wait for a permit

	mu   sync.Mutex
	gone []*live // left with requests in flight, as of the last Update
}

// members are the endpoints of a Set at one moment. They do not change.
type members struct {
	endpoints []model.Endpoint // as in the last Update
	caps      []int            // theirs
	live      []*live          // theirs; nil for those that are NotReady
	usable    []*live          // the Ready ones, or if there are none, the Draining ones
}

var noMembers members

func (s *Set) load() *members {
	if m := s.members.Load(); m != nil {
		return m
	}
	return &noMembers
}

// out counts the usable endpoints that are ejected or on trial.
func (m *members) out() (n int) {
	for _, e := range m.usable {
		if e.outTil.Load() != 0 {
			n++
		}
	}
	return n
}

// Update sets the endpoints, which are sorted by address, without duplicates. limit returns how many
// requests one may have in flight; 0 or less means any number, and so does a nil limit. Endpoints that
// stay keep their counts and ejections. An Update that changes nothing costs a comparison.
func (s *Set) Update(now time.Duration, endpoints []model.Endpoint, limit func(model.Endpoint) int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	old := s.load()
	caps := make([]int, len(endpoints))
	for i, ep := range endpoints {
		if limit != nil {
			caps[i] = min(max(0, limit(ep)), maxCap)
		}
	}
	if slices.Equal(old.endpoints, endpoints) && slices.Equal(old.caps, caps) {
		s.gone = slices.DeleteFunc(s.gone, (*live).retire)
		return
	}
	known := make(map[netip.AddrPort]*live, len(old.live)+len(s.gone))
	for _, e := range slices.Concat(old.live, s.gone) {
		if e != nil {
			known[e.addrPort] = e
		}
	}
	next := s.next(now, old, known, endpoints, caps)
	next.readmit()
	// Only after this may endpoints that have left be retired, or Pick would find none.
	s.members.Store(next)
	s.gone = s.gone[:0]
	for _, e := range known {
		if !e.retire() {
			s.gone = append(s.gone, e)
		}
	}
	clear(s.gone[len(s.gone):cap(s.gone)])
	s.line.freed()
}

// next returns the members that follow old, and removes them from known, which has the
// endpoints of old and those that have left.
func (s *Set) next(now time.Duration, old *members, known map[netip.AddrPort]*live, endpoints []model.Endpoint, caps []int) *members {
	ready := make(map[*live]bool, len(old.live))
	for i, e := range old.live {
		ready[e] = e != nil && old.endpoints[i].State == model.Ready
	}
	next := &members{endpoints: slices.Clone(endpoints), caps: caps, live: make([]*live, len(endpoints))}
	var draining []*live
	for i, ep := range endpoints {
		if ep.State == model.NotReady || i > 0 && ep.Addr == endpoints[i-1].Addr {
			continue
		}
		e := known[ep.Addr]
		if e == nil {
			e = newLive(s, ep.Addr)
		}
		delete(known, ep.Addr)
		e.setCap(caps[i])
		next.live[i] = e
		if ep.State != model.Ready {
			draining = append(draining, e)
			continue
		}
		next.usable = append(next.usable, e)
		if !ready[e] {
			e.warmAt.Store(0)
			if len(old.usable) > 0 {
				e.warmAt.Store(int64(now + slowStart))
			}
		}
	}
	if len(next.usable) == 0 {
		next.usable = draining
	}
	return next
}

// readmit ends the ejections with the earliest trials, until at most half of the usable
// endpoints are out. The caller holds the Set's mu.
func (m *members) readmit() {
	for n := m.out(); 2*n > len(m.usable); n-- {
		var first *live
		for _, e := range m.usable {
			if until := e.outTil.Load(); until != 0 && (first == nil || until < first.outTil.Load()) {
				first = e
			}
		}
		if first == nil {
			break
		}
		first.readmit()
	}
}

// Pick chooses an endpoint for a request and takes a permit at it, which its Release
// gives back. u is a random number. tried are the endpoints that this request has tried
// before; they are chosen only if there are no others. The error is ErrNone or ErrFull.
func (s *Set) Pick(now time.Duration, u uint64, tried []*Endpoint) (*Endpoint, error) {
	for {
		m := s.load()
		if len(m.usable) == 0 {
			return nil, ErrNone
		}
		e, gone := m.pick(now, u, tried)
		if e != nil {
			return e, nil
		}
		if !gone {
			return nil, ErrFull
		}
		// One was retired after m was loaded: it is not in the newest members.
	}
}

func (m *members) pick(now time.Duration, u uint64, tried []*Endpoint) (picked *Endpoint, gone bool) {
	first, random := bits.Mul64(u, uint64(len(m.usable)))
	if e := m.best(first, random, now, tried); e != nil {
		if picked = e.take(now); picked != nil {
			return picked, false
		}
	}
	for {
		e, gone := m.search(first, now, tried)
		if e == nil {
			return nil, gone
		}
		if picked = e.take(now); picked != nil {
			return picked, false
		}
		// Another goroutine took the permit. The loop ends: each round a request gets one.
	}
}

// best returns the better of the endpoint at first and another, which random chooses; nil
// if neither is eligible.
func (m *members) best(first, random uint64, now time.Duration, tried []*Endpoint) *live {
	a := m.usable[first]
	b := a
	var coins uint64
	if n := uint64(len(m.usable)); n > 1 {
		var step uint64
		step, random = bits.Mul64(random, n-1)
		b = m.usable[(first+1+step)%n]
		coins = random >> 32
	}
	sa, sb := a.state.Load(), b.state.Load()
	okA, okB := fit(a, sa, now, tried), fit(b, sb, now, tried)
	if okA && okB {
		// If both are cold, neither has an advantage.
		if coldA, coldB := a.cold(now, coins&0xffff), b.cold(now, coins>>16); coldA != coldB {
			okA, okB = !coldA, !coldB
		}
	}
	switch {
	case okB && (!okA || sb&maxCap < sa&maxCap):
		return b
	case okA:
		return a
	}
	return nil
}

// fit reports whether e, with the state state, is of the first rank and has a free permit.
func fit(e *live, state uint64, now time.Duration, tried []*Endpoint) bool {
	return state&retired == 0 && !full(state) && e.rank(now, tried) == 0
}

// search returns the endpoint with the fewest requests in flight of the best rank that is
// not empty, nil if all of these are full. It begins at first, so that equal ones take
// turns. gone says that one of them has been retired.
func (m *members) search(first uint64, now time.Duration, tried []*Endpoint) (best *live, gone bool) {
	lowest, least := 4, uint64(math.MaxUint64)
	for i := range m.usable {
		i += int(first)
		if i >= len(m.usable) {
			i -= len(m.usable)
		}
		e := m.usable[i]
		state := e.state.Load()
		if state&retired != 0 {
			gone = true
			continue
		}
		rank := e.rank(now, tried)
		if rank > lowest {
			continue
		}
		if rank < lowest {
			lowest, least, best = rank, math.MaxUint64, nil
		}
		if n := state & maxCap; n < least && !full(state) {
			least, best = n, e
		}
	}
	return best, gone
}

// A Stat is the state of one endpoint.
type Stat struct {
	Addr     string // host:port
	State    model.EndpointState
	Gone     bool // it has left, but has requests in flight; then State is NotReady
	InFlight int
	Cap      int // how many it may have in flight; 0: any number
	Ejected  bool
	Warming  bool // it is in its slow start
}

// Stats returns the state of all endpoints: those of the last Update in its order, without
// the NotReady ones, then those that have left with requests in flight.
func (s *Set) Stats(now time.Duration) []Stat {
	s.mu.Lock()
	defer s.mu.Unlock()
	m := s.load()
	stats := make([]Stat, 0, len(m.live)+len(s.gone))
	for i, e := range m.live {
		if e != nil {
			stats = append(stats, e.stat(now, m.endpoints[i].State))
		}
	}
	for _, e := range s.gone {
		if st := e.stat(now, model.NotReady); st.InFlight > 0 {
			st.Gone = true
			stats = append(stats, st)
		}
	}
	return stats
}

func (e *live) stat(now time.Duration, state model.EndpointState) Stat {
	word := e.state.Load()
	return Stat{
		Addr: e.addr, State: state, InFlight: int(word & maxCap), Cap: int(word >> 32),
		Ejected: e.ejected(now), Warming: int64(now) < e.warmAt.Load(),
	}
}
