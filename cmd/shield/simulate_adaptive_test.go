package main

import (
	"bytes"
	"encoding/json"
	"io"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// A herd before an adaptive limit is served nearly as soon as the backend can: its rate is
// learned within the first second, and the limit grows to it.
func TestAdaptiveLimitServesAHerd(t *testing.T) {
	t.Parallel()
	const seeds = 10
	for _, flags := range []string{
		"--clients 1000 --background 30",
		"--clients 1583 --within 1s --background 54 --workers 12 --service 67.7ms",
		"--clients 3000 --within 1s --background 54 --workers 32 --service 67.7ms",
	} {
		var ratios []float64
		for seed := range seeds {
			var out bytes.Buffer
			args := append(strings.Fields(flags), "--compare", "shield-adaptive", "--json", "-", "--seed", strconv.Itoa(1+seed))
			if err := runSimulate(t.Context(), &out, io.Discard, args...); err != nil {
				t.Fatal(err)
			}
			var all struct {
				Runs []struct {
					Drained float64 `json:"drained_seconds"`
					Optimum float64 `json:"optimum_seconds"`
				}
			}
			if err := json.Unmarshal(out.Bytes(), &all); err != nil || all.Runs[0].Drained == 0 {
				t.Fatalf("%s, seed %d: %v, %+v; want all served", flags, 1+seed, err, all)
			}
			ratios = append(ratios, all.Runs[0].Drained/all.Runs[0].Optimum)
		}
		slices.Sort(ratios)
		t.Logf("%s: %.2f of the least time in the middle, %.2f at worst", flags, ratios[seeds/2], ratios[seeds-1])
		if ratios[seeds/2] > 1.15 || ratios[seeds-1] > 1.35 {
			t.Errorf("%s: %.2f of the least time in the middle, %.2f at worst; want 1.15 and 1.35", flags, ratios[seeds/2], ratios[seeds-1])
		}
	}
}
