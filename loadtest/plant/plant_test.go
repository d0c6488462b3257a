package plant

import (
	"math"
	"slices"
	"strings"
	"testing"
	"time"
)

const (
	ms = time.Millisecond
	s  = time.Second
)

// A sitting is a Plant that a test plays by hand; those in gone have gone, and those of
// them that the Plant asked for have left.
type sitting struct {
	*Plant[string]
	t          *testing.T
	gone, left []string
}

func sit(t *testing.T, c Config) *sitting {
	t.Helper()
	if err := c.Check(); err != nil {
		t.Fatal(err)
	}
	x := &sitting{t: t}
	x.Plant = New(c, func(name string) bool {
		gone := slices.Contains(x.gone, name)
		if gone {
			x.left = append(x.left, name)
		}
		return gone
	})
	return x
}

func (x *sitting) submit(now time.Duration, name string, service time.Duration, fate Fate, end time.Duration) {
	x.t.Helper()
	if f, e := x.Submit(now, name, service); f != fate || f == Begun && e != end {
		x.t.Errorf("%s at %v: fate %d until %v, want %d until %v", name, now, f, e, fate, end)
	}
}

func (x *sitting) next(now time.Duration, name string, end time.Duration) {
	x.t.Helper()
	if n, e, ok := x.Next(now); !ok || n != name || e != end {
		x.t.Errorf("next at %v is %q until %v (%v), want %q until %v", now, n, e, ok, name, end)
	}
}

func (x *sitting) none(now time.Duration) {
	x.t.Helper()
	if n, _, ok := x.Next(now); ok {
		x.t.Errorf("%q begins at %v, want none", n, now)
	}
}

func TestWorkersTakeThemInTurn(t *testing.T) {
	x := sit(t, Config{Workers: 2})
	x.submit(0, "a", 10*s, Begun, 10*s)
	x.submit(1*s, "b", 12*s, Begun, 13*s)
	x.submit(2*s, "c", 5*s, Waits, 0)
	x.submit(3*s, "d", 1*s, Waits, 0)
	x.none(3 * s)
	if x.Busy() != 2 || x.Waiting() != 2 {
		t.Errorf("%d in work and %d wait, want 2 and 2", x.Busy(), x.Waiting())
	}
	x.Done()
	x.next(10*s, "c", 15*s)
	x.none(10 * s)
	x.Done()
	x.next(13*s, "d", 14*s)
	x.Done()
	x.none(14 * s)
	x.Done()
	if x.Busy() != 0 || x.Waiting() != 0 {
		t.Errorf("%d in work and %d wait at the end", x.Busy(), x.Waiting())
	}
}

// The order is kept, and nothing is lost, over thousands that wait.
func TestALongQueue(t *testing.T) {
	p := New[int](Config{Workers: 1}, nil)
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

func TestCoherency(t *testing.T) {
	x := sit(t, Config{Workers: 1, Coherency: 0.1})
	x.submit(0, "a", 1000*ms, Begun, 1000*ms) // no request waits
	for _, name := range []string{"b", "c", "d"} {
		x.submit(0, name, 1000*ms, Waits, 0)
	}
	x.Done()
	x.next(1000*ms, "b", 2200*ms) // two wait
	x.Done()
	x.next(2200*ms, "c", 3300*ms)
	x.Done()
	x.next(3300*ms, "d", 4300*ms)
}

func TestSlowAndDelay(t *testing.T) {
	x := sit(t, Config{Workers: 9, Slow: Steps{{10 * s, 3}, {20 * s, 0.5}}, Delay: Steps{{5 * s, 0.25}}})
	x.submit(9999*ms, "a", 1*s, Begun, 10999*ms)
	x.submit(10*s, "b", 1*s, Begun, 13*s)
	x.submit(20*s, "c", 1*s, Begun, 20500*ms)
	if a, b := x.Latency(4*s), x.Latency(5*s); a != 0 || b != 250*ms {
		t.Errorf("latency %v, then %v; want 0, then 250 ms", a, b)
	}
}

func TestOutage(t *testing.T) {
	x := sit(t, Config{Workers: 9, Outage: [2]time.Duration{8 * s, 20 * s}})
	x.submit(5*s, "before", 10*s, Begun, 27*s)
	x.submit(7*s, "done before", 1*s, Begun, 8*s)
	x.submit(10*s, "meanwhile", 1*s, Begun, 21*s)
	x.submit(20*s, "after", 1*s, Begun, 21*s)
	x = sit(t, Config{Workers: 1, Outage: [2]time.Duration{8 * s, 20 * s}, Refuses: true, RetryAfter: 5 * s})
	x.submit(5*s, "before", 10*s, Begun, 15*s)
	x.submit(6*s, "waits", 1*s, Waits, 0)
	x.submit(8*s, "a", 1*s, Unavailable, 0)
	x.submit(19999*ms, "b", 1*s, Unavailable, 0)
	x.submit(20*s, "after", 1*s, Waits, 0)
}

func TestRestart(t *testing.T) {
	x := sit(t, Config{Workers: 1, Restart: [2]time.Duration{5 * s, 6 * s}, Cold: Cold{Times: 3, For: 10 * s}})
	x.submit(0, "a", 10*s, Begun, 10*s)
	x.submit(1*s, "b", 10*s, Waits, 0)
	x.Lose()
	if x.Busy() != 0 || x.Waiting() != 0 {
		t.Errorf("%d in work and %d wait after a restart", x.Busy(), x.Waiting())
	}
	x.submit(5*s, "c", 1*s, NoRoom, 0)
	x.submit(5999*ms, "d", 1*s, NoRoom, 0)
	for _, at := range []struct{ now, takes time.Duration }{{6 * s, 3 * s}, {11 * s, 2 * s}, {16 * s, 1 * s}, {60 * s, 1 * s}} {
		x.submit(at.now, "e", 1*s, Begun, at.now+at.takes)
		x.Done()
	}
	x = sit(t, Config{Workers: 1, Restart: [2]time.Duration{5 * s, 5 * s}}) // at once
	x.submit(5*s, "a", 1*s, Begun, 6*s)
}

func TestAFullQueue(t *testing.T) {
	x := sit(t, Config{Workers: 1, Queue: 2})
	x.submit(0, "a", 1*s, Begun, 1*s)
	x.submit(0, "b", 1*s, Waits, 0)
	x.submit(0, "c", 1*s, Waits, 0)
	x.submit(0, "d", 1*s, NoRoom, 0)
	x.Done()
	x.next(1*s, "b", 2*s)
	x.submit(1*s, "e", 1*s, Waits, 0)
}

func TestNotices(t *testing.T) {
	x := sit(t, Config{Workers: 1, Notices: true})
	for _, name := range []string{"a", "b", "c", "d", "e"} {
		x.Submit(0, name, s)
	}
	x.gone = []string{"a", "b", "c", "e"}
	x.Done()
	if n, _, _ := x.Next(s); n != "d" || !slices.Equal(x.left, []string{"b", "c"}) {
		t.Errorf("next is %q, and %v have left; want d, and b and c", n, x.left)
	}
	x.Done()
	if _, _, ok := x.Next(2 * s); ok || x.Busy() != 0 || len(x.left) != 3 {
		t.Errorf("e has gone; %d in work, %v have left", x.Busy(), x.left)
	}
}

func TestSteps(t *testing.T) {
	steps := Steps{{1 * s, 5}, {3 * s, 2}}
	for now, want := range map[time.Duration]float64{0: 7, 1 * s: 5, 2 * s: 5, 3 * s: 2, 99 * s: 2} {
		if got := steps.At(now, 7); got != want {
			t.Errorf("at %v: %v, want %v", now, got, want)
		}
	}
}

func TestWhatIsWrongIsNamed(t *testing.T) {
	good := Config{
		Workers: 8, Queue: 100, Coherency: 0.1, Slow: Steps{{0, 1}}, Delay: Steps{{0, 0}}, Outage: [2]time.Duration{s, 2 * s}, Refuses: true,
		RetryAfter: s, Restart: [2]time.Duration{3 * s, 4 * s}, Cold: Cold{2, s},
	}
	if err := good.Check(); err != nil {
		t.Error(err)
	}
	for name, change := range map[string]func(*Config){
		"workers":      func(c *Config) { c.Workers = 0 },
		"queue":        func(c *Config) { c.Queue = -1 },
		"coherency":    func(c *Config) { c.Coherency = math.NaN() },
		"slow":         func(c *Config) { c.Slow = Steps{{0, 0}} },
		"step 1":       func(c *Config) { c.Delay = Steps{{2, 0}, {1, 0}} },
		"delay":        func(c *Config) { c.Delay = Steps{{2, -1}} },
		"outage":       func(c *Config) { c.Outage[1] = 0 },
		"restart":      func(c *Config) { c.Restart[1] = 0 },
		"retry after":  func(c *Config) { c.Refuses = false },
		"cold is":      func(c *Config) { c.Cold.Times = 0.5 },
		"time of cold": func(c *Config) { c.Cold.For = 0 },
		"restart is":   func(c *Config) { c.Restart = [2]time.Duration{} },
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
		p := New(Config{Workers: 1, Coherency: 1.0 / 50, Slowest: 3}, func(int) bool { return false })
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
