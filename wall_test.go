package shield

import (
	"testing"
	"time"
)

// setClock has the time of day differ by a step from the computer's, until the test ends.
func setClock(t *testing.T) (step func(by time.Duration)) {
	t.Helper()
	before := clock
	t.Cleanup(func() { clock = before })
	return func(by time.Duration) { clock = func() time.Time { return before().Round(0).Add(by) } }
}

// The time of day of any instant is by the clock as it shows now, and not by what it showed
// when the process began.
func TestTimeOfDayFollowsTheClock(t *testing.T) {
	step := setClock(t)
	for _, by := range []time.Duration{time.Hour, -time.Hour, 0} {
		step(by)
		for _, ahead := range []time.Duration{0, time.Minute, -time.Minute} {
			if off := At(Now() + ahead).Sub(time.Now().Round(0).Add(by + ahead)).Abs(); off > time.Second {
				t.Errorf("after a step by %v, %v from now is off by %v", by, ahead, off)
			}
		}
	}
}
