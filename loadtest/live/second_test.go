package live

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"
)

// TestSecond compares with a slow reference that keeps all times.
func TestSecond(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for range 50 {
		var s second
		var times []time.Duration
		now := time.Duration(r.Int64N(int64(3 * time.Second)))
		mean := []float64{1e5, 3e6, 2e7, 5e8, 3e9}[r.IntN(5)]
		for range 500 {
			now += time.Duration(r.ExpFloat64() * mean)
			times = append(times, now)
			want := 0
			for _, at := range slices.Backward(times) {
				if at/step <= now/step-time.Second/step {
					break
				}
				want++
			}
			if got := s.add(now); got != want {
				t.Fatalf("at %v, mean gap %v: %d within a second, want %d", now, time.Duration(mean), got, want)
			}
		}
	}
}
