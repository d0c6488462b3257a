package clients

import (
	"fmt"
	"math"
	"testing"
	"time"

	"github.com/herdshield/shield/pushback"
)

const ms = time.Millisecond

// draws are random numbers at the ends of their range and between.
var draws = []float64{0, 0.25, 0.5, 0.75, math.Nextafter(1, 0)}

// Every policy's waits, for the least, the middle and the greatest draw.
func TestWaits(t *testing.T) {
	six := pushback.Hint{Seconds: 6, Ms: 5250}
	const s = time.Second
	for _, c := range []struct {
		policy           Policy
		refused          Refused
		least, mid, most time.Duration
	}{
		{Exact{}, Refused{Attempt: 1, Hint: six}, 6 * s, 6*s + 3465735, 6*s + 183684001},
		{ExactMs{}, Refused{Attempt: 1, Hint: six}, 5250 * ms, 5250*ms + 3465735, 5250*ms + 183684001},
		{Late{By: 0.2}, Refused{Attempt: 1, Hint: six}, 6 * s, 6600 * ms, 7200 * ms},
		{Exact{}, Refused{Attempt: 3}, 0, 2 * s, 4 * s},
		{ExactMs{}, Refused{Attempt: 3}, 0, 2 * s, 4 * s},
		{Late{By: 0.2}, Refused{Attempt: 3}, 0, 2 * s, 4 * s},
		{Ignore{}, Refused{Attempt: 1, Hint: six}, 0, 500 * ms, s},
		{Ignore{}, Refused{Attempt: 6, Hint: six}, 0, 16 * s, 32 * s},
		{Ignore{}, Refused{Attempt: 7, Hint: six}, 0, 30 * s, 60 * s},
		{Ignore{}, Refused{Attempt: 5000, Hint: six}, 0, 30 * s, 60 * s},
		{Fixed{Gap: 5 * s}, Refused{Attempt: 9, Hint: six}, 5 * s, 5 * s, 5 * s},
		{Hammer{Gap: s}, Refused{Attempt: 9, Hint: six}, 900 * ms, s, 1100 * ms},
		{Exponential{Base: s, Factor: 2, Cap: 10 * s}, Refused{Attempt: 4, Hint: six}, 8 * s, 8 * s, 8 * s},
		{Exponential{Base: s, Factor: 2, Cap: 10 * s, Jitter: 0.5}, Refused{Attempt: 50}, 5 * s, 10 * s, 15 * s},
		{MaxAttempts{N: 2, Policy: Late{By: 0.2}}, Refused{Attempt: 1, Hint: six}, 6 * s, 6600 * ms, 7200 * ms},
	} {
		for _, d := range []struct {
			u    float64
			want time.Duration
		}{{0, c.least}, {0.5, c.mid}, {math.Nextafter(1, 0), c.most}} {
			r := c.refused
			r.U = d.u
			got, again := c.policy.Next(r)
			if !again || (got-d.want).Abs() > 1000 {
				t.Errorf("%v, %+v: comes back %v after %v, want after %v", c.policy, r, again, got, d.want)
			}
		}
	}
}

func TestReturns(t *testing.T) {
	never := Refused{Attempt: 1, Hint: pushback.Hint{Never: true}}
	for _, c := range []struct {
		policy  Policy
		refused Refused
		again   bool
	}{
		{GiveUp{}, Refused{Attempt: 1}, false},
		{MaxAttempts{N: 4, Policy: Fixed{}}, Refused{Attempt: 3}, true},
		{MaxAttempts{N: 4, Policy: Fixed{}}, Refused{Attempt: 4}, false},
		{MaxAttempts{N: 4, Policy: GiveUp{}}, Refused{Attempt: 1}, false},
		{Exact{}, never, false},
		{ExactMs{}, never, false},
		{Late{By: 0.2}, never, false},
		{Ignore{}, never, true},
		{Hammer{Gap: time.Second}, never, true},
	} {
		if _, again := c.policy.Next(c.refused); again != c.again {
			t.Errorf("%v comes back after %+v: %v, want %v", c.policy, c.refused, again, c.again)
		}
	}
}

// The reaction is exponential with a mean of 5 ms: the mean of its quantiles.
func TestReaction(t *testing.T) {
	const n = 100_000
	var sum time.Duration
	for i := range n {
		sum += react((float64(i) + 0.5) / n)
	}
	if mean := sum / n; (mean - 5*ms).Abs() > 10*time.Microsecond {
		t.Errorf("the mean reaction is %v, want 5ms", mean)
	}
}

// No wait is negative, in any state of a client.
func TestNoWaitIsNegative(t *testing.T) {
	for _, p := range []Policy{
		Exact{}, ExactMs{}, Late{By: 0.2}, Ignore{}, Fixed{}, Hammer{Gap: time.Second}, GiveUp{},
		Exponential{Base: time.Second, Factor: 2, Cap: time.Minute, Jitter: 1},
	} {
		for _, attempt := range []int{1, 2, 10, 64, 1 << 30} {
			for _, u := range draws {
				if wait, _ := p.Next(Refused{Attempt: attempt, Hint: pushback.Hint{Seconds: 59, Ms: 58_001}, U: u}); wait < 0 || wait > time.Hour {
					t.Errorf("%v, attempt %d, draw %v: waits %v", p, attempt, u, wait)
				}
			}
		}
	}
}

func TestPopulation(t *testing.T) {
	p := Population{
		{Weight: 2, Policy: Exact{}},
		{Weight: 1, Policy: Late{By: 0.2}},
		{Weight: 1, Policy: MaxAttempts{N: 1, Policy: Exact{}}},
	}
	if err := p.Check(); err != nil {
		t.Error(err)
	}
	const n = 1000
	got := make([]int, len(p))
	for i := range n {
		got[p.Pick((float64(i)+0.5)/n)]++
	}
	if want := [3]int{500, 250, 250}; got[0] != want[0] || got[1] != want[1] || got[2] != want[2] {
		t.Errorf("of %d clients, %v have each policy, want %v", n, got, want)
	}
	if i := p.Pick(math.Nextafter(1, 0)); i != 2 {
		t.Errorf("the greatest draw falls into share %d, want 2", i)
	}
	for i, want := range []bool{true, true, false} {
		if got := p[i].Returns(); got != want {
			t.Errorf("%v returns: %v, want %v", p[i].Policy, got, want)
		}
	}
	for _, bad := range []Population{
		nil,
		make(Population, maxShares+1),
		{{Weight: 0, Policy: Exact{}}},
		{{Weight: math.NaN(), Policy: Exact{}}},
		{{Weight: 1}},
	} {
		if bad.Check() == nil {
			t.Errorf("a population of %d shares passes: %.60v", len(bad), bad)
		}
	}
}

// Names are for tables: short, and different for different policies.
func TestNames(t *testing.T) {
	seen := map[string]bool{}
	for _, p := range []Policy{
		Exact{}, ExactMs{}, Late{By: 0.2}, Ignore{}, Fixed{Gap: time.Second}, Hammer{Gap: time.Second}, GiveUp{},
		Exponential{Base: time.Second, Factor: 2, Cap: time.Minute, Jitter: 0.5}, MaxAttempts{N: 4, Policy: Exact{}},
	} {
		name := fmt.Sprint(p)
		if len(name) < 4 || len(name) > 30 || seen[name] {
			t.Errorf("%#v is called %q; want a short name of its own", p, name)
		}
		seen[name] = true
	}
}
