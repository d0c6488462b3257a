package clients

import (
	"math"
	"testing"
	"time"
)

const ms = time.Millisecond

// draws are random numbers at the ends of their range and between.
var draws = []float64{0, 0.25, 0.5, 0.75, math.Nextafter(1, 0)}

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

func TestPopulation(t *testing.T) {
	p := Population{
		{Weight: 2, Policy: Exact{}},
		{Weight: 1, Policy: Late{By: 0.2}},
		{Weight: 1, Policy: MaxAttempts{N: 1, Policy: Exact{}}},
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
}
