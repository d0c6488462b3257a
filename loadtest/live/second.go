package live

import "time"

// step is how finely a second looks.
const step = 10 * time.Millisecond

// A second counts what came within the last second, in steps. No second is left
// out but those that begin within a step; none that it counts is longer than
// one. The zero second has seen nothing.
type second struct {
	counts [time.Second / step]int
	sum    int
	last   int64 // the step that was counted last
}

// add counts one more at now, which does not go back, and returns how many came
// within the second that ends with it.
func (s *second) add(now time.Duration) int {
	n := int64(len(s.counts))
	current := int64(now / step)
	for i := max(s.last+1, current-n+1); i <= current; i++ {
		s.sum -= s.counts[i%n]
		s.counts[i%n] = 0
	}
	s.last = max(s.last, current)
	s.counts[s.last%n]++
	s.sum++
	return s.sum
}
