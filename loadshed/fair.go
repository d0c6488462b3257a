package loadshed

import (
	"sync"
	"sync/atomic"
)

const inFlightShards = 64

// fewEntries is how many entries the map of a shard may have had for it to be kept
// when it is empty. Maps do not shrink.
const fewEntries = 64

// InFlight counts how many requests each client has in flight. Only those that
// have any are remembered, so it is bounded by what is in flight, and it forgets how
// large it has been. The zero InFlight is empty. It is safe for concurrent use.
//
// A client is told by a key, whose low bits must be as good as random, as a hash's
// are.
type InFlight struct {
	clients atomic.Int64
	_       [56]byte                                      // read by everybody: not on the line of a lock
	shards  atomic.Pointer[[inFlightShards]inFlightShard] // nil until somebody has entered: most are never used
}

type inFlightShard struct {
	mu   sync.Mutex // guards what follows
	n    map[uint64]int32
	most int      // entries since n was made
	_    [40]byte // a cache line each
}

// shard returns the shard of a key; nil if nobody has entered yet.
func (f *InFlight) shard(key uint64) *inFlightShard {
	if shards := f.shards.Load(); shards != nil {
		return &shards[key%inFlightShards]
	}
	return nil
}

// Enter counts one request more of a client, and returns how many it has then. Each
// Enter needs one Leave.
func (f *InFlight) Enter(key uint64) int {
	s := f.shard(key)
	if s == nil {
		f.shards.CompareAndSwap(nil, new([inFlightShards]inFlightShard))
		s = f.shard(key)
	}
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
func (f *InFlight) Leave(key uint64) {
	s := f.shard(key)
	if s == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	switch n := s.n[key]; {
	case n > 1:
		s.n[key] = n - 1
	case n == 1:
		delete(s.n, key)
		f.clients.Add(-1)
		if len(s.n) == 0 && s.most > fewEntries {
			s.n, s.most = nil, 0
		}
	}
}

// Count returns how many requests a client has in flight.
func (f *InFlight) Count(key uint64) int {
	s := f.shard(key)
	if s == nil {
		return 0
	}
	s.mu.Lock()
	defer s.mu.Unlock()
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
// has. Twice, so that who only happens to be there often is left alone. It is the
// cheap form of fair queuing: it wants a count for each client instead of a queue
// for each, and acts only on who stands out. One alone is never too many: there is
// nobody to be fair to.
func TooMany(n, clients, limit int) bool {
	return n > fewInFlight && clients > 1 && n*clients > 2*limit
}
