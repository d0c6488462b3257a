package loadshed

import (
	"testing"
	"time"
)

func TestDrain(t *testing.T) {
	const ms = time.Millisecond
	var g gate
	if got := g.Drain(); got != time.Second {
		t.Errorf("before any completion Drain = %v, want 1s", got)
	}
	for took, want := range map[time.Duration]time.Duration{400 * ms: 400 * ms, 50 * ms: 50 * ms} {
		for range 200 {
			g.Enter(1)
			g.Leave(took)
		}
		if got := g.Drain(); got < want-ms || got > want+ms {
			t.Errorf("after 200 requests of %v Drain = %v", want, got)
		}
		g.Enter(1)
		g.Leave(time.Hour) // a download
		if got := g.Drain(); got > 5*want {
			t.Errorf("after one more of an hour Drain = %v", got)
		}
	}
}
