package shield

import (
	"testing"
	"time"

	"github.com/herdshield/shield/limiter"
)

func TestHerdDbg(t *testing.T) {
	s := newStage(t, Config{Concurrency: 12}, 8, 80*ms, 0)
	s.often(time.Hour-2*time.Second, time.Hour+100*time.Second, 30, func(now time.Duration) {
		s.visit(now, &patron{key: limiter.Key(s.random.Uint64()), kind: 7, attempts: 4})
	})
	all := s.crowd(time.Hour, 100*ms, 1000, 4, false)
	for at := time.Hour; at < time.Hour+26*time.Second; at += time.Second {
		s.play(at)
		by := [6]int{}
		gone := 0
		n := 0
		for _, v := range all {
			if v.waited >= 0 && v.requests > 0 {
				n++
			} else if v.requests == 4 {
				gone++
			} else {
				by[v.requests]++
			}
		}
		t.Logf("%v served %d gone %d by attempts %v rate %.0f inflight %d %s", at-time.Hour, n, gone, by, s.g.Rate(), s.g.backend.inFlight.InFlight(), s.g.backend.Dump())
	}
}
