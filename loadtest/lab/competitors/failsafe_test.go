package competitors

import (
	"net/http"
	"time"

	"github.com/failsafe-go/failsafe-go/adaptivelimiter"

	"github.com/herdshield/shield"
	"github.com/herdshield/shield/loadtest/sim"
)

// newFailsafe is the Maker of a server with the adaptive limiter of failsafe-go, with
// its defaults. A request that its client gives up is dropped, as its executor does. The
// limiter reads the clock: runs have to be played in a synctest bubble, whose clock
// the server moves on.
func newFailsafe(shield.Config) (sim.Server, error) {
	return &failsafe{
		limiter: adaptivelimiter.NewWithDefaults[any](), began: time.Now(), open: map[int32]adaptivelimiter.Permit{},
	}, nil
}

type failsafe struct {
	limiter adaptivelimiter.AdaptiveLimiter[any]
	began   time.Time
	open    map[int32]adaptivelimiter.Permit // by ticket
	tickets int32
}

func (f *failsafe) moveOn(now time.Duration) { time.Sleep(now - time.Since(f.began)) }

func (f *failsafe) Arrive(now time.Duration, _ sim.Request) sim.Answer {
	f.moveOn(now)
	permit, ok := f.limiter.TryAcquirePermit()
	if !ok {
		return sim.Answer{Status: http.StatusTooManyRequests}
	}
	f.tickets++
	f.open[f.tickets] = permit
	return sim.Answer{Admit: true, Ticket: f.tickets}
}

func (f *failsafe) Finish(now time.Duration, ticket int32, e sim.End) {
	f.moveOn(now)
	if e.Outcome == shield.Served {
		f.open[ticket].Record()
	} else {
		f.open[ticket].Drop()
	}
	delete(f.open, ticket)
}

// Change implements sim.Server: there is no config.
func (f *failsafe) Change(shield.Config, bool) error { return nil }

// Limit implements sim.Gauge.
func (f *failsafe) Limit() int { return f.limiter.(adaptivelimiter.Metrics).Limit() }
