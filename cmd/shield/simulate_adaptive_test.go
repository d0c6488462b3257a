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
// learned within the first second, and the limit grows to it. Where the backend can do far more
// than the first limit of 20 lets it, the herd has been told its times before that is known.
func TestAdaptiveLimitServesAHerd(t *testing.T) {
	t.Parallel()
	const seeds = 10
	for flags, most := range map[string]float64{
		"--clients 1000 --background 30":                                           1.25,
		"--clients 1583 --within 1s --background 54 --workers 12 --service 67.7ms": 1.2,
		"--clients 3000 --within 1s --background 54 --workers 32 --service 67.7ms": 1.7,
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
		if ratios[seeds/2] > most || ratios[seeds-1] > most+0.2 {
			t.Errorf("%s: %.2f of the least time in the middle, %.2f at worst; want %.2f and %.2f", flags, ratios[seeds/2], ratios[seeds-1], most, most+0.2)
		}
	}
}
