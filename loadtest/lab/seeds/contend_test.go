package seeds

import (
	"math"
	"testing"
	"time"

	"github.com/herdshield/shield/loadtest/clients"
)

// Figures of AWS's simulator, run as it is: calls, and milliseconds until the last of
// 100 clients has written. Its times are the figures of ten runs.
func TestContend(t *testing.T) {
	big(t)
	for name, want := range map[string]struct{ calls, ms float64 }{
		"none": {2412, 2028}, "exponential": {1829, 62_692}, "equal": {812, 6594}, "full": {796, 4547}, "decorrelated": {1000, 4340},
	} {
		var p clients.Policy
		for _, b := range Backoffs {
			if b.Name == name {
				p = b.Policy
			}
		}
		got := Contend(p, 100, 100, 1)
		if math.Abs(got.Calls/want.calls-1) > 0.05 {
			t.Errorf("%s: %.0f calls, want %.0f ± 5 %%", name, got.Calls, want.calls)
		}
		if ms := float64(got.Time / time.Millisecond); math.Abs(ms/want.ms-1) > 0.1 {
			t.Errorf("%s: %.0f ms, want %.0f ± 10 %%", name, ms, want.ms)
		}
	}
}

// Nothing contends with one client: there and back for its read, and there and back
// for its write.
func TestContendAlone(t *testing.T) {
	c := Contend(clients.Fixed{}, 1, 1000, 1)
	if c.Calls != 1 || math.Abs(c.Time.Seconds()-0.040) > 0.001 {
		t.Errorf("%+v, want 1 call in 40 ms", c)
	}
}
