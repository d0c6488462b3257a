package competitors

import (
	"time"

	"github.com/herdshield/shield/loadshed"
	"github.com/herdshield/shield/loadtest/lab/overload"
	"github.com/herdshield/shield/loadtest/sim"
)

// Gradient2 is the limiter of Netflix/concurrency-limits: see sim.GradientLimiter.
func Gradient2(w *overload.World) overload.Limiter {
	return &gradient2{sim.NewGradientLimiter(), w}
}

type gradient2 struct {
	*sim.GradientLimiter
	w *overload.World
}

func (g *gradient2) Admit(r *overload.Request) {
	if !g.Enter() {
		r.Refuse(0)
		return
	}
	r.Enter()
}

func (g *gradient2) Gone(*overload.Request) {}

func (g *gradient2) Done(_ *overload.Request, took time.Duration, _ loadshed.Signal, _ time.Duration) {
	g.Leave(g.w.Now(), took, true)
}
