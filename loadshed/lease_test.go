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
	if c.HasHeadroom(p) {
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

// The adaptive limit stays within the lease, its minimum, too.
func TestLeaseBoundsAdaptive(t *testing.T) {
	p := mustPlan(t, PlanConfig{Adaptive: &AdaptiveConfig{Min: 8, Initial: 20, Max: 64}})
	var c Concurrency
	c.Use(p, true)
	for _, n := range []int{16, 4} {
		c.Grant(0, n, math.MaxInt64)
		entered := 0
		for range 100 {
			if is, _ := c.Enter(time.Minute, p, &Entrant{}, new(Permit)); is == Entered {
				entered++
			}
		}
		if c.InFlight() != 16 || c.Limit(p) != n {
			t.Errorf("lease %d: %d in flight, limit %d", n, c.InFlight(), c.Limit(p))
		}
	}
}

// A request that waits is let in as its process is granted a permit, and not with the next Sweep.
func TestGrantEndsAWait(t *testing.T) {
	p := mustPlan(t, PlanConfig{Limit: 10})
	var c Concurrency
	var waits Permit
	c.Use(p, true)
	c.Grant(0, 0, math.MaxInt64)
	c.Enter(0, p, &Entrant{}, &waits)
	c.Grant(0, 1, math.MaxInt64)
	wantTold(t, waits.wait, Granted)
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

func BenchmarkConcurrency(b *testing.B) {
	p := mustPlan(b, PlanConfig{Limit: 100})
	for _, leased := range []bool{false, true} {
		b.Run(map[bool]string{false: "alone", true: "leased"}[leased], func(b *testing.B) {
			var c Concurrency
			c.Use(p, true)
			if leased {
				c.Grant(1, 50, math.MaxInt64)
			}
			e := Entrant{}
			b.ReportAllocs()
			for b.Loop() {
				var pl Permit
				c.Enter(1, p, &e, &pl)
				pl.Leave(2, Served)
			}
		})
	}
}
