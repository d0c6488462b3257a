package main

import (
	"math"
	"time"

	"github.com/herdshield/shield/loadtest/sim"
)

// mimir tells 6 s, doubled with each attempt that the client says it has made, ±50%, from 6
// to 96 s: Grafana Mimir's distributor with its Retry-After turned on.
var mimir = sim.Telling(func() sim.Rule {
	return func(_, _ time.Duration, r sim.Request) int {
		s := min(96, 6*math.Exp2(float64(r.Attempt-1)))
		return int(min(96, max(6, s*(0.5+r.U))))
	}
})

// kubernetes tells all clients a shared number of seconds, from 1 to 32, which is looked at
// when the first request of a second is rejected: doubled if the last that many seconds saw
// three or more rejections per second on average and it was not doubled meanwhile; otherwise
// one less if they saw fewer than one per second. That is dropped_requests_tracker.go of
// k8s.io/apiserver (API Priority and Fairness); its queues are not modelled.
var kubernetes = sim.Telling(func() sim.Rule {
	const most = 32
	var (
		retryAfter = 1
		second     = -1          // of the last rejection
		doubledAt  = -most       // the second of the last doubling
		rejected   [most + 1]int // per second, by the second modulo its length
	)
	return func(now, _ time.Duration, _ sim.Request) int {
		if s := int(now / time.Second); s != second {
			for t := max(second+1, s-most); t <= s; t++ {
				rejected[t%len(rejected)] = 0
			}
			second = s
			recent := 0
			for t := max(0, s-retryAfter); t < s; t++ {
				recent += rejected[t%len(rejected)]
			}
			switch {
			case s-doubledAt >= retryAfter && recent >= 3*retryAfter:
				retryAfter, doubledAt = min(most, 2*retryAfter), s
			case recent < retryAfter && retryAfter > 1:
				retryAfter--
			}
		}
		rejected[second%len(rejected)]++
		return retryAfter
	}
})
