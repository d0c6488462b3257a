package plant

import (
	"math"
	"strings"
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
	for i := 1; i <= 10_000; i++ {
		p.Submit(0, i, s)
		if i%3 == 0 {
			p.Done()
			if n, _, ok := p.Next(0); !ok || n != next {
				t.Fatalf("%d is next (%v), want %d", n, ok, next)
			}
			next++
		}
	}
	for ; next <= 10_000; next++ {
		p.Done()
		if n, _, ok := p.Next(0); !ok || n != next {
			t.Fatalf("%d is next (%v), want %d", n, ok, next)
		}
	}
	if cap(p.wait) > 40_000 {
		t.Errorf("room for %d, for 6,667 that wait at most", cap(p.wait))
	}
}

func TestWhatIsWrongIsNamed(t *testing.T) {
	good := Config{
		Workers: 8, Queue: 100, Coherency: 0.1, Slow: Steps{{0, 1}}, Delay: Steps{{0, 0}}, Outage: [2]time.Duration{s, 2 * s}, Rejects: true,
		RetryAfter: s, Restart: [2]time.Duration{3 * s, 4 * s},
	}
	if err := good.Check(); err != nil {
		t.Error(err)
	}
	for name, change := range map[string]func(*Config){
		"workers":     func(c *Config) { c.Workers = 0 },
		"queue":       func(c *Config) { c.Queue = -1 },
		"coherency":   func(c *Config) { c.Coherency = math.NaN() },
		"slow":        func(c *Config) { c.Slow = Steps{{0, 0}} },
		"step 1":      func(c *Config) { c.Delay = Steps{{2, 0}, {1, 0}} },
		"delay":       func(c *Config) { c.Delay = Steps{{2, -1}} },
		"outage":      func(c *Config) { c.Outage[1] = 0 },
		"restart":     func(c *Config) { c.Restart[1] = 0 },
		"retry after": func(c *Config) { c.Rejects = false },
	} {
		c := good
		change(&c)
		if err := c.Check(); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("error %v, want one about %s", err, name)
		}
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
	if err := (&Config{Workers: 1, Slowest: 0.5}).Check(); err == nil {
		t.Error("a bound below 1 is no error")
	}
}
