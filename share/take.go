package share

import "github.com/herdshield/shield/limiter"

// TakeAsk is what one replica tells the store about some keys of one shared zone, and asks
// it for. One without keys tells that the replica lives. Tokens that are held are counted
// in millionths, so that sums do not depend on the order of what is added.
type TakeAsk struct {
	Name     string `json:"name"`             // of the replica: random, one for each process
	Life     int64  `json:"life"`             // higher in each life of the replica
	Seq      int64  `json:"seq"`              // higher in each ask, also of another life
	Last     int64  `json:"last"`             // the Seq of the last ask that was answered, 0 if none was
	Heard    int64  `json:"heard"`            // TakeAnswer.Now of that; 0 as well
	Lease    int64  `json:"lease"`            // after Heard: for how long the pools earn for the replica
	Alone    bool   `json:"alone"`            // it works with its part, and the pools do not earn for it
	Leaves   bool   `json:"leaves,omitempty"` // it is its last ask
	Replicas int    `json:"replicas"`         // by how many it divides what it has

	Rate  float64 `json:"rate"` // tokens per second, of all replicas
	Burst int     `json:"burst"`
	Cost  int     `json:"cost"` // of one request

	After int64     `json:"after"` // the last news that it has read: TakeAnswer.After
	Keys  []KeyTake `json:"keys,omitempty"`
}

// KeyTake is about one key.
type KeyTake struct {
	Key  string `json:"k"` // 16 hexadecimal digits
	Held int64  `json:"h"` // millionths of a token that the replica keeps
	Gave int64  `json:"g"` // millionths that it gives back
	Want int    `json:"w"` // tokens
}

// TakeAnswer is what the store answers to a TakeAsk.
type TakeAnswer struct {
	Now      int64 `json:"now"`             // the store's clock
	Born     int64 `json:"born"`            // a bucket older than this is not known, and was empty then
	Over     bool  `json:"over,omitempty"`  // the life is over, nothing was done: take another
	Stale    bool  `json:"stale,omitempty"` // a later ask was answered already, nothing was done
	New      bool  `json:"new,omitempty"`   // the store has just begun, and no key was used before
	Replicas int   `json:"replicas"`        // how many there are
	Rank     int   `json:"rank"`            // of this one among them, by name: 0 to Replicas-1

	Keys  []KeyGrant `json:"keys,omitempty"` // in the order of the ask
	News  []HotKey   `json:"news,omitempty"` // keys that are newly hot, or will be for longer
	After int64      `json:"after"`
}

// KeyGrant is the answer about one key.
type KeyGrant struct {
	Got  int   `json:"g"` // tokens
	Wait int64 `json:"w"` // until the pool has enough for one request, 0 if it has
	Stay int64 `json:"s"` // for how long the key is hot
}

// HotKey is a key that is to be told of by all replicas.
type HotKey struct {
	Key  string `json:"k"`
	Stay int64  `json:"s"` // for how long it is hot
}

const (
	// MaxTake is how many keys stand in one ask at most, and how much news in an answer.
	MaxTake = 500

	keptHot = 10_000 // news that are kept. A replica that is slower misses some
	minStay = 5_000  // milliseconds that a key is hot at least: longer than news take by far
	newTime = 5_000  // milliseconds after it was asked first in which the store is new
	grace   = 60_000 // milliseconds for which it is known of a key that its pool was not full
	million = 1_000_000

	// An ask that says more is cut.
	mostTokens   = 1_000_000_000
	mostReplicas = limiter.MaxReplicas
	mostLease    = 10_000
	longestFull  = 32 * 24 * 3_600_000 // milliseconds: longer than any Limit takes to fill
	leastRate    = 1e-7
)

// TakeConstants returns the constants of the store that a script needs for zones.
func TakeConstants() []Constant {
	return []Constant{
		{"sweepTime", sweepTime}, {"rosterTime", RosterTime.Milliseconds()},
		{"maxTake", MaxTake}, {"keptHot", keptHot}, {"minStay", minStay}, {"newTime", newTime}, {"grace", grace},
		{"mostReplicas", mostReplicas}, {"mostLease", mostLease}, {"longestFull", longestFull},
	}
}

// sane returns the ask with everything within bounds, and whether keys can be decided on.
func (a TakeAsk) sane(now int64) (TakeAsk, bool) {
	a.Life, a.Seq, a.Last, a.After = max(0, a.Life), max(0, a.Seq), max(0, a.Last), max(0, a.After)
	a.Heard, a.Lease = min(max(0, a.Heard), now), min(max(0, a.Lease), mostLease)
	a.Replicas, a.Burst, a.Cost = min(max(0, a.Replicas), mostReplicas), min(a.Burst, mostTokens), min(a.Cost, mostTokens)
	return a, a.Rate >= leastRate && a.Cost >= 1 && a.Cost <= a.Burst && float64(a.Burst)/a.Rate*1000 <= longestFull
}

func (k KeyTake) sane() KeyTake {
	return KeyTake{k.Key, min(max(0, k.Held), 1e15), min(max(0, k.Gave), 1e15), min(max(0, k.Want), mostTokens)}
}
