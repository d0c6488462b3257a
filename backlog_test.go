package shield

import (
	"testing"
	"time"
)

// For a hundred seconds ten times as many clients come as the backend can take, and nine tenths as many before and after that. All of them
// obey, and try four times. Nobody can serve those thousands, but most new clients of the next minute are served.
func TestHopelessBacklog(t *testing.T) {
	const begins, ends = 100 * time.Second, 200 * time.Second
	for _, c := range []struct {
		name   string
		config Config
	}{
		{"capacity", Config{Capacity: perSecond(10, 10)}},
		{"concurrency", Config{Concurrency: 1}},
	} {
		served, of := 0, 0
		for seed := range seedsOf(10, 3) {
			s := newStage(t, c.config, 1, 100*ms, 1+seed)
			var after []*patron
			come := func(from, to time.Duration, rate float64, note bool) {
				s.often(from, to, rate, func(now time.Duration) {
					v := s.newcomer(4)
					if s.visit(now, v); note {
						after = append(after, v)
					}
				})
			}
			come(0, begins, 9, false)
			come(begins, ends, 100, false)
			come(ends, ends+time.Minute, 9, true)
			come(ends+time.Minute, ends+5*time.Minute, 9, false)
			s.play(ends + 6*time.Minute)
			f := fateOf(ends, after)
			served, of = served+f.served, of+f.of
		}
		if share := float64(served) / float64(of); share < 0.7 {
			t.Errorf("%s: %.2f of the new clients are served, want 0.7", c.name, share)
		}
	}
}
