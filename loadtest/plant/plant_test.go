package plant

import (
	"testing"
	"time"
)

const s = time.Second

// The order is kept, and nothing is lost, over thousands that wait.
//
// What becomes of requests in faults is tested with clients before a plant, in package sim.
func TestALongQueue(t *testing.T) {
	p := New[int](Config{Workers: 1})
	p.Submit(0, 0, s)
	next := 1
	for i := 1; next <= 10_000; i++ {
		if i <= 10_000 {
			p.Submit(0, i, s)
		}
		if i%3 == 0 || i > 10_000 {
			p.Done()
			if n, _, ok := p.Next(0); !ok || n != next {
				t.Fatalf("%d is next (%v), want %d", n, ok, next)
			}
			next++
		}
	}
	if cap(p.wait) > 40_000 {
		t.Errorf("room for %d, for 6,667 that wait at most", cap(p.wait))
	}
}

// Service takes longer the more requests wait, up to a bound.
func TestSlowest(t *testing.T) {
	for waiting, want := range map[int]time.Duration{
		0: 100 * time.Millisecond, 25: 150 * time.Millisecond, 50: 200 * time.Millisecond,
		100: 300 * time.Millisecond, 101: 300 * time.Millisecond, 1e4: 300 * time.Millisecond,
	} {
		p := New[int](Config{Workers: 1, Coherency: 1.0 / 50, Slowest: 3})
		for i := range waiting + 2 {
			p.Submit(0, i, 100*time.Millisecond)
		}
		p.Done()
		if _, end, ok := p.Next(0); !ok || end != want {
			t.Errorf("with %d waiting, service takes %v; want %v", waiting, end, want)
		}
	}
}
