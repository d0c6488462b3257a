package main

import (
	"testing"
	"time"
)

// The simulation that the live runs are held to must not be one that anything
// passes: without shield next to nothing is served, with it what the backend can.
func TestSimulationTellsVariantsApart(t *testing.T) {
	l := load{480, 60 * time.Second}
	for _, v := range variants {
		got := simulate(v, l, 160).Goodput()
		if protects := v.caddyfile != ""; protects && (got < 95 || got > 101) || !protects && got > 10 {
			t.Errorf("%s: %.1f%% of the capacity is served", v.name, got)
		}
	}
}
