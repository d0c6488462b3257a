package overload

import (
	"slices"
	"testing"
	"time"

	"github.com/herdshield/shield"
	"github.com/herdshield/shield/loadshed"
)

// Faults that the law has had: traffic that it took for an overload, and overloads
// that it took for something else. The seeds are none that a constant was chosen by.
var faultSeeds = []uint64{301, 302, 303}

// faults plays s with c and each of the seeds, and hands what came of it to check.
func faults(t *testing.T, s Scenario, c shield.Config, wrap func(*guarded, *shield.Backend) Limiter, check func(t *testing.T, seed uint64, r *Result, changes map[loadshed.Reason]uint64)) {
	t.Helper()
	if raceEnabled {
		t.Skip("needs a build without the race detector: a run is one goroutine, and ten times slower with it")
	}
	for _, seed := range faultSeeds {
		backend := new(shield.Backend)
		r := Run(s, func(w *World) Limiter {
			g, err := shield.New(c, &shield.State{Backend: backend})
			if err != nil {
				t.Fatal(err)
			}
			guard := &guarded{w: w, g: g}
			if wrap != nil {
				return wrap(guard, backend)
			}
			return guard
		}, seed)
		check(t, seed, r, backend.ShedStats(0).Changes)
	}
}

var defaults = shield.Config{Adaptive: &loadshed.AdaptiveConfig{}}

// A backend that is idle, and clients that hang up on their own: long polls after 25 s,
// and searches that the next key makes useless. Nobody needs to be refused.
func TestClientsThatHangUp(t *testing.T) {
	polls := Scenario{
		Plant: Plant{Workers: 1000}, Rate: steps(0, 5.24), Lasts: at(600), Timeout: 25 * time.Second, Capacity: 1000,
		Routes: []Route{{Share: 5 / 5.24, Service: Exponential(20 * ms)}, {Share: .24 / 5.24, Service: Deterministic(time.Hour)}},
	}
	typing := Scenario{
		Plant: Plant{Workers: 10_000}, Rate: steps(0, 100), Lasts: at(300), Timeout: 100 * ms, Capacity: 1000,
		Routes: one(Exponential(100 * ms)),
	}
	many := Scenario{
		Plant: Plant{Workers: 10_000}, Rate: steps(0, 101), Lasts: at(300), Timeout: 20 * time.Second, Capacity: 1000,
		Routes: []Route{{Share: 100. / 101, Service: Deterministic(50 * ms)}, {Share: 1. / 101, Service: Deterministic(time.Hour)}},
	}
	for name, s := range map[string]Scenario{"polls": polls, "typing": typing, "as many polls as places": many} {
		for _, c := range []shield.Config{defaults, {Adaptive: &loadshed.AdaptiveConfig{Target: time.Second}}} {
			faults(t, s, c, nil, func(t *testing.T, seed uint64, r *Result, _ map[loadshed.Reason]uint64) {
				if all := r.Between(60, int(s.Lasts.Seconds())); all.RefusedShare() > .1 {
					t.Errorf("%s, target %v, seed %d: an idle backend refuses %.1f %%", name, c.Adaptive.Target, seed, all.RefusedShare())
				}
			})
		}
	}
}

// sometimes is a Guard before a backend some of whose answers are refusals.
type sometimes struct {
	*guarded
	refuses func(r *Request) bool
}

func (s sometimes) Done(r *Request, took time.Duration, o loadshed.Signal, retryAfter time.Duration) {
	if s.refuses(r) {
		o = loadshed.SignalOverloaded
	}
	s.guarded.Done(r, took, o, retryAfter)
}

// One of several upstreams is dead, and the others are at half of their capacity: to
// let fewer in helps nobody.
func TestDeadUpstream(t *testing.T) {
	for _, share := range []float64{.125, .25, .5} {
		faults(t, eight(steps(0, 80), 120, time.Second), defaults, func(g *guarded, b *shield.Backend) Limiter {
			return sometimes{g, func(r *Request) bool { return float64(r.Client*2654435761%1000) < 1000*share }}
		}, func(t *testing.T, seed uint64, r *Result, _ map[loadshed.Reason]uint64) {
			all := r.Between(10, 120)
			t.Logf("%g are refused by the backend, seed %d: shield refuses %.1f %%", share, seed, all.RefusedShare())
			if all.RefusedShare() > 10 {
				t.Errorf("%g are refused by the backend, seed %d: shield refuses %.1f %% more", share, seed, all.RefusedShare())
			}
		})
	}
}

// A backend that refuses while more than eight are in flight, at five times what it can
// do: those refusals are the load, and cuts are right.
func TestBackendThatRefusesItsNinth(t *testing.T) {
	faults(t, eight(steps(0, 80, 10, 800), 120, time.Second), defaults, func(g *guarded, b *shield.Backend) Limiter {
		return sometimes{g, func(*Request) bool { return b.Stats(0).InFlight > 8 }}
	}, func(t *testing.T, seed uint64, r *Result, changes map[loadshed.Reason]uint64) {
		over := r.Between(30, 120)
		t.Logf("seed %d: limit %.1f, cut %d times", seed, over.Limit, changes[loadshed.Refusing])
		if over.Limit > 12 {
			t.Errorf("seed %d: limit %.1f before a backend that refuses the ninth", seed, over.Limit)
		}
	})
}

// Nearly all is sheddable, whose share of the limit is 70 %: the limit is used up when
// that share is, which does not say that less is needed.
func TestSheddableFlood(t *testing.T) {
	c := shield.Config{Adaptive: &loadshed.AdaptiveConfig{}, Classes: []loadshed.Class{{Name: loadshed.Critical}, {Name: loadshed.Sheddable}}}
	s := Large()
	s.Lasts = at(240)
	s.Routes = []Route{
		{Share: .0005, Service: Exponential(50 * ms), Class: loadshed.Critical},
		{Share: .9995, Service: Exponential(50 * ms), Class: loadshed.Sheddable},
	}
	faults(t, s, c, nil, func(t *testing.T, seed uint64, r *Result, _ map[loadshed.Reason]uint64) {
		over := r.Between(120, 240)
		t.Logf("seed %d: goodput %.1f %%, limit %.0f", seed, over.Goodput(), over.Limit)
		if over.Goodput() < 97 {
			t.Errorf("seed %d: goodput %.1f %% of capacity, want 97", seed, over.Goodput())
		}
	})
}

// Nearly all is of the highest class, which bears no probe while there are others: a
// probe that was not one says nothing.
func TestProbesOfTheHighestClass(t *testing.T) {
	c := shield.Config{Adaptive: &loadshed.AdaptiveConfig{}, Classes: []loadshed.Class{{Name: loadshed.Sheddable}}}
	s := eight(steps(0, 80, 60, 480), 360, time.Second)
	s.Routes = []Route{
		{Share: .995, Service: Exponential(50 * ms), Class: loadshed.Default},
		{Share: .005, Service: Exponential(50 * ms), Class: loadshed.Sheddable},
	}
	faults(t, s, c, nil, func(t *testing.T, seed uint64, r *Result, changes map[loadshed.Reason]uint64) {
		over := r.Between(120, 360)
		t.Logf("seed %d: goodput %.1f %%, limit %.0f, %d probes have found a queue", seed, over.Goodput(), over.Limit, changes[loadshed.Proven])
		if n := changes[loadshed.Proven]; n > 10 {
			t.Errorf("seed %d: %d probes have found a queue that is not there", seed, n)
		}
	})
}

// A backend that stands still for 20 s, and is a fifth as fast afterwards: what the
// limit was before is out of reach, and the target holds at what can be reached.
func TestTargetAfterAFailure(t *testing.T) {
	const target = 400 * time.Millisecond
	for _, outage := range []time.Duration{0, 20 * time.Second} {
		s := eight(steps(0, 80, 60, 480), 360, 5*time.Second)
		s.Plant.Slow = steps(0, 1, 120, 5)
		s.Plant.Outage = [2]time.Duration{at(120), at(120) + outage}
		s.Routes = one(Deterministic(50 * ms))
		faults(t, s, shield.Config{Adaptive: &loadshed.AdaptiveConfig{Target: target}}, nil, func(t *testing.T, seed uint64, r *Result, _ map[loadshed.Reason]uint64) {
			over := r.Between(200, 360)
			t.Logf("outage %v, seed %d: p95 %v, limit %.0f", outage, seed, over.P95, over.Limit)
			if over.P95 > target*12/10 {
				t.Errorf("outage %v, seed %d: p95 %v, target %v", outage, seed, over.P95, target)
			}
		})
	}
}

// Clients that hang up before the target, and so are never seen to take longer.
func TestTargetBeyondPatience(t *testing.T) {
	s := eight(steps(0, 80, 60, 480), 240, 350*time.Millisecond)
	faults(t, s, shield.Config{Adaptive: &loadshed.AdaptiveConfig{Target: 400 * time.Millisecond}}, nil, func(t *testing.T, seed uint64, r *Result, _ map[loadshed.Reason]uint64) {
		over := r.Between(120, 240)
		t.Logf("seed %d: goodput %.1f %%, limit %.0f", seed, over.Goodput(), over.Limit)
		if over.Goodput() < 85 {
			t.Errorf("seed %d: goodput %.1f %% of capacity, want 85", seed, over.Goodput())
		}
	})
}

// Long requests hold some of the places, and nothing but them has room in a probe. It
// ends soon.
func TestProbeAmongLongRequests(t *testing.T) {
	s := eight(steps(0, 80, 60, 240), 240, 30*time.Second)
	s.Plant.Workers = 1000 // the long ones occupy nothing
	s.Routes = []Route{{Share: .9985, Service: Exponential(50 * ms)}, {Share: .0015, Service: Deterministic(20 * time.Second)}}
	faults(t, s, shield.Config{Adaptive: &loadshed.AdaptiveConfig{Max: 20}}, nil, func(t *testing.T, seed uint64, r *Result, changes map[loadshed.Reason]uint64) {
		least := r.Seconds[100].Good
		for _, second := range r.Seconds[100:239] {
			least = min(least, second.Good)
		}
		over := r.Between(100, 239)
		t.Logf("seed %d: %.1f per second, %d in the worst; %d probes", seed, over.Goodput()*160/100, least, changes[loadshed.Probed])
		if least < 20 || changes[loadshed.Probed] == 0 {
			t.Errorf("seed %d: %d served in the worst second, after %d probes", seed, least, changes[loadshed.Probed])
		}
	})
}

// A backend that has stood still for a moment can do afterwards what it could before:
// nobody is told to wait for what it could not do then.
func TestStallIsForgotten(t *testing.T) {
	s := eight(steps(0, 100), 120, 4*time.Second)
	s.Plant.Slow = steps(0, 1, 30, 40, 30.4, 1, 60, 40, 60.4, 1)
	var g *guarded
	var spare []float64 // in each second
	for _, seed := range faultSeeds {
		spare = nil
		Run(s, func(w *World) Limiter {
			g = Guard(defaults)(w).(*guarded)
			for at := time.Second; at < s.Lasts; at += time.Second {
				w.At(at, func() { spare = append(spare, g.g.Spare()) })
			}
			return g
		}, seed)
		t.Logf("seed %d: spare %.0f", seed, spare[25:80])
		if least := slices.Min(spare[70:]); least < 20 {
			t.Errorf("seed %d: %.1f per second to spare, of a backend that does 160 and gets 100", seed, least)
		}
	}
}

// manyAsOne makes the requests of one route those of one client.
type manyAsOne struct{ *guarded }

func (l manyAsOne) Admit(r *Request) {
	if r.Route == 1 {
		r.Client = 1 << 40
	}
	l.guarded.Admit(r)
}

// One client that sends more than the backend can do, whatever it is told, does not
// keep others away, who come now and then.
func TestFloodOfOneClient(t *testing.T) {
	s := eight(steps(0, 60, 60, 460), 90, time.Second)
	s.Routes = []Route{{Service: Exponential(50 * ms), Class: "few"}, {Service: Exponential(50 * ms), Class: "flood"}}
	s.Mix = func(now time.Duration) []float64 {
		if now < time.Minute {
			return []float64{1, 0}
		}
		return []float64{60. / 460, 400. / 460}
	}
	faults(t, s, defaults, func(g *guarded, _ *shield.Backend) Limiter { return manyAsOne{g} },
		func(t *testing.T, seed uint64, r *Result, _ map[loadshed.Reason]uint64) {
			var few Count
			least := r.Seconds[62].ByClass["few"].Good
			for _, second := range r.Seconds[62:89] {
				c := second.ByClass["few"]
				few.Good, few.Refused, least = few.Good+c.Good, few.Refused+c.Refused, min(least, c.Good)
			}
			t.Logf("seed %d: of the others %d served, %d refused; %d served in the worst second", seed, few.Good, few.Refused, least)
			if 50*few.Refused > few.Good || least < 25 {
				t.Errorf("seed %d: of the others %d served, %d refused; %d served in the worst second", seed, few.Good, few.Refused, least)
			}
		})
}
