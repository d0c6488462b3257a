//go:build !race

// Without the race detector, which makes sync.Pool forget at random, and that
// shows as allocations.

package endtoend

import (
	"runtime/debug"
	"strings"
	"testing"
)

// Allocations are what a price can be held to on a busy machine, where times
// cannot.

func TestAdmittingAddsFewAllocations(t *testing.T) {
	// One is the closure that Caddy makes per handler and request. The others are the
	// Exchange's, where permits in flight are limited.
	compareAllocs(t, admitting, respond, func(none float64) float64 { return none + 11 })
}

func TestRejectingAllocatesLikeAStaticAnswer(t *testing.T) {
	compareAllocs(t, rejecting, "", func(static float64) float64 { return 1.1 * static })
}

// compareAllocs fails if a row of shield's allocates more per request than
// limit says, given what the first row allocates.
func compareAllocs(t *testing.T, rows []row, next string, limit func(first float64) float64) {
	// A collection would empty the pools in Caddy and net/http.
	defer debug.SetGCPercent(debug.SetGCPercent(-1))

	most := -1.0
	for _, r := range rows {
		// A subtest each, so that Caddy stops in between and forgets.
		t.Run(r.name, func(t *testing.T) {
			c := r.start(t, next)
			got := testing.AllocsPerRun(1000, func() {
				if a := c.do(); !r.want.covers(a) {
					t.Fatalf("answer %+v; want %+v", a, r.want)
				}
			})
			if most < 0 {
				most = limit(got)
			}
			t.Logf("%v allocations per request; at most %.1f for shield", got, most)
			if strings.HasPrefix(r.name, "shield") && got > most {
				t.Errorf("%v allocations per request, want at most %.1f", got, most)
			}
		})
	}
}
