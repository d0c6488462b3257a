package loadshed

import (
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// Thousands of goroutines knock at a gate of 17 and stay a moment: never 18
// inside, the gate is full at times, and every place is given back.
func TestGateIsExact(t *testing.T) {
	const limit, goroutines, rounds = 17, 4_000, 100
	var g gate
	var inside, peak, entered, refused atomic.Int64
	var wg sync.WaitGroup
	start := make(chan struct{})
	for range goroutines {
		wg.Go(func() {
			<-start
			for round := range rounds {
				if !g.Enter(limit, 0) {
					refused.Add(1)
					continue
				}
				n := inside.Add(1)
				for p := peak.Load(); n > p && !peak.CompareAndSwap(p, n); p = peak.Load() {
				}
				entered.Add(1)
				if round%4 == 0 {
					runtime.Gosched() // let others come while this one is inside
				}
				inside.Add(-1)
				if round%2 == 0 {
					g.Leave(0, time.Millisecond)
				} else {
					g.Detach(0)
				}
			}
		})
	}
	close(start)
	wg.Wait()
	if p := peak.Load(); p != limit {
		t.Errorf("at most %d inside at once, want %d", p, limit)
	}
	if n := entered.Load() + refused.Load(); n != goroutines*rounds || refused.Load() == 0 {
		t.Errorf("%d entered and %d refused of %d", entered.Load(), refused.Load(), goroutines*rounds)
	}
	if n := g.InFlight(); n != 0 {
		t.Errorf("%d places were not given back", n)
	}
}

func TestDrain(t *testing.T) {
	const ms = time.Millisecond
	var g gate
	g.Enter(1, 500*ms)
	if got := g.Drain(800 * ms); got != time.Second {
		t.Errorf("before any completion Drain = %v, want 1s", got)
	}
	if got := g.Drain(3500 * ms); got != 3*time.Second {
		t.Errorf("before any completion Drain = %v, want the 3s that the first has taken so far", got)
	}
	g.Leave(1000*ms, 400*ms)
	g.Enter(1, 1000*ms)
	if got := g.Drain(1100 * ms); got != 400*ms {
		t.Errorf("Drain = %v, want the mean time of service of 400ms", got)
	}
	for i := range 200 {
		g.Leave(2000*ms+time.Duration(i), 50*ms)
		g.Enter(1, 2000*ms+time.Duration(i))
	}
	if got := g.Drain(2001 * ms); got < 49*ms || got > 51*ms {
		t.Errorf("after 200 requests of 50ms Drain = %v", got)
	}
	if got := g.Drain(12 * time.Second); got < 9*time.Second {
		t.Errorf("10s after the last completion Drain = %v, want about 10s", got)
	}
	g.Detach(12 * time.Second)
	if g.Enter(1, 3600*time.Second); g.Drain(3600*time.Second) > 51*ms {
		t.Errorf("idle time counts as time of service: Drain = %v", g.Drain(3600*time.Second))
	}
}
