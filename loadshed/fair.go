package loadshed

import (
	"cmp"
	"slices"
	"sync"
	"sync/atomic"
)

// clientCounts counts how many requests each client has in flight. It holds only clients
// that have any, so it is bounded by the requests in flight. The zero clientCounts is empty.
// It is safe for concurrent use.
//
// The low bits of a client's key must be as good as random.
type clientCounts struct {
	clients atomic.Int64
	_       [56]byte // read by all requests: not on the line of a lock
	shards  [16]struct {
		mu sync.Mutex // guards n
		n  map[uint64]int
		_  [48]byte // a cache line each
	}
}

// Add counts more requests of a client, or fewer, and returns how many it has then.
func (f *clientCounts) Add(client uint64, more int) int {
	s := &f.shards[client%uint64(len(f.shards))]
	s.mu.Lock()
	defer s.mu.Unlock()
	was := s.n[client]
	is := max(0, was+more)
	switch {
	case is == was:
	case is == 0:
		delete(s.n, client)
		f.clients.Add(-1)
	default:
		if s.n == nil {
			s.n = map[uint64]int{}
		}
		s.n[client] = is
		if was == 0 {
			f.clients.Add(1)
		}
	}
	return is
}

// Clients returns how many clients have requests in flight.
func (f *clientCounts) Clients() int { return int(f.clients.Load()) }

// A ClientLoad is how many requests a client has in flight.
type ClientLoad struct {
	Key      uint64
	InFlight int
}

// Most returns the n clients with the most requests in flight, in that order. It visits all
// of them, and is for people who look.
func (f *clientCounts) Most(n int) (list []ClientLoad) {
	for i := range f.shards {
		s := &f.shards[i]
		s.mu.Lock()
		for key, count := range s.n {
			list = append(list, ClientLoad{key, count})
		}
		s.mu.Unlock()
	}
	slices.SortFunc(list, func(a, b ClientLoad) int {
		return cmp.Or(cmp.Compare(b.InFlight, a.InFlight), cmp.Compare(a.Key, b.Key))
	})
	return list[:min(n, len(list))]
}
