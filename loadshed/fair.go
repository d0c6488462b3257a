package loadshed

import (
	"cmp"
	"slices"
	"sync"
	"sync/atomic"
)

const inFlightShards = 64

// keptMapEntries is how many entries an empty map of a shard may have had to be kept.
// Maps do not shrink.
const keptMapEntries = 64

// clientCounts counts how many requests each client has in flight. It holds only clients
// that have any, so it is bounded by the requests in flight, and gives memory back
// after a crowd. The zero clientCounts is empty. It is safe for concurrent use.
//
// A client is identified by a key, whose low bits must be as good as random, as those
// of a hash are.
type clientCounts struct {
	clients atomic.Int64
	_       [56]byte                                      // read by all requests: not on the line of a lock
	shards  atomic.Pointer[[inFlightShards]inFlightShard] // nil until one is needed: most are never used
}

type inFlightShard struct {
	mu   sync.Mutex // guards the fields below
	n    map[uint64]int32
	most int      // entries since n was made
	_    [40]byte // a cache line each
}

// shard returns the shard of a key.
func (f *clientCounts) shard(key uint64) *inFlightShard {
	if f.shards.Load() == nil {
		f.shards.CompareAndSwap(nil, new([inFlightShards]inFlightShard))
	}
	return &f.shards.Load()[key%inFlightShards]
}

// Enter counts one more request of a client, and returns how many it has then. Each
// Enter needs one Leave.
func (f *clientCounts) Enter(key uint64) int {
	s := f.shard(key)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.n == nil {
		s.n = map[uint64]int32{}
	}
	n := s.n[key] + 1
	s.n[key] = n
	s.most = max(s.most, len(s.n))
	if n == 1 {
		f.clients.Add(1)
	}
	return int(n)
}

// Leave counts one request less. It does nothing for a client that has none.
func (f *clientCounts) Leave(key uint64) {
	s := f.shard(key)
	s.mu.Lock()
	defer s.mu.Unlock()
	switch n := s.n[key]; {
	case n > 1:
		s.n[key] = n - 1
	case n == 1:
		delete(s.n, key)
		f.clients.Add(-1)
		if len(s.n) == 0 && s.most > keptMapEntries {
			s.n, s.most = nil, 0
		}
	}
}

// Count returns how many requests a client has in flight.
func (f *clientCounts) Count(key uint64) int {
	s := f.shard(key)
	s.mu.Lock()
	defer s.mu.Unlock()
	return int(s.n[key])
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
	shards := f.shards.Load()
	if shards == nil {
		return nil
	}
	for i := range shards {
		s := &shards[i]
		s.mu.Lock()
		for key, count := range s.n {
			list = append(list, ClientLoad{key, int(count)})
		}
		s.mu.Unlock()
	}
	slices.SortFunc(list, func(a, b ClientLoad) int {
		return cmp.Or(cmp.Compare(b.InFlight, a.InFlight), cmp.Compare(a.Key, b.Key))
	})
	return list[:min(n, len(list))]
}
