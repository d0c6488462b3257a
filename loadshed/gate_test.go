package loadshed

import (
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// Thousands of goroutines knock at a gate of 17 and stay a moment: never 18
// inside, the gate is full at times, and every permit is given back.
func TestGateIsExact(t *testing.T) {
	const limit, goroutines, rounds = 17, 4_000, 100
	var g gate
	var inside, peak, entered, rejected atomic.Int64
	var wg sync.WaitGroup
	start := make(chan struct{})
	for range goroutines {
		wg.Go(func() {
			<-start
			for round := range rounds {
				if !g.Enter(limit) {
					rejected.Add(1)
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
					g.Leave(time.Millisecond)
				} else {
					g.Detach()
				}
			}
		})
	}
	close(start)
	wg.Wait()
	if p := peak.Load(); p != limit {
		t.Errorf("at most %d inside at once, want %d", p, limit)
	}
	if n := entered.Load() + rejected.Load(); n != goroutines*rounds || rejected.Load() == 0 {
		t.Errorf("%d entered and %d rejected of %d", entered.Load(), rejected.Load(), goroutines*rounds)
	}
	if n := g.InFlight(); n != 0 {
		t.Errorf("%d permits were not given back", n)
	}
}

func TestDrain(t *testing.T) {
	const ms = time.Millisecond
	var g gate
	if got := g.Drain(); got != time.Second {
		t.Errorf("before any completion Drain = %v, want 1s", got)
	}
	for took, want := range map[time.Duration]time.Duration{400 * ms: 400 * ms, 50 * ms: 50 * ms} {
		for range 200 {
			g.Enter(1)
			g.Leave(took)
		}
		if got := g.Drain(); got < want-ms || got > want+ms {
			t.Errorf("after 200 requests of %v Drain = %v", want, got)
		}
		g.Enter(1)
		g.Leave(time.Hour) // a download
		if got := g.Drain(); got > 5*want {
			t.Errorf("after one more of an hour Drain = %v", got)
		}
	}
}
