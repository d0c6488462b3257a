package shield

import (
	"strings"
	"testing"
	"time"

	"github.com/herdshield/shield/loadshed"
	"github.com/herdshield/shield/share/virtual"
)

// share has a store answer the Guard's link at once.
func (s *stage) share(until time.Duration) {
	store := virtual.New()
	s.carry = func(now time.Duration) {
		l := s.g.Link(now)
		for ask, ok := l.Due(now); ok; ask, ok = l.Due(now) {
			l.Heard(now, now, store.Do(1e12+now.Milliseconds(), ask))
		}
	}
	for at := time.Hour - 20*time.Second; at < until; at += 2 * ms {
		s.at(at, s.carry)
	}
}

// A replica that has the store to itself decides as one without a store: as many are served, their appointments are kept as
// well, and they ask no more often.
func TestOneReplicaIsAsGoodAsNone(t *testing.T) {
	const end = time.Hour + time.Minute
	for name, c := range map[string]Config{
		"capacity":                           {Capacity: perSecond(160, 16)},
		"adaptive":                           {Adaptive: &loadshed.AdaptiveConfig{}},
		"limit":                              {Concurrency: 12, Queue: loadshed.QueueConfig{Size: 20}},
		"capacity, all behind one address":   {Capacity: perSecond(160, 5)},
		"capacity 2, all behind one address": {Capacity: perSecond(160, 16)},
	} {
		var of [2]fate
		var broken [2]float64
		for i := range of {
			c.Shared, c.Secret, c.Replicas = i == 1, make([]byte, 16), 1
			s := newStage(t, c, 8, 50*ms, 1)
			if c.Shared {
				s.share(end)
			}
			var all []*patron
			s.often(time.Hour, time.Hour+15*time.Second, 240, func(now time.Duration) {
				v := s.newcomer(0)
				if strings.HasSuffix(name, "one address") {
					v.key = 1
				}
				all = append(all, v)
				s.visit(now, v)
			})
			s.play(end)
			of[i], broken[i] = fateOf(time.Hour, all), float64(s.g.backend.Stats(end).Broken)/float64(len(all))
			t.Logf("%s, with a store %v: %v, %.2f broken", name, c.Shared, of[i], broken[i])
		}
		if of[1].served < of[1].of || of[1].requests > 1.08*of[0].requests || of[1].last > of[0].last+of[0].last/10 || broken[1] > broken[0]+.05 {
			t.Errorf("%s: with a store %v, %.2f broken; without %v, %.2f", name, of[1], broken[1], of[0], broken[0])
		}
	}
}
