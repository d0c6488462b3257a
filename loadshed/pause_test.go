package loadshed

import (
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

func TestPause(t *testing.T) {
	var p Pause
	const longest = time.Minute
	now := time.Hour
	if p.Left(0) != 0 || p.Left(now) != 0 || p.Resumed(now) {
		t.Error("a pause before the first Set")
	}
	p.Set(now, 5*time.Second, longest)
	p.Set(now+time.Second, time.Second, longest) // does not shorten it
	if left := p.Left(now + time.Second); left != 4*time.Second {
		t.Errorf("%v left, want 4s", left)
	}
	p.Set(now+2*time.Second, 5*time.Second, longest) // extends it
	if left := p.Left(now + 2*time.Second); left != 5*time.Second || p.Count() != 1 {
		t.Errorf("%v left in %d pauses, want 5s in one", left, p.Count())
	}
	if p.Resumed(now + 6*time.Second) {
		t.Error("over before its end")
	}
	if !p.Resumed(now+7*time.Second) || p.Resumed(now+8*time.Second) {
		t.Error("want its end to be told once")
	}
	p.Set(now+time.Minute, 100*time.Hour, longest)
	if left := p.Left(now + time.Minute); left != longest || p.Count() != 2 {
		t.Errorf("%v left in %d pauses, want %v in two", left, p.Count(), longest)
	}
	if !p.Resumed(now + time.Hour) {
		t.Error("the end of the second pause was not told")
	}
}

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
