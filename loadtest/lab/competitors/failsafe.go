package competitors

import (
	"time"

	"github.com/failsafe-go/failsafe-go/adaptivelimiter"
	"github.com/herdshield/shield/loadshed"
	"github.com/herdshield/shield/loadtest/lab/overload"
)

// Failsafe is the adaptive limiter of failsafe-go with its defaults. What times out
// is dropped, as its executor does. It reads the clock: it is to be built and run
// in a synctest bubble.
func Failsafe(w *overload.World) overload.Limiter {
	began := time.Now()
	w.Advance = func(now time.Duration) { time.Sleep(now - time.Since(began)) }
	return failsafe{adaptivelimiter.NewWithDefaults[any]()}
}

type failsafe struct {
	limiter adaptivelimiter.AdaptiveLimiter[any]
}

func (f failsafe) Admit(r *overload.Request) {
	permit, ok := f.limiter.TryAcquirePermit()
	if !ok {
		r.Refuse(0)
		return
	}
	r.Token = permit
	r.Enter()
}

func (f failsafe) Gone(*overload.Request) {}

func (f failsafe) Done(r *overload.Request, _ time.Duration, o loadshed.Signal, _ time.Duration) {
	if permit := r.Token.(adaptivelimiter.Permit); o == loadshed.SignalServed {
		permit.Record()
	} else {
		permit.Drop()
	}
}

func (f failsafe) Limit() int {
	return f.limiter.(adaptivelimiter.Metrics).Limit()
}
