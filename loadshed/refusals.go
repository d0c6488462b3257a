package loadshed

const (
	// A share of refusalShareToCut of what ended refused by the backend cuts the limit,
	// and so do more than twice the share that is usual.
	refusalShareToCut = 0.1

	// Cuts to the least limit have not paid off if unpaidRefusalShare of the former share of
	// refusals is left. That share is usual then, and follows with an EWMA weight per window.
	unpaidRefusalShare = 0.75
	usualRefusalWeight = 0.1
)

// refusals of the backend, as shares of the requests that ended.
type refusals struct {
	before, limit float64 // before the first cut because of them; 0: there was none
	usual         float64 // what no cut has lowered
}

// refused cuts the limit if the backend refuses a tenth of what ended in the window, at least
// two requests. It returns why it has moved the limit, 0 if it has not.
//
// A limit that is less than half used is not the cause of the refusals: one page may always
// be refused. These cuts must pay off, too: if the share of refusals at the least limit is
// about what it was before, load is not the cause; one of several upstreams may be dead.
// Then they are taken back, and only twice that share cuts the limit again.
func (c *control) refused(s *sample, l law) Reason {
	r := &c.refusals
	share := float64(s.overloaded) / max(1, float64(s.overloaded+s.n))
	much := s.overloaded >= 2 && 2*float64(s.peak) >= c.limit && share >= max(refusalShareToCut, 2*r.usual)
	if r.usual > 0 {
		r.usual += usualRefusalWeight * (share - r.usual)
	}
	switch {
	case !much:
		r.before = 0
	case c.limit > float64(l.Min):
		if r.before == 0 {
			c.stopProbe()
			r.before, r.limit = share, c.limit
		}
		c.fall(maxCut, l)
		return Refusing
	case s.good > 0 && share > unpaidRefusalShare*r.before:
		c.limit = max(c.limit, r.limit)
		r.usual, r.before = share, 0
		return Restored
	}
	return 0
}
