package live

import "time"

// step is the resolution of a second.
const step = 10 * time.Millisecond

// A second counts events within a sliding second, in steps: seconds that begin within a
// step are not considered. The zero second is empty.
type second struct {
	counts [time.Second / step]int
	sum    int
	last   int64 // the step that was counted last
}

// add counts an event at now, which does not go back, and returns the count of the second
// that ends with it.
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
