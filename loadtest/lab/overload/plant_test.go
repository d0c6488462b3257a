package overload

import (
	"testing"
	"time"
)

// A restart loses what is at the backend, and who comes until it is over is refused.
func TestRestart(t *testing.T) {
	s := eight(steps(0, 80), 30, time.Second)
	s.Plant.Restart = [2]time.Duration{at(10), at(12)}
	r := Run(s, None, 1)
	before, down, after := r.Between(0, 10), r.Between(10, 12), r.Between(12, 29)
	if before.Failed > 0 || after.Failed > 0 || down.Good > 0 {
		t.Errorf("%d failed before, %d after, and %d were served meanwhile; want none", before.Failed, after.Failed, down.Good)
	}
	if lost := down.Failed - down.Attempts; lost < 1 || lost > 20 {
		t.Errorf("%d in flight were lost, want about 4", lost)
	}
	if after.Good < after.Attempts*98/100 {
		t.Errorf("%d of %d served afterwards", after.Good, after.Attempts)
	}
}
