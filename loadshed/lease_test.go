package loadshed

import (
	"math"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// A process that was frozen sees with its first request that its lease is over. The limit
// that others see is then 1, as 0 is no limit.
func TestLeaseEnds(t *testing.T) {
	p := mustPlan(t, PlanConfig{Limit: 10, Queue: QueueConfig{Size: NoQueue}})
	var c Concurrency
	c.Use(p, true)
	c.Grant(time.Minute, 5, time.Minute+time.Second)
	for _, at := range []time.Duration{time.Minute + time.Second, time.Minute} { // once over, it stays so
		if is, _ := c.Enter(at, p, &Entrant{}, new(Permit)); is != Full || c.Limit(p) != 1 {
			t.Errorf("at %v: %v with a limit of %d", at, is, c.Limit(p))
		}
	}
	c.shortAt.Store(0)
	if c.Tick(time.Minute, 0, 0, p, true); !c.underPressure(time.Minute) {
		t.Error("there is headroom without a permit")
	}
	c.Grant(time.Minute, 1, time.Hour)
	if is, _ := c.Enter(time.Minute, p, &Entrant{}, new(Permit)); is != Entered {
		t.Errorf("with a new lease: %v", is)
	}

	// One that hears of its permit after that has none any more.
	p = mustPlan(t, PlanConfig{Limit: 1})
	var frozen Concurrency
	frozen.Use(p, true)
	frozen.Grant(0, 1, time.Second)
	var first, waits Permit
	frozen.Enter(0, p, &Entrant{}, &first)
	frozen.Enter(0, p, &Entrant{}, &waits)
	first.Leave(0, Served)
	if frozen.Settle(time.Second, p, &waits, <-waits.Verdict()) {
		t.Error("a request goes on with a permit that others have by now")
	}
}

// A request that waits is let in as its process is granted a permit.
func TestGrantEndsAWait(t *testing.T) {
	p := mustPlan(t, PlanConfig{Limit: 10})
	var c Concurrency
	var waits Permit
	c.Use(p, true)
	c.Grant(0, 0, math.MaxInt64)
	c.Enter(0, p, &Entrant{}, &waits)
	c.Grant(0, 1, math.MaxInt64)
	if v := told(waits.wait); v != Granted {
		t.Errorf("it was told %v", v)
	}
	var next Permit
	c.Enter(0, p, &Entrant{}, &next)
	c.Ungrant(0)
	if v := told(next.wait); v != Granted {
		t.Errorf("after the lease it was told %v", v)
	}
}

// When a request that needs more permits than are free stops waiting, those that it was in the way of are let in.
func TestHeavyRequestLeavesTheQueue(t *testing.T) {
	for what, leave := range map[string]func(*Concurrency, *Plan, *Permit){
		"gone": func(c *Concurrency, _ *Plan, pl *Permit) { c.Reject(0, pl) },
		"its time is over": func(c *Concurrency, p *Plan, pl *Permit) {
			c.Settle(0, p, pl, waiting)
			c.Reject(0, pl)
		},
	} {
		p := mustPlan(t, PlanConfig{Limit: 10})
		var c Concurrency
		c.Use(p, true)
		var holds, heavy, light Permit
		c.Enter(0, p, &Entrant{Weight: 8}, &holds)
		c.Enter(0, p, &Entrant{Weight: 5}, &heavy)
		c.Enter(0, p, &Entrant{}, &light)
		leave(&c, p, &heavy)
		if v := told(light.wait); v != Granted || c.InFlight() != 9 {
			t.Errorf("%s: the light one was told %v, with %d in flight", what, v, c.InFlight())
		}
	}
}

// Permits that were kept for a higher class go to a request that waits with the next Tick, for callers that don't Wake.
func TestTickEndsAWait(t *testing.T) {
	p := mustPlan(t, PlanConfig{Limit: 10, Classes: []Class{{Name: Critical}, {Name: Sheddable}}, Queue: QueueConfig{Timeout: MaxQueueTimeout}})
	var c Concurrency
	c.Use(p, true)
	var holds, waits Permit
	critical, _ := p.ClassNamed(Critical)
	sheddable, _ := p.ClassNamed(Sheddable)
	c.Enter(0, p, &Entrant{Class: uint8(1 + critical), As: critical, Weight: 8}, &holds)
	c.Enter(0, p, &Entrant{Class: uint8(1 + sheddable), As: sheddable}, &waits)
	c.Tick(reserveTime-1, 0, 0, p, true)
	before := told(waits.wait)
	c.Tick(reserveTime, 0, 0, p, true)
	if v := told(waits.wait); before != waiting || v != Granted {
		t.Errorf("it was told %v and then %v", before, v)
	}
}

// While requests come and go on all cores and the lease is lowered: what is in flight, as
// counted after that, is the most that there will be.
func TestLeaseIsExact(t *testing.T) {
	p := mustPlan(t, PlanConfig{Limit: 64, Queue: QueueConfig{Size: NoQueue}})
	var c Concurrency
	c.Use(p, true)
	c.Grant(0, 8, math.MaxInt64)
	var inFlight, admitted atomic.Int64
	var stop atomic.Bool
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for !stop.Load() {
				var pl Permit
				if is, _ := c.Enter(1, p, &Entrant{}, &pl); is == Entered {
					inFlight.Add(1)
					admitted.Add(1)
					runtime.Gosched()
					inFlight.Add(-1)
					pl.Leave(1, Served)
				}
				runtime.Gosched()
			}
		})
	}
	for i := range 3_000 {
		least := i % 3
		for range 10 {
			c.Grant(1, 8, math.MaxInt64)
			runtime.Gosched()
			c.Grant(1, least, math.MaxInt64)
		}
		most := max(least, c.Usage().InFlight)
		for range 20 {
			if n := inFlight.Load(); n > int64(most) || most > 8 {
				t.Fatalf("%d in flight, and there should be %d at most", n, most)
			}
			runtime.Gosched()
		}
	}
	stop.Store(true)
	wg.Wait()
	if n := c.InFlight(); admitted.Load() == 0 || n != 0 {
		t.Errorf("%d were admitted, and in the end %d permits are taken", admitted.Load(), n)
	}
}

// While requests of all weights come and go on all cores, wait, leave the queue, and limit and lease change: what is in flight weighs as much
// as is counted, never more than the highest limit, and nothing at the end.
func TestWeightsAreExact(t *testing.T) {
	for name, config := range map[string]PlanConfig{
		"fixed":      {Limit: 20},
		"no queue":   {Limit: 20, Queue: QueueConfig{Size: NoQueue}},
		"adaptive":   {Adaptive: &AdaptiveConfig{Min: 5, Max: 20}},
		"classes":    {Limit: 20, Classes: []Class{{Name: Critical}, {Name: Sheddable, Share: .5}}},
		"per client": {Limit: 20, PerClient: 7},
	} {
		p, lower := mustPlan(t, config), mustPlan(t, PlanConfig{Limit: 7})
		var c Concurrency
		c.Use(p, true)
		var inFlight, admitted, clock atomic.Int64
		var ofClient [4]atomic.Int64
		var wg sync.WaitGroup
		for id := range 8 {
			wg.Go(func() {
				for i := range 3_000 {
					now := time.Duration(clock.Add(int64(100 * time.Microsecond)))
					e := Entrant{Client: uint64(id % 4), InFlight: uint64(id % 4), Class: uint8(i % 3), As: i % len(p.Classes), Due: i%5 == 0, Weight: i * 7 % 25}
					var pl Permit
					is, _ := c.Enter(now, p, &e, &pl)
					if is == Waiting {
						runtime.Gosched()
						select {
						case v := <-pl.Verdict():
							if is = Full; c.Settle(now, p, &pl, v) {
								is = Entered
							}
						default:
							c.Reject(now, &pl)
							continue
						}
					}
					if is != Entered {
						c.Reject(now, &pl)
						continue
					}
					weight := int64(pl.weight)
					admitted.Add(1)
					if sum := inFlight.Add(weight); sum > 20 || weight < 1 {
						t.Errorf("%s: %d weigh %d", name, weight, sum)
					}
					if n := ofClient[id%4].Add(min(weight, 7)); name == "per client" && id%4 > 0 && n > 7 {
						t.Errorf("a client has %d", n)
					}
					runtime.Gosched()
					ofClient[id%4].Add(-min(weight, 7))
					inFlight.Add(-weight)
					pl.Leave(now+time.Millisecond, Outcome(i%6))
					if id == 0 && i%100 == 0 {
						c.Grant(now, 5+i%20, math.MaxInt64)
						c.Use([]*Plan{p, lower}[i/100%2], true)
					}
				}
			})
		}
		wg.Wait()
		for i := range c.clients.shards {
			if n := len(c.clients.shards[i].n); n > 0 {
				t.Errorf("%s: %d clients without requests are remembered", name, n)
			}
		}
		if u := c.Usage(); admitted.Load() == 0 || u.InFlight != 0 || u.Waiting != 0 || c.gate.Requests() != 0 || c.clients.Clients() != 0 {
			t.Errorf("%s: %d were admitted, and in the end %+v, %d requests of %d clients", name, admitted.Load(), u, c.gate.Requests(), c.clients.Clients())
		}
	}
}

// One that needs several permits waits for all of them, and those that come later do not pass it, even where the newest goes first.
func TestHeavyRequestsAreNotPassed(t *testing.T) {
	p := mustPlan(t, PlanConfig{Limit: 4, Queue: QueueConfig{Size: 10, Timeout: time.Minute}})
	var c Concurrency
	c.Use(p, true)
	var lights [4]Permit
	for i := range lights {
		c.Enter(0, p, &Entrant{Known: true}, &lights[i])
	}
	var first, heavy Permit
	c.Enter(time.Second, p, &Entrant{Known: true}, &first)
	c.Enter(2*time.Second, p, &Entrant{Weight: 3}, &heavy) // the queue stands: it goes before first
	if u := c.Usage(); u.Waiting != 4 {
		t.Errorf("%d permits are waited for, want 4", u.Waiting)
	}
	var later Permit
	for i := range 3 {
		if lights[i].Leave(2*time.Second, Served); i == 0 {
			c.Enter(3*time.Second, p, &Entrant{Known: true}, &later)
		}
		if want := map[bool]Verdict{true: Granted}[i == 2]; told(heavy.wait) != want || told(first.wait) != waiting || told(later.wait) != waiting {
			t.Fatalf("after %d permits are free: want %v", i+1, want)
		}
	}
	if c.InFlight() != 4 || c.gate.Requests() != 2 {
		t.Errorf("%d permits of %d requests, want 4 of 2", c.InFlight(), c.gate.Requests())
	}
}

// A process plans with its part of the rate: as Little's law has it, and as it was measured with another part.
func TestLeaseIsAPartOfTheRate(t *testing.T) {
	plan := mustPlan(t, PlanConfig{Limit: 12, Queue: QueueConfig{Size: NoQueue}})
	var c Concurrency
	now, admitted, hits := time.Minute, uint64(0), uint64(0)
	const never = 1 << 62
	serve := func(n int) { // for ten seconds, 40/s with each permit, and others are rejected
		c.Grant(now, n, never)
		for range 100 {
			permits := make([]Permit, n)
			for i := range permits {
				is, _ := c.Enter(now, plan, &Entrant{}, &permits[i])
				if is != Entered {
					t.Fatalf("%d of %d: %v", i, n, is)
				}
				admitted++
			}
			var none Permit
			c.Enter(now, plan, &Entrant{}, &none)
			hits++
			c.Tick(now, admitted, hits, plan, false)
			now += 100 * time.Millisecond
			for range 3 {
				for i := range permits {
					permits[i].Leave(now, Served)
					c.Enter(now, plan, &Entrant{}, &permits[i])
					admitted++
				}
			}
			for i := range permits {
				permits[i].Leave(now, Served)
			}
		}
	}
	rate := func(n int) float64 { c.Grant(now, n, never); return c.Rate(plan) }
	if whole, half := rate(12), rate(6); half < whole*.49 || half > whole*.51 {
		t.Errorf("before anything is known %.0f/s with all permits, %.0f/s with half of them", whole, half)
	}
	serve(6)
	half := rate(6)
	if whole := rate(12); whole < half*1.99 || whole > half*2.01 || half < 200 || half > 300 {
		t.Errorf("measured with half of the permits: %.0f/s with them, want 240/s; %.0f/s with all", half, whole)
	}
}
