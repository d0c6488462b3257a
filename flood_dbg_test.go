package shield

import (
	"testing"
	"time"

	"github.com/herdshield/shield/limiter"
)

func TestFloodDbg(t *testing.T) {
	const begin, from, until = time.Hour, time.Hour + 20*time.Second, time.Hour + 80*time.Second
	s := newStage(t, Config{Capacity: perSecond(50, 10)}, 1000, 5*ms, 1)
	n := [2][3]int{} // attacks; admitted at once, admitted later, refused first
	var waits []time.Duration
	visit := func(attack int) func(now time.Duration) {
		return func(now time.Duration) {
			v := &patron{key: limiter.Key(s.random.Uint64()), kind: 7}
			if attack == 1 {
				v.attempts = 1
			}
			v.served = func(at time.Duration) {
				if v.requests == 1 {
					n[attack][0]++
				} else {
					n[attack][1]++
					waits = append(waits, v.waited)
				}
			}
			s.visit(now, v)
		}
	}
	s.often(begin, begin+110*time.Second, 40, visit(0))
	s.often(from, until, 1000, visit(1))
	for at := from; at < until; at += time.Second {
		s.play(at)
		w := time.Duration(0)
		for _, x := range waits {
			w += x / time.Duration(len(waits))
		}
		t.Logf("%v honest once %d later %d (%.1f s), attack %d %s", at-from, n[0][0], n[0][1], w.Seconds(), n[1][0], s.g.backend.Dump())
		n = [2][3]int{}
		waits = nil
	}
}
