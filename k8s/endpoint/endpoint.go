package endpoint

import (
	"net/netip"
	"slices"
	"sync/atomic"
	"time"
)

const (
	// slowStart is how long an endpoint takes to get its full share, and slowStartMin the share in
	// percent that it begins with. Envoy has no default for the former; 10 s is in the middle of what
	// its and HAProxy's documentation use in examples, and longer than most just-in-time compilers take.
	slowStart    = 10 * time.Second
	slowStartMin = 10

	// minEjection and maxEjection bound how long an endpoint is ejected.
	minEjection = time.Second
	maxEjection = 30 * time.Second
)

// An Outcome says what a request has shown of its endpoint.
type Outcome uint8

// The outcomes.
const (
	Served  Outcome = iota // it accepted the connection, whatever it answered
	Unknown                // the client left before, or Failed has said why not
)

// An Endpoint is an endpoint as a Pick has chosen it. It is safe for concurrent use.
// Several may have one address: compare what Addr returns.
type Endpoint struct {
	*live
	picked picked
}

// picked is the state in which an endpoint was chosen, which decides what the request's outcome means.
type picked uint8

const (
	regular picked = iota // not ejected
	trial                 // on trial: the outcome decides
	resort                // ejected, but no other endpoint was left
	kinds
)

// A live endpoint is one address of a Set.
type live struct {
	// state has the cap in the upper 32 bits, 0 if there is none, and the requests in flight in the lower 31.
	// Bit 31 says that the endpoint is retired: it has left its Set, idle, and has no more permits.
	state atomic.Uint64

	warmAt atomic.Int64 // when slow start ends; 0: it has none
	outTil atomic.Int64 // end of the ejection, or of the current trial; 0: neither

	set       *Set
	addr      string
	addrPort  netip.AddrPort
	handles   [kinds]Endpoint // so that Pick does not allocate
	ejections int             // since the last Served; guarded by set.mu
}

const (
	retired = 1 << 31
	maxCap  = retired - 1
)

func newLive(s *Set, addr netip.AddrPort) *live {
	e := &live{set: s, addr: addr.String(), addrPort: addr}
	for kind := range e.handles {
		e.handles[kind] = Endpoint{e, picked(kind)}
	}
	return e
}

// Addr returns the endpoint's "host:port".
func (e *Endpoint) Addr() string { return e.addr }

// AddrPort returns the same address.
func (e *Endpoint) AddrPort() netip.AddrPort { return e.addrPort }

// Reached says that the endpoint has accepted the connection, for requests that may last
// long until their Release.
func (e *Endpoint) Reached() {
	if e.picked != regular && e.outTil.Load() != 0 {
		e.set.mu.Lock()
		e.readmit()
		e.set.mu.Unlock()
	}
}

// Release gives back the permit that a Pick took, once for each Pick.
func (e *Endpoint) Release(o Outcome) {
	if o == Served {
		e.Reached()
	}
	e.state.Add(^uint64(0))
	e.set.line.freed()
}

// Failed says that the endpoint did not accept a connection, while the request's outcome is
// open: it may wait for another connection.
func (e *Endpoint) Failed(now time.Duration) { e.fail(now, e.picked) }

// fail ejects the endpoint, or ejects it again if it was on trial, unless that would
// be more than half of the usable ones.
func (e *live) fail(now time.Duration, as picked) {
	if as != trial && e.outTil.Load() != 0 {
		return // it has been counted
	}
	s := e.set
	s.mu.Lock()
	defer s.mu.Unlock()
	if e.outTil.Load() == 0 {
		m := s.load()
		if as == resort || !slices.Contains(m.usable, e) || 2*(m.out()+1) > len(m.usable) {
			return
		}
	} else if as != trial {
		return
	}
	lasts := maxEjection
	if e.ejections < 5 { // 1, 2, 4, 8, 16 s
		lasts = minEjection << e.ejections
	}
	e.ejections++
	e.outTil.Store(int64(now + lasts))
}

// readmit ends an ejection. The caller holds set.mu.
func (e *live) readmit() {
	e.ejections = 0
	e.outTil.Store(0)
	e.set.line.freed()
}

// ejected reports whether it gets no requests at now.
func (e *live) ejected(now time.Duration) bool { return int64(now) < e.outTil.Load() }

// take takes a permit if there is one. The first request after an ejection is the trial. If
// it has not ended after a second, the next request is.
func (e *live) take(now time.Duration) *Endpoint {
	for {
		s := e.state.Load()
		if s&retired != 0 || full(s) {
			return nil
		}
		if e.state.CompareAndSwap(s, s+1) {
			break
		}
	}
	until := e.outTil.Load()
	switch {
	case until == 0:
		return &e.handles[regular]
	case int64(now) >= until && e.outTil.CompareAndSwap(until, int64(now+minEjection)):
		return &e.handles[trial]
	}
	return &e.handles[resort]
}

// full reports whether a state has no permit left.
func full(s uint64) bool {
	limit, n := s>>32, s&maxCap
	return n == maxCap || limit != 0 && n >= limit
}

// setCap changes the cap, and keeps the count of requests in flight.
func (e *live) setCap(limit int) {
	for {
		s := e.state.Load()
		if e.state.CompareAndSwap(s, uint64(limit)<<32|uint64(uint32(s))) {
			return
		}
	}
}

// retire retires the endpoint if it is idle, and reports whether it was.
func (e *live) retire() bool {
	for {
		s := e.state.Load()
		if s&maxCap != 0 {
			return false
		}
		if e.state.CompareAndSwap(s, s|retired) {
			return true
		}
	}
}

// cold reports whether slow start keeps the endpoint from being one of the two. coin
// is a random number from 0 to 1<<16 - 1.
func (e *live) cold(now time.Duration, coin uint64) bool {
	warmAt := time.Duration(e.warmAt.Load())
	if now >= warmAt {
		return false
	}
	share := max(slowStartMin, 100*(slowStart-(warmAt-now))/slowStart)
	return coin*100 >= uint64(share)<<16
}

// rank returns which of the package comment's four groups the endpoint is in, from 0.
func (e *live) rank(now time.Duration, tried []*Endpoint) (rank int) {
	if e.ejected(now) {
		rank = 1
	}
	for _, t := range tried {
		if t.addrPort == e.addrPort { // it may have left and come back since
			return rank + 2
		}
	}
	return rank
}
