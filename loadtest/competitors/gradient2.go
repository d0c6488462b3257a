package competitors

import (
	"math"
	"time"

	"github.com/herdshield/shield/loadshed"
	"github.com/herdshield/shield/loadtest/overload"
)

// Gradient2 is the limiter of Netflix/concurrency-limits: the limit follows the
// ratio of a long mean of the latency, times a tolerance of 1.5, to the latest.
func Gradient2(w *overload.World) overload.Limiter {
	return &gradient2{w: w, limit: 20}
}

type gradient2 struct {
	w        *overload.World
	limit    float64
	inFlight int

	long    float64 // mean over 600 windows
	warming int     // the mean of the first 10 is a plain one

	window struct {
		ends     time.Duration
		n        int
		sum      float64
		inFlight int
		dropped  bool
	}
}

func (g *gradient2) Admit(r *overload.Request) {
	if g.inFlight >= int(g.limit) {
		r.Refuse(0)
		return
	}
	g.inFlight++
	r.Enter()
}

func (g *gradient2) Gone(*overload.Request) {}

func (g *gradient2) Limit() int { return int(g.limit) }

// Done collects a window, as WindowedLimit does: at least a second and ten samples,
// of which it gives on the mean.
func (g *gradient2) Done(_ *overload.Request, took time.Duration, _ loadshed.Outcome, _ time.Duration) {
	x := &g.window
	x.n++
	x.sum += took.Seconds()
	x.inFlight = max(x.inFlight, g.inFlight)
	g.inFlight--
	now := g.w.Now()
	if now < x.ends || x.n < 10 {
		return
	}
	g.update(x.sum/float64(x.n), x.inFlight)
	x.n, x.sum, x.inFlight = 0, 0, 0
	x.ends = now + time.Second
}

func (g *gradient2) update(short float64, inFlight int) {
	const (
		tolerance = 1.5
		queue     = 4
		smoothing = 0.2
		least     = 1
		most      = 1000 // as shield's; the default of 200 would hide a drift
	)
	if g.warming < 10 {
		g.long = (g.long*float64(g.warming) + short) / float64(g.warming+1)
		g.warming++
	} else {
		g.long += 2. / 601 * (short - g.long)
	}
	if g.long/short > 2 {
		g.long *= .95
	}
	if float64(inFlight) < g.limit/2 {
		return // not used
	}
	gradient := max(.5, min(1, tolerance*g.long/short))
	limit := g.limit*(1-smoothing) + (g.limit*gradient+queue)*smoothing
	g.limit = math.Max(least, math.Min(most, limit))
}
