package share

import (
	"maps"
	"slices"
)

const (
	// idlePlaces is the part of a limit, inverted, that replicas without demand keep
	// together while others could use it. Ours: they need not ask for their first
	// request, and 0.95 of the limit can be used.
	idlePlaces = 40

	// placesTurn is for how long a place that cannot be divided stays with one replica, in
	// milliseconds. Ours: it takes some 100 ms to pass it on, so 0.98 of it is used.
	placesTurn = 5000

	// placesGap is after which silence of all replicas the store learns again what they
	// hold, in milliseconds. Ours: far below RosterTime, as a replica may have worked alone
	// meanwhile, and above the beat of one that is idle.
	placesGap = 5000
)

// A placesPool is what the store knows of the places in flight of one backend. The zero
// placesPool knows nothing.
//
// Each replica counts with what it may use and with what it uses, whichever is more, as of
// its last ask and the answer to it. A replica gets more only of what all others leave,
// so the sum is never above the limit, however late replicas hear of it. One that is not
// heard of for RosterTime is forgotten.
//
// A store that knows nothing, or has heard of no replica for placesGap, may have forgotten
// some: it lets each replica have what it has, until all that the replicas know of have
// told what they hold, and at least for Lease. Where all are new each gets a place.
type placesPool struct {
	born, at int64 // when it began to learn, and the last exchange
	replicas int   // how many there are at least, as one has told since
	holders  map[string]holder
}

// A holder is a replica, as far as its places are concerned.
type holder struct {
	held, want int
	seen       int64
}

// exchange hands out places. known is how many replicas the one that asks knows of, 0 if it
// is new, and replicas of how many the store has heard. Asks that come late or twice must
// not reach it.
func (p *placesPool) exchange(now int64, name string, a PlacesAsk, known, replicas int) PlacesAnswer {
	if p.holders == nil || distance(now, p.at) > placesGap {
		p.born, p.replicas = now, 0
		if p.holders == nil {
			p.holders = map[string]holder{}
		}
	}
	p.at, p.replicas = now, max(p.replicas, known)
	if _, told := p.holders[name]; !told && known == 0 && p.replicas > 0 {
		p.replicas++ // it does not stand in for one that is silent
	}
	p.holders[name] = holder{a.Held, a.Want, now}
	told, others := 0, 0
	for _, h := range p.holders {
		if h.seen >= p.born {
			told++
		}
	}
	roster := RosterTime.Milliseconds()
	learning := now < p.born+roster && (now < p.born+Lease.Milliseconds() || told < max(replicas, p.replicas))
	for other, h := range p.holders {
		switch {
		case other == name:
		case !learning && distance(now, h.seen) >= roster:
			delete(p.holders, other)
		default:
			others += h.held
		}
	}
	free := max(0, a.Limit-others) // or this one's
	limit := min(p.fair(now, name, a.Limit, replicas), free)
	if learning {
		if limit = a.Has; p.replicas == 0 {
			limit = max(limit, min(1, free))
		}
		free = 0
	}
	held := max(limit, a.Held)
	p.holders[name] = holder{held, a.Want, now}
	return PlacesAnswer{Limit: limit, Free: max(0, free-held)}
}

func distance(a, b int64) int64 { return max(a-b, b-a) }

// fair returns a replica's max-min fair share of n places by what all want, and of places
// that none wants half of its even part: the other half is there for the first to ask.
func (p *placesPool) fair(now int64, name string, n, replicas int) int {
	names := slices.Sorted(maps.Keys(p.holders))
	count := max(len(names), replicas)
	if count == 1 {
		return n
	}
	least := n / idlePlaces / count
	wants := make([]int, len(names))
	for i, other := range names {
		wants[i] = max(least, p.holders[other].want)
	}
	level, left := fill(n, slices.Sorted(slices.Values(wants)))
	me := slices.Index(names, name)
	if level < 0 {
		return wants[me] + left/count/2
	}
	if wants[me] <= level {
		return wants[me]
	}
	// The rest goes one by one to those that want more, in turn.
	first := int(now / placesTurn % int64(len(names)))
	for turn := range len(names) {
		i := (first + turn) % len(names)
		if i == me {
			break
		}
		if wants[i] > level {
			left--
		}
	}
	return level + min(1, max(0, left))
}

// fill returns how many of n each can have that wants so many, and how many are left then,
// fewer than those that want more. level is -1 if all can have what they want.
func fill(n int, wants []int) (level, left int) {
	for i, want := range wants { // the least first
		if others := len(wants) - i; want > n/others {
			return n / others, n % others
		}
		n -= want
	}
	return -1, n
}
