package loadshed

// A sample is what is known of the requests that have ended in a window. Times are in
// seconds.
type sample struct {
	span        float64 // how long it was collected
	n, good     int     // ended with a latency; of these, not timed out
	latency     float64 // sum over n
	goodLatency float64 // sum over good
	squares     float64 // sum of the squares of n latencies
	overloaded  int     // refused by the backend
	late        int     // took longer than the target
	peak        int     // most in flight: each peak is followed by an end
	limitHits   int     // requests that found the limit reached
	rejected    int     // those of them that were not let in after a wait either
}

func (s *sample) add(took float64, timedOut bool, l law) {
	s.n++
	s.latency += took
	s.squares += took * took
	if !timedOut {
		s.good++
		s.goodLatency += took
	}
	if l.Target > 0 && (timedOut || took > l.Target.Seconds()) {
		s.late++
	}
}

// effective returns the effective sample size: how many requests of equal latency would
// say as much about the mean (Kish, "Survey Sampling", 1965). A single request that took a
// hundred times as long as the others must not decide.
func (s *sample) effective() float64 {
	if s.squares == 0 {
		return float64(s.n)
	}
	return s.latency * s.latency / s.squares
}

// serving reports whether next to all that ended did so in time.
func (s *sample) serving() bool { return float64(s.good) >= nextToAll*float64(s.n) }

// usedUp reports whether the requests needed all of limit.
func (s *sample) usedUp(limit float64) bool {
	return s.limitHits > 0 || float64(s.peak) >= nextToAll*limit
}

// mean returns the mean latency, 0 if nothing has ended.
func (s *sample) mean() float64 { return s.latency / float64(max(1, s.n)) }
