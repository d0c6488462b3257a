package loadshed

import (
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// One request per second is let through, however many come at once.
func TestProbes(t *testing.T) {
	var p Pause
	p.Set(time.Hour, 10*time.Second, time.Minute)
	var probes atomic.Int64
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for i := range 10_000 {
				if p.Probe(time.Hour + time.Duration(i)*ms) {
					probes.Add(1)
				}
			}
		})
	}
	wg.Wait()
	if n := probes.Load(); n < 8 || n > 10 {
		t.Errorf("%d probes in 10 s, want one per second", n)
	}
}
