package shield

import (
	"testing"
	"time"
)

// A client that comes before its time is let in if the backend would be idle otherwise,
// and only then.
func TestStandbyTakesWhatIsLost(t *testing.T) {
	g := mustNew(t, Config{Capacity: perSecond(100, 10)}, nil)
	now := time.Minute
	for i := range 2000 { // 1990 have a time
		back(now, g.Admit(now, one(1+i)))
	}
	hammer := func(from, until time.Duration) (admitted int) {
		for i, at := 0, from; at < until; i, at = i+1, at+2*ms {
			if d := g.Admit(at, one(101+i%100)); d.Admit { // each five times per second
				admitted++
				d.Done(at, Served)
			} else if d.Hold > 0 {
				d.Sent()
			}
		}
		return admitted
	}
	if n := hammer(now+150*ms, now+time.Second); n > 2 {
		t.Errorf("%d admitted before any other can have come back", n)
	}
	// No other client comes back: nearly all is lost.
	if n := hammer(now+3*time.Second, now+5*time.Second); n < 180 {
		t.Errorf("%d admitted in two seconds, of a backend that does 100 and has nothing else to do", n)
	}
}
