package main

import (
	"errors"
	"fmt"
	"math"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/herdshield/shield/loadtest/edge"
)

// step is by what factor the next push is longer than one from which a service comes back, or shorter than one from
// which it does not. Ours: about a half of the standard deviation that chance gives the edge.
const step = 1.15

// edgeOf returns the length of pushes of a depth from half of which a service comes back: by the up-and-down method
// (Dixon and Mood, "A Method for Obtaining and Analyzing Sensitivity Data", JASA 1948). After a push from which it
// comes back a longer one follows, and else a shorter one; the edge is the geometric mean of all from the first on
// that had another end than the one before it.
//
// There are two such series, of so many pushes each: one begins at half of the first length, the other at twice
// that. play returns the goodput after a push; its number tells pushes of both apart.
func edgeOf(depth float64, first time.Duration, pushes int, play func(p edge.Push, number int) (float64, error)) (time.Duration, error) {
	var both errgroup.Group
	var logs [2][]float64
	for i, begin := range []time.Duration{first / 2, first * 2} {
		both.Go(func() error {
			length, turned := begin, false
			for n, before := 0, false; n < pushes; n++ {
				if length > edge.Longest {
					return fmt.Errorf("it comes back from %gx for more than %v", depth, edge.Longest)
				}
				g, err := play(edge.Push{Depth: depth, Length: length}, 2*n+i)
				if err != nil {
					return err
				}
				back := g >= edge.Enough
				if turned = turned || n > 0 && back != before; turned {
					logs[i] = append(logs[i], math.Log(length.Seconds()))
				}
				if before = back; back {
					length = time.Duration(float64(length) * step)
				} else {
					length = time.Duration(float64(length) / step)
				}
			}
			return nil
		})
	}
	if err := both.Wait(); err != nil {
		return 0, err
	}
	sum, n := 0., 0.
	for _, l := range append(logs[0], logs[1]...) {
		sum, n = sum+l, n+1
	}
	if n == 0 {
		return 0, errors.New("all pushes had the same end; use more of them")
	}
	return time.Duration(math.Exp(sum/n) * float64(time.Second)), nil
}
