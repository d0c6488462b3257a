package limiter

import "time"

// A Term is how a replica stands with the store that has the pools of several replicas.
type Term struct {
	Replicas int           // that share the limit: at least 1
	Alone    time.Duration // from then on the store counts as gone: the replica works with its part of the limit
	Paid     time.Duration // pools earn for the replica until then, at the latest; after that it earns its part itself
	Life     int64         // when it changes, pools have ended to earn for what was told before
	Began    time.Duration // when it did
}

func (t *Term) alone(now time.Duration) bool { return now >= t.Alone }
