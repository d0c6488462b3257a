package share

import "time"

// MayUse returns how many places the replica may use at now.
func (s *Link) MayUse(now time.Duration) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	if now >= s.places.until {
		return 0
	}
	return s.places.limit
}
