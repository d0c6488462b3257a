package loadshed

import (
	"sync"
	"sync/atomic"
)

const inFlightShards = 64

// InFlight counts how many requests each client has in flight. Only those that
// have any are remembered, so it is bounded by what is in flight. The zero InFlight
// is empty. It is safe for concurrent use.
type InFlight struct {
	clients atomic.Int64
	shards  [inFlightShards]struct {
		sync.Mutex
		n map[uint64]int32
		_ [40]byte // a cache line each
	}
}

// Enter counts one request more of a client, and returns how many it has then.
func (f *InFlight) Enter(key uint64) int {
	s := &f.shards[key%inFlightShards]
	s.Lock()
	defer s.Unlock()
	if s.n == nil {
		s.n = map[uint64]int32{}
	}
	n := s.n[key] + 1
	s.n[key] = n
	if n == 1 {
		f.clients.Add(1)
	}
	return int(n)
}

// Leave counts one request less.
func (f *InFlight) Leave(key uint64) {
	s := &f.shards[key%inFlightShards]
	s.Lock()
	defer s.Unlock()
	switch n := s.n[key]; {
	case n > 1:
		s.n[key] = n - 1
	case n == 1:
		delete(s.n, key)
		f.clients.Add(-1)
	}
}

// Count returns how many requests a client has in flight.
func (f *InFlight) Count(key uint64) int {
	s := &f.shards[key%inFlightShards]
	s.Lock()
	defer s.Unlock()
	return int(s.n[key])
}

// Clients returns how many clients have requests in flight. It costs one atomic
// load.
func (f *InFlight) Clients() int { return int(f.clients.Load()) }

// fewInFlight is what anybody may have in flight without being taken for a crowd:
// a browser opens six connections to a host.
const fewInFlight = 6

// TooMany reports whether a client with n requests in flight has far more than its
// share of limit, while clients have any: twice as much, and more than a browser
// has.
func TooMany(n, clients, limit int) bool {
	return n > fewInFlight && clients > 1 && n*clients > 2*limit
}
