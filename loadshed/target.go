package loadshed

import "math"

// holdTarget holds 95 % of the requests within the target by AIMD: at most √limit up,
// and by maxCut down.
//
// Each late request lowers the limit by 1/50, each other one raises it by 5/95 of
// that. So it stands still at one late request in twenty, whatever the distribution
// (the weighted up-down method, Kaernbach, 1991).
func (c *control) holdTarget(s *sample, l law) Reason {
	step := c.limit * (.05*float64(s.n-s.late) - .95*float64(s.late)) / 50
	most := math.Sqrt(c.limit)
	switch {
	case step < 0:
		c.limit = max(float64(l.Min), c.limit+step, maxCut*c.limit)
		return Late
	case s.usedUp(c.limit):
		c.limit = min(float64(l.Max), c.limit+min(most, step))
	case c.limit < float64(l.Initial):
		c.limit = min(float64(l.Initial), c.limit+most)
	}
	return InTime
}
