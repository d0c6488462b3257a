package main

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"testing"
	"time"

	"github.com/herdshield/shield/loadtest/edge"
	"github.com/herdshield/shield/loadtest/lab/process"
)

var program string

func TestMain(m *testing.M) {
	if os.Getenv(backendVar) != "" {
		main()
		return
	}
	os.Exit(process.Main(m, &program))
}

// A small version of the table: far from the edge both sides have the same end. Without a shield a service comes back
// from a short push and not from a long one; with an adaptive limit it does.
func TestFarFromTheEdge(t *testing.T) {
	if testing.Short() {
		t.Skip("needs 12 s of real time, and no -short")
	}
	c := course{calm: 2 * time.Second, within: 4 * time.Second, watch: 4 * time.Second}
	for _, test := range []struct {
		front  string
		length time.Duration
		back   bool
	}{{"", 100 * ms, true}, {"", 2 * time.Second, false}, {"concurrency adaptive", 2 * time.Second, true}} {
		t.Run(fmt.Sprintf("%s %v", test.front, test.length), func(t *testing.T) {
			t.Parallel()
			s, p := service{2, 20 * ms, 80, 500 * ms, test.front}, edge.Push{Depth: depth, Length: test.length}
			for seed := range uint64(20) {
				if g, err := s.virtual(t.Context(), c, p, seed); err != nil || (g >= edge.Enough) != test.back {
					t.Errorf("seed %d: in virtual time the goodput is %.3f after %v (%v); want that it is back: %v", seed, g, p, err, test.back)
				}
			}
			for seed := range uint64(3) {
				g, err := s.live(t.Context(), program, c, p, seed)
				if errors.Is(err, errBusy) {
					t.Log(err)
					continue
				}
				if err != nil || (g >= edge.Enough) != test.back {
					t.Errorf("live the goodput is %.3f after %v (%v); want that it is back: %v", g, p, err, test.back)
				}
				return
			}
			t.Skip("needs a machine that is idle enough to send requests in time")
		})
	}
}

// The search finds the length of which half are lost, where chance is as it is live.
func TestEdgeOf(t *testing.T) {
	const want = 1300 * ms
	random := [2]*rand.Rand{rand.New(rand.NewPCG(1, 1)), rand.New(rand.NewPCG(1, 2))}
	got, err := edgeOf(depth, time.Second, 200, func(p edge.Push, number int) (float64, error) {
		lost := math.Log(p.Length.Seconds()/want.Seconds()) + .25*random[number%2].NormFloat64()
		return 1 - max(0, math.Ceil(lost)), nil
	})
	if ratio := float64(got) / float64(want); err != nil || math.Abs(ratio-1) > .05 {
		t.Errorf("the edge is at %v (%v); want %v to within 5%%", got, err, want)
	}
	if _, err := edgeOf(depth, time.Second, 5, func(edge.Push, int) (float64, error) { return 1, nil }); err == nil {
		t.Error("an edge was found where there is none")
	}
}
