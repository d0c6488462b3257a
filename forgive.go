package shield

import "time"

// Forgiven says what was held against a client.
type Forgiven struct {
	Zones    []string // whose buckets were not full
	Promises int      // times that it was told to come back, of the backend and of zones
	Blocked  bool
}

// Forgive makes a new client of the client of a request: its buckets in the zones that count the
// request are full, it is promised nothing, and it is blocked no more. Its slots
// are the next clients'. Requests that it has in flight go on.
//
// That breaks the law of buckets for its keys, as it is meant to: within a window in which a
// client was forgiven n times, it may have n more bursts. All other laws hold. Of a zone that
// replicas share, this one's part is forgiven, but no tokens that come from the store; the
// others are told that the appointments are done with. Forgive is safe for concurrent use.
func (g *Guard) Forgive(now time.Duration, r Request) (f Forgiven) {
	b := g.backend
	for i := range g.zones {
		z := &g.zones[i]
		key := z.key(&r)
		if key == NoKey {
			continue
		}
		if z.table.Forgive(key, now) {
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
