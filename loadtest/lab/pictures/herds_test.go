package main

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/herdshield/shield"
	"github.com/herdshield/shield/loadtest/sim"
)

// The herds are those that loadtest/sim makes promises about: as many decisions are made
// as its golden file says.
func TestHerds(t *testing.T) {
	golden, err := os.ReadFile("../../sim/testdata/decisions.golden")
	if err != nil {
		t.Fatal(err)
	}
	seed := uint64(0)
	for _, s := range slices.Concat(herds(), cheats()) {
		if s.Clients > 5000 {
			continue
		}
		s.Seed, s.MaxRequests = seed, 30_000
		seed++
		decided := 0
		if _, err := sim.Run(s, func(c shield.Config) (sim.Server, error) {
			g, err := sim.Guard(c)
			if err == nil {
				g.(*sim.Guarded).Decided = func(shield.Decision) { decided++ }
			}
			return g, err
		}); err != nil {
			t.Fatal(err)
		}
		if line := fmt.Sprintf(" %7d %s\n", decided, s.Name); !strings.Contains(string(golden), line) {
			t.Errorf("the golden file has no line as %q", line)
		}
	}
}
