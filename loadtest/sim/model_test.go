package sim

import (
	"math"
	"testing"
	"time"

	"github.com/herdshield/shield"
	"github.com/herdshield/shield/limiter"
	"github.com/herdshield/shield/loadtest/clients"
	"github.com/herdshield/shield/pushback"
)

// appointments is a model of what the Guard is to do, as plain as possible: one
// virtual clock V that hands out the spare rate, refusals held back for the
// fraction of a second, a horizon beyond which nothing is promised, and a record
// of each client that is never forgotten. It shows what the harness measures when
// all goes well, and it shares no code with the Guard.
type appointments struct {
	rate, burst, horizon float64
	tokens, last, v      float64
	base, second, fresh  float64 // strangers per second, over half a minute
	due                  map[limiter.Key]float64
	deferred             map[limiter.Key]bool
}

func newAppointments(horizon time.Duration) Maker {
	return func(c shield.Config) (Server, error) {
		burst := float64(c.Capacity.Burst)
		return &appointments{
			rate: c.Capacity.Rate, burst: burst, tokens: burst, horizon: horizon.Seconds(),
			due: map[limiter.Key]float64{}, deferred: map[limiter.Key]bool{},
		}, nil
	}
}

func (s *appointments) Finish(time.Duration, int32, End) {}

func (s *appointments) Change(shield.Config, bool) error { return nil }

func (s *appointments) Arrive(now time.Duration, r Request) Answer {
	t := now.Seconds()
	s.tokens = min(s.burst, s.tokens+(t-s.last)*s.rate)
	s.last = t
	if math.Floor(t) > s.second {
		gain := 1.0 / 30
		if s.v > t {
			gain /= 20
		}
		s.base += gain * (min(s.fresh, 3*s.base+10) - s.base)
		s.second, s.fresh = math.Floor(t), 0
	}
	due, known := s.due[r.Client]
	if !known {
		s.fresh++
	}
	const tolerance = 0.02
	promised := known && !s.deferred[r.Client]
	early := promised && t < due-tolerance
	need := 1.0
	if s.v > t && !(promised && !early) {
		need += 0.3 * s.burst
	}
	if s.tokens >= need && !(early && s.v > t) {
		s.tokens--
		return Answer{Admit: true}
	}
	d := due - t
	if !early {
		s.v = max(s.v, t+1)
		if s.deferred[r.Client] = s.v-t > s.horizon; s.deferred[r.Client] {
			d = s.horizon / 2 * (1 + r.U)
		} else {
			s.v += 1 / max(0.1*s.rate, 0.97*s.rate-s.base)
			d = s.v - t
		}
		s.due[r.Client] = t + d
	}
	whole := int(max(1, math.Floor(d)))
	hold := max(0, d-float64(whole))
	return Answer{
		Hint: pushback.Hint{Seconds: whole, Ms: 1000 * whole},
		Hold: time.Duration(hold * float64(time.Second)),
	}
}

// The bounds can be kept: the model keeps those of the first rows (the second with up
// to 1.09 times the optimum). If a Guard does not, it is not the harness's fault.
func TestAppointmentsAreWorthIt(t *testing.T) {
	for _, r := range []row{
		herd("2,500, max 59s", 2500, longest, bounds{ratio: 1.10, perSuccess: 2.02, returns: 20, unbroken: true}),
		herd("5,000, max 59s", 5000, longest, bounds{ratio: 1.10, perSuccess: 2.3}),
		herd("5,000, max 30s", 5000, halfMinute, bounds{ratio: 1.08, perSuccess: 2.9}),
		herd("5,000 without a horizon", 5000, 0, bounds{ratio: 1.10, perSuccess: 2.02, returns: 20, unbroken: true}),
	} {
		t.Run(r.Name, func(t *testing.T) {
			horizon := r.Config.Pushback.Max
			if horizon == 0 {
				horizon = time.Hour
			}
			r.server = newAppointments(horizon)
			for _, out := range r.check(t, []uint64{1, 2, 3}) {
				t.Log(rows([]outcome{out})[1])
			}
		})
	}
}

// The same without holding refusals back: 5 times as long and as many requests.
// A harness in which that did not matter would measure nothing.
func TestWholeSecondsAlone(t *testing.T) {
	r := herd("", 2500, longest, bounds{})
	r.Mix, r.Until = clients.All(clients.Exact{}), 0
	out, err := runLeveled(r.Scenario, func(c shield.Config) (Server, error) {
		s, err := newAppointments(longest)(c)
		return &ceil{s}, err
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Log(rows([]outcome{out})[1])
	if out.Ratio() < 3 || out.PerSuccess() < 3 {
		t.Errorf("%.2f times the optimum with %.2f requests per success; want several times as long, and as many", out.Ratio(), out.PerSuccess())
	}
}

// ceil tells the next whole second, and holds nothing back.
type ceil struct{ Server }

func (s *ceil) Arrive(now time.Duration, r Request) Answer {
	a := s.Server.Arrive(now, r)
	if a.Hold > 0 {
		a.Hold = 0
		a.Hint.Seconds++
		a.Hint.Ms += 1000
	}
	return a
}
