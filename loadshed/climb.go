package loadshed

import (
	"cmp"
	"time"
)

// A climb raises the limit in large steps while each of them pays off. Otherwise, a backend of 100 workers would wait for
// ten seconds until the initial limit of 20 has grown to what it can take. It begins with an overload that isn't a queue in
// the backend: in its second window, as the first is often one in part. After each step a window passes until the requests
// that entered before it have ended.
//
// A step pays off if the power rises, which is throughput divided by latency (Kleinrock, "Power and Deterministic Rules of
// Thumb for Probabilistic Problems in Computer Communications", 1979). For example, 20 of 100 workers serve 200 requests/s in
// 100 ms. With 30 in flight they serve 300/s as fast, so the power is 1.5 times as high. But 8 workers serve 80/s in 250 ms with
// 20 in flight, and 80/s in 375 ms with 30: the power falls to two thirds.
type climb struct {
	first, last float64 // the power before the first step, and before the last; 0: there was none
	settled     bool    // the requests that end now entered since the last step
	over        bool
}

const (
	climbStep = 1.5 // it is taken if so many times as many requests come as are admitted

	// climbPays is how many times as high the power must be. Chance moves that of a window of 25 requests by a quarter:
	// this is twice that from a step that did nothing.
	climbPays = 1.15

	// A climb that raised the power by climbed in all has shown that there was no queue, as a probe would.
	climbed = 1.3
)

// climbs reports whether a window is part of a climb, and takes the next step of it. fast says that no request waited in the backend.
func (c *control) climbs(now time.Duration, s *sample, fast bool, l law) bool {
	k, power := &c.climb, float64(s.good)/s.span/max(s.mean(), 1e-9) // all in less than a nanosecond
	begins := k.last == 0
	slow := s.span > longestWindow // each step would take seconds
	switch {
	case k.over:
		return false
	case !begins && !k.settled:
		k.settled = true
		return true
	case begins && fast && (c.boundWindows < 2 || slow || float64(s.limitHits+s.n) < climbStep*float64(s.n)):
		return false
	case !s.serving(), begins && !fast, !begins && power < climbPays*k.last, c.limit >= float64(l.Max):
		if k.over = true; k.last > climbed*k.first {
			c.probe.next = now + jittered(now, probeCost*max(shortestWindow, 4*s.mean()))
		}
		return false
	}
	k.first, k.last, k.settled = cmp.Or(k.first, power), power, false
	c.limit = min(climbStep*c.limit, float64(l.Max))
	return true
}
