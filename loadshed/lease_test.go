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

// A process plans with its part of the rate: as Little's law has it, and as it was measured with another part.
func TestLeaseIsAPartOfTheRate(t *testing.T) {
	plan, err := NewPlan(PlanConfig{Limit: 12, Queue: QueueConfig{Size: NoQueue}})
	if err != nil {
		t.Fatal(err)
	}
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
