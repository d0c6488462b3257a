package share

import (
	"time"
)

const (
	// Beat is how often a replica tells the store that it lives, and is told what is new.
	Beat = 100 * time.Millisecond

	// Lease is for how long a replica counts as alive that was not heard of: three beats
	// and what they take.
	Lease = 350 * time.Millisecond

	// MaxTrip is how long a request waits for the store at most, and a trip that takes
	// longer makes a replica work alone. Ours: waiting for longer costs a herd more than
	// divided limits do; trips within a data centre take less than 2 ms.
	MaxTrip = 25 * time.Millisecond

	// IdleLease is the lease of a replica to which no request has come for IdleTime, and
	// IdleBeat how often it tells that it lives.
	IdleLease = 1200 * time.Millisecond
	IdleBeat  = 500 * time.Millisecond
	IdleTime  = 10 * time.Second

	// GiveUp is how long after it was sent an exchange is given up: a later answer does not
	// count.
	GiveUp = 250 * time.Millisecond

	// RosterTime is how long after it was heard of a replica counts in the number of
	// replicas, and keeps its places.
	RosterTime = 15 * time.Second
)
