package share

import "time"

// MayUse returns how many permits the replica may use at now.
func (s *Link) MayUse(now time.Duration) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	if now >= s.permits.until {
		return 0
	}
	return s.permits.limit
}
