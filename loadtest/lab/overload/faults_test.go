package overload

import (
	"slices"
	"testing"
	"time"

	"github.com/herdshield/shield"
	"github.com/herdshield/shield/limiter"
	"github.com/herdshield/shield/loadshed"
	"github.com/herdshield/shield/loadtest/sim"
)

// Faults that the law has had: traffic that it took for an overload, and overloads
// that it took for something else. The seeds are none that a constant was chosen by.
// How one run ends is much a matter of luck, so the bounds are on the mean of
// several. They are three standard errors, or more, from the mean of 40 runs.
const faultSeed = 301

// faults plays s with c and so many seeds, and returns a figure of each run.
func faults(t *testing.T, runs int, s Scenario, c shield.Config, wrap func(*sim.Guarded) sim.Server, figure func(r *Result, changes map[loadshed.Reason]uint64) float64) (figures []float64) {
	t.Helper()
	for seed := range uint64(runs) {
		var g *sim.Guarded
		row := Row{Config: c, Maker: func(c shield.Config) (sim.Server, error) {
			server, err := watched(&g)(c)
			if wrap != nil && err == nil {
				server = wrap(g)
			}
			return server, err
		}}
		r := row.Run(s, faultSeed+seed)
		figures = append(figures, figure(r, g.State.Backend.Stats(0).Changes))
	}
	t.Logf("mean %.2f of %.1f", mean(figures), figures)
	return figures
}

func goodput(from, to int) func(*Result, map[loadshed.Reason]uint64) float64 {
	return func(r *Result, _ map[loadshed.Reason]uint64) float64 { return r.Between(from, to).Goodput() }
}

// A backend that is idle, and clients that hang up on their own: long polls after 25 s,
// and searches that the next key makes useless. No request needs to be rejected.
func TestClientsThatHangUp(t *testing.T) {
	polls := open(1000, exponential(20*ms), steps(0, 5.24), 600, 25*time.Second)
	polls.routes(route{5, exponential(20 * ms), ""}, route{.24, sim.Service{Mean: time.Hour}, ""})
	typing := open(10_000, exponential(100*ms), steps(0, 100), 300, 100*ms)
	many := open(10_000, sim.Service{Mean: 50 * ms}, steps(0, 101), 300, 20*time.Second)
	many.routes(route{100, many.Service, ""}, route{1, sim.Service{Mean: time.Hour}, ""})
	for _, test := range []struct {
		name string
		s    Scenario
		most float64 // share of runs
	}{
		{"long polls", polls, .05},
		{"as many long polls as permits", many, .05},
		// Not cured: while little comes at once, hang-ups look like an overload in one
		// run of six.
		{"typing", typing, .3},
	} {
		reject := 0.0
		for _, c := range []shield.Config{Shield.Config, {Adaptive: &loadshed.AdaptiveConfig{Target: time.Second}}} {
			for _, rejected := range faults(t, 20, test.s, c, nil, func(r *Result, _ map[loadshed.Reason]uint64) float64 {
				return r.Between(60, len(r.Seconds)).RejectedShare()
			}) {
				if rejected > .1 {
					reject += 1. / 40
				}
			}
		}
		t.Logf("%s: an idle backend rejects in %.0f%% of the runs", test.name, 100*reject)
		if reject > test.most {
			t.Errorf("%s: an idle backend rejects in %.0f%% of the runs, want %.0f%% at most", test.name, 100*reject, 100*test.most)
		}
	}
}

// sometimes is a Guard before a backend some of whose answers are rejections.
type sometimes struct {
	*sim.Guarded
	outcome shield.Outcome // of those
	rejects func(client limiter.Key) bool
	client  map[int32]limiter.Key // by ticket
}

func (s sometimes) Arrive(now time.Duration, r sim.Request) sim.Answer {
	a := s.Guarded.Arrive(now, r)
	s.client[a.Ticket] = r.Client
	return a
}

func (s sometimes) Finish(now time.Duration, ticket int32, e sim.End) {
	if s.rejects(s.client[ticket]) {
		e.Outcome = s.outcome
	}
	s.Guarded.Finish(now, ticket, e)
}

// One of several upstreams is dead, or some clients are over a quota of the backend's, which answers 429, and the
// others are at half of its capacity: to let fewer in does not help.
func TestDeadUpstream(t *testing.T) {
	for outcome, most := range map[shield.Outcome]float64{shield.Overloaded: 8, shield.Limited: .2} { // a 429 says less
		for _, share := range []float64{.125, .25, .5, .75} {
			rejected := faults(t, 20, eight(steps(0, 80), 120, time.Second), Shield.Config, func(g *sim.Guarded) sim.Server {
				return sometimes{g, outcome, func(client limiter.Key) bool { return float64(client%1000) < 1000*share }, map[int32]limiter.Key{}}
			}, func(r *Result, _ map[loadshed.Reason]uint64) float64 { return r.Between(10, 120).RejectedShare() })
			if m := mean(rejected); m > most {
				t.Errorf("%v: %g are rejected by the backend: shield rejects %.1f%% more", outcome, share, m)
			}
		}
	}
}

// A backend that rejects while more than eight are in flight, as inference servers with a bounded queue do with 429, at
// five times what it can do: those rejections are the load, and cuts are right. A 429 may be a quota's, so it says less.
func TestBackendThatRejectsItsNinth(t *testing.T) {
	for outcome, most := range map[shield.Outcome]float64{shield.Overloaded: 10, shield.Limited: 14} {
		limit := faults(t, 3, eight(steps(0, 80, 10, 800), 120, time.Second), Shield.Config, func(g *sim.Guarded) sim.Server {
			return sometimes{g, outcome, func(limiter.Key) bool { return g.State.Backend.Stats(0).InFlight > 8 }, map[int32]limiter.Key{}}
		}, func(r *Result, _ map[loadshed.Reason]uint64) float64 { return r.Between(30, 120).Limit })
		if m := mean(limit); m > most {
			t.Errorf("outcome %v: limit %.1f before a backend that rejects the ninth, want %v", outcome, m, most)
		}
	}
}

// Nearly all is of a class with a share of the limit: the limit is used up when that share
// is, which does not say that less is needed.
func TestSheddableFlood(t *testing.T) {
	for _, share := range []float64{.3, .7} {
		c := shield.Config{Adaptive: &loadshed.AdaptiveConfig{}, Classes: []loadshed.Class{{Name: loadshed.Critical}, {Name: loadshed.Sheddable, Share: share}}}
		s := Large()
		s.Until = at(240)
		s.routes(route{.005, s.Service, loadshed.Critical}, route{.995, s.Service, loadshed.Sheddable})
		good := faults(t, 1, s, c, nil, goodput(120, 240)) // a large backend: the mean of many
		if m := mean(good); m < 98 {
			t.Errorf("a share of %v: goodput %.1f%% of capacity, want 98", share, m)
		}
	}
}

// Nearly all is of the highest class, which bears no probe while there are others: a
// probe that was not one says nothing.
func TestProbesOfTheHighestClass(t *testing.T) {
	c := shield.Config{Adaptive: &loadshed.AdaptiveConfig{}, Classes: []loadshed.Class{{Name: loadshed.Sheddable}}}
	s := eight(steps(0, 80, 60, 480), 360, time.Second)
	s.routes(route{.995, s.Service, loadshed.Default}, route{.005, s.Service, loadshed.Sheddable})
	proven := faults(t, 3, s, c, nil, func(_ *Result, changes map[loadshed.Reason]uint64) float64 { return float64(changes[loadshed.Proven]) })
	if m := mean(proven); m > 5 {
		t.Errorf("%.0f probes have found a queue that is not there", m)
	}
}

// A backend that stands still for 20 s, and is a fifth as fast afterwards: what the
// limit was before is out of reach, and the target holds at what can be reached.
func TestTargetAfterAFailure(t *testing.T) {
	const target = 400 * time.Millisecond
	for _, outage := range []time.Duration{0, 20 * time.Second} {
		s := eight(steps(0, 80, 60, 480), 360, 5*time.Second)
		s.Plant.Slow = steps(0, 1, 120, 5)
		s.Plant.Outage = [2]time.Duration{at(120), at(120) + outage}
		s.Service = sim.Service{Mean: 50 * ms}
		p95 := faults(t, 3, s, shield.Config{Adaptive: &loadshed.AdaptiveConfig{Target: target}}, nil, func(r *Result, _ map[loadshed.Reason]uint64) float64 {
			return r.Between(200, 360).P95.Seconds()
		})
		if m := mean(p95); m > 1.2*target.Seconds() {
			t.Errorf("outage %v: p95 %.3f s, target %v", outage, m, target)
		}
	}
}

// Clients that hang up before the target, and so are never seen to take longer, where the
// answers of the backend are not waited for.
func TestTargetBeyondPatience(t *testing.T) {
	s := eight(steps(0, 80, 60, 480), 240, 350*time.Millisecond)
	good := faults(t, 3, s, shield.Config{Adaptive: &loadshed.AdaptiveConfig{Target: 400 * time.Millisecond}, Disconnected: shield.DisconnectedFree}, nil, goodput(120, 240))
	if m := mean(good); m < 90 {
		t.Errorf("goodput %.1f%% of capacity, want 90", m)
	}
}

// Long requests hold some of the permits, and nothing but them has room in a probe. It
// ends soon.
func TestProbeAmongLongRequests(t *testing.T) {
	s := eight(steps(0, 80, 60, 240), 240, 30*time.Second)
	s.Plant.Workers = 1000 // the long ones occupy nothing
	s.routes(route{.9985, s.Service, ""}, route{.0015, sim.Service{Mean: 20 * time.Second}, ""})
	probes := uint64(0)
	least := faults(t, 10, s, shield.Config{Adaptive: &loadshed.AdaptiveConfig{Max: 20}}, nil, func(r *Result, changes map[loadshed.Reason]uint64) float64 {
		probes += changes[loadshed.Probed]
		least := r.Seconds[100].Good
		for _, second := range r.Seconds[100:239] {
			least = min(least, second.Good)
		}
		return float64(least)
	})
	if m := mean(least); m < 25 || probes == 0 {
		t.Errorf("%.0f served in the worst second, after %d probes", m, probes)
	}

	// It ends, too, where one of the others has ended in it, and the long ones go on for ever.
	s = eight(steps(0, 80, 60, 240), 240, 3*time.Hour)
	s.Plant.Workers = 1000
	s.routes(route{.9995, s.Service, ""}, route{.0005, sim.Service{Mean: time.Hour}, ""})
	poor := faults(t, 10, s, shield.Config{Adaptive: &loadshed.AdaptiveConfig{Max: 26}}, nil, func(r *Result, _ map[loadshed.Reason]uint64) float64 {
		n := 0
		for _, second := range r.Seconds[100:200] {
			if second.Good < 20 {
				n++
			}
		}
		return float64(n)
	})
	if m := mean(poor); m > 4 {
		t.Errorf("next to nothing served in %.0f of 100 seconds", m)
	}
}

// A backend that has stood still for a moment can do afterwards what it could before:
// no client is told to wait for what it could not do then.
func TestStallIsForgotten(t *testing.T) {
	s := eight(steps(0, 100), 120, 4*time.Second)
	s.Plant.Slow = steps(0, 1, 30, 40, 30.4, 1, 60, 40, 60.4, 1)
	var g *sim.Guarded
	var spare, leasts []float64 // in each second, and in each run
	s.Progress = func(time.Duration, time.Duration) { spare = append(spare, g.Guard.Spare()) }
	for seed := range uint64(10) {
		spare = nil
		Row{Config: Shield.Config, Maker: watched(&g)}.Run(s, faultSeed+seed)
		t.Logf("seed %d: spare %.0f", seed, spare[25:80])
		leasts = append(leasts, slices.Min(spare[70:]))
	}
	if m := mean(leasts); m < 25 || slices.Min(leasts) < 10 {
		t.Errorf("%.1f per second to spare, at least, of a backend that does 160 and gets 100", leasts)
	}
}
