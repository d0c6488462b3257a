package shield

import (
	"fmt"
	"maps"
	"sync"
	"sync/atomic"
	"time"

	"github.com/herdshield/shield/limiter"
)

// MaxBlocks is how many clients of one Backend may be blocked at once. Ours: an operator
// blocks a few; for more a firewall is the better place.
const MaxBlocks = 1000

// blocks are the clients that an operator has blocked, and until when. Requests read a map that
// does not change any more: without blocks that is one atomic load.
type blocks struct {
	until atomic.Pointer[map[limiter.Key]time.Duration] // nil: none is blocked
	mu    sync.Mutex                                    // held by those who replace the map
}

// left returns for how long a client is blocked, 0 if it is not.
func (b *blocks) left(now time.Duration, client limiter.Key) time.Duration {
	m := b.until.Load()
	if m == nil || client == NoKey {
		return 0
	}
	return max(0, (*m)[client]-now)
}

// change replaces the map. Blocks that are over are dropped.
func (b *blocks) change(now time.Duration, f func(map[limiter.Key]time.Duration)) {
	b.mu.Lock()
	defer b.mu.Unlock()
	m := map[limiter.Key]time.Duration{}
	if old := b.until.Load(); old != nil {
		m = maps.Clone(*old)
	}
	maps.DeleteFunc(m, func(_ limiter.Key, until time.Duration) bool { return until <= now })
	f(m)
	if len(m) == 0 {
		b.until.Store(nil)
	} else {
		b.until.Store(&m)
	}
}

// Block rejects all requests of a client from now until an instant, with the reason Blocked. In observe mode it
// only counts them. A later call for the same client replaces the earlier one, and requests in flight continue.
// All Guards of the Backend reject the client, provided their Hashers are the same. Block returns an error if
// MaxBlocks other clients are blocked. It is safe for concurrent use.
func (g *Guard) Block(now time.Duration, client limiter.Key, until time.Duration) (err error) {
	if m := g.backend.blocks.until.Load(); m != nil && until > now && (*m)[client] == until {
		return nil // without a copy of the map: all blocks may be set again after a change of one
	}
	g.backend.blocks.change(now, func(m map[limiter.Key]time.Duration) {
		if _, known := m[client]; !known && len(m) >= MaxBlocks {
			err = fmt.Errorf("%d clients are blocked, which is the limit; end one first", len(m))
			return
		}
		m[client] = until
	})
	return err
}

// Unblock ends the block of a client, and reports whether it was blocked.
func (g *Guard) Unblock(now time.Duration, client limiter.Key) (blocked bool) {
	if blocked = g.backend.blocks.left(now, client) > 0; blocked {
		g.backend.blocks.change(now, func(m map[limiter.Key]time.Duration) { delete(m, client) })
	}
	return blocked
}

// Forgiven says what Forgive has reset.
type Forgiven struct {
	Zones    []string `json:"zones"`        // whose buckets were not full
	Promises int      `json:"appointments"` // times that it was told to come back, of the backend and of zones
	Blocked  bool     `json:"blocked"`
}

// Forgive resets the client of a request, so that it counts as new: its buckets in matching zones are full, its
// appointments are dropped, and its block is lifted. Other clients get its slots. Its requests in flight
// continue.
//
// This deliberately breaks the law of buckets for its keys: in a window in which you forgive a client n times,
// it can send n more bursts. All other laws hold. If replicas share a zone, Forgive resets this replica's part
// of it, but not the tokens in the store, and the others keep the appointments. It is safe for concurrent use.
func (g *Guard) Forgive(now time.Duration, r Request) Forgiven {
	b, f := g.backend, Forgiven{Zones: []string{}}
	for i := range g.zones {
		z := &g.zones[i]
		key := z.key(&r)
		if key == NoKey {
			continue
		}
		owed := false
		if of := z.share.Load(); of != nil {
			owed = of.Escrow.Forgive(key, now)
		} else {
			owed = z.table.Forgive(key, z.instant(now))
		}
		if owed {
			f.Zones = append(f.Zones, z.name)
		}
		f.Promises += b.clients.Forgive(now, uint64(key)^z.salt)
	}
	if r.Client != NoKey {
		f.Promises += b.clients.Forgive(now, uint64(r.Client))
		f.Blocked = g.Unblock(now, r.Client)
	}
	return f
}
